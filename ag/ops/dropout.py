"""Dropout: elements set to 0 at random.  `ag.nn.Dropout` calls it in train mode.

The mask is never stored: the key of the random generator is saved, and the backward pass draws the same bits from it.
Knows no layer and no device.
"""

from __future__ import annotations

from ag.autograd.op import Cotangents, Need, Result, Run, part_of
from ag.engine.buffer import Buffer
from ag.engine.kernels.random import dropout
from ag.engine.random import draw_key

__all__ = ["dropped"]


@part_of("ag_dropout")
def dropped(run: Run, x: Buffer, rate: float) -> Result[Buffer]:
    """`x` with each element set to 0 with probability `rate`, the others scaled to keep the mean."""
    key = draw_key(x.backend)
    return run(dropout, x, key, rate=rate), key


@dropped.vjp
def _dropped_vjp(run: Run, g: Buffer, key: Buffer, need: Need, rate: float) -> Cotangents:
    return (run(dropout, g, key, rate=rate),)
