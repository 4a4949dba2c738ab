"""Dropout.  The mask is never stored: the backward pass draws the same bits again from the same key."""

from __future__ import annotations

from typing import Any

import numpy as np

from ag.autograd.op import Cotangents, Need, Run, part_of
from ag.autograd.tensor import Array, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.primitive import primitive
from ag.engine.random import draw_key, philox, uniform_from_bits

__all__ = ["dropped"]


@primitive()
def dropout(out: Array, x: Array, key: Array, *, rate: float) -> None:
    # Element i is kept, and divided by 1 - rate, if the i-th uniform number of the stream is at least rate.
    k = [int(w) for w in key]
    uniform = uniform_from_bits(philox((k[0], k[1]), (k[2], k[3]), x.size)).reshape(x.shape)
    np.multiply(x, (uniform >= np.float32(rate)) * (1.0 / (1.0 - rate)), out=out)


@part_of("ag_dropout")
def dropped(run: Run, x: TensorLike, rate: float) -> tuple[Any, Any]:
    """`x` with each element set to 0 with probability `rate`, the others scaled to keep the mean."""
    key = draw_key(x.backend)  # type: ignore[union-attr]
    return run(dropout, x, key, rate=rate), key


@dropped.vjp
def _dropped_vjp(run: Run, g: Buffer, saved: Buffer, need: Need, rate: float) -> Cotangents:
    return (run(dropout, g, saved, rate=rate),)
