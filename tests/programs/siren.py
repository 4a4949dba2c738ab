"""Program 55, SIREN (lucidrains/siren-pytorch): an image as a function of the place, by layers of sines."""

from __future__ import annotations

from math import sqrt

import numpy as np
from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class Siren(ag.Layer):
    def __init__(self, dim_in: int, dim_out: int, w0: float = 1.0) -> None:
        self.linear, self.w0 = nn.Linear(dim_in, dim_out), w0
        self.bound = 1 / dim_in if w0 > 1.0 else sqrt(6 / dim_in) / w0

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return ops.sin(self.w0 * self.linear(x))


def program(draw: Draw) -> tuple[object, Batches]:
    layers = [Siren(2, 24, w0=30.0), Siren(24, 24), Siren(24, 24)]
    for layer in layers:
        for p in layer.parameters().values():
            p.data = (draw.uniform(*p.shape) * 2 - 1) * np.float32(layer.bound)
    last = nn.Linear(24, 3)
    for p in last.parameters().values():
        p.data = (draw.uniform(*p.shape) * 2 - 1) * np.float32(0.5)
    model = nn.Sequential(*layers, last)
    optimizer = ag.optim.Adam(model.parameters(), lr=1e-3)

    def step(places: ag.Tensor, colours: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.mse_loss(model(places), colours)
        optimizer.step(ag.backward(loss))
        return loss

    side = np.linspace(-1.0, 1.0, 8, dtype="f")
    places = np.stack(np.meshgrid(side, side, indexing="ij")).reshape(2, -1)
    return step, [(places, draw.uniform(3, 64))] * 6
