"""Program 13, PyTorch's super resolution: convolutions whose channels become the pixels of a larger image."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(8, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 9, 3, padding=1), nn.PixelShuffle(3))
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.Adam(model, lr=0.01)

    def step(x: ag.Tensor, target: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.mse_loss(model(x), target)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw.uniform(1, 8, 8, 4), draw.uniform(1, 24, 24, 4)) for _ in range(6)]
