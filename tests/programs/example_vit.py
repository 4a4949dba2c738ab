"""Program 36, lucidrains' ViT, as examples/vit.py has it."""

from __future__ import annotations

from functools import partial

from programs.drawn import Batches, Draw
from programs.of_examples import filled

from ag import optim
from examples import vit


def program(draw: Draw) -> tuple[object, Batches]:
    model = filled(vit.ViT(), draw)
    batches = [(draw.uniform(1, 8, 8, 64), draw.ids(10, 64)) for _ in range(5)]
    return partial(vit.step, model, optim.AdamW(model, lr=3e-3, weight_decay=0.1)), batches
