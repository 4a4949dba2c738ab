"""Program 49, a decoder with Bahdanau's attention, without recurrence, as examples/seq2seq.py has it."""

from __future__ import annotations

from functools import partial

from programs.drawn import Batches, Draw
from programs.of_examples import filled, words

from ag import optim
from examples import seq2seq


def program(draw: Draw) -> tuple[object, Batches]:
    model = filled(seq2seq.Seq2Seq(), draw)
    return partial(seq2seq.step, model, optim.Adam(model, lr=3e-3)), [words(draw) for _ in range(6)]
