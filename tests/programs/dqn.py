"""Program 44, DQN (cleanrl dqn.py): values of actions, towards those of a target network, by Huber's loss."""

from __future__ import annotations

import numpy as np
from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def q_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))


def program(draw: Draw) -> tuple[object, Batches]:
    network, target = q_network(), q_network()
    for p in network.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    target.load_state_dict(network.state_dict())
    optimizer = ag.optim.Adam(network.parameters(), lr=0.01)
    gamma = 0.99

    def step(batch: dict[str, ag.Tensor], tau: ag.Tensor) -> ag.Tensor:
        with ag.no_grad():
            best = ops.max(target(batch["next"]), dim=0, keepdim=True)
            goal = batch["reward"] + gamma * best * (1.0 - batch["done"])
        with ag.with_grad_tape():
            value = ops.gather(network(batch["now"]), 0, batch["action"])
            loss = ops.huber_loss(value, goal)
        optimizer.step(ag.backward(loss))
        for p, t in zip(network.parameters().values(), target.parameters().values(), strict=True):
            t += tau * (p - t)
        return loss

    batches = [{"now": draw(4, 16, scale=1.0), "action": draw.ids(3, 1, 16), "reward": draw(1, 16, scale=1.0),
                "next": draw(4, 16, scale=1.0), "done": draw.ids(2, 1, 16).astype("f")} for _ in range(8)]
    return step, [(batch, np.float32([[k % 3 == 2]])) for k, batch in enumerate(batches)]
