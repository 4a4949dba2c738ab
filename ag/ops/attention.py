"""Scaled dot-product attention of one or several heads, on [features, time, batch].

Fused kernels store no matrix of weights, so memory grows with the length of a sequence and not with its square.
Heads and sequences beyond the kernels' limits fall back to products; the device's `Target` has the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TypedDict

from ag.autograd.op import Cotangents, Need, Result, Run, op, part_of
from ag.engine.buffer import Buffer
from ag.engine.kernels.attention import attention, attention_delta, attention_grad, attention_weights
from ag.engine.kernels.elementwise import scale
from ag.engine.kernels.indexing import permute
from ag.engine.kernels.random import dropout
from ag.engine.kernels.softmax import softmax_grad
from ag.engine.random import draw_key
from ag.engine.shape import Shape, counts, true_or_false
from ag.errors import ShapeError
from ag.ops.matmul import products

__all__ = ["ag_attention"]


class Settings(TypedDict):
    """Parameters of the kernels."""

    heads: int
    factor: float
    causal: bool
    rate: float


# What is saved: q, k, v, the key of dropout, and what the gradient reads of the forward pass.  These are a list, so
# that 16-bit tensors do not get the rounded result in place of the one in float32.
Attended = tuple[Buffer, Buffer, Buffer, Buffer, Settings, list[Buffer]]


def _check(function: str, q: Buffer, k: Buffer, v: Buffer, heads: int, rate: float) -> None:
    shapes = f"{function}: q is {q.shape}, k is {k.shape} and v is {v.shape}"
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (2, 3):
        raise ShapeError(f"{shapes}; all must be (features, time) or (features, time, batch).")
    if q.shape[0] != k.shape[0] or q.shape[2:] != k.shape[2:] or k.shape[1:] != v.shape[1:]:
        raise ShapeError(f"{shapes}; q and k need as many features, k and v as many times, and all the same batch.")
    if q.shape[0] == 0 or k.shape[1] == 0:
        raise ShapeError(f"{shapes}; at least one feature and one key are required.")
    if q.shape[0] % heads or v.shape[0] % heads:
        raise ShapeError(f"{shapes}; the features must divide into {heads} heads.")
    if not 0 <= rate < 1:
        raise ValueError(f"{function}: dropout is {rate}; it must be in [0, 1).")


def _is_tiled(q: Buffer, k: Buffer, v: Buffer, heads: int, rate: float) -> bool:
    """Return True if the fused kernels can do it."""
    features, times = max(q.shape[0], v.shape[0]) // heads, max(q.shape[1], k.shape[1])
    return q.backend.target.tiled_attention(features, times, rate > 0)


def puts_samples_first(q: Buffer, k: Buffer) -> bool:
    """Return True if heads of all samples become heads of one; the bits, also of dropout, are the same."""
    return q.ndim == 3 and q.backend.target.samples_first(q.shape[2], min(q.shape[1], k.shape[1]))


def laid_out(run: Run, xs: Sequence[Buffer], heads: int, samples_first: bool) -> list[Buffer]:
    """[heads * d, time, batch] each, of no batch 1, or as [batch * heads * d, time, 1]."""
    if not samples_first:
        return [x if x.ndim == 3 else x.view((*x.shape, 1)) for x in xs]
    matrices = [_matrices(run, x, heads) for x in xs]
    return [m.view((m.shape[0] * m.shape[1], m.shape[2], 1)) for m in matrices]


def _forward(run: Run, q: Buffer, k: Buffer, v: Buffer, heads: int, causal: bool, rate: float) -> Result[Attended]:
    params: Settings = {"heads": heads, "factor": 1.0 / sqrt(q.shape[0] // heads), "causal": causal, "rate": rate}
    key = draw_key(q.backend) if rate else q  # which nobody reads then
    if not _is_tiled(q, k, v, heads, rate):
        out, weights = _composed(run, q, k, v, key, **params)
        return out, (q, k, v, key, params, [weights])
    first = puts_samples_first(q, k)
    laid = laid_out(run, (q, k, v), heads, first)
    out, lse = run(attention, *laid, key, **(params | {"heads": heads * q.shape[2]} if first else params))
    shape = (v.shape[0], *q.shape[1:])
    return features_first(run, out, shape) if first else out.view(shape), (q, k, v, key, params, [out, lse])


def _backward(run: Run, g: Buffer, saved: Attended, need: Need, *_params: object) -> Cotangents:
    q, k, v, key, params, results = saved
    heads = params["heads"]
    if not _is_tiled(q, k, v, heads, params["rate"]):
        return _composed_gradients(run, g, q, k, v, key, results[0], need, **params)
    out, lse = results
    first = puts_samples_first(q, k)
    *laid, g = laid_out(run, (q, k, v, g), heads, first)
    if first:
        params = {**params, "heads": heads * q.shape[2]}
    delta = run(attention_delta, out, g, heads=params["heads"])
    gradients = run(attention_grad, *laid, g, lse, delta, key, **params)
    return tuple((features_first(run, d, x.shape) if first else d.view(x.shape)) if wanted else None
                 for d, x, wanted in zip(gradients, (q, k, v), need, strict=True))


# A matrix per sample and head comes first: [batch * heads, features, time].  Features-first tensors of one sample are
# that already; with several samples the axes are put in order first and back afterwards.


def _matrices(run: Run, x: Buffer, heads: int) -> Buffer:
    """[heads * d, time, batch] as [batch * heads, d, time]; without a copy if there is one sample."""
    features, time = x.shape[0] // heads, x.shape[1]
    batch = x.shape[2] if x.ndim == 3 else 1
    if batch != 1:
        x = run(permute, x.view((heads * features, time, batch)), axes=(2, 0, 1))
    return x.view((batch * heads, features, time))


def features_first(run: Run, m: Buffer, shape: Shape) -> Buffer:
    """The reverse: `m` as a buffer of `shape`."""
    batch = shape[2] if len(shape) == 3 else 1
    m = m.view((batch, shape[0], shape[1]))
    return (m if batch == 1 else run(permute, m, axes=(1, 2, 0))).view(shape)


def _composed(
    run: Run, q: Buffer, k: Buffer, v: Buffer, key: Buffer, heads: int, factor: float, causal: bool, rate: float
) -> tuple[Buffer, Buffer]:
    """The result, and the weights before dropout, which `_composed_gradients` wants."""
    mq, mk, mv = (_matrices(run, x, heads) for x in (q, k, v))
    weights = run(attention_weights, products(run, mq, mk, ta=True, tb=False), factor=factor, causal=causal)
    used = run(dropout, weights, key, rate=rate) if rate else weights
    return features_first(run, products(run, mv, used, ta=False, tb=True), (v.shape[0], *q.shape[1:])), weights


def _composed_gradients(
    run: Run, g: Buffer, q: Buffer, k: Buffer, v: Buffer, key: Buffer, weights: Buffer, need: Need,
    heads: int, factor: float, causal: bool, rate: float,
) -> Cotangents:
    """Cotangents of `q`, `k` and `v`."""
    mq, mk, mv, mg = (_matrices(run, x, heads) for x in (q, k, v, g))
    dq = dk = dv = None
    if need[2]:
        used = run(dropout, weights, key, rate=rate) if rate else weights
        dv = products(run, mg, used, ta=False, tb=False)
    if need[0] or need[1]:
        slope = products(run, mg, mv, ta=True, tb=False)
        if rate:
            slope = run(dropout, slope, key, rate=rate)
        slope = run(scale, run(softmax_grad, weights, slope, axis=2), factor=factor)
        dq = products(run, mk, slope, ta=False, tb=True) if need[0] else None
        dk = products(run, mq, slope, ta=False, tb=False) if need[1] else None
    return tuple(None if m is None else features_first(run, m, x.shape)
                 for m, x in zip((dq, dk, dv), (q, k, v), strict=True))


@op
def ag_attention(
    run: Run, q: Buffer, k: Buffer, v: Buffer, causal: bool = False, dropout: float = 0.0, heads: int = 1
) -> Result[Attended]:
    """Scaled dot-product attention, ``v @ softmax(k.T @ q / sqrt(d))`` for each sample and head.

    The softmax goes over the keys.  Neither the weights nor the mask of dropout are stored; the backward pass makes
    them again.  For heads of more than 128 features, or more than 8,192 times, memory grows with queries times keys.
    Reference: ggmlR ``ag_multihead_attention``; Vaswani et al., "Attention Is All You Need", eq. 1.

    Parameters
    ----------
    q : Tensor of shape (heads * d, queries) or (heads * d, queries, batch)
    k : Tensor of shape (heads * d, keys) or (heads * d, keys, batch)
    v : Tensor of shape (heads * dv, keys) or (heads * dv, keys, batch)
    causal : bool, optional
        Whether query i sees the keys 0..i only.
    dropout : float, optional
        Probability, in [0, 1), that a weight is set to 0; the others are divided by ``1 - dropout``.
    heads : int, optional
        Each head has its share of neighbouring features.

    Returns
    -------
    Tensor of shape (heads * dv, queries) or (heads * dv, queries, batch)

    >>> ag.ag_attention([[1.0, 1.0]], [[0.0, 0.0]], [[2.0, 4.0]], causal=True).numpy().tolist()
    [[2.0, 3.0]]
    """
    if not counts(heads):
        raise ValueError(f"ag_attention: heads is {heads!r}; it must be a whole number of at least 1.")
    causal = true_or_false("ag_attention", "causal", causal)
    _check("ag_attention", q, k, v, heads, dropout)
    return _forward(run, q, k, v, int(heads), causal, dropout)


ag_attention.vjp(_backward)


@part_of("ag_multihead_attention")
def attention_of_heads(
    run: Run, q: Buffer, k: Buffer, v: Buffer, heads: int, causal: bool, rate: float
) -> Result[Attended]:
    """`ag_attention` of several heads, each with its share of neighbouring features."""
    _check("ag_multihead_attention", q, k, v, heads, rate)
    return _forward(run, q, k, v, heads, causal, rate)


attention_of_heads.vjp(_backward)
