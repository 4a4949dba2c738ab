"""Scaled dot-product attention, of one head or of several at once.

Inside, a matrix per sample and head comes first: [batch, features, time].  Features-first tensors of one sample are
that already; with several samples the axes are put in order first and back afterwards.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from ag.buffer import Buffer
from ag.errors import ShapeError
from ag.op import Cotangents, Need, Run, op, part_of
from ag.ops.activation import softmax_grad
from ag.ops.arithmetic import scale
from ag.ops.arrange import permute
from ag.ops.linalg import products
from ag.ops.random import dropout
from ag.primitive import primitive
from ag.rng import draw_key
from ag.shape import Shape
from ag.tensor import Array, TensorLike

__all__ = ["ag_attention", "attention_of_heads"]


@primitive(layout=lambda out, _x, **_params: {"batch": out[0], "queries": out[1], "keys": out[2]})
def attention_weights(out: Array, x: Array, *, factor: float, causal: bool) -> None:
    np.multiply(x, factor, out=out)
    if causal:
        out[:, np.tri(x.shape[1], x.shape[2]) == 0] = -np.inf
    np.subtract(out, np.maximum.reduce(out, 2, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, np.add.reduce(out, 2, keepdims=True), out=out)


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


def _matrices(run: Run, x: Any, heads: int) -> Buffer:
    """[heads * d, time, batch] as [batch * heads, d, time]; without a copy if there is one sample."""
    features, time = x.shape[0] // heads, x.shape[1]
    batch = x.shape[2] if x.ndim == 3 else 1
    if batch != 1:
        x = run(permute, x.view((heads * features, time, batch)), axes=(2, 0, 1))
    return x.view((batch * heads, features, time))  # type: ignore[no-any-return]


def _features_first(run: Run, m: Buffer, shape: Shape) -> Buffer:
    """The reverse: `m` as a buffer of `shape`."""
    batch = shape[2] if len(shape) == 3 else 1
    m = m.view((batch, shape[0], shape[1]))
    return (m if batch == 1 else run(permute, m, axes=(1, 2, 0))).view(shape)


def _forward(run: Run, q: Any, k: Any, v: Any, heads: int, causal: bool, rate: float) -> tuple[Any, Any]:
    mq, mk, mv = (_matrices(run, x, heads) for x in (q, k, v))
    factor = 1.0 / sqrt(mq.shape[1])
    scores = products(run, mq, mk, ta=True, tb=False)
    weights = run(attention_weights, scores, factor=factor, causal=bool(causal))
    key = draw_key(q.backend) if rate else None
    kept = weights if key is None else run(dropout, weights, key, rate=rate)
    out = products(run, mv, kept, ta=False, tb=True)
    shape = (v.shape[0], *q.shape[1:])
    return _features_first(run, out, shape), (mq, mk, mv, weights, key, factor, (q.shape, k.shape, v.shape))


def _backward(run: Run, g: Buffer, saved: Any, need: Need, heads: int, rate: float) -> Cotangents:
    mq, mk, mv, weights, key, factor, shapes = saved
    mg = _matrices(run, g, heads)
    found: list[Buffer | None] = [None, None, None]
    if need[2]:
        kept = weights if key is None else run(dropout, weights, key, rate=rate)
        found[2] = products(run, mg, kept, ta=False, tb=False)
    if need[0] or need[1]:
        slope = products(run, mg, mv, ta=True, tb=False)
        if key is not None:
            slope = run(dropout, slope, key, rate=rate)
        slope = run(scale, run(softmax_grad, weights, slope, axis=2), factor=factor)
        found[0] = products(run, mk, slope, ta=False, tb=True) if need[0] else None
        found[1] = products(run, mq, slope, ta=False, tb=False) if need[1] else None
    return tuple(None if m is None else _features_first(run, m, s) for m, s in zip(found, shapes, strict=True))


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
    The softmax goes over the keys.  Memory grows with queries times keys.  The mask of dropout is not stored; the
    backward pass draws the same bits again.

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
    return _backward(run, g, saved, need, 1, float(dropout))


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
    return _backward(run, g, saved, need, heads, rate)
