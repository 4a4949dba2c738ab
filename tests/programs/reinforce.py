"""Program 15, PyTorch's REINFORCE: the log probabilities of an episode's actions, weighted by their returns."""

from __future__ import annotations

from programs.actor_critic import returns_of
from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class Policy(ag.Layer):
    def __init__(self) -> None:
        self.affine1, self.affine2 = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x: ag.Tensor, kept: ag.Tensor) -> ag.Tensor:
        x = self.affine1(x) * kept / 0.4
        return self.affine2(x.relu()).softmax()


def program(draw: Draw) -> tuple[object, Batches]:
    policy = Policy()
    for p in policy.parameters().values():
        p.data = draw(*p.shape, scale=0.8)
    optimizer = ag.optim.Adam(policy, lr=1e-2)

    def step(states: ag.Tensor, kept: ag.Tensor, actions: ag.Tensor, returns: ag.Tensor) -> ag.Tensor:
        returns = (returns - ops.mean(returns)) / (ops.std(returns) + 1e-7)
        with ag.with_grad_tape():
            log_prob = policy(states, kept).gather(0, actions).log()
            loss = ops.sum(-log_prob * returns)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw(4, 12, scale=1.0), draw.uniform(16, 12) < 0.4, draw.ids(2, 1, 12),
                   returns_of(draw.uniform(12))) for _ in range(8)]
