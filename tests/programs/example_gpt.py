"""Program 5, Karpathy's nanoGPT, as examples/gpt.py has it."""

from __future__ import annotations

from functools import partial

from programs.drawn import Batches, Draw
from programs.of_examples import filled

from ag import optim
from examples import gpt


def program(draw: Draw) -> tuple[object, Batches]:
    model = filled(gpt.GPT(), draw)
    batches = [(draw.ids(68, 64, 16), draw.ids(68, 64, 16)) for _ in range(5)]
    return partial(gpt.step, model, optim.AdamW(model, lr=5e-3, beta2=0.95, weight_decay=0.1)), batches
