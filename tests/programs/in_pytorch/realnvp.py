from __future__ import annotations

from math import log, pi

import numpy as np
import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, mask: object) -> None:
        super().__init__()
        self.mask = mask
        self.conditioner = nn.Sequential(nn.Linear(2, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, y: object) -> object:
        shift, log_scale = self.conditioner(torch.where(self.mask, 0.0, y)).chunk(2, -1)
        x = torch.where(self.mask, (y - shift) * (-log_scale).exp(), y)
        return x, torch.where(self.mask, -log_scale, 0.0).sum(-1)


class RealNVP(nn.Module):
    def __init__(self, transforms: int) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(torch.tensor([i % 2 == 0, i % 2 == 1])) for i in range(transforms))

    def forward(self, x: object) -> object:
        total = 0.0
        for coupling in list(self.couplings)[::-1]:
            x, log_det = coupling(x)
            total = total + log_det
        return (-0.5 * (x.square() + log(2 * pi))).sum(-1) + total


def program(draw: Draw) -> tuple[object, Batches]:
    model = RealNVP(4)
    fill_torch(model, draw)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    angle = draw.uniform(1, 32) * np.float32(pi)
    moon = np.float32([1, 1]).repeat(16) - np.float32([0, 2]).repeat(16)
    x = np.concatenate([np.cos(angle) * moon + (1 - moon) / 2, np.sin(angle) * moon + (1 - moon) / 4]) + draw(2, 32)

    def step(x: object) -> float:
        loss = -model(torch.tensor(x).T).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(x,)] * 8
