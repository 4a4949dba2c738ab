from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape) if p.ndim > 1 else draw(*p.shape, 1)[:, 0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = draw(2, 40, scale=1.0), draw.ids(2, 1, 40) * 2.0 - 1.0

    def step(x: object, y: object) -> float:
        inputs, target = torch.tensor(x).T, torch.tensor(y, dtype=torch.float32).T
        loss = (1 - target * model(inputs)).relu().mean() + 1e-4 * sum((p * p).sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(x, y)] * 8
