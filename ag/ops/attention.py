"""Scaled dot-product attention, of one head or of several at once.

Two kernels do it, forward and backward, and neither stores the matrix of weights: memory grows with the length of the
sequences, not with its square.  They read and write [features, time, batch] as users have it.  Heads of more features
than the kernels' tiles hold, and sequences so long that a driver would end their loops, are composed of products.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import prod, sqrt
from threading import local
from typing import Any

import numpy as np

from ag.buffer import Buffer
from ag.errors import ShapeError
from ag.op import Cotangents, Need, Run, op, part_of
from ag.ops import composed_attention
from ag.primitive import primitive
from ag.rng import draw_key, philox, uniform_from_bits
from ag.shape import Layout, Shape
from ag.tensor import Array, TensorLike

__all__ = ["ag_attention", "attention_of_heads"]

_MOST_FEATURES = 128  # of a head, in the kernels
_LONGEST = 1 << 13  # times; a driver ends an invocation's loops after 65,535 turns
_TILE = 64  # times of which one workgroup has the results
_BLOCK = 1 << 15  # weights that the numpy functions make at a time: they stay in a core's cache


# ---------------------------------------------------------------------------------------------- primitives


def _sizes(q: Shape, k: Shape, v: Shape, heads: int, rate: float) -> Layout:
    d, dv = q[0] // heads, v[0] // heads
    wide = max(d, dv)
    return {"batch": q[2], "queries": q[1], "keys": k[1], "d": d, "dv": dv, "dropped": int(rate > 0),
            "blocks": 1 if wide <= 32 else 2 if wide <= 64 else 4, "tiles": -(-q[1] // _TILE) - -k[1] // _TILE}


@primitive(lambda q, _k, v, _key, *, heads, **_params: ((v[0], *q[1:]), (heads, *q[1:])), outputs=2,
           layout=lambda _out, _lse, q, k, v, _key, *, heads, rate, **_params: _sizes(q, k, v, heads, rate))
def attention(
    out: Array, lse: Array, q: Array, k: Array, v: Array, key: Array, *,
    heads: int, factor: float, causal: bool, rate: float,
) -> None:
    # Per sample and head: out = v softmax(factor k^T q), and the logarithms of the softmax' denominators.
    mq, mk, mv, result, logs = _workspace.arrays(q.dtype, [_shape(x, heads) for x in (q, k, v, out, lse)])
    for matrices, x, scale in ((mq, q, factor), (mk, k, 1.0), (mv, v, 1.0)):
        _take(matrices, x, heads, scale)
    kept = _kept(key, (len(mq), q.shape[1], k.shape[1]), rate, q.dtype)
    for m, i, j, hidden in _blocks(len(mq), q.shape[1], k.shape[1], causal, q.dtype):
        w = _scores(mk[m, :, j], mq[m, :, i], hidden)
        top = np.maximum.reduce(w, 1, keepdims=True)
        np.exp(np.subtract(w, top, out=w), out=w)
        total = np.add.reduce(w, 1, keepdims=True)
        if kept is not None:
            np.multiply(w, kept[m, j, i], out=w)
        np.divide(mv[m, :, j] @ w, total, out=result[m, :, i])
        np.add(np.log(total), top, out=logs[m, :, i])
    _put(out, result, heads)
    _put(lse, logs, heads)


@primitive(lambda y, _g, *, heads: (heads, *y[1:]), layout=lambda _delta, y, _g, *, heads: {
    "features": y[0] // heads, "rest": y[1] * y[2]})
def attention_delta(delta: Array, y: Array, g: Array, *, heads: int) -> None:
    np.add.reduce((y * g).reshape(heads, y.shape[0] // heads, *y.shape[1:]), 1, out=delta)


@primitive(lambda q, k, v, *_others, **_params: (q, k, v), outputs=3,
           layout=lambda dq, dk, dv, *_others, heads, rate, **_params: _sizes(dq, dk, dv, heads, rate))
def attention_grad(
    dq: Array, dk: Array, dv: Array, q: Array, k: Array, v: Array, g: Array, lse: Array, delta: Array, key: Array, *,
    heads: int, factor: float, causal: bool, rate: float,
) -> None:
    # The weights w are made again.  dv = g w^T; with the slopes s = w (v^T g - delta) of the scores, dq = k s factor
    # and dk = q s^T factor; delta is what the softmax' denominator sends back.
    given = (q, k, v, g, lse, delta)
    arrays = _workspace.arrays(q.dtype, [_shape(x, heads) for x in (*given, q, k, v)])
    (mq, mk, mv, mg, logs, deltas), found = arrays[:6], arrays[6:]
    for matrices, x, scale in zip(arrays[:6], given, (factor, *[1.0] * 5), strict=True):
        _take(matrices, x, heads, scale)
    found[1].fill(0)
    found[2].fill(0)
    kept = _kept(key, (len(mq), q.shape[1], k.shape[1]), rate, q.dtype)
    for m, i, j, hidden in _blocks(len(mq), q.shape[1], k.shape[1], causal, q.dtype):
        w = _scores(mk[m, :, j], mq[m, :, i], hidden)
        np.exp(np.subtract(w, logs[m, :, i], out=w), out=w)
        s = mv[m, :, j].swapaxes(1, 2) @ mg[m, :, i]
        if kept is not None:
            np.multiply(s, kept[m, j, i], out=s)
        np.multiply(np.subtract(s, deltas[m, :, i], out=s), w, out=s)
        if kept is not None:
            np.multiply(w, kept[m, j, i], out=w)
        np.matmul(mk[m, :, j], s, out=found[0][m, :, i])
        found[1][m, :, j] += mq[m, :, i] @ s.swapaxes(1, 2)
        found[2][m, :, j] += mg[m, :, i] @ w.swapaxes(1, 2)
    for out, result, scale in zip((dq, dk, dv), found, (factor, 1.0, 1.0), strict=True):
        _put(out, result, heads, scale)


class _Workspace(local):
    """Memory for matrices, one for each thread: fresh memory would cost more than what is computed in it."""

    def __init__(self) -> None:
        self._memory: dict[Any, Array] = {}

    def arrays(self, dtype: Any, shapes: list[Shape]) -> list[Array]:
        """Uninitialised arrays, until the next call."""
        ends = list(accumulate(map(prod, shapes)))
        memory = self._memory.get(dtype)
        if memory is None or memory.size < ends[-1]:
            memory = self._memory[dtype] = np.empty(ends[-1], dtype)
        return [memory[end - prod(shape) : end].reshape(shape) for shape, end in zip(shapes, ends, strict=True)]


_workspace = _Workspace()


def _shape(x: Array, heads: int) -> Shape:
    """Of [heads * d, time, batch] as one matrix [d, time] per sample and head."""
    return x.shape[2] * heads, x.shape[0] // heads, x.shape[1]


def _take(matrices: Array, x: Array, heads: int, factor: float) -> None:
    """`factor` times `x`, as matrices."""
    features, time, batch = x.shape[0] // heads, *x.shape[1:]
    np.multiply(x.reshape(heads, features, time, batch).transpose(3, 0, 1, 2), factor,
                out=matrices.reshape(batch, heads, features, time))


def _put(out: Array, matrices: Array, heads: int, factor: float = 1.0) -> None:
    """The reverse, into `out`."""
    features, time, batch = out.shape[0] // heads, *out.shape[1:]
    np.multiply(matrices.reshape(batch, heads, features, time).transpose(1, 2, 3, 0), factor,
                out=out.reshape(heads, features, time, batch))


def _blocks(
    matrices: int, queries: int, keys: int, causal: bool, dtype: Any
) -> Iterator[tuple[slice, slice, slice, Array | None]]:
    """Which matrices, queries and keys are done together; and what to add to scores that the future would make.

    Several matrices if they are small, else some queries of one; the keys that these may see.
    """
    tall = max(1, min(queries, max(_TILE, _BLOCK // keys)))
    together = max(1, _BLOCK // (keys * tall))
    for first in range(0, queries, tall):
        seen = min(keys, first + tall) if causal else keys
        hidden = np.where(np.tri(seen, tall, -first - 1), -np.inf, 0).astype(dtype) if causal else None
        for m in range(0, matrices, together):
            part = slice(first, min(first + tall, queries))
            yield (slice(m, m + together), part, slice(seen),
                   None if hidden is None else hidden[:, : part.stop - first])


def _scores(k: Array, q: Array, hidden: Array | None) -> Array:
    """Products of keys and queries, [matrices, keys, queries]."""
    w: Array = k.swapaxes(1, 2) @ q
    return w if hidden is None else np.add(w, hidden, out=w)


def _kept(key: Array, shape: Shape, rate: float, dtype: Any) -> Array | None:
    """What dropout makes of ones [matrices, queries, keys], as [matrices, keys, queries]; None if it leaves them."""
    if not rate:
        return None
    k = [int(word) for word in key]
    uniform = uniform_from_bits(philox((k[0], k[1]), (k[2], k[3]), prod(shape))).reshape(shape).swapaxes(1, 2)
    mask: Array = np.multiply(uniform >= np.float32(rate), dtype.type(1.0 / (1.0 - rate)), order="C")
    return mask


# ---------------------------------------------------------------------------------------------- rules


def _check(function: str, q: Any, k: Any, v: Any, heads: int, rate: float) -> None:
    given = f"{function}: q is {q.shape}, k is {k.shape} and v is {v.shape}"
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (2, 3):
        raise ShapeError(f"{given}; all must be (features, time) or (features, time, batch).")
    if q.shape[0] != k.shape[0] or q.shape[2:] != k.shape[2:] or k.shape[1:] != v.shape[1:]:
        raise ShapeError(f"{given}; q and k need as many features, k and v as many times, and all the same batch.")
    if q.shape[0] == 0 or k.shape[1] == 0:
        raise ShapeError(f"{given}; at least one feature and one key are required.")
    if q.shape[0] % heads or v.shape[0] % heads:
        raise ShapeError(f"{given}; the features must divide into {heads} heads.")
    if not 0 <= rate < 1:
        raise ValueError(f"{function}: dropout is {rate}; it must be in [0, 1).")


def _is_tiled(q: Any, k: Any, v: Any, heads: int) -> bool:
    """Whether the kernels can do it."""
    features, times = max(q.shape[0], v.shape[0]), max(q.shape[1], k.shape[1])
    return bool(features <= heads * _MOST_FEATURES and times <= _LONGEST)


def _with_batch(x: Any) -> Buffer:
    return x if x.ndim == 3 else x.view((*x.shape, 1))  # type: ignore[no-any-return]


def _forward(run: Run, q: Any, k: Any, v: Any, heads: int, causal: bool, rate: float) -> tuple[Any, Any]:
    factor = 1.0 / sqrt(q.shape[0] // heads)
    params: dict[str, Any] = {"heads": heads, "factor": factor, "causal": bool(causal), "rate": rate}
    key = draw_key(q.backend) if rate else q  # which nobody reads then
    if _is_tiled(q, k, v, heads):
        out, lse = run(attention, *map(_with_batch, (q, k, v)), key, **params)
        out = out.view((v.shape[0], *q.shape[1:]))
        made: Any = [out, lse]  # a list: the result in float32, also where users get it rounded to 16 bits
    else:
        out, made = composed_attention.forward(run, q, k, v, key, **params)
    return out, (q, k, v, key, params, made)


def _backward(run: Run, g: Buffer, saved: Any, need: Need) -> Cotangents:
    q, k, v, key, params, made = saved
    if not _is_tiled(q, k, v, params["heads"]):
        return composed_attention.backward(run, g, q, k, v, key, made, need, **params)
    out, lse = made
    g = _with_batch(g)
    delta = run(attention_delta, _with_batch(out), g, heads=params["heads"])
    found = run(attention_grad, *map(_with_batch, (q, k, v)), g, lse, delta, key, **params)
    return tuple(d.view(x.shape) if wanted else None for d, x, wanted in zip(found, (q, k, v), need, strict=True))


@op
def ag_attention(
    run: Run, q: TensorLike, k: TensorLike, v: TensorLike, causal: bool = False, dropout: float = 0.0
) -> tuple[Any, Any]:
    """Scaled dot-product attention of one head, ``v @ softmax(k.T @ q / sqrt(d))`` for each sample.

    Parameters
    ----------
    q : Tensor of shape (d, queries) or (d, queries, batch)
    k : Tensor of shape (d, keys) or (d, keys, batch)
    v : Tensor of shape (dv, keys) or (dv, keys, batch)
    causal : bool, optional
        Whether query i sees the keys 0..i only.
    dropout : float, optional
        Probability, in [0, 1), that a weight is set to 0; the others are divided by ``1 - dropout``.

    Returns
    -------
    Tensor of shape (dv, queries) or (dv, queries, batch)

    Raises
    ------
    ShapeError
        If the shapes do not fit together, or there is no feature or no key.
    ValueError
        If `dropout` is outside [0, 1).

    Notes
    -----
    The softmax goes over the keys.  Neither the weights nor the mask of dropout are stored; the backward pass makes
    them again.  For heads of more than 128 features, or more than 8,192 times, memory grows with queries times keys.

    References
    ----------
    ggmlR ``ag_multihead_attention``; Vaswani et al., "Attention Is All You Need", eq. 1.

    Examples
    --------
    >>> import ag
    >>> ag.ag_attention([[1.0, 1.0]], [[0.0, 0.0]], [[2.0, 4.0]], causal=True).numpy().tolist()
    [[2.0, 3.0]]
    """
    _check("ag_attention", q, k, v, 1, dropout)
    return _forward(run, q, k, v, 1, causal, float(dropout))


@ag_attention.vjp
def _attention_vjp(run: Run, g: Buffer, saved: Any, need: Need, causal: bool, dropout: float) -> Cotangents:
    return _backward(run, g, saved, need)


@part_of("ag_multihead_attention")
def attention_of_heads(
    run: Run, q: TensorLike, k: TensorLike, v: TensorLike, heads: int, causal: bool, rate: float
) -> tuple[Any, Any]:
    """`ag_attention` of several heads, each with its share of neighbouring features."""
    _check("ag_multihead_attention", q, k, v, heads, rate)
    return _forward(run, q, k, v, heads, causal, rate)


@attention_of_heads.vjp
def _heads_vjp(
    run: Run, g: Buffer, saved: Any, need: Need, heads: int, causal: bool, rate: float
) -> Cotangents:
    return _backward(run, g, saved, need)
