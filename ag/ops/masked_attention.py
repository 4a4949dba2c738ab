"""Attention with masks, biases, windows and shared heads, in fused kernels that store no matrix of weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from ag.autograd.op import Cotangents, Need, Result, Run, Wide, composed, part_of
from ag.autograd.operands import as_array, closed_or_elsewhere, number_given, operands_on_one_device, to_buffer
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import BOOL, F32, F64, I32, DType
from ag.engine.kernels.attention import attention_delta
from ag.engine.kernels.masked_attention import UNLIMITED, attention_bias_grad, masked_attention, masked_attention_grad
from ag.engine.random import draw_key
from ag.engine.shape import Shape, counts, true_or_false
from ag.errors import DtypeError, ShapeError
from ag.ops.attention import ag_attention, features_first, laid_out, puts_samples_first

__all__ = ["attention"]


class Terms(NamedTuple):
    """What scores have beside products, to which no gradient flows; None is absent."""

    heads: int
    kv_heads: int
    factor: float
    softcap: float
    before: int
    after: int
    rate: float
    mask: Buffer | None
    q_segments: Buffer | None
    k_segments: Buffer | None
    slopes: Buffer | None

    def numbers(self, samples: int) -> dict[str, float]:
        return {**dict(zip(self._fields[:7], self[:7], strict=True)), "samples": samples}

    def operands(self, q: Buffer, bias: Buffer | None) -> list[Buffer]:
        """The terms as kernels take them."""
        none, no_ids = q.view((0,)), q.view((0,), dtype=I32)
        given = (bias, none), (self.mask, none), (self.q_segments, no_ids), (self.k_segments, no_ids), (self.slopes, none)
        return [absent if x is None else x for x, absent in given]


# q, k, v, bias, key of dropout; in a list, as in `ag.ops.attention`, the result and the logarithms of denominators
Attended = tuple[Buffer, Buffer, Buffer, Buffer | None, Buffer, list[Buffer]]


def _forward(run: Run, q: Buffer, k: Buffer, v: Buffer, bias: Buffer | None, terms: Terms) -> Result[Attended]:
    key = draw_key(q.backend) if terms.rate else q  # which nobody reads then
    first = puts_samples_first(q, k)
    laid = laid_out(run, (q, k, v), 1, first)
    out, lse = run(masked_attention, *laid, key, *terms.operands(laid[0], bias), **terms.numbers(
        q.shape[2] if first else 1))
    shape = (v.shape[0] // terms.kv_heads * terms.heads, *q.shape[1:])
    return features_first(run, out, shape) if first else out.view(shape), (q, k, v, bias, key, [out, lse])


def _backward(run: Run, g: Buffer, saved: Attended, need: Need, terms: Terms) -> Cotangents:
    q, k, v, bias, key, (out, lse) = saved
    first = puts_samples_first(q, k)
    samples = q.shape[2] if first else 1
    *laid, g = laid_out(run, (q, k, v, g), 1, first)
    delta = run(attention_delta, out, g, heads=terms.heads * samples)
    given = [*laid, g, lse, delta, key, *terms.operands(laid[0], bias)]
    found: list[Buffer | None] = [None] * 3
    if any(need[:3]):
        found = [(features_first(run, d, x.shape) if first else d.view(x.shape)) if wanted else None
                 for d, x, wanted in zip(run(masked_attention_grad, *given, **terms.numbers(samples)), (q, k, v), need[:3],
                                         strict=True)]
    if bias is None:
        return tuple(found)
    return (*found, run(attention_bias_grad, *given, **terms.numbers(samples)) if need[3] else None)


@part_of("attention")
def _masked(run: Run, q: Buffer, k: Buffer, v: Buffer, terms: Terms) -> Result[Attended]:
    """`attention` without a bias."""
    return _forward(run, q, k, v, None, terms)


@part_of("attention")
def _biased(run: Run, q: Buffer, k: Buffer, v: Buffer, bias: Wide, terms: Terms) -> Result[Attended]:
    """`attention` with a bias, of shape (heads, queries, keys, batch) or 1 along an axis."""
    return _forward(run, q, k, v, bias, terms)


_masked.vjp(_backward)
_biased.vjp(_backward)


# ---------------------------------------------------------------------------------------------- arguments


def _four_axes(name: str, given: Shape, sizes: Shape, batched: bool) -> Shape:
    """The shape of a mask or bias with all axes of `sizes`, (heads, queries, keys, batch), or an error."""
    candidates = [given] if len(given) == 4 else [(1,) * (3 - len(given)) + given + (1,)]
    if batched and len(given) < 4:
        candidates.append((1,) * (4 - len(given)) + given)
    fitting = {c for c in candidates if len(given) > 1 and len(c) == 4 and all(
        n in (1, size) for n, size in zip(c, sizes, strict=True))}
    if len(fitting) == 1:
        return fitting.pop()
    what = f"attention: {name} is {given}, and heads, queries, keys and batch are {sizes}"
    if fitting:
        raise ShapeError(f"{what}, so it could be one of {' and '.join(map(str, sorted(fitting)))}; give it such a "
                         f"shape of four axes.")
    raise ShapeError(f"{what}; these, (queries, keys), (keys, batch) or three neighbouring axes are required, each "
                     f"equal or 1.")


def _on_device(x: TensorLike, backend: Device, dtype: DType) -> Tensor:
    """A term as a tensor beside the queries; what is on the host gets this element type."""
    if not isinstance(x, Tensor):
        return Tensor(to_buffer(as_array(x, "attention"), backend, dtype))
    if x.buffer.backend is not backend:
        raise closed_or_elsewhere("attention", backend, x.buffer.backend)
    return x


def _constant(name: str, x: object) -> None:
    if isinstance(x, Tensor) and x.requires_grad:
        raise DtypeError(f"attention: {name} requires a gradient, and none flows to it. Detach it, or give the numbers "
                         f"that it adds to scores as attn_bias.")


def _mask(x: TensorLike, sizes: Shape, batched: bool, backend: Device) -> Buffer:
    kind = x.dtype if isinstance(x, Tensor) else str(as_array(x, "attention").dtype)
    if kind != "bool":
        raise DtypeError(f"attention: attn_mask is of type {kind}; True and False are required, where True may be seen. "
                         f"Numbers that are added to scores are attn_bias.")
    b = _on_device(x, backend, BOOL).buffer
    return b.view(_four_axes("attn_mask", b.shape, sizes, batched), dtype=F32)


def _segments(x: object, times: tuple[int, int], batch: int, backend: Device) -> list[Buffer]:
    """Numbers of segments, of queries and keys: (time, batch) or (time, 1) each."""
    found = []
    for given, time in zip(x if isinstance(x, tuple) else (x, x), times, strict=True):
        kind = given.dtype if isinstance(given, Tensor) else as_array(given, "attention").dtype.kind
        if kind not in ("i32", "i", "u", "b"):
            raise DtypeError(f"attention: segments are of type {kind}; whole numbers are required, a tensor of i32.")
        b = _on_device(given, backend, I32).buffer
        shape = b.shape if len(b.shape) == 2 else (*b.shape, 1)
        if shape not in ((time, 1), (time, batch)):
            raise ShapeError(f"attention: segments are {b.shape}, where the sequence has {time} times and {batch} "
                             f"samples; (time,) or (time, batch) is required, or a pair (of queries, of keys).")
        found.append(b.view(shape))
    if found[0].shape[1] != found[1].shape[1]:
        raise ShapeError(f"attention: segments of queries are {found[0].shape} and of keys {found[1].shape}; both or "
                         f"none must have an axis of samples.")
    return found


def _span(window: object, causal: bool) -> tuple[int, int]:
    """How many keys before and after its own a query sees."""
    before, after = window if isinstance(window, tuple) and len(window) == 2 else (window, window)
    if window is None:
        before = after = UNLIMITED
    elif not counts(before, after, least=0):
        raise ValueError(f"attention: window is {window!r}; a number of keys of at least 0 is required, or a pair "
                         f"(before, after) of them.")
    return int(before), 0 if causal else int(after)


def _check(q: Buffer, k: Buffer, v: Buffer, heads: int, kv_heads: int) -> None:
    shapes = f"attention: q is {q.shape}, k is {k.shape} and v is {v.shape}"
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (2, 3):
        raise ShapeError(f"{shapes}; all must be (features, time) or (features, time, batch).")
    if q.shape[2:] != k.shape[2:] or k.shape[1:] != v.shape[1:]:
        raise ShapeError(f"{shapes}; k and v need as many times, and all the same batch.")
    if q.shape[0] == 0 or k.shape[1] == 0:
        raise ShapeError(f"{shapes}; at least one feature and one key are required.")
    if q.shape[0] % heads or k.shape[0] != q.shape[0] // heads * kv_heads or v.shape[0] % kv_heads:
        raise ShapeError(f"{shapes}; q must divide into {heads} heads, k into {kv_heads} of as many features, and v into "
                         f"{kv_heads}.")


@composed
def attention(
    q: TensorLike, k: TensorLike, v: TensorLike, causal: bool = False, dropout: float = 0.0, heads: int = 1, *,
    kv_heads: int | None = None, attn_mask: TensorLike | None = None, attn_bias: TensorLike | None = None,
    scale: float | None = None, window: int | tuple[int, int] | None = None, softcap: float | None = None,
    alibi: TensorLike | Sequence[float] | None = None, segments: TensorLike | tuple[TensorLike, TensorLike] | None = None,
) -> Tensor:
    """Scaled dot-product attention, ``v @ softmax(scores)`` for each sample and head, in fused kernels.

    Scores are ``scale * k.T @ q``, then ``softcap * tanh(scores / softcap)``, then plus `attn_bias`, then minus what
    `alibi` says; `causal`, `window`, `attn_mask` and `segments` hide keys.  A query that sees no key gives 0, and its
    gradient is 0.  Times count from the first query and the first key, also where there are more keys than queries.
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
    if not counts(heads) or not (kv_heads is None or (counts(kv_heads) and heads % kv_heads == 0)):
        raise ValueError(f"attention: heads is {heads!r} and kv_heads {kv_heads!r}; whole numbers of at least 1 are "
                         f"required, and kv_heads must divide heads.")
    causal = true_or_false("attention", "causal", causal)
    terms = (attn_mask, attn_bias, scale, window, softcap, alibi, segments)
    if all(x is None for x in terms) and kv_heads in (None, heads):
        return ag_attention(q, k, v, causal, dropout, heads)
    backend, (q, k, v), dtype = operands_on_one_device("attention", (q, k, v))
    a, b, c = q.buffer, k.buffer, v.buffer
    heads, kv_heads, rate = int(heads), int(kv_heads or heads), number_given("attention", "dropout", dropout)
    _check(a, b, c, heads, kv_heads)
    if not 0 <= rate < 1:
        raise ValueError(f"attention: dropout is {rate}; it must be in [0, 1).")
    factor = 1.0 / sqrt(a.shape[0] // heads) if scale is None else number_given("attention", "scale", scale)
    cap = 0.0 if softcap is None else number_given("attention", "softcap", softcap)
    if softcap is not None and not cap > 0:
        raise ValueError(f"attention: softcap is {cap}; a positive number is required.")
    batch, wide = a.shape[2] if a.ndim == 3 else 1, F64 if dtype is F64 else F32
    sizes = heads, a.shape[1], b.shape[1], batch
    for name, x in (("attn_mask", attn_mask), ("alibi", alibi), ("segments", segments)):
        _constant(name, x)
    mask = None if attn_mask is None else _mask(attn_mask, sizes, a.ndim == 3, backend)
    ids = [None, None] if segments is None else _segments(segments, sizes[1:3], batch, backend)
    slopes = None
    if alibi is not None:
        fixed = isinstance(alibi, (list, tuple))
        t = Tensor(backend.constant(as_array(alibi, "attention"), wide)) if fixed else _on_device(alibi, backend, wide)
        if t.size != heads:
            raise ShapeError(f"attention: alibi is {t.shape}; a slope for each of {heads} heads is required.")
        slopes = t.astype(wide.name).buffer.view((heads,))
    given = Terms(heads, kv_heads, factor, cap, *_span(window, causal), rate, mask, *ids, slopes)
    if attn_bias is None:
        return _masked(q, k, v, given)
    bias = _on_device(attn_bias, backend, wide)
    return _biased(q, k, v, bias.reshape(_four_axes("attn_bias", bias.shape, sizes, a.ndim == 3)), given)
