"""Softmax, its logarithm and softmax cross-entropy, with their gradients along one axis.
The maximum is subtracted first, so nothing overflows.

    softmax:          y = exp(x - max x) / sum exp(x - max x)         gradient: y (g - sum y g)
    log_softmax:      y = x - max x - log sum exp(x - max x)          gradient: g - exp(y) sum g
    cross-entropy:    sum t (lse - x), where lse = log sum exp x      gradient: softmax(x) sum t - t
"""

from __future__ import annotations

from math import prod

import numpy as np

from ag.engine.kernels.indexing import NOTHING
from ag.engine.kernels.reduce import SHORT, ones, total
from ag.engine.primitive import Array, Call, primitive
from ag.engine.shape import Layout, Shape, axis_layout, columns_of

_SHORT, _LONG, _FEW = 32, 1024, 64  # columns that one invocation does; that a workgroup may do, if they are few
_VERY_LONG = 1 << 14  # columns that are shared by more: 50257 of 2048 took an H100 2.3 ms with 16, 1.3 with 32


def shared_columns(length: int, inner: int, columns: int) -> Layout:
    """Choose how many invocations share a column of `length` elements, `inner` apart, and columns per workgroup."""
    shares = 16
    if length <= _SHORT:
        shares = 1
    elif length >= _LONG and (inner == 1 or columns <= _FEW):
        shares = 128
    elif length >= _VERY_LONG:
        shares = 32
    return columns_of(shares)


def _softmax_layout(out: Shape, x: Shape, *_others: Shape, axis: int, **_params: object) -> Layout:
    inner = prod(x[axis + 1 :])
    return {**axis_layout(out, x, axis=axis), **shared_columns(x[axis], inner, prod(x[:axis]) * inner)}


@primitive(layout=_softmax_layout)
def softmax(out: Array, x: Array, *, axis: int) -> None:
    np.subtract(x, np.maximum.reduce(x, axis, keepdims=True, initial=-np.inf), out=out)  # an empty axis is fine
    np.exp(out, out=out)
    out /= total(out, axis)


@primitive(layout=_softmax_layout)
def softmax_grad(out: Array, y: Array, g: Array, *, axis: int) -> None:
    np.multiply(y, g - total(y * g, axis), out=out)


@primitive(layout=_softmax_layout)
def log_softmax(out: Array, x: Array, *, axis: int) -> None:
    np.subtract(x, np.maximum.reduce(x, axis, keepdims=True, initial=-np.inf), out=out)
    out -= np.log(total(np.exp(out), axis))


@primitive(layout=_softmax_layout)
def log_softmax_grad(out: Array, y: Array, g: Array, *, axis: int) -> None:
    np.subtract(g, np.exp(y) * total(g, axis), out=out)


def _loss_layout(_losses: Shape, dx: Shape, *_others: Shape, **_params: object) -> Layout:
    return {"classes": dx[0], "batch": dx[1], **shared_columns(dx[0], dx[1], dx[1])}


@primitive(lambda x, t, *, factor: ((1, x[1]), x), layout=_loss_layout, outputs=2, bound=True,
           in_place=("dx", "x"))
def softmax_cross_entropy(losses: Array, dx: Array, x: Array, t: Array, *, factor: float) -> Call:
    # Per column: the loss sum_c t (lse - x), and factor times its gradient, softmax(x) * sum(t) - t.
    row = ones(len(x), x.dtype) if len(x) <= SHORT else None  # a product with ones is the quickest sum of a few rows
    scale, loss = np.asarray(factor, x.dtype), losses[0]
    e = np.empty_like(x)
    top, mass, weight = np.empty_like(x, shape=(3, x.shape[1]))

    def add_up(rows: Array, into: Array) -> None:
        if row is not None:
            row.dot(rows, out=into)
        else:
            into[...] = total(rows, 0)[0]

    def call() -> None:
        np.maximum.reduce(x, 0, out=top)
        np.subtract(x, top, dx)
        np.exp(dx, e)
        add_up(e, mass)
        add_up(t, weight)
        np.multiply(dx, t, dx)
        add_up(dx, loss)
        if np.isnan(loss).any():  # of targets of 0 beside logits of -inf
            np.copyto(dx, 0, where=t == 0)
            add_up(dx, loss)
        np.log(mass, top)
        np.multiply(top, weight, top)
        np.subtract(top, loss, loss)
        np.divide(weight, mass, weight)
        np.multiply(e, weight, dx)
        np.subtract(dx, t, dx)
        np.multiply(dx, scale, dx)

    return call


@primitive(lambda x, ids, *, factor: ((1, x[1]), x), layout=_loss_layout, outputs=2,
           in_place=("dx", "x"))
def softmax_cross_entropy_ids(losses: Array, dx: Array, x: Array, ids: Array, *, factor: float) -> None:
    # The same with the class number of each column instead of a distribution.  NOTHING makes 0, other numbers NaN.
    columns, known = np.arange(x.shape[1]), (ids >= 0) & (ids < len(x))
    classes = np.where(known, ids, 0)
    np.subtract(x, np.maximum.reduce(x, 0), out=dx)
    picked = dx[classes, columns]
    np.exp(dx, out=dx)
    mass = total(dx, 0)[0]
    np.subtract(np.log(mass), picked, out=losses[0])
    dx *= factor / mass
    dx[classes, columns] -= factor
    if not known.all():
        losses[:, ~known] = dx[:, ~known] = np.where(ids[~known] == NOTHING, 0, np.nan)


@primitive(lambda ids, *, ignore: ids)
def without(out: Array, ids: Array, *, ignore: int) -> None:
    # out = ids, but NOTHING in the place of one of them
    out[...] = np.where(ids == ignore, NOTHING, ids)
