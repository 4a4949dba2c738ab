"""Rows of the case table: more elementwise functions, max, concatenation, slicing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oracles
from rows import ONE, Bad, Row, Shape, away_from, case, every, positive

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

AXES = [
    *every([[(1,)], [(7,)], [(1031,)], [(3, 5)], [(33, 65)], [(2, 3, 5)], [(2, 3, 4, 5)], [(3, 0)], [(0, 3)]]),
    *every([[(3, 5)], [(33, 65)], [(2, 3, 4, 5)]], {"dim": 1}, {"dim": -1}),
]


def log_softmax_size(x: np.ndarray[Any, Any], dim: int = 0) -> np.ndarray[Any, Any]:
    return 1 + abs(x) + abs(x).max(initial=0) + math.log(max(1, x.shape[dim]))


LOG_SOFTMAX = [
    Row("ag_log_softmax", oracles.log_softmax, AXES, ulps=8, terms=lambda x, dim=0: x.shape[dim],
        size=log_softmax_size, bad=[
            Bad("log_softmax along an axis that is not there", [(2, 3)], lambda x: ag.ag_log_softmax(x, 2),
                ag.ShapeError, ["ag_log_softmax: dim 2 of a tensor with 2 axes", "-2..1"]),
        ]),
]

# ---------------------------------------------------------------------------------------------- maximum


def far_apart(rng: np.random.Generator, shape: Shape, _before: Any) -> np.ndarray[Any, Any]:
    """Numbers that differ by at least 1/64: which one is largest does not change near them."""
    size = math.prod(shape)
    return (rng.permutation(size).reshape(shape) - size // 2) / 64


MAX = [
    Row("ag_max", lambda x, dim=None, keepdim=False: np.max(x, axis=dim, keepdims=keepdim), [
        *every([[()], [(1,)], [(7,)], [(3, 5)], [(2, 3, 4, 5)], [(33, 65)], [(1031,)], [(140_000,)]]),
        *every([[(3, 5)], [(33, 65)], [(2, 3, 4, 5)]], {"dim": 0}, {"dim": -1}, {"dim": 1, "keepdim": True}),
        case((2, 3, 4, 5), dim=(0, 2)), case((2, 3, 4, 5), dim=(1, -1), keepdim=True), case((3, 5), dim=()),
        case((3, 4099), dim=1), case((0, 3), dim=1)], [far_apart], bad=[
            Bad("the maximum over an axis that is not there", [(2, 3)], lambda x: ag.ag_max(x, 2), ag.ShapeError,
                ["ag_max: dim 2 of a tensor with 2 axes", "-2..1"]),
            Bad("the maximum of no element", [(3, 0)], lambda x: ag.ag_max(x, dim=1), ag.ShapeError,
                ["ag_max: x is (3, 0) and dim is 1", "at least one element"]),
        ]),
]

ROWS: list[Row] = [*FUNCTIONS, *RECTIFIERS, *LOG_SOFTMAX, *MAX]
