"""Program 35, the U-Net of DDPM, as examples/ddpm.py has it."""

from __future__ import annotations

from functools import partial

from programs.drawn import Batches, Draw
from programs.of_examples import filled

from ag import optim
from examples import ddpm


def program(draw: Draw) -> tuple[object, Batches]:
    model = filled(ddpm.UNet(), draw)
    batches = [(draw(1, 8, 8, 32), draw.ids(100, 32), draw.uniform(1, 1, 1, 32), draw(1, 8, 8, 32, scale=1.0))
               for _ in range(5)]
    return partial(ddpm.step, model, optim.Adam(model, lr=2e-3)), batches
