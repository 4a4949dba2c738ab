from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn

VOCABULARY, BLOCK, HIDDEN = 27, 8, 16


class FlattenConsecutive(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, time, features = x.shape
        return x.reshape(samples, time // self.n, features * self.n)


class BatchNorm(nn.BatchNorm1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


def level(features: int) -> list[nn.Module]:
    return [FlattenConsecutive(2), nn.Linear(2 * features, HIDDEN, bias=False), BatchNorm(HIDDEN), nn.Tanh()]


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(nn.Embedding(VOCABULARY, 8), *level(8), *level(HIDDEN), *level(HIDDEN),
                          nn.Linear(HIDDEN, VOCABULARY))
    for name, p in model.named_parameters():
        p.data = torch.tensor(draw(*p.shape[::-1], scale=0.5).T if name == "0.weight" else draw(*p.shape, scale=0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(ids: object, targets: object) -> float:
        loss = nn.functional.cross_entropy(model(torch.tensor(ids).T).squeeze(1), torch.tensor(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw.ids(VOCABULARY, BLOCK, 16), draw.ids(VOCABULARY, 16)) for _ in range(6)]
