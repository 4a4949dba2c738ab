"""Rows of the case table: more elementwise functions, max, concatenation, slicing."""

from __future__ import annotations

import math

import numpy as np
import oracles
from rows import ONE, Bad, Row, away_from, every, positive

import ag

FUNCTIONS = [
    Row("ag_sqrt", oracles.each(math.sqrt), every(ONE), [positive]),
    Row("ag_abs", oracles.each(abs), every(ONE), [away_from(0)]),
]

# ---------------------------------------------------------------------------------------------- activations


def gelu(x: float, approximate: str = "none") -> float:
    if approximate == "tanh":
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


RECTIFIERS = [
    Row("ag_leaky_relu", oracles.ACTIVATIONS["leaky_relu"], every(ONE, {}, {"slope": 0.25}), [away_from(0)]),
    # x times a gate that is made around 0.5 and 1: the error is relative to x
    Row("ag_silu", oracles.ACTIVATIONS["silu"], every(ONE), ulps=16, size=np.abs),
    Row("ag_gelu", oracles.each(gelu), every(ONE, {}, {"approximate": "tanh"}), ulps=16,
        size=lambda x, **_: np.abs(x), bad=[
            Bad("an approximation of gelu that does not exist", [(2, 3)], lambda x: ag.ag_gelu(x, "erf"), ValueError,
                ["ag_gelu: approximate is 'erf'", "'none' or 'tanh'"]),
        ]),
]

ROWS: list[Row] = [*FUNCTIONS, *RECTIFIERS]
