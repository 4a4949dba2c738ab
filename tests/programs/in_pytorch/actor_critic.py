from __future__ import annotations

import torch
from programs.actor_critic import returns_of
from programs.drawn import Batches, Draw
from torch import nn


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine1, self.action_head, self.value_head = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.affine1(x).relu()
        return self.action_head(x).softmax(1), self.value_head(x)


def program(draw: Draw) -> tuple[object, Batches]:
    model = Policy()
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)

    def step(*batch: object) -> float:
        states, actions, returns = (torch.tensor(part).T for part in batch)
        returns = (returns - returns.mean()) / (returns.std() + 1e-7)
        probabilities, values = model(states)
        log_prob = probabilities.gather(1, actions).log()
        advantage = returns - values.detach()
        loss = (-log_prob * advantage).sum() + nn.functional.smooth_l1_loss(values, returns, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw(4, 12, scale=1.0), draw.ids(2, 1, 12), returns_of(draw.uniform(12))) for _ in range(8)]
