"""Rows of the case table: more elementwise functions, max, concatenation, slicing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from table import oracles
from table.rows import ONE, Bad, Row, Shape, away_from, case, every, positive

import ag

FUNCTIONS = [
    Row("ag_sqrt", oracles.each(math.sqrt), every(ONE), [positive]),
    Row("ag_abs", oracles.each(abs), every(ONE), [away_from(0)]),
]


def gelu(x: float, approximate: str = "none") -> float:
    if approximate == "tanh":
        return x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


RECTIFIERS = [
    Row("ag_leaky_relu", oracles.ACTIVATIONS["leaky_relu"], every(ONE, {}, {"slope": 0.25}), [away_from(0)]),
    Row("ag_silu", oracles.ACTIVATIONS["silu"], every(ONE), ulps=16),
    Row("ag_gelu", oracles.each(gelu), every(ONE, {}, {"approximate": "tanh"}), ulps=32, bad=[
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


def joined(*xs: Any, dim: int = 0) -> np.ndarray[Any, Any]:
    """One place after the other."""
    axis = dim % xs[0].ndim
    out = np.empty([sum(x.shape[a] for x in xs) if a == axis else n for a, n in enumerate(xs[0].shape)])
    start = 0
    for x in xs:
        for i in np.ndindex(x.shape):
            out[(*i[:axis], i[axis] + start, *i[axis + 1 :])] = x[i]
        start += x.shape[axis]
    return out


KEYS: list[tuple[Shape, Any]] = [
    ((1,), 0), ((7,), slice(2, 5)), ((7,), -1), ((1031,), slice(None, None, -1)), ((7,), slice(5, 2)),
    ((3, 5), (slice(None), 2)), ((3, 5), (slice(None, None, 2), slice(3, None, -2))), ((3, 5), 1), ((3, 5), (2, -4)),
    ((33, 65), (slice(1, -1), slice(60, 2, -7))), ((3, 5), slice(None)), ((), ()), ((), (...,)), ((3, 5), None),
    ((2, 3, 4, 5), (..., 1)), ((2, 3, 4, 5), (0, ..., slice(1, 3), None)), ((2, 3, 4, 5), (slice(-1, -9, -1), 1)),
    ((0, 3), (slice(None), 1)), ((3, 0), slice(1, 2)), ((2, 3, 4, 5), (slice(None), slice(0, 3, 2), None, ..., 0)),
]
PIECES = [
    Row("ag_slice", lambda x, key: x[key], [case(shape, key=key) for shape, key in KEYS], ulps=0,
        terms=lambda *_, **__: 0, call=lambda x, key: x[key], bad=[
            Bad("an index beyond the end", [(2, 3)], lambda x: x[:, 3], IndexError,
                ["ag_slice: index 3 along axis 1 of size 3", "-3..2"]),
            Bad("more indices than axes", [(2, 3)], lambda x: x[0, 0, 0], IndexError,
                ["ag_slice: 3 indices and 0 ellipses", "(2, 3)", "at most 2 and one"]),
            Bad("an index with two ellipses", [(2, 3)], lambda x: x[..., 0, ...], IndexError,
                ["ag_slice: 1 indices and 2 ellipses"]),
            Bad("an index that is a text", [(2, 3)], lambda x: x["a"], TypeError,
                ["ag_slice: an index is str", "ints, slices", "ids and masks"]),
            Bad("a slice between floats", [(2, 3)], lambda x: x[:, 1.0:2.0], TypeError,
                ["ag_slice: ", "1.0", "axis 1", "ints"]),
            Bad("a slice with the step 0", [(2, 3)], lambda x: x[::0], ValueError, ["ag_slice: ", "step 0"]),
        ]),
    Row("ag_concat", joined, [
        case((7,)), case((7,), (1,), (3,)), case((3, 5), (1, 5)), case((3, 5), (3, 2), dim=1), case((33, 65), (2, 65)),
        case((2, 3, 4, 5), (2, 1, 4, 5), (2, 2, 4, 5), dim=1), case((3, 5), (3, 0), (3, 2), dim=-1),
        case((0, 3), (2, 3)), case((0, 3), (0, 3)), case(*[(2, 3)] * 9, dim=1)], ulps=0, terms=lambda *_, **__: 0,
        call=lambda *xs, dim=0: ag.ag_concat(xs, dim), bad=[
            Bad("joining tensors that do not fit", [(2, 3), (2, 4)], lambda x, y: ag.ag_concat([x, y]), ag.ShapeError,
                ["ag_concat: tensor 1 is (2, 3) and tensor 2 is (2, 4)", "except along dim 0"]),
            Bad("joining along an axis that is not there", [(2, 3)], lambda x: ag.ag_concat([x], 2), ag.ShapeError,
                ["ag_concat: dim 2 of a tensor with 2 axes", "-2..1"]),
            Bad("joining no tensor", [], lambda: ag.ag_concat([]), TypeError, ["ag_concat: tensors is empty"]),
            Bad("joining a tensor instead of a list", [(2, 3)], lambda x: ag.ag_concat(x), TypeError,
                ["ag_concat: tensors is a Tensor", "list of at least one tensor"]),
        ]),
    Row("ag_flatten", lambda x: np.array(list(x.flat)).reshape(-1, x.shape[-1]) if x.size else x.reshape(0, 2),
        every([[(7,)], [(3, 5)], [(2, 3, 4, 5)], [(33, 65)], [(3, 0, 2)]]), ulps=0, terms=lambda *_: 0, bad=[
            Bad("flattening a scalar", [()], ag.ag_flatten, ag.ShapeError, ["ag_flatten: x is ()", "batch"]),
        ]),
]

ROWS: list[Row] = [*FUNCTIONS, *RECTIFIERS, *LOG_SOFTMAX, *MAX, *PIECES]
