"""Program 8, PyTorch's VAE, as examples/vae.py has it."""

from __future__ import annotations

from functools import partial

from programs.drawn import Batches, Draw
from programs.of_examples import filled

from ag import optim
from examples import vae


def program(draw: Draw) -> tuple[object, Batches]:
    model = filled(vae.VAE(), draw)
    batches = [(draw.uniform(64, 64), draw(8, 64, scale=1.0)) for _ in range(6)]
    return partial(vae.step, model, optim.Adam(model, lr=3e-3)), batches
