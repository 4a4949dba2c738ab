from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


class MF(nn.Module):
    def __init__(self, factors: int, users: int, items: int) -> None:
        super().__init__()
        self.P, self.Q = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return (self.P(user) * self.Q(item)).sum(1) + self.user_bias(user)[:, 0] + self.item_bias(item)[:, 0]


def program(draw: Draw) -> tuple[object, Batches]:
    model = MF(8, users=12, items=20)
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape[::-1]).T)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3)

    def step(user: object, item: object, rating: object) -> float:
        loss = functional.mse_loss(model(torch.tensor(user), torch.tensor(item)), torch.tensor(rating).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    user, item, rating = draw.ids(12, 32), draw.ids(20, 32), draw.ids(5, 32) + 1.0
    return step, [(user, item, rating)] * 8
