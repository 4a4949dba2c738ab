"""The primitives of softmax and its losses, and of layer norm, RMS norm and batch norm of x [features, samples].

    rate = 1 / sqrt(variance + eps)     h = rate (x - mean)     out = gamma h + beta

RMS norm has neither mean nor beta; the mean square is its variance.  Variances take two passes, so that a large mean
costs no digits.  The numpy functions go through a matrix in blocks that stay in a core's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from ag.engine.kernels.indexing import NOTHING
from ag.engine.kernels.reduce import SHORT, ones, total
from ag.engine.primitive import Array, Call, primitive
from ag.engine.shape import Layout, Shape, axis_layout

_BLOCK = 1 << 16  # elements that the numpy functions work on at a time


@primitive()
def inverse_std(out: Array, variance: Array, *, eps: float) -> None:
    out[...] = _rate(variance, eps)


@primitive(outputs=0, updates=("running",))
def running_update(running: Array, value: Array, variance: Array, *, momentum: float, factor: float) -> None:
    # The exponential average moves towards factor * value, from the nearer end: a small value has no digits left in
    # value - running.  It stays where the batch overflowed: a step that is skipped leaves no infinity behind.
    goal = factor * value
    near = momentum <= 0.5
    moved = running + momentum * (goal - running) if near else (running - goal) * (1 - momentum) + goal
    np.copyto(running, moved, where=np.isfinite(goal) & np.isfinite(variance))


def _row_blocks(x: Array) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, x.shape[1]))
    return (slice(i, i + step) for i in range(0, x.shape[0], step))


def _column_blocks(x: Array) -> Iterator[slice]:
    step = max(1024, _BLOCK // x.shape[0])  # short pieces of rows cost numpy more than the cache gives
    return (slice(i, i + step) for i in range(0, x.shape[1], step))


def _pieces(x: Shape, chunk: int) -> Shape:
    """Of each row, one number per `chunk` elements."""
    return x[0], max(1, -(-x[1] // chunk))


def _pieces_layout(out: Shape, x: Shape, *_others: Shape, **_params: object) -> Layout:
    return {"rows": x[0], "length": x[1], "pieces": out[1]}


def _sums_layout(out: Shape, _out: Shape, x: Shape, _g: Shape, mean: Shape, _v: Shape, **_params: object) -> Layout:
    return {**_pieces_layout(out, x), "row_step": int(mean[0] > 1), "column_step": int(mean[1] > 1)}


def _columns_layout(out: Shape) -> Layout:
    """Those that a shader shares among invocations, as `axis_layout` has them."""
    return {"outer": 1, "length": out[0], "inner": out[1]}


def _features_layout(out: Shape, *_others: Shape, **_params: object) -> Layout:
    return {"features": out[0], "samples": out[1], **_columns_layout(out)}


def _rows_layout(out: Shape, *_others: Shape, **_params: object) -> Layout:
    return {"n": prod(out), "length": out[1]}


def _rate(variance: Array, eps: float) -> Array:
    """The inverse deviation; NaN where the variance overflowed, so that no norm is 0 in silence."""
    rate: Array = 1.0 / np.sqrt(variance + variance.dtype.type(eps))
    np.copyto(rate, np.nan, where=rate == 0)
    return rate


# Short sums in the quickest way, which adds one by one; long ones pairwise.


def _dots_of_columns(a: Array, b: Array) -> Array:
    dots: Array = np.einsum("ij,ij->j", a, b) if len(a) <= SHORT else total(a * b, 0)[0]
    return dots


def _dots_of_rows(a: Array, b: Array) -> Array:
    """May overwrite `a`."""
    dots: Array = np.einsum("ij,ij->i", a, b) if a.shape[1] <= SHORT else np.add.reduce(np.multiply(a, b, out=a), 1)
    return dots


def _sums_of_rows(a: Array) -> Array:
    sums: Array = a @ ones(a.shape[1], a.dtype) if a.shape[1] <= SHORT else np.add.reduce(a, 1)
    return sums


@primitive(lambda x, *_others, **_params: (x, (1, x[1]), (1, x[1])), layout=_features_layout, outputs=3,
           cheap=True)
def layer_norm(out: Array, mean: Array, variance: Array, x: Array, gamma: Array, beta: Array, *, eps: float) -> None:
    share = 1.0 / x.shape[0]
    for c in _column_blocks(x):
        h = out[:, c]
        np.multiply(total(x[:, c], 0), share, out=mean[:, c])
        np.subtract(x[:, c], mean[:, c], out=h)
        np.multiply(_dots_of_columns(h, h), share, out=variance[0, c])
        h *= _rate(variance[:, c], eps)
        h *= gamma
        h += beta


@primitive(layout=_features_layout)
def layer_norm_grad(
    dx: Array, x: Array, g: Array, gamma: Array, mean: Array, variance: Array, *, eps: float
) -> None:
    # rate (s - mean(s) - h mean(s h)) with s = gamma g, h = rate (x - mean): what mean and variance send back is in it.
    share = 1.0 / x.shape[0]
    for c in _column_blocks(x):
        s, d, rate = g[:, c] * gamma, dx[:, c], _rate(variance[:, c], eps)
        np.subtract(x[:, c], mean[:, c], out=d)
        dots = _dots_of_columns(s, d)  # below, the square of a rate below 1e-15 may be too small for its type
        along = np.where(rate < 1e-15, dots * share * rate * rate, dots * (share * rate * rate))
        s -= total(s, 0) * share
        d *= along
        np.subtract(s, d, out=d)
        d *= rate


@primitive(lambda x, *_others, **_params: (x, (1, x[1])), layout=_features_layout, outputs=2, cheap=True)
def rms_norm(out: Array, square: Array, x: Array, gamma: Array, *, eps: float) -> None:
    share = 1.0 / x.shape[0]
    for c in _column_blocks(x):
        np.multiply(_dots_of_columns(x[:, c], x[:, c]), share, out=square[0, c])
        h = out[:, c]
        np.multiply(x[:, c], _rate(square[:, c], eps), out=h)
        h *= gamma


@primitive(layout=_features_layout)
def rms_norm_grad(dx: Array, x: Array, g: Array, gamma: Array, square: Array, *, eps: float) -> None:
    # rate (s - h mean(s h)) with s = gamma g, h = rate x: what the mean of the squares sends back is in it.
    share = 1.0 / x.shape[0]
    for c in _column_blocks(x):
        s, h, rate = g[:, c] * gamma, dx[:, c], _rate(square[:, c], eps)
        np.multiply(x[:, c], rate, out=h)
        h *= _dots_of_columns(s, h) * share
        np.subtract(s, h, out=h)
        h *= rate


@primitive(lambda x, _g, _square, *, eps, chunk: _pieces(x, chunk), layout=_pieces_layout)
def rms_norm_sums(dgamma: Array, x: Array, g: Array, square: Array, *, eps: float, chunk: int) -> None:
    # Per row and piece: the sum of g h, with h = rate x.
    rate = _rate(square, eps)
    for r in _row_blocks(x):
        along = x[r] * rate
        for p in range(dgamma.shape[1]):
            piece = slice(p * chunk, (p + 1) * chunk)
            dgamma[r, p] = _dots_of_rows(along[:, piece], g[r, piece])


@primitive(lambda x, _g, _mean, _variance, *, eps, chunk: (_pieces(x, chunk),) * 2, layout=_sums_layout, outputs=2)
def norm_sums(
    dgamma: Array, dbeta: Array, x: Array, g: Array, mean: Array, variance: Array, *, eps: float, chunk: int
) -> None:
    # Per row and piece: the sums of g h and of g, with h = rate (x - mean).
    rate = _rate(variance, eps)
    for r in _row_blocks(x):
        of = r if mean.shape[0] != 1 else slice(None)  # statistics of these rows, or of all columns
        along = x[r] - mean[of]
        along *= rate[of]
        for p in range(dgamma.shape[1]):
            piece = slice(p * chunk, (p + 1) * chunk)
            dgamma[r, p] = _dots_of_rows(along[:, piece], g[r, piece])
            dbeta[r, p] = _sums_of_rows(g[r, piece])


@primitive(lambda x, *, chunk: (_pieces(x, chunk),) * 2, outputs=2,
           layout=lambda mean, _variance, x, *, chunk: _pieces_layout(mean, x))
def norm_statistics(mean: Array, variance: Array, x: Array, *, chunk: int) -> None:
    # Per row and piece.
    for r in _row_blocks(x):
        for p in range(mean.shape[1]):
            part = x[r, p * chunk : (p + 1) * chunk]
            share = 1.0 / part.shape[1]
            np.multiply(np.add.reduce(part, 1), share, out=mean[r, p])
            apart = part - mean[r, p, None]
            np.multiply(_dots_of_rows(apart, apart), share, out=variance[r, p])


@primitive(lambda means, _variances, *, length, chunk: ((means[0], 1),) * 2, outputs=2,
           layout=lambda mean, _variance, means, *_others, **_params: {"rows": mean[0], "pieces": means[1]})
def joined_statistics(
    mean: Array, variance: Array, means: Array, variances: Array, *, length: int, chunk: int
) -> None:
    # Of whole rows, given those of their pieces.
    shares = np.minimum(chunk, length - chunk * np.arange(means.shape[1])).astype(means.dtype) / length
    np.add.reduce(means * shares, 1, keepdims=True, out=mean)
    np.add.reduce((variances + (means - mean) ** 2) * shares, 1, keepdims=True, out=variance)


@primitive(layout=_rows_layout, cheap=True)
def normalize(out: Array, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, *, eps: float) -> None:
    rate = _rate(variance, eps)
    for r in _row_blocks(x):
        h = out[r]
        np.subtract(x[r], mean[r], out=h)
        h *= rate[r] * gamma[r]
        h += beta[r]


@primitive(layout=_rows_layout)
def batch_norm_grad(
    dx: Array, x: Array, g: Array, gamma: Array, mean: Array, variance: Array, dgamma: Array, dbeta: Array, *,
    eps: float,
) -> None:
    # gamma rate (g - dbeta / length - h dgamma / length) with h = rate (x - mean): rate dgamma / length in one factor.
    share, rate = 1.0 / max(1, x.shape[1]), _rate(variance, eps)
    for r in _row_blocks(x):
        d = dx[r]
        np.subtract(x[r], mean[r], out=d)
        d *= rate[r] * dgamma[r] * share
        np.subtract(g[r], d, out=d)
        d -= dbeta[r] * share
        d *= gamma[r] * rate[r]


# ---------------------------------------------------------------------------------------------- softmax

# The maximum is subtracted first, so nothing overflows.
#
#     softmax:          y = exp(x - max x) / sum exp(x - max x)         gradient: y (g - sum y g)
#     log_softmax:      y = x - max x - log sum exp(x - max x)          gradient: g - exp(y) sum g
#     cross-entropy:    sum t (lse - x), where lse = log sum exp x      gradient: softmax(x) sum t - t

@primitive(layout=axis_layout)
def softmax(out: Array, x: Array, *, axis: int) -> None:
    np.subtract(x, np.maximum.reduce(x, axis, keepdims=True, initial=-np.inf), out=out)  # an empty axis is fine
    np.exp(out, out=out)
    out /= total(out, axis)


@primitive(layout=axis_layout)
def softmax_grad(out: Array, y: Array, g: Array, *, axis: int) -> None:
    np.multiply(y, g - total(y * g, axis), out=out)


@primitive(layout=axis_layout)
def log_softmax(out: Array, x: Array, *, axis: int) -> None:
    np.subtract(x, np.maximum.reduce(x, axis, keepdims=True, initial=-np.inf), out=out)
    out -= np.log(total(np.exp(out), axis))


@primitive(layout=axis_layout)
def log_softmax_grad(out: Array, y: Array, g: Array, *, axis: int) -> None:
    np.subtract(g, np.exp(y) * total(g, axis), out=out)


def _loss_layout(_losses: Shape, dx: Shape, *_others: Shape, **_params: object) -> Layout:
    return {"classes": dx[0], "batch": dx[1], **_columns_layout(dx)}


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
