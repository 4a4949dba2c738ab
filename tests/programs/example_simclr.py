"""Program 58, SimCLR, as examples/simclr.py has it."""

from __future__ import annotations

from functools import partial

from programs.drawn import Batches, Draw
from programs.of_examples import filled

from ag import optim
from examples import simclr


def program(draw: Draw) -> tuple[object, Batches]:
    model = filled(simclr.SimCLR(), draw)
    return partial(simclr.step, model, optim.Adam(model, lr=1e-3)), [(draw(1, 8, 8, 128, scale=1.0),)] * 6
