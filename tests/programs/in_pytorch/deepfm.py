from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional

FIELDS = [5, 7, 4]


class DeepFM(nn.Module):
    def __init__(self, factors: int) -> None:
        super().__init__()
        self.vectors, self.weights = nn.Embedding(sum(FIELDS), factors), nn.Embedding(sum(FIELDS), 1)
        self.linear = nn.Linear(1, 1)
        self.hidden = nn.Linear(len(FIELDS) * factors, 16)
        self.last = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        vectors = self.vectors(x)
        square_of_sum, sum_of_square = vectors.sum(1) ** 2, (vectors**2).sum(1)
        linear = self.linear(self.weights(x).sum(1))
        deep = self.last(self.hidden(vectors.transpose(1, 2).flatten(1)).relu() * kept / 0.9)
        return linear + 0.5 * (square_of_sum - sum_of_square).sum(1, keepdim=True) + deep


def program(draw: Draw) -> tuple[object, Batches]:
    model = DeepFM(8)
    for name, p in model.named_parameters():
        turned = name in ("vectors.weight", "weights.weight")
        drawn = draw(*p.shape[::-1], scale=0.5).T if turned else draw(*p.shape, scale=0.5)
        p.data = torch.tensor(drawn)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x: object, kept: object, clicked: object) -> float:
        logits = model(torch.tensor(x).T, torch.tensor(kept).T)
        loss = functional.binary_cross_entropy_with_logits(logits, torch.tensor(clicked).T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    x = draw.ids(4, 3, 24) + [[0], [5], [12]]
    clicked = draw.ids(2, 1, 24).astype("f")
    return step, [(x, (draw.uniform(16, 24) < 0.9).astype("f"), clicked) for _ in range(6)]
