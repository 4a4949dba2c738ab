"""Scaled dot-product attention, on [features, time, batch]: of products alone, or with terms of their scores.

Fused kernels store no matrix of weights, so memory grows with the length of a sequence and not with its square.
Heads and sequences beyond the kernels' limits fall back to products; the device's `Target` has the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any, NamedTuple, cast

import numpy as np

from ag.autograd.op import Cotangents, Need, Result, Run, Wide, composed, part_of
from ag.autograd.operands import as_array, closed_or_elsewhere, number_given, operands_on_one_device, to_buffer
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import BOOL, F32, F64, I32, DType
from ag.engine.kernels import attention as kernels
from ag.engine.kernels.attention import UNLIMITED
from ag.engine.kernels.elementwise import scale as scaled
from ag.engine.kernels.indexing import permute
from ag.engine.kernels.norm import softmax_grad
from ag.engine.kernels.random import dropout as dropped
from ag.engine.random import draw_key
from ag.engine.shape import Shape, counts, true_or_false
from ag.errors import DtypeError, ShapeError
from ag.ops.indexing import ag_reshape
from ag.ops.matmul import products

__all__ = ["ag_attention"]

_MUCH = 1 << 24  # weights of attention; products take less time than kernels of wide heads


class Terms(NamedTuple):
    """The terms of scores to which no gradient flows; those that are absent are None."""

    heads: int
    kv_heads: int
    factor: float
    softcap: float
    before: int
    after: int
    rate: float
    mask: Buffer | None = None
    segments: tuple[Buffer | None, Buffer | None] = (None, None)  # of queries and of keys
    slopes: Buffer | None = None

    def numbers(self, samples: int) -> dict[str, Any]:
        return {**dict(zip(self._fields[:7], self[:7], strict=True)), "samples": samples}

    def operands(self, q: Buffer, bias: Buffer | None) -> list[Buffer]:
        """The terms as kernels take them."""
        none, no_ids = q.view((0,)), q.view((0,), dtype=I32)
        given = (bias, none), (self.mask, none), *((ids, no_ids) for ids in self.segments), (self.slopes, none)
        return [absent if x is None else x for x, absent in given]


# What is saved: q, k, v, bias, the key of dropout, and what the gradient reads of the forward pass: the result and the
# logarithms of denominators, or weights.  These are a list, so that 16-bit tensors do not get the rounded result in
# place of the one in float32.
Attended = tuple[Buffer, Buffer, Buffer, Buffer | None, Buffer, list[Buffer]]


def _check(q: Shape, k: Shape, v: Shape, heads: int, kv_heads: int) -> None:
    shapes = f"q is {q}, k is {k} and v is {v}"
    if not len(q) == len(k) == len(v) or len(q) not in (2, 3):
        raise ShapeError(f"{shapes}; all must be (features, time) or (features, time, batch).")
    shared = "" if heads == kv_heads else f" in each of {heads} and {kv_heads} heads"
    if q[0] * kv_heads != k[0] * heads or q[2:] != k[2:] or k[1:] != v[1:]:
        raise ShapeError(f"{shapes}; q and k need as many features{shared}, k and v as many times, and all the same "
                         f"batch.")
    if q[0] == 0 or k[1] == 0:
        raise ShapeError(f"{shapes}; at least one feature and one key are required.")
    if q[0] % heads or v[0] % kv_heads:
        raise ShapeError(f"{shapes}; the features must divide into {heads} heads{shared and f', of v {kv_heads}'}.")


# ---------------------------------------------------------------------------------------------- layouts of operands


def _matrices(run: Run, x: Buffer, heads: int) -> Buffer:
    """[heads * d, time, batch] as [batch * heads, d, time]; without a copy if there is one sample."""
    features, time, batch = (*x.shape, 1)[:3]
    if batch != 1:
        x = run(permute, x, axes=(2, 0, 1))
    return x.view((batch * heads, features // heads, time))


def _features_first(run: Run, m: Buffer, shape: Shape) -> Buffer:
    """The reverse: `m` as a buffer of `shape`."""
    m = m.view((*shape[2:], *shape[:2]))
    return run(permute, m, axes=(1, 2, 0)) if len(shape) == 3 and shape[2] != 1 else m.view(shape)


def _laid_out(run: Run, q: Buffer, k: Buffer, *others: Buffer) -> tuple[list[Buffer], int]:
    """Operands as [features, time, batch] beside 1, or as [batch * features, time, 1] beside the number of samples.

    Heads of all samples are heads of one, then; the bits, also of dropout, are the same.
    """
    xs = q, k, *others
    if q.ndim == 2 or not q.backend.target.samples_first(q.shape[2], min(q.shape[1], k.shape[1])):
        return [x if x.ndim == 3 else x.view((*x.shape, 1)) for x in xs], 1
    return [_matrices(run, x, 1).view((x.shape[2] * x.shape[0], x.shape[1], 1)) for x in xs], q.shape[2]


def _restored(run: Run, x: Buffer, shape: Shape, samples: int) -> Buffer:
    """The reverse for a result."""
    return _features_first(run, x, shape) if samples > 1 else x.view(shape)


# ---------------------------------------------------------------------------------------------- scores of products


def _reach(q: Buffer, k: Buffer, v: Buffer, heads: int) -> tuple[int, int]:
    """The larger numbers of features of a head and of times, by which a device chooses kernels."""
    return max(q.shape[0], v.shape[0]) // heads, max(q.shape[1], k.shape[1])


def _as_terms(q: Buffer, k: Buffer, v: Buffer, heads: int, factor: float, causal: bool, rate: float) -> Terms | None:
    """Return terms if heads of many features have weights that take much memory: the kernels with terms do them."""
    weights = heads * q.size // q.shape[0] * k.shape[1]
    if weights < _MUCH or not q.backend.target.wide_attention(*_reach(q, k, v, heads)):
        return None
    return Terms(heads, heads, factor, 0.0, UNLIMITED, 0 if causal else UNLIMITED, rate)


def _settings(q: Buffer, heads: int, causal: bool, rate: float) -> dict[str, Any]:
    """Parameters of the kernels."""
    return {"heads": heads, "factor": 1.0 / sqrt(q.shape[0] // heads), "causal": causal, "rate": rate}


def _forward(run: Run, q: Buffer, k: Buffer, v: Buffer, heads: int, causal: bool, rate: float) -> Result[Attended]:
    _check(q.shape, k.shape, v.shape, heads, heads)
    params = _settings(q, heads, causal, rate)
    is_tiled = q.backend.target.tiled_attention(*_reach(q, k, v, heads), rate > 0)
    if not is_tiled and (terms := _as_terms(q, k, v, **params)) is not None:
        return _forward_with_terms(run, q, k, v, None, terms)
    key = draw_key(q.backend) if rate else q  # which nobody reads then
    if not is_tiled:
        out, weights = _composed(run, q, k, v, key, **params)
        return out, (q, k, v, None, key, [weights])
    laid, samples = _laid_out(run, q, k, v)
    params["heads"] *= samples
    out, lse = run(kernels.attention, *laid, key, **params)
    return _restored(run, out, (v.shape[0], *q.shape[1:]), samples), (q, k, v, None, key, [out, lse])


def _backward(run: Run, g: Buffer, saved: Attended, need: Need, heads: int, causal: bool, rate: float) -> Cotangents:
    q, k, v, _, key, results = saved
    params = _settings(q, heads, causal, rate)
    if len(results) == 1:
        return _composed_gradients(run, g, q, k, v, key, results[0], need, **params)
    if not q.backend.target.tiled_attention(*_reach(q, k, v, heads), rate > 0):
        terms = _as_terms(q, k, v, **params)
        assert terms is not None
        return _backward_with_terms(run, g, saved, need, terms)
    out, lse = results
    (*laid, g), samples = _laid_out(run, q, k, v, g)
    params["heads"] *= samples
    delta = run(kernels.attention_delta, out, g, heads=params["heads"])
    made = run(kernels.attention_grad, *laid, g, lse, delta, key, **params)
    return tuple(_restored(run, d, x.shape, samples) if wanted else None
                 for d, x, wanted in zip(made, (q, k, v), need, strict=True))


def _composed(
    run: Run, q: Buffer, k: Buffer, v: Buffer, key: Buffer, heads: int, factor: float, causal: bool, rate: float
) -> tuple[Buffer, Buffer]:
    """The result, and the weights before dropout, which `_composed_gradients` wants."""
    mq, mk, mv = (_matrices(run, x, heads) for x in (q, k, v))
    weights = run(kernels.attention_weights, products(run, mq, mk, ta=True, tb=False), factor=factor, causal=causal)
    used = run(dropped, weights, key, rate=rate) if rate else weights
    return _features_first(run, products(run, mv, used, ta=False, tb=True), (v.shape[0], *q.shape[1:])), weights


def _composed_gradients(
    run: Run, g: Buffer, q: Buffer, k: Buffer, v: Buffer, key: Buffer, weights: Buffer, need: Need,
    heads: int, factor: float, causal: bool, rate: float,
) -> Cotangents:
    """Cotangents of `q`, `k` and `v`."""
    mq, mk, mv, mg = (_matrices(run, x, heads) for x in (q, k, v, g))
    dq = dk = dv = None
    if need[2]:
        used = run(dropped, weights, key, rate=rate) if rate else weights
        dv = products(run, mg, used, ta=False, tb=False)
    if need[0] or need[1]:
        slope = products(run, mg, mv, ta=True, tb=False)
        if rate:
            slope = run(dropped, slope, key, rate=rate)
        slope = run(scaled, run(softmax_grad, weights, slope, axis=2), factor=factor)
        dq = products(run, mk, slope, ta=False, tb=True) if need[0] else None
        dk = products(run, mq, slope, ta=False, tb=False) if need[1] else None
    return tuple(None if m is None else _features_first(run, m, x.shape)
                 for m, x in zip((dq, dk, dv), (q, k, v), strict=True))


plain_attention = part_of("ag_attention")(_forward)
attention_of_heads = part_of("ag_multihead_attention")(_forward)
plain_attention.vjp(_backward)
attention_of_heads.vjp(_backward)


# ---------------------------------------------------------------------------------------------- terms of scores


def _forward_with_terms(
    run: Run, q: Buffer, k: Buffer, v: Buffer, bias: Buffer | None, terms: Terms
) -> Result[Attended]:
    key = draw_key(q.backend) if terms.rate else q  # which nobody reads then
    laid, samples = _laid_out(run, q, k, v)
    out, lse = run(kernels.masked_attention, *laid, key, *terms.operands(q, bias), **terms.numbers(samples))
    shape = (v.shape[0] // terms.kv_heads * terms.heads, *q.shape[1:])
    return _restored(run, out, shape, samples), (q, k, v, bias, key, [out, lse])


def _backward_with_terms(run: Run, g: Buffer, saved: Attended, need: Need, terms: Terms) -> Cotangents:
    q, k, v, bias, key, (out, lse) = saved
    (*laid, g), samples = _laid_out(run, q, k, v, g)
    delta = run(kernels.attention_delta, out, g, heads=terms.heads * samples)
    given, numbers = [*laid, g, lse, delta, key, *terms.operands(q, bias)], terms.numbers(samples)
    found: list[Buffer | None] = [None, None, None]
    if any(need[:3]):
        made = run(kernels.masked_attention_grad, *given, **numbers)
        found = [_restored(run, d, x.shape, samples) if wanted else None
                 for d, x, wanted in zip(made, (q, k, v), need[:3], strict=True)]
    if bias is not None:
        found.append(run(kernels.attention_bias_grad, *given, **numbers) if need[3] else None)
    return tuple(found)


@part_of("ag_attention")
def attention_with_terms(run: Run, q: Buffer, k: Buffer, v: Buffer, terms: Terms) -> Result[Attended]:
    """`ag_attention` without a bias."""
    return _forward_with_terms(run, q, k, v, None, terms)


@part_of("ag_attention")
def attention_with_bias(run: Run, q: Buffer, k: Buffer, v: Buffer, bias: Wide, terms: Terms) -> Result[Attended]:
    """`ag_attention` with a bias, of shape (heads, queries, keys, batch) or 1 along an axis."""
    return _forward_with_terms(run, q, k, v, bias, terms)


attention_with_terms.vjp(_backward_with_terms)
attention_with_bias.vjp(_backward_with_terms)


# ---------------------------------------------------------------------------------------------- what users give

Segments = TensorLike | tuple[TensorLike, TensorLike]


def _four_axes(name: str, given: Shape, sizes: Shape, batched: bool) -> Shape:
    """The shape of a mask or bias with all axes of `sizes`, (heads, queries, keys, batch), or an error."""
    ndim, meant = len(given), {given: sizes}
    if ndim in (2, 3):  # the last of (heads, queries, keys), or of all four
        meant = {(*(1,) * (3 - ndim), *given, 1): sizes[3 - ndim : 3]}
        if batched:
            meant[(*(1,) * (4 - ndim), *given)] = sizes[4 - ndim :]
    found = [shape for shape, full in meant.items() if given == full] or [
        shape for shape, full in meant.items() if 2 <= ndim <= 4 and all(
            n in (1, size) for n, size in zip(given, full, strict=True))]
    if len(found) == 1:
        return found[0]
    what = f"ag_attention: {name} is {given}, and heads, queries, keys and batch are {sizes}"
    if found:
        raise ShapeError(f"{what}, so it could be {' or '.join(map(str, found))}; give it that shape of four axes "
                         f"which is meant.")
    raise ShapeError(f"{what}; all four, (queries, keys), (keys, batch) or three neighbouring ones are required, each "
                     f"equal or 1.")


def _on_device(x: TensorLike, backend: Device, dtype: DType) -> Tensor:
    """A term as a tensor beside the queries; what is on the host gets this element type."""
    if not isinstance(x, Tensor):
        return Tensor(to_buffer(as_array(x, "ag_attention"), backend, dtype))
    if x.buffer.backend is not backend:
        raise closed_or_elsewhere("ag_attention", backend, x.buffer.backend)
    return x


def _kind(x: TensorLike) -> str:
    return x.dtype if isinstance(x, Tensor) else as_array(x, "ag_attention").dtype.name


def _mask(x: TensorLike, sizes: Shape, batched: bool, backend: Device) -> Buffer:
    if (kind := _kind(x)) != "bool":
        raise DtypeError(f"ag_attention: attn_mask is of type {kind}; True and False are required, where True may be "
                         f"seen. Give numbers that are added to scores as attn_bias.")
    b = _on_device(x, backend, BOOL).buffer
    return b.view(_four_axes("attn_mask", b.shape, sizes, batched), dtype=F32)


def _segments(x: Segments, times: Shape, batch: int, backend: Device) -> tuple[Buffer, Buffer]:
    """Numbers of the segments of queries and of keys, (time, batch) or (time, 1)."""
    found: list[Buffer] = []
    for given, time in zip(x if isinstance(x, tuple) else (x, x), times, strict=True):
        if (kind := _kind(given)) != "i32" and (isinstance(given, Tensor) or "int" not in kind):
            raise DtypeError(f"ag_attention: segments are of type {kind}; whole numbers are required. Make them with "
                             f"ag_tensor(ids, dtype=\"i32\").")
        # a list is of the step itself, so a captured one may have it
        b = (backend.constant(np.array(given), I32) if isinstance(given, list) else
             _on_device(given, backend, I32).buffer)
        shape = b.shape if len(b.shape) == 2 else (*b.shape, 1)
        if shape not in ((time, 1), (time, batch)) or (found and shape[1] != found[0].shape[1]):
            raise ShapeError(f"ag_attention: segments are {b.shape}, where the sequence has {time} times and {batch} "
                             f"samples; (time,) or (time, batch) is required, or a pair of such (of queries, of keys).")
        found.append(b.view(shape))
    return found[0], found[1]


def _slopes(x: TensorLike | Sequence[float], heads: int, backend: Device, dtype: DType) -> Buffer:
    fixed = isinstance(x, (list, tuple))  # which a captured step may have, too
    t = Tensor(backend.constant(np.array(x), dtype)) if fixed else _on_device(cast(TensorLike, x), backend, dtype)
    if t.size != heads or t.requires_grad:
        raise ShapeError(f"ag_attention: alibi is {t.shape}{', which is trained' * t.requires_grad}; a constant for "
                         f"each of {heads} heads is required. Slopes that are trained belong into attn_bias.")
    return t.astype(dtype.name).buffer.view((heads,))


def _span(window: int | tuple[int, int] | None, causal: bool) -> tuple[int, int]:
    """Return the numbers of keys before and after its own that a query sees."""
    if window is None:
        return UNLIMITED, 0 if causal else UNLIMITED
    span = window if isinstance(window, tuple) else (window, window)
    if len(span) != 2 or not counts(*span, least=0):
        raise ValueError(f"ag_attention: window is {window!r}; a number of keys of at least 0 is required, or a pair "
                         f"(before, after) of them.")
    before, after = (min(int(n), UNLIMITED) for n in span)
    return before, 0 if causal else after


@composed
def ag_attention(
    q: TensorLike, k: TensorLike, v: TensorLike, causal: bool = False, dropout: float = 0.0, heads: int = 1, *,
    kv_heads: int | None = None, attn_mask: TensorLike | None = None, attn_bias: TensorLike | None = None,
    scale: float | None = None, window: int | tuple[int, int] | None = None, softcap: float | None = None,
    alibi: TensorLike | Sequence[float] | None = None, segments: Segments | None = None,
) -> Tensor:
    """Scaled dot-product attention, ``v @ softmax(scores)`` for each sample and head.

    Scores are ``scale * k.T @ q``, of which ``softcap * tanh(scores / softcap)`` is taken, plus `attn_bias`, minus what
    `alibi` says; `causal`, `window`, `attn_mask` and `segments` hide keys.  A query that sees no key gives 0, and its
    gradient is 0.  Query i and key i are at one place, also where there are more keys than queries.  Neither scores nor
    weights are stored; the backward pass makes them again.
    Reference: PyTorch ``scaled_dot_product_attention``.

    Parameters
    ----------
    q : Tensor of shape (heads * d, queries) or (heads * d, queries, batch)
    k : Tensor of shape (kv_heads * d, keys) or (kv_heads * d, keys, batch)
    v : Tensor of shape (kv_heads * dv, keys) or (kv_heads * dv, keys, batch)
    causal : bool, optional
        Whether query i sees the keys 0..i only.
    dropout : float, optional
        Probability, in [0, 1), that a weight is set to 0; the others are divided by ``1 - dropout``.
    heads, kv_heads : int, optional
        Heads of queries, and of keys and values, which neighbouring heads share; default: as many.
    attn_mask : Tensor or array_like of truth values, optional
        True where a query may see a key: (heads, queries, keys, batch), with 1 where it does not vary; also
        (queries, keys), (heads, queries, keys), (keys, batch) or (queries, keys, batch).
    attn_bias : Tensor or array_like, optional
        Added to scores; of a shape as a mask's.  It has a gradient, and -inf hides a key.
    scale : float, optional
        Default: ``1 / sqrt(d)``.
    window : int or (int, int), optional
        How many keys before and after its own a query sees.
    softcap : float, optional
        Positive; scores stay between ``-softcap`` and ``softcap``.
    alibi : Tensor or list of float, one per head, optional
        Slopes: ``slope * abs(query - key)`` is taken from scores.
    segments : Tensor or array_like of int, of shape (time,) or (time, batch), or a pair of them, optional
        Numbers of packed sequences: a query sees keys of its own.  A pair is of queries and of keys.

    Returns
    -------
    Tensor of shape (heads * dv, queries) or (heads * dv, queries, batch)

    Examples
    --------
    >>> x = [[1.0, 1.0]]
    >>> ag.ops.attention(x, x, [[2.0, 4.0]], attn_mask=[[True, False], [True, True]]).numpy().tolist()
    [[2.0, 3.0]]
    """
    if not counts(heads):
        raise ValueError(f"ag_attention: heads is {heads!r}; it must be a whole number of at least 1.")
    if kv_heads is not None and (not counts(kv_heads) or heads % kv_heads):
        raise ValueError(f"ag_attention: kv_heads is {kv_heads!r}; it must be a whole number that divides heads.")
    causal, heads, kv_heads = true_or_false("ag_attention", "causal", causal), int(heads), int(kv_heads or heads)
    rate = number_given("ag_attention", "dropout", dropout)
    if not 0 <= rate < 1:
        raise ValueError(f"ag_attention: dropout is {rate}; it must be in [0, 1).")
    if kv_heads == heads and attn_mask is attn_bias is scale is window is softcap is alibi is segments is None:
        return plain_attention(q, k, v, heads, causal, rate)
    backend, (q, k, v), dtype = operands_on_one_device("ag_attention", (q, k, v))
    _check(q.shape, k.shape, v.shape, heads, kv_heads)
    factor = 1.0 / sqrt(q.shape[0] // heads) if scale is None else number_given("ag_attention", "scale", scale)
    cap = 0.0 if softcap is None else number_given("ag_attention", "softcap", softcap)
    if softcap is not None and not 0 < cap < inf:
        raise ValueError(f"ag_attention: softcap is {cap}; a positive number is required.")
    batched, wide = q.ndim == 3, F64 if dtype is F64 else F32
    sizes = heads, q.shape[1], k.shape[1], q.shape[2] if batched else 1
    given = Terms(heads, kv_heads, factor, cap, *_span(window, causal), rate,
                  None if attn_mask is None else _mask(attn_mask, sizes, batched, backend),
                  (None, None) if segments is None else _segments(segments, sizes[1:3], sizes[3], backend),
                  None if alibi is None else _slopes(alibi, heads, backend, wide))
    if attn_bias is None:
        return attention_with_terms(q, k, v, given)
    bias = _on_device(attn_bias, backend, wide)
    return attention_with_bias(q, k, v, ag_reshape(bias, *_four_axes("attn_bias", bias.shape, sizes, batched)), given)
