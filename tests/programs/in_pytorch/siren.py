from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


class Siren(nn.Module):
    def __init__(self, dim_in: int, dim_out: int, w0: float = 1.0) -> None:
        super().__init__()
        self.linear, self.w0 = nn.Linear(dim_in, dim_out), w0
        self.bound = 1 / dim_in if w0 > 1.0 else sqrt(6 / dim_in) / w0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.w0 * self.linear(x)).sin()


def program(draw: Draw) -> tuple[object, Batches]:
    layers = [Siren(2, 24, w0=30.0), Siren(24, 24), Siren(24, 24)]
    for layer in layers:
        for p in layer.parameters():
            p.data = torch.tensor((draw.uniform(*p.shape) * 2 - 1) * np.float32(layer.bound))
    last = nn.Linear(24, 3)
    for p in last.parameters():
        p.data = torch.tensor((draw.uniform(*p.shape) * 2 - 1) * np.float32(0.5))
    model = nn.Sequential(*layers, last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(places: object, colours: object) -> float:
        loss = functional.mse_loss(model(torch.tensor(places).T), torch.tensor(colours).T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    side = np.linspace(-1.0, 1.0, 8, dtype="f")
    places = np.stack(np.meshgrid(side, side, indexing="ij")).reshape(2, -1)
    return step, [(places, draw.uniform(3, 64))] * 6
