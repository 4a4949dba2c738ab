"""Program 15, PyTorch's actor-critic: one episode's actions, weighted by how much better they went than expected."""

from __future__ import annotations

import numpy as np
from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class Policy(ag.Layer):
    def __init__(self) -> None:
        self.affine1, self.action_head, self.value_head = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, x: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        x = self.affine1(x).relu()
        return self.action_head(x).softmax(), self.value_head(x)


def returns_of(rewards: np.ndarray) -> np.ndarray:
    returns = rewards.copy()
    for i in range(len(returns) - 2, -1, -1):
        returns[i] += 0.99 * returns[i + 1]
    return returns[None]


def program(draw: Draw) -> tuple[object, Batches]:
    model = Policy()
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.Adam(model, lr=3e-2)

    def step(states: ag.Tensor, actions: ag.Tensor, returns: ag.Tensor) -> ag.Tensor:
        returns = (returns - ops.mean(returns)) / (ops.std(returns) + 1e-7)
        with ag.with_grad_tape():
            probabilities, values = model(states)
            log_prob = probabilities.gather(0, actions).log()
            advantage = returns - values.detach()
            loss = ops.sum(-log_prob * advantage) + ops.smooth_l1_loss(values, returns, reduction="sum")
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw(4, 12, scale=1.0), draw.ids(2, 1, 12), returns_of(draw.uniform(12))) for _ in range(8)]
