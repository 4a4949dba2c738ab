"""Program 55, SIREN, as examples/siren.py has it."""

from __future__ import annotations

from functools import partial

from programs.drawn import Batches, Draw
from programs.of_examples import filled

from ag import optim
from examples import siren


def program(draw: Draw) -> tuple[object, Batches]:
    model = filled(siren.siren(), draw)
    for p in model.parameters().values():
        p.data = p.numpy() / 8
    batch = 2 * draw.uniform(2, 1024) - 1, draw(1, 1024, scale=1.0)
    return partial(siren.step, model, optim.Adam(model, lr=1e-4)), [batch] * 6
