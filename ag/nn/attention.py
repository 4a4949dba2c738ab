"""Multi-head attention between linear projections, and a cache of keys and values for generating."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from types import MappingProxyType
from typing import NamedTuple, NoReturn
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np

from ag.autograd.create import ag_param
from ag.autograd.operands import as_input
from ag.autograd.tape import is_recording
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.arena import now
from ag.engine.buffer import Buffer
from ag.engine.interpreter import current, recording_here
from ag.engine.random import host_uniform
from ag.engine.shape import counts, true_or_false
from ag.errors import CacheError, CaptureError, DeviceError, DtypeError, ExportError, ShapeError, TapeError
from ag.nn.layer import Layer, number, sizes
from ag.ops.arithmetic import ag_add
from ag.ops.attention import Segments, ag_attention, attention_of_heads
from ag.ops.indexing import ag_concat
from ag.ops.matmul import affine, ag_matmul

__all__ = ["MultiheadAttention", "ag_multihead_attention"]

_rate = number("ag_multihead_attention: dropout", lambda x: 0 <= x < 1, "in [0, 1)")
_AGAIN = "Call cache.clear() and begin with the whole sequence."


class _Kept(NamedTuple):
    """Keys and values of one layer, (d_model, time) or (d_model, time, batch), with their time and weights."""

    keys: Tensor
    values: Tensor
    began: int
    weights: Mapping[str, ReferenceType[Buffer]]

    @property
    def positions(self) -> int:
        return self.keys.shape[1]


class KeyValueCache:
    """Keys and values of the positions that a model's attention layers have seen.

    Give one to every `ag_multihead_attention` of a model, as ``attention(x, causal_mask=True, cache=cache)``.  The
    first call takes any number of positions, each later one a single new position, which attends to all before it.

    A cache serves one generation of one model.  ``copy.copy(cache)`` goes on apart from the original, from the same
    positions.  In training mode dropout draws once for every query and key, as in one pass over the whole sequence.

    Attention layers notice changes of their own weights; after changes of others, such as an embedding, call `clear`.
    A forward pass that is interrupted behind its last attention layer counts as done, as `positions` tells.
    Reference: Pope et al., "Efficiently Scaling Transformer Inference", section 2.1.

    Examples
    --------
    >>> attention, cache = ag.nn.MultiheadAttention(4, 2), ag.nn.KeyValueCache()
    >>> x = ag.ag_tensor([[1.0, 2.0, 3.0, 4.0]] * 4)
    >>> attention(x[:, :3], causal_mask=True, cache=cache).shape, cache.positions
    ((4, 3), 3)
    >>> attention(x[:, 3:], causal_mask=True, cache=cache).shape, cache.positions
    ((4, 1), 4)
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Layer, _Kept] = WeakKeyDictionary()
        self._all_known = False  # whether the first pass is over, after which no layer can be new

    def _lengths(self) -> list[int]:
        return [kept.positions for kept in self._kept.values()]

    @property
    def positions(self) -> int:
        """Count of positions that went through all layers, which is the index of the next one."""
        lengths = self._lengths() or [0]
        if min(lengths) != max(lengths):
            raise CacheError(f"KeyValueCache: some layers have seen {max(lengths)} positions and others "
                             f"{min(lengths)}; a forward pass ended midway, or is not over. Read positions before the "
                             f"layers; after an interrupt call cache.clear() and begin with the whole sequence.")
        if lengths[0]:
            self._all_known = True
        return lengths[0]

    def clear(self) -> None:
        """Forget everything and begin at position 0."""
        self._kept, self._all_known = WeakKeyDictionary(), False

    def __copy__(self) -> KeyValueCache:
        """A cache that goes on apart from this one; what is kept is never written to, so both may hold it."""
        twin = KeyValueCache()
        twin._kept, twin._all_known = self._kept.copy(), self._all_known
        return twin

    def __deepcopy__(self, memo: dict[int, object]) -> KeyValueCache:
        return self.__copy__()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("KeyValueCache: it cannot be pickled, as it belongs to the layers of one process; make another "
                        "one there and begin with the whole sequence.")

    def __repr__(self) -> str:
        lengths = self._lengths() or [0]
        seen = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
        return f"KeyValueCache(positions={seen}, layers={len(self._kept)})"


class Continued:
    """One call of a layer with a cache; refused before anything is computed, unless it continues the last one.

    `x`, of shape (d_model, time) or (d_model, time, batch), has the new positions; `others`: not all keys are of `x`.
    """

    def __init__(self, cache: KeyValueCache, layer: Layer, x: Tensor, causal_mask: bool, others: bool) -> None:
        tensors = layer.named_tensors()
        _check_call(cache, causal_mask, others, [x, *tensors.values()])
        self._cache, self._layer = cache, layer
        self._before = cache._kept.get(layer)
        self.is_first = self._before is None  # nothing is kept of this layer yet
        self._began = now() if self._before is None else self._before.began
        self._weights = {name: ref(t.buffer) for name, t in tensors.items()}
        self._new: tuple[Tensor, Tensor] | None = None
        if self._before is None:
            self._check_first(x)
        else:
            self._check_next(self._before, x, tensors)

    def _check_first(self, x: Tensor) -> None:
        """A layer comes into a cache in the first pass, and sees as many positions as the others."""
        lengths, new = self._cache._lengths(), x.shape[1]
        if not lengths:
            self._cache._all_known = False
        elif self._cache._all_known or new != max(lengths):
            raise CacheError(f"ag_multihead_attention: this layer is new to the cache, with {new} of the positions of "
                             f"which others have seen {max(lengths)}; a forward pass ended midway, cache.positions was "
                             f"read inside one, or the cache is another model's. {_AGAIN}")

    def _check_next(self, before: _Kept, x: Tensor, tensors: Mapping[str, Tensor]) -> None:
        keys = before.keys
        if x.device != keys.device:
            raise DeviceError(f"ag_multihead_attention: the input is on {x.device} and the cache on {keys.device}, "
                              f"which must be the same. {_AGAIN}")
        if x.dtype != keys.dtype:
            raise DtypeError(f"ag_multihead_attention: the input has element type {x.dtype} and the cache "
                             f"{keys.dtype}, which must be the same. {_AGAIN}")
        if x.shape[2:] != keys.shape[2:]:
            raise ShapeError(f"ag_multihead_attention: the input is {x.shape} and the cache holds keys of shape "
                             f"{keys.shape}, and the batch must be the same; make a cache for each batch, or call "
                             f"cache.clear().")
        if before.positions > (least := min(self._cache._lengths())):
            raise CacheError(f"ag_multihead_attention: this layer has seen {before.positions} positions and another "
                             f"{least}; a forward pass ended midway, or the layer is called twice in one. {_AGAIN}")
        if x.shape[1] != 1:
            raise ShapeError(f"ag_multihead_attention: {x.shape[1]} positions were given, after {before.positions} in "
                             f"the cache; after the first call each has exactly one. Give them one by one, or call "
                             f"cache.clear() before a sequence begins.")
        for name in {**before.weights, **tensors}:
            was, t = before.weights.get(name), tensors.get(name)
            if was is None or t is None or was() is not t.buffer or t.buffer.changed_since(before.began):
                raise CacheError(f"ag_multihead_attention: {name} was changed or moved after the cache had kept "
                                 f"{before.positions} positions, which were computed with what it was. {_AGAIN}")

    def joined(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all positions, of which those given are the last."""
        if self._before is not None:
            keys = ag_concat([self._before.keys, keys], dim=1)
            values = ag_concat([self._before.values, values], dim=1)
        self._new = keys, values
        return self._new

    def keep(self) -> None:
        """The layer's result is there: from now on the positions have been seen."""
        assert self._new is not None
        if self._cache._kept.get(self._layer) is not self._before:
            raise CacheError(f"ag_multihead_attention: somebody else went on with the cache, or cleared it, while this "
                             f"layer computed {self._new[0].shape[1]} positions; give each thread a cache of its own.")
        if self._before is not None:
            self._cache._all_known = True
        self._cache._kept[self._layer] = _Kept(*self._new, self._began, self._weights)


def _check_call(cache: object, causal_mask: bool, others: bool, tensors: list[Tensor]) -> None:
    if not isinstance(cache, KeyValueCache):
        raise TypeError(f"ag_multihead_attention: cache is a {type(cache).__name__}; an ag.nn.KeyValueCache() is "
                        f"required.")
    if others:
        raise ValueError("ag_multihead_attention: k or v was given with a cache, which keeps keys and values of q "
                         "alone; leave them out, or the cache.")
    if not causal_mask:
        raise ValueError(f"ag_multihead_attention: causal_mask is {causal_mask!r} with a cache, whose positions have "
                         f"not seen later ones; write causal_mask=True.")

    if recording_here() is not None:
        raise CaptureError("ag_multihead_attention: a cache was given inside ag_capture; it grows with every call, "
                           "and a replay does always the same. Generate outside the captured step.")
    if (here := current()) is not None and here.exports:
        raise ExportError("ag_multihead_attention: a cache was given while the model is exported; its keys would be "
                          "numbers of the graph. Export without one.")
    if is_recording() is not False and any(t.requires_grad for t in tensors):
        raise TapeError("ag_multihead_attention: a cache was given while gradients are recorded, which would not reach "
                        "what is kept; call the model outside with_grad_tape, or inside `with ag.no_grad():`.")


class MultiheadAttention(Layer):
    """Attention of several heads between linear projections.

    Reference: ggmlR ``ag_multihead_attention``; PyTorch ``MultiheadAttention``; Vaswani et al., "Attention Is All You
    Need", section 3.2.2.

    Parameters
    ----------
    d_model : int
        Features of inputs and outputs, a multiple of `n_heads`.
    n_heads : int
        Each head works on ``d_model / n_heads`` neighbouring features.
    dropout : float, optional
        Probability, in [0, 1), that an attention weight is set to 0 while training.
    bias : bool, optional
        Whether the output has an offset.
    qkv_bias : bool, optional
        Whether queries, keys and values have one, as PyTorch's have by default.
    kdim, vdim : int, optional
        Features of keys and values before they are projected; default: `d_model`.
    kv_heads : int, optional
        Heads of keys and values, which neighbouring heads of queries share; default: `n_heads`.

    Attributes
    ----------
    W_q, W_o : Tensor of shape (d_model, d_model)
        Projections of queries and output, initially Glorot-uniform.
    W_k, W_v : Tensor of shape (kv_heads * d_model / n_heads, kdim or vdim)
        Projections of keys and values.
    b_q, b_k, b_v, b_o : Tensor of shape (..., 1)
        Offsets, initially 0.

    Examples
    --------
    >>> ag.ag_multihead_attention(4, 2)(ag.ag_tensor([[1.0, 2.0, 3.0]] * 4), causal_mask=True).shape
    (4, 3)
    """

    _adjustable = MappingProxyType({"dropout": _rate})
    settings = ("d_model", "n_heads", "dropout", "bias", "qkv_bias", "kdim", "vdim", "kv_heads")
    _largest = ("d_model", "d_model")

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0, bias: bool = True, *, qkv_bias: bool = False,
                 kdim: int | None = None, vdim: int | None = None, kv_heads: int | None = None) -> None:
        if not counts(d_model, n_heads) or d_model % n_heads:
            raise ValueError(f"ag_multihead_attention: d_model is {d_model!r} and n_heads is {n_heads!r}; both must be "
                             f"whole numbers of at least 1, and d_model a multiple of n_heads.")
        self.d_model = int(d_model)
        self.n_heads = int(n_heads)
        self.dropout = _rate(dropout)
        self.bias = true_or_false("ag_multihead_attention", "bias", bias)
        self.qkv_bias = true_or_false("ag_multihead_attention", "qkv_bias", qkv_bias)
        self.kdim, self.vdim, self.kv_heads = sizes(
            "ag_multihead_attention", kdim=self.d_model if kdim is None else kdim,
            vdim=self.d_model if vdim is None else vdim, kv_heads=self.n_heads if kv_heads is None else kv_heads)
        if self.n_heads % self.kv_heads:
            raise ValueError(f"ag_multihead_attention: n_heads is {n_heads} and kv_heads {kv_heads}; kv_heads must "
                             f"divide n_heads.")
        shared = self.d_model // self.n_heads * self.kv_heads
        shapes = (self.d_model, self.d_model), (shared, self.kdim), (shared, self.vdim), (self.d_model, self.d_model)
        limits = [sqrt(6 / sum(shape)) for shape in shapes]
        self.W_q, self.W_k, self.W_v, self.W_o = (ag_param(host_uniform(shape, -limit, limit))
                                                  for shape, limit in zip(shapes, limits, strict=True))
        if qkv_bias:
            self.b_q, self.b_k, self.b_v = (ag_param(np.zeros((shape[0], 1), np.float32)) for shape in shapes[:3])
        if bias:
            self.b_o = ag_param(np.zeros((self.d_model, 1), np.float32))

    def forward(self, q: TensorLike, k: TensorLike | None = None, v: TensorLike | None = None,
                causal_mask: bool = False, cache: KeyValueCache | None = None, *, attn_mask: TensorLike | None = None,
                attn_bias: TensorLike | None = None, scale: float | None = None,
                window: int | tuple[int, int] | None = None, softcap: float | None = None,
                alibi: TensorLike | Sequence[float] | None = None, segments: Segments | None = None) -> Tensor:
        """Output of the shape of `q`, (d_model, time) or (d_model, time, batch); `k` is `q` by default, `v` is `k`.

        With a `cache`, `q` goes on where the last call ended, and sees what the calls before it have seen.  The other
        arguments are those of `ag_attention`; in `attn_mask`, True may be seen, where PyTorch's layer hides it.
        """
        others = k is not None or v is not None
        q = as_input(q, self.W_q)
        k = q if k is None else as_input(k, self.W_k)
        v = k if v is None else as_input(v, self.W_v)
        for name, x, features in (("q", q, self.d_model), ("k", k, self.kdim), ("v", v, self.vdim)):
            if x.ndim not in (2, 3) or x.shape[0] != features:
                raise ShapeError(f"ag_multihead_attention: {name} is {x.shape}; ({features}, time) or "
                                 f"({features}, time, batch) is required.")
        rate = self.dropout if self.training else 0.0
        if cache is not None and any(x is not None for x in (window, alibi, segments)):
            raise ValueError("ag_multihead_attention: window, alibi or segments were given with a cache, where a query "
                             "does not tell its position; leave them out, or give what they do as attn_bias.")
        call = None if cache is None else Continued(cache, self, q, causal_mask, others)
        given = ((self.W_q, q, "b_q"), (self.W_k, k, "b_k"), (self.W_v, v, "b_v"))
        queries, keys, values = (affine(W, x, getattr(self, b)) if self.qkv_bias else ag_matmul(W, x)
                                 for W, x, b in given)
        if call is not None:
            causal_mask = call.is_first  # a later query is the last position, which sees all
            keys, values = call.joined(keys, values)
        if self.kv_heads == self.n_heads and all(
                x is None for x in (attn_mask, attn_bias, scale, window, softcap, alibi, segments)):
            heads = attention_of_heads(queries, keys, values, self.n_heads, causal_mask, rate)
        else:
            heads = ag_attention(
                queries, keys, values, causal_mask, rate, self.n_heads, kv_heads=self.kv_heads, attn_mask=attn_mask,
                attn_bias=attn_bias, scale=scale, window=window, softcap=softcap, alibi=alibi, segments=segments)
        out = ag_matmul(self.W_o, heads)
        if self.bias:
            out = ag_add(out, self.b_o if out.ndim == 2 else self.b_o.reshape(self.d_model, 1, 1))
        if call is not None:
            call.keep()
        return out


ag_multihead_attention = MultiheadAttention
