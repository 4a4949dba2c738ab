"""The primitives of attention, over [features, time, batch] with the features of heads side by side.

The numpy functions work on one matrix per sample and head, in all threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ag.engine.cpu_threads import WIDE, scratch, shares, together
from ag.engine.kernels.random import drawn
from ag.engine.kernels.reduce import total
from ag.engine.primitive import Array, primitive
from ag.engine.shape import Layout, Shape

_TILE = 64  # times of which one workgroup has the results
_LINE = 16  # samples that share a line of the cache, which two threads must not write to


def _sizes(q: Shape, k: Shape, v: Shape, heads: int, rate: float, held: int) -> Layout:
    """`held`: of how many operands a workgroup reads the same rows again and again."""
    d, dv = q[0] // heads, v[0] // heads
    wide = max(d, dv)
    return {"batch": q[2], "queries": q[1], "keys": k[1], "d": d, "dv": dv, "d_values": dv, "dropped": int(rate > 0),
            "blocks": max(1, -(-wide // 32)), "tiles": -(-q[1] // _TILE) - -k[1] // _TILE,
            "held": held, "vector": q[2] == 1 and q[1] % 4 == k[1] % 4 == 0}


@primitive(lambda q, _k, v, _key, *, heads, **_params: ((v[0], *q[1:]), (heads, *q[1:])), outputs=2,
           layout=lambda _out, _lse, q, k, v, _key, *, heads, rate, **_params: _sizes(q, k, v, heads, rate, 1))
def attention(
    out: Array, lse: Array, q: Array, k: Array, v: Array, key: Array, *,
    heads: int, factor: float, causal: bool, rate: float,
) -> None:
    # Per sample and head: out = v softmax(factor k^T q), and the logarithms of the softmax' denominators.
    kept = kept_ones(key, (q.shape[2], heads, q.shape[1], k.shape[1]), rate, q.dtype)
    together([partial(_attend, *part, factor, causal) for part in _parts((out, lse, q, k, v), kept, heads)])


def _attend(arrays: list[Array], kept: Array | None, heads: int, factor: float, causal: bool) -> None:
    """`attention` in one thread; what dropout keeps comes as a mask."""
    out, lse, q, k, v = arrays
    mq, mk, mv, result, logs = scratch(q.dtype, [_shape(x, heads) for x in (q, k, v, out, lse)])
    for matrices, x, scale in ((mq, q, factor), (mk, k, 1.0), (mv, v, 1.0)):
        _take(matrices, x, heads, scale)
    for m, i, j, hidden in _blocks(len(mq), q.shape[1], k.shape[1], causal, q.dtype):
        w = _scores(mk[m, :, j], mq[m, :, i], hidden)
        top = np.maximum.reduce(w, 1, keepdims=True)
        w -= top
        np.exp(w, out=w)
        mass = total(w, 1)
        if kept is not None:
            w *= kept[m, j, i]
        np.divide(mv[m, :, j] @ w, mass, out=result[m, :, i])
        np.add(np.log(mass), top, out=logs[m, :, i])
    _put(out, result, heads)
    _put(lse, logs, heads)


@primitive(lambda y, _g, *, heads: (heads, *y[1:]), layout=lambda _delta, y, _g, *, heads: {
    "features": y[0] // heads, "rest": y[1] * y[2]})
def attention_delta(delta: Array, y: Array, g: Array, *, heads: int) -> None:
    np.add.reduce((y * g).reshape(heads, y.shape[0] // heads, *y.shape[1:]), 1, out=delta)


@primitive(lambda q, k, v, *_others, **_params: (q, k, v), outputs=3,
           layout=lambda dq, dk, dv, *_others, heads, rate, **_params: _sizes(dq, dk, dv, heads, rate, 2))
def attention_grad(
    dq: Array, dk: Array, dv: Array, q: Array, k: Array, v: Array, g: Array, lse: Array, delta: Array, key: Array, *,
    heads: int, factor: float, causal: bool, rate: float,
) -> None:
    # The weights w are made again.  dv = g w^T; with the slopes s = w (v^T g - delta) of the scores, dq = k s factor
    # and dk = q s^T factor; delta is what the softmax' denominator sends back.
    kept = kept_ones(key, (q.shape[2], heads, q.shape[1], k.shape[1]), rate, q.dtype)
    arrays = (dq, dk, dv, q, k, v, g, lse, delta)
    together([partial(_send_back, *part, factor, causal) for part in _parts(arrays, kept, heads)])


def _send_back(arrays: list[Array], kept: Array | None, heads: int, factor: float, causal: bool) -> None:
    """`attention_grad` in one thread; what dropout keeps comes as a mask."""
    results, given = arrays[:3], arrays[3:]
    q, k = given[:2]
    matrices = scratch(q.dtype, [_shape(x, heads) for x in (*given, *results)])
    (mq, mk, mv, mg, logs, deltas), found = matrices[:6], matrices[6:]
    for matrix, x, scale in zip(matrices[:6], given, (factor, *[1.0] * 5), strict=True):
        _take(matrix, x, heads, scale)
    if not q.shape[1]:  # nothing would be added
        found[1].fill(0)
        found[2].fill(0)
    for m, i, j, hidden in _blocks(len(mq), q.shape[1], k.shape[1], causal, q.dtype):
        w = _scores(mk[m, :, j], mq[m, :, i], hidden)
        w -= logs[m, :, i]
        np.exp(w, out=w)
        s = mv[m, :, j].swapaxes(1, 2) @ mg[m, :, i]
        if kept is not None:
            s *= kept[m, j, i]
        s -= deltas[m, :, i]
        s *= w
        if kept is not None:
            w *= kept[m, j, i]
        np.matmul(mk[m, :, j], s, out=found[0][m, :, i])
        _add_product(found[1][m], j, mq[m, :, i], s, first=i.stop == q.shape[1])
        _add_product(found[2][m], j, mg[m, :, i], w, first=i.stop == q.shape[1])
    for out, result, scale in zip(results, found, (factor, 1.0, 1.0), strict=True):
        _put(out, result, heads, scale)


def _add_product(whole: Array, keys: slice, x: Array, y: Array, first: bool) -> None:
    """Add x y^T to what is there of some keys; the `first` product, of all keys that are seen, takes the place."""
    if first:
        np.matmul(x, y.swapaxes(1, 2), out=whole[:, :, keys])
        whole[:, :, keys.stop :] = 0
    else:
        whole[:, :, keys] += x @ y.swapaxes(1, 2)


def _parts(
    arrays: tuple[Array, ...], kept: Array | None, heads: int
) -> Iterator[tuple[list[Array], Array | None, int]]:
    """The heads and samples that each thread does: arrays, mask and number of heads."""
    batch = arrays[0].shape[2]
    large = sum(x.size for x in arrays) >= WIDE
    groups = shares(range(heads)) if large else [range(heads)]
    samples = shares(range(0, batch, _LINE)) if large and len(groups) == 1 else [range(0, batch, _LINE)]
    for of in groups:
        for first in samples:
            some = slice(first[0], min(batch, first[-1] + _LINE)) if first else slice(0)
            yield ([x[of[0] * (x.shape[0] // heads) : (of[-1] + 1) * (x.shape[0] // heads), :, some] for x in arrays],
                   None if kept is None else _joined(kept[some, of[0] : of[-1] + 1]), len(of))


def _joined(x: Array) -> Array:
    """With its first two axes as one, which may be empty, as -1 may not."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _shape(x: Array, heads: int) -> Shape:
    """Of [heads * d, time, batch] as one matrix [d, time] per sample and head."""
    return x.shape[2] * heads, x.shape[0] // heads, x.shape[1]


def _by_head(x: Array, heads: int) -> Array:
    """`x` as [batch, heads, d, time], without a copy."""
    return x.reshape(heads, x.shape[0] // heads, *x.shape[1:]).transpose(3, 0, 1, 2)


def _take(matrices: Array, x: Array, heads: int, factor: float) -> None:
    """`factor` times `x`, as matrices."""
    given = _by_head(x, heads)
    np.multiply(given, factor, out=matrices.reshape(given.shape))


def _put(out: Array, matrices: Array, heads: int, factor: float = 1.0) -> None:
    """The reverse, into `out`."""
    wanted = _by_head(out, heads)
    np.multiply(matrices.reshape(wanted.shape), factor, out=wanted)


def _blocks(
    matrices: int, queries: int, keys: int, causal: bool, dtype: object
) -> Iterator[tuple[slice, slice, slice, Array | None]]:
    """Choose matrices, queries, the last first, and keys done together, and what hides the future from scores."""
    tall = max(1, min(queries, max(_TILE, WIDE // keys)))
    count = max(1, WIDE // (keys * tall))
    for first in reversed(range(0, queries, tall)):
        part = slice(first, min(first + tall, queries))
        seen = min(keys, part.stop) if causal else keys
        hidden = _hidden(seen, part.stop - first, first, dtype) if causal else None
        for m in range(0, matrices, count):
            yield slice(m, m + count), part, slice(seen), hidden


@lru_cache(maxsize=64)
def _hidden(keys: int, queries: int, first: int, dtype: np.dtype[Any]) -> Array:
    """Make the term that, added to scores, hides later keys from queries beginning with number `first`."""
    found: Array = np.where(np.tri(keys, queries, -first - 1), -np.inf, 0).astype(dtype)
    return found


def _scores(k: Array, q: Array, hidden: Array | None) -> Array:
    """Products of keys and queries, [matrices, keys, queries]."""
    w: Array = k.swapaxes(1, 2) @ q
    return w if hidden is None else np.add(w, hidden, out=w)


def kept_ones(key: Array, shape: Shape, rate: float, dtype: np.dtype[Any]) -> Array | None:
    """Draw dropout of ones [batch, heads, queries, keys], as [batch, heads, keys, queries]; None without it."""
    if not rate:
        return None
    kept = drawn(key, shape).swapaxes(2, 3) >= np.float32(rate)
    mask: Array = np.multiply(kept, dtype.type(1.0 / (1.0 - rate)), order="C")
    return mask


@primitive(layout=lambda out, _x, **_params: {"batch": out[0], "queries": out[1], "keys": out[2]})
def attention_weights(out: Array, x: Array, *, factor: float, causal: bool) -> None:
    np.multiply(x, factor, out=out)
    if causal:
        out[:, np.tri(x.shape[1], x.shape[2]) == 0] = -np.inf
    out -= np.maximum.reduce(out, 2, keepdims=True)
    np.exp(out, out=out)
    out /= np.add.reduce(out, 2, keepdims=True)
