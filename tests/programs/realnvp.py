"""Program 29, RealNVP (mlx-examples normalizing_flow): masked couplings that turn two moons into normal numbers."""

from __future__ import annotations

from math import log, pi

import numpy as np
from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops


class Coupling(ag.Layer):
    def __init__(self, mask: Array) -> None:
        self.mask = ag.ag_tensor(mask, dtype="bool")
        self.conditioner = nn.Sequential(nn.Linear(2, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, y: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        shift, log_scale = ops.chunk(self.conditioner(ops.where(self.mask, 0.0, y)), 2)
        x = ops.where(self.mask, (y - shift) * ops.exp(-log_scale), y)
        return x, ops.sum(ops.where(self.mask, -log_scale, 0.0), 0)


class RealNVP(ag.Layer):
    def __init__(self, transforms: int) -> None:
        self.couplings = [Coupling(np.array([[i % 2 == 0], [i % 2 == 1]])) for i in range(transforms)]

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        total = 0.0
        for coupling in self.couplings[::-1]:
            x, log_det = coupling(x)
            total = total + log_det
        return ops.sum(-0.5 * (ops.square(x) + log(2 * pi)), 0) + total


def program(draw: Draw) -> tuple[object, Batches]:
    model = RealNVP(4)
    fill(model, draw)
    optimizer = ag.optim.Adam(model.parameters(), lr=1e-2)
    angle = draw.uniform(1, 32) * np.float32(pi)
    moon = np.float32([1, 1]).repeat(16) - np.float32([0, 2]).repeat(16)
    x = np.concatenate([np.cos(angle) * moon + (1 - moon) / 2, np.sin(angle) * moon + (1 - moon) / 4]) + draw(2, 32)

    def step(x: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = -ops.mean(model(x))
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(x,)] * 8
