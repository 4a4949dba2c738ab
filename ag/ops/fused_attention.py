"""The ops of attention, on [features, time, batch]: of products alone, or with terms of their scores.

Fused kernels store no matrix of weights, so memory grows with the length of a sequence and not with its square.
Heads and sequences beyond the kernels' limits fall back to products; the device's `Target` has the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple, TypedDict

from ag.autograd.op import Cotangents, Need, Result, Run, Wide, part_of
from ag.engine.buffer import Buffer
from ag.engine.dtype import I32
from ag.engine.kernels.attention import attention, attention_delta, attention_grad, attention_weights
from ag.engine.kernels.elementwise import scale
from ag.engine.kernels.indexing import permute
from ag.engine.kernels.masked_attention import UNLIMITED, attention_bias_grad, masked_attention, masked_attention_grad
from ag.engine.kernels.random import dropout
from ag.engine.kernels.softmax import softmax_grad
from ag.engine.random import draw_key
from ag.engine.shape import Shape
from ag.errors import ShapeError
from ag.ops.matmul import products

_MUCH = 1 << 24  # weights of attention; products take less time than kernels of wide heads


class Settings(TypedDict):
    """Parameters of the kernels."""

    heads: int
    factor: float
    causal: bool
    rate: float


# What is saved: q, k, v, the key of dropout, and what the gradient reads of the forward pass.  These are a list, so
# that 16-bit tensors do not get the rounded result in place of the one in float32.
Attended = tuple[Buffer, Buffer, Buffer, Buffer, Settings, list[Buffer]]


def check_operands(function: str, q: Buffer, k: Buffer, v: Buffer, heads: int, kv_heads: int, rate: float) -> None:
    shapes = f"{function}: q is {q.shape}, k is {k.shape} and v is {v.shape}"
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (2, 3):
        raise ShapeError(f"{shapes}; all must be (features, time) or (features, time, batch).")
    shared = "" if heads == kv_heads else f" in each of {heads} and {kv_heads} heads"
    if q.shape[0] * kv_heads != k.shape[0] * heads or q.shape[2:] != k.shape[2:] or k.shape[1:] != v.shape[1:]:
        raise ShapeError(f"{shapes}; q and k need as many features{shared}, k and v as many times, and all the same "
                         f"batch.")
    if q.shape[0] == 0 or k.shape[1] == 0:
        raise ShapeError(f"{shapes}; at least one feature and one key are required.")
    if q.shape[0] % heads or v.shape[0] % kv_heads:
        raise ShapeError(f"{shapes}; the features must divide into {heads} heads{shared and f', of v {kv_heads}'}.")
    if not 0 <= rate < 1:
        raise ValueError(f"{function}: dropout is {rate}; it must be in [0, 1).")


def _is_tiled(q: Buffer, k: Buffer, v: Buffer, heads: int, rate: float) -> bool:
    """Return True if the fused kernels can do it."""
    features, times = max(q.shape[0], v.shape[0]) // heads, max(q.shape[1], k.shape[1])
    return q.backend.target.tiled_attention(features, times, rate > 0)


def _large(q: Buffer, k: Buffer, v: Buffer, heads: int, factor: float, causal: bool, rate: float) -> Terms | None:
    """Return terms if heads of many features have weights that take much memory: the kernels with terms do them."""
    features, times = max(q.shape[0], v.shape[0]) // heads, max(q.shape[1], k.shape[1])
    weights = heads * q.size // q.shape[0] * k.shape[1]
    if weights < _MUCH or not q.backend.target.wide_attention(features, times):
        return None
    return Terms(heads, heads, factor, 0.0, UNLIMITED, 0 if causal else UNLIMITED, rate, None, (None, None), None)


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
    tiled = _is_tiled(q, k, v, heads, rate)
    if not tiled and (terms := _large(q, k, v, **params)) is not None:
        out, (*_, key, results) = _forward_with_terms(run, q, k, v, None, terms)
        return out, (q, k, v, key, params, results)
    key = draw_key(q.backend) if rate else q  # which nobody reads then
    if not tiled:
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
    tiled = _is_tiled(q, k, v, heads, params["rate"])
    if not tiled and (terms := _large(q, k, v, **params)) is not None:
        return _backward_with_terms(run, g, (q, k, v, None, key, results), need, terms)
    if not tiled:
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


@part_of("ag_attention")
def plain_attention(
    run: Run, q: Buffer, k: Buffer, v: Buffer, causal: bool, dropout: float, heads: int
) -> Result[Attended]:
    """Attention whose scores are products."""
    check_operands("ag_attention", q, k, v, heads, heads, dropout)
    return _forward(run, q, k, v, heads, causal, dropout)


plain_attention.vjp(_backward)


@part_of("ag_multihead_attention")
def attention_of_heads(
    run: Run, q: Buffer, k: Buffer, v: Buffer, heads: int, causal: bool, rate: float
) -> Result[Attended]:
    """`ag_attention` of several heads, each with its share of neighbouring features."""
    check_operands("ag_multihead_attention", q, k, v, heads, heads, rate)
    return _forward(run, q, k, v, heads, causal, rate)


attention_of_heads.vjp(_backward)


# ---------------------------------------------------------------------------------------------- terms of scores


class Terms(NamedTuple):
    """The terms of scores to which no gradient flows; those that are absent are None."""

    heads: int
    kv_heads: int
    factor: float
    softcap: float
    before: int
    after: int
    rate: float
    mask: Buffer | None
    segments: tuple[Buffer | None, Buffer | None]  # of queries and of keys
    slopes: Buffer | None

    def numbers(self, samples: int) -> dict[str, Any]:
        return {**dict(zip(self._fields[:7], self[:7], strict=True)), "samples": samples}

    def operands(self, q: Buffer, bias: Buffer | None) -> list[Buffer]:
        """The terms as kernels take them."""
        none, no_ids = q.view((0,)), q.view((0,), dtype=I32)
        given = (bias, none), (self.mask, none), *((ids, no_ids) for ids in self.segments), (self.slopes, none)
        return [absent if x is None else x for x, absent in given]


# q, k, v, bias and the key of dropout; in a list, as above, the result and the logarithms of denominators
AttendedWithTerms = tuple[Buffer, Buffer, Buffer, Buffer | None, Buffer, list[Buffer]]


def _forward_with_terms(
    run: Run, q: Buffer, k: Buffer, v: Buffer, bias: Buffer | None, terms: Terms
) -> Result[AttendedWithTerms]:
    key = draw_key(q.backend) if terms.rate else q  # which nobody reads then
    first = puts_samples_first(q, k)
    laid = laid_out(run, (q, k, v), 1, first)
    out, lse = run(masked_attention, *laid, key, *terms.operands(q, bias), **terms.numbers(q.shape[2] if first else 1))
    shape = (v.shape[0] // terms.kv_heads * terms.heads, *q.shape[1:])
    return features_first(run, out, shape) if first else out.view(shape), (q, k, v, bias, key, [out, lse])


def _backward_with_terms(run: Run, g: Buffer, saved: AttendedWithTerms, need: Need, terms: Terms) -> Cotangents:
    q, k, v, bias, key, (out, lse) = saved
    first = puts_samples_first(q, k)
    samples = q.shape[2] if first else 1
    *laid, g = laid_out(run, (q, k, v, g), 1, first)
    delta = run(attention_delta, out, g, heads=terms.heads * samples)
    given, numbers = [*laid, g, lse, delta, key, *terms.operands(q, bias)], terms.numbers(samples)
    found: list[Buffer | None] = [None, None, None]
    if any(need[:3]):
        made = run(masked_attention_grad, *given, **numbers)
        found = [(features_first(run, d, x.shape) if first else d.view(x.shape)) if wanted else None
                 for d, x, wanted in zip(made, (q, k, v), need[:3], strict=True)]
    if bias is not None:
        found.append(run(attention_bias_grad, *given, **numbers) if need[3] else None)
    return tuple(found)


@part_of("ag_attention")
def attention_with_terms(run: Run, q: Buffer, k: Buffer, v: Buffer, terms: Terms) -> Result[AttendedWithTerms]:
    """`ag_attention` without a bias."""
    return _forward_with_terms(run, q, k, v, None, terms)


@part_of("ag_attention")
def attention_with_bias(
    run: Run, q: Buffer, k: Buffer, v: Buffer, bias: Wide, terms: Terms
) -> Result[AttendedWithTerms]:
    """`ag_attention` with a bias, of shape (heads, queries, keys, batch) or 1 along an axis."""
    return _forward_with_terms(run, q, k, v, bias, terms)


attention_with_terms.vjp(_backward_with_terms)
attention_with_bias.vjp(_backward_with_terms)
