"""Attention made of batched products and a softmax, with the matrix of weights in memory.

`ag.ops.attention` uses it where its own kernels cannot.  Inside, a matrix per sample and head comes first: [batch *
heads, features, time].  Features-first tensors of one sample are that already; with several samples the axes are put in
order first and back afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tensor import Array
from ag.engine.buffer import Buffer
from ag.engine.primitive import primitive
from ag.engine.shape import Shape
from ag.ops.activation import softmax_grad
from ag.ops.arithmetic import scale
from ag.ops.dropout import dropout
from ag.ops.matmul import products
from ag.ops.reshape import permute

__all__ = ["backward", "forward"]


@primitive(layout=lambda out, _x, **_params: {"batch": out[0], "queries": out[1], "keys": out[2]})
def attention_weights(out: Array, x: Array, *, factor: float, causal: bool) -> None:
    np.multiply(x, factor, out=out)
    if causal:
        out[:, np.tri(x.shape[1], x.shape[2]) == 0] = -np.inf
    np.subtract(out, np.maximum.reduce(out, 2, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, np.add.reduce(out, 2, keepdims=True), out=out)


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


def forward(
    run: Run, q: Any, k: Any, v: Any, key: Buffer, heads: int, factor: float, causal: bool, rate: float
) -> tuple[Buffer, Buffer]:
    """The result, and the weights before dropout, which `backward` wants."""
    mq, mk, mv = (_matrices(run, x, heads) for x in (q, k, v))
    weights = run(attention_weights, products(run, mq, mk, ta=True, tb=False), factor=factor, causal=causal)
    kept = run(dropout, weights, key, rate=rate) if rate else weights
    return _features_first(run, products(run, mv, kept, ta=False, tb=True), (v.shape[0], *q.shape[1:])), weights


def backward(
    run: Run, g: Buffer, q: Any, k: Any, v: Any, key: Buffer, weights: Buffer, need: Need,
    heads: int, factor: float, causal: bool, rate: float,
) -> Cotangents:
    """Cotangents of `q`, `k` and `v`."""
    mq, mk, mv, mg = (_matrices(run, x, heads) for x in (q, k, v, g))
    found: list[Buffer | None] = [None, None, None]
    if need[2]:
        kept = run(dropout, weights, key, rate=rate) if rate else weights
        found[2] = products(run, mg, kept, ta=False, tb=False)
    if need[0] or need[1]:
        slope = products(run, mg, mv, ta=True, tb=False)
        if rate:
            slope = run(dropout, slope, key, rate=rate)
        slope = run(scale, run(softmax_grad, weights, slope, axis=2), factor=factor)
        found[0] = products(run, mk, slope, ta=False, tb=True) if need[0] else None
        found[1] = products(run, mq, slope, ta=False, tb=False) if need[1] else None
    return tuple(None if m is None else _features_first(run, m, x.shape)
                 for m, x in zip(found, (q, k, v), strict=True))
