from __future__ import annotations

import torch
from programs.actor_critic import returns_of
from programs.drawn import Batches, Draw
from torch import nn


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(4, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        x = self.affine1(x) * kept / 0.4
        return self.affine2(x.relu()).softmax(1)


def program(draw: Draw) -> tuple[object, Batches]:
    policy = Policy()
    for p in policy.parameters():
        p.data = torch.tensor(draw(*p.shape, scale=0.8))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def step(*batch: object) -> float:
        states, kept, actions, returns = (torch.tensor(part).T for part in batch)
        returns = (returns - returns.mean()) / (returns.std() + 1e-7)
        log_prob = policy(states, kept).gather(1, actions).log()
        loss = (-log_prob * returns).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw(4, 12, scale=1.0), draw.uniform(16, 12) < 0.4, draw.ids(2, 1, 12),
                   returns_of(draw.uniform(12))) for _ in range(8)]
