"""Scaled dot-product attention of one or several heads, with masks, biases and windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import cast

import numpy as np

from ag.autograd.op import composed
from ag.autograd.operands import as_array, closed_or_elsewhere, number_given, operands_on_one_device, to_buffer
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import BOOL, F32, F64, I32, DType
from ag.engine.kernels.masked_attention import UNLIMITED
from ag.engine.shape import Shape, counts, true_or_false
from ag.errors import DtypeError, ShapeError
from ag.ops.fused_attention import Terms, attention_with_bias, attention_with_terms, check_operands, plain_attention
from ag.ops.indexing import ag_reshape

__all__ = ["ag_attention"]

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
    if kv_heads == heads and attn_mask is attn_bias is scale is window is softcap is alibi is segments is None:
        return plain_attention(q, k, v, causal, dropout, heads)
    backend, (q, k, v), dtype = operands_on_one_device("ag_attention", (q, k, v))
    rate = number_given("ag_attention", "dropout", dropout)
    check_operands("ag_attention", q.buffer, k.buffer, v.buffer, heads, kv_heads, rate)
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
