"""Program 47, skip-grams with negative sampling, as examples/word2vec.py has it."""

from __future__ import annotations

from functools import partial

from programs.drawn import Batches, Draw
from programs.of_examples import filled

from ag import optim
from examples import word2vec


def program(draw: Draw) -> tuple[object, Batches]:
    model = filled(word2vec.SkipGram(), draw)
    batches = [(draw.ids(500, 1, 256), draw.ids(500, 9, 256), draw.ids(2, 9, 256).astype("f")) for _ in range(6)]
    return partial(word2vec.step, model, optim.Adam(model, lr=5e-3)), batches
