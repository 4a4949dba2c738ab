"""Multi-head attention between linear projections, and two caches of keys and values for generating.

Positions of a `StaticCache` are counted on the device, so a step can be captured.  The host counts along: in Python,
and after a replay by an effect of the recording, so that a full cache is an error before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import sqrt
from types import MappingProxyType
from typing import NamedTuple, NoReturn
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

import numpy as np

from ag import ops
from ag.autograd.create import ag_param
from ag.autograd.operands import KINDS, as_input, as_mask, as_numbers, checked_ids, operands_on_one_device, to_buffer
from ag.autograd.tape import is_recording
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.autograd.watched import notes_here
from ag.engine.arena import now
from ag.engine.buffer import Buffer, Device
from ag.engine.device import backend_of, default_backend
from ag.engine.dtype import F32, I32, as_dtype
from ag.engine.interpreter import current, recording_here
from ag.engine.kernels.attention import cache_append, cache_mask, cache_places
from ag.engine.kernels.convert import converted
from ag.engine.kernels.reduce import expand
from ag.engine.primitive import Array
from ag.engine.program import Recording
from ag.engine.random import host_uniform
from ag.engine.shape import counts, true_or_false
from ag.errors import CacheError, CaptureError, DeviceError, DtypeError, ExportError, ShapeError, TapeError
from ag.nn.layer import Layer, number, sizes
from ag.ops.attention import Segments, ag_attention, attention_of_heads
from ag.ops.matmul import affine, ag_matmul

__all__ = ["KeyValueCache", "MultiheadAttention", "StaticCache", "ag_multihead_attention"]

_rate = number("ag_multihead_attention: dropout", lambda x: 0 <= x < 1, "in [0, 1)")
_AGAIN = "Call cache.clear() and begin with the whole sequence."
_BACK = "Call cache.rollback(snapshot), or cache.reset() and begin with the whole sequence."
_KINDS = [KINDS["Wide"], KINDS["Buffer"], KINDS["Buffer"]]  # of a static cache, and of what it is given


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

    A cache serves one generation of one model.  ``copy.copy(cache)`` goes on apart from the original.  In training mode
    dropout draws once for every query and key, as in one pass over the whole sequence.
    Attention layers notice changes of their own weights; after changes of others, such as an embedding, call `clear`.
    A forward pass that is interrupted behind its last attention layer counts as done, as `positions` tells.
    Reference: Pope et al., "Efficiently Scaling Transformer Inference", section 2.1.

    Examples
    --------
    >>> attention, cache, x = ag.nn.MultiheadAttention(4, 2), ag.nn.KeyValueCache(), ag.ops.ones(4, 5)
    >>> [attention(part, causal_mask=True, cache=cache).shape for part in (x[:, :4], x[:, 4:])], cache.positions
    ([(4, 4), (4, 1)], 5)
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

    def _last(self, layer: Layer, x: Tensor, tensors: Mapping[str, Tensor]) -> _Kept | None:
        """Return what a layer's last call has kept, if any; refuse new positions `x` that do not continue it."""
        before, lengths = self._kept.get(layer), self._lengths()
        if before is None:  # a layer comes into a cache in the first pass, and sees as many positions as the others
            if not lengths:
                self._all_known = False
            elif self._all_known or x.shape[1] != max(lengths):
                raise CacheError(f"ag_multihead_attention: this layer is new to the cache, with {x.shape[1]} of the "
                                 f"positions of which others have seen {max(lengths)}; a forward pass ended midway, "
                                 f"cache.positions was read inside one, or the cache is another model's. {_AGAIN}")
            return None
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
        if before.positions > (least := min(lengths)):
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
        return before

    def _keep(self, layer: Layer, before: _Kept | None, kept: _Kept) -> None:
        """Keep what a layer has seen, whose result is there; `before` is what the cache held when it began."""
        if self._kept.get(layer) is not before:
            raise CacheError(f"ag_multihead_attention: somebody else went on with the cache, or cleared it, while this "
                             f"layer computed {kept.positions} positions; give each thread a cache of its own.")
        if before is not None:
            self._all_known = True
        self._kept[layer] = kept

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
    _refuse_outside("ag_multihead_attention: a cache was", tensors)


def _refuse_outside(what: str, given: Iterable[Tensor]) -> None:
    """Refuse a cache in an export, and beside tensors to which gradients are to flow."""
    if (here := current()) is not None and here.exports:
        raise ExportError(f"{what} given while the model is exported; its keys would be numbers of the graph. Export "
                          f"without a cache.")
    if is_recording() is not False and any(t.requires_grad for t in given):
        raise TapeError(f"{what} given while gradients are recorded, which would not reach what is kept; call the "
                        f"model outside with_grad_tape, or inside `with ag.no_grad():`.")


class Snapshot:
    """A position of a cache to go back to."""

    def __init__(self, positions: int, at: Buffer) -> None:
        self.positions, self.at = positions, at


class StaticCache:
    """Keys and values of the positions so far, in memory that is allocated once, for attention of your own.

    A forward pass gives it a chunk of tokens, by `append` in every layer, in order.  Before the layers, `advance`
    returns their positions, as `ag.ops.rope` needs them.  In a captured step one recording serves all tokens.  Padding
    takes no place: the tokens of a sample lie one behind the other.  No gradient flows through the cache.
    Reference: Hugging Face ``StaticCache``; Pope et al., "Efficiently Scaling Transformer Inference".

    Parameters
    ----------
    layers : int
    features : int
        Of the keys of a layer, and of its values unless `value_features` is given.
    capacity : int
        The most positions; those that padding took in its chunk count.
    batch : int, optional
    dtype : str, optional
        ``"f32"``, ``"bf16"`` or ``"f16"``, in half the memory, or ``"f64"`` on the CPU.

    Examples
    --------
    >>> cache = ag.nn.StaticCache(layers=1, features=2, capacity=4)
    >>> k = ag.ag_tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
    >>> keys, values, mask = cache.append(k, k)
    >>> keys.numpy()[:, :, 0].tolist(), mask.numpy()[0, :, :, 0].astype(int).tolist()
    ([[1.0, 2.0, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0]], [[1, 0, 0, 0], [1, 1, 0, 0]])
    """

    def __init__(self, layers: int, features: int, capacity: int, batch: int = 1, value_features: int | None = None,
                 dtype: str = "f32", device: str | None = None) -> None:
        wide = features if value_features is None else value_features
        self.layers, self.features, self.capacity, self.batch, self.value_features = sizes(
            "StaticCache", layers=layers, features=features, capacity=capacity, batch=batch, value_features=wide)
        kind = as_dtype(dtype, "StaticCache")
        if not kind.is_float:
            raise DtypeError(f"StaticCache: dtype is {kind}; f32, bf16, f16 or f64 is required.")
        backend: Device = default_backend(kind) if device is None else backend_of(device)
        self._kept = [tuple([Tensor(backend.zeros((n, self.capacity, self.batch), kind))
                             for n in (self.features, self.value_features)]) for _ in range(self.layers)]
        self._at = to_buffer(np.zeros(self.batch, np.int32), backend, I32)
        self._snapshots: WeakSet[Snapshot] = WeakSet()
        self._taken, self._before = 0, 0  # positions, with and without those of a recording
        self._during: Recording | None = None  # which counts unless it was dropped
        self._layer = 0  # the next one of a chunk
        self._chunk: tuple[Tensor, Tensor] | None = None  # its places and its mask

    def _count(self, more: int = 0) -> int:
        """Positions that are taken, now with some more; those of a recording that was dropped are none."""
        here = recording_here()
        if self._during is not None and self._during is not here:
            if self._during.given_up:
                self._taken = self._before
            self._during = None
        if more and here is not None and self._during is None:
            self._during, self._before = here, self._taken
        self._taken += more
        return self._taken

    def _take(self, more: int) -> None:
        self._count(more)

    _replayed = property(_count, _take)  # a replay of a captured step sets it to the positions that it takes

    def _room(self, more: int) -> str | None:
        """Why there is no room for more positions."""
        taken = self._count()
        return None if taken + more <= self.capacity else (
            f"StaticCache: {more} positions were given after {taken}, and the capacity is {self.capacity}; make a "
            f"larger cache, or call cache.reset().")

    @property
    def positions(self) -> int:
        """Count of positions that are taken, with those of padding; the longest sample may have fewer."""
        if (recording := recording_here()) is not None:
            recording.refuse(CaptureError("StaticCache: a captured step reads cache.positions, a number of the host "
                                          "that a replay would not read again; use cache.advance(time), a tensor."))
        return self._count()

    def lengths(self) -> Array:
        """Count the tokens of each sample; waits for the device."""
        return self._at.backend.download(self._at)

    def advance(self, time: int, lengths: ArrayLike | None = None, padding: str = "right") -> Tensor:
        """Begin a chunk, and return its positions: int32 of shape (time, batch), -1 for padding.

        Parameters
        ----------
        time : int
            Tokens of each sample in the chunk, with padding.
        lengths : array_like of integers, of shape (batch,), optional
            Tokens of each sample without padding.
        padding : str, optional
            The side where a sample's padding is: ``"right"``, behind its tokens, or ``"left"``.
        """
        (time,) = sizes("StaticCache", time=time)
        if padding not in ("left", "right"):
            raise ValueError(f'StaticCache: padding is {padding!r}; it must be "left" or "right".')
        if self._chunk is not None or self._layer:
            raise CacheError(f"StaticCache: a chunk begins, and the last one has come to {self._layer} of "
                             f"{self.layers} layers; a forward pass ended midway. {_BACK}")
        _refuse_outside("StaticCache: keys were", ())
        if (full := self._room(time)) is not None:
            raise CacheError(full)
        backend = self._at.backend
        counts = backend.constant(time, I32)
        if lengths is not None:
            counts = checked_ids("StaticCache", self._kept[0][0], lengths, time + 1, "length",
                                 f"lengths count the tokens of samples in a chunk of {time}").buffer
            if counts.shape != (self.batch,):
                raise ShapeError(f"StaticCache: the lengths are {counts.shape}; ({self.batch},) is required.")
        places = backend.launch(cache_places, self._at, counts, times=time, left=padding == "left")
        mask = backend.alloc((1, time, self.capacity, self.batch), F32)
        backend.launch(cache_mask, places, into=mask, capacity=self.capacity)
        self._chunk = Tensor(places), Tensor(as_mask(mask))
        self._count(time)
        if (notes := notes_here()) is not None:
            more = self._taken - self._before
            notes.written(self, "_replayed", more)
            recording_here().guards[f"cache {id(self)}"] = partial(_full, ref(self), more)
        return self._chunk[0]

    def append(self, k: TensorLike, v: TensorLike, layer: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Keep the keys and values of a chunk in a layer; return all of that layer, and the mask of what may be seen.

        All are the cache's own memory, of shape (features, capacity, batch), which the next chunk changes.  Where the
        mask, of shape (1, time, capacity, batch), is True, a token sees a position: its own and earlier ones.  Padding
        sees the first.  The mask is one for ``attn_mask`` of `ag.ops.attention`.

        Parameters
        ----------
        k, v : Tensor of shape (features, time, batch)
            Of the element type of the cache, or of 16 bits in one of f32.
        layer : int, optional
            Layers come in order.
        """
        new_k, new_v = self._checked(k, v)
        if layer != self._layer:
            raise CacheError(f"StaticCache: layer {layer!r} was given and layer {self._layer} of {self.layers} is "
                             f"next; layers come in order, and each once in a forward pass. {_BACK}")
        if self._chunk is None:
            self.advance(new_k.shape[1])
        assert self._chunk is not None
        places, mask = self._chunk
        if new_k.shape[1] != places.shape[0]:
            raise ShapeError(f"StaticCache: k is {new_k.shape} in a chunk of {places.shape[0]} tokens; give the layers "
                             f"what advance was given.")
        keys, values = self._kept[layer]
        kind, backend = keys.buffer.dtype, self._at.backend
        backend.launch(cache_append, keys.buffer, values.buffer, converted(new_k, kind), converted(new_v, kind),
                       places.buffer)
        self._layer += 1
        if self._layer == self.layers:
            self._layer, self._chunk = 0, None
        if new_k.dtype is not kind:
            keys, values = (Tensor(converted(t.buffer, new_k.dtype)) for t in (keys, values))
        return keys, values, mask

    def _checked(self, k: TensorLike, v: TensorLike) -> tuple[Buffer, Buffer]:
        _, (kept, k, v), _ = operands_on_one_device("StaticCache", (self._kept[0][0], k, v), _KINDS)
        for name, t, features in (("k", k, self.features), ("v", v, self.value_features)):
            if t.ndim != 3 or t.shape[0] != features or t.shape[2] != self.batch or t.shape[1:] != k.shape[1:]:
                raise ShapeError(f"StaticCache: {name} is {t.shape}; ({features}, time, {self.batch}) is required, of "
                                 f"as many times for k and v.")
        _refuse_outside("StaticCache: keys were", (k, v))
        return as_numbers(k.buffer, kept.buffer.dtype), as_numbers(v.buffer, kept.buffer.dtype)

    def snapshot(self) -> Snapshot:
        """The position now, for `rollback`; what is kept is not copied."""
        self._at.backend.refuse_while_recording("takes a snapshot of a cache")
        if self._chunk is not None:
            raise CacheError(f"StaticCache: a chunk has come to {self._layer} of {self.layers} layers; take a snapshot "
                             f"between forward passes.")
        at = self._at.backend.alloc(self._at.shape, I32)
        self._at.backend.assign(at, self._at)
        found = Snapshot(self._count(), at)
        self._snapshots.add(found)
        return found

    def rollback(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, as to other tokens behind it; later snapshots end."""
        self._at.backend.refuse_while_recording("rolls a cache back")
        if snapshot not in self._snapshots:
            raise CacheError("StaticCache: the snapshot is of another cache, or of a position behind one that was "
                             "gone back to since; take another one.")
        self._go(snapshot.positions, snapshot.at)

    def reset(self) -> None:
        """Forget everything and begin at position 0."""
        self._at.backend.refuse_while_recording("resets a cache")
        backend = self._at.backend
        self._go(-1, backend.zeros(self._at.shape, I32))
        self._taken = 0
        for t in (t for pair in self._kept for t in pair):  # not to leave a NaN, which no weight of 0 hides
            backend.launch(expand, backend.constant(0.0, t.buffer.dtype), into=t.buffer, shape=t.shape, factor=1.0)

    def _go(self, positions: int, at: Buffer) -> None:
        self._at.backend.assign(self._at, at)
        self._count()
        self._taken, self._layer, self._chunk = positions, 0, None
        for later in [s for s in self._snapshots if s.positions > positions]:
            self._snapshots.discard(later)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("StaticCache: it cannot be copied or pickled; make another one, or go back with rollback.")

    def __repr__(self) -> str:
        return (f"StaticCache(positions={self._count()}, capacity={self.capacity}, layers={self.layers}, "
                f"features={self.features}, batch={self.batch})")


def _full(cache: ref[StaticCache], more: int) -> str | None:
    """Why a replay that takes some positions more must not run."""
    if (here := cache()) is None or here._chunk is not None or here._layer:
        return "a cache is gone, or a forward pass ended midway"
    return here._room(more)


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
        Projections, initially Glorot-uniform; their offsets `b_q`, `b_k`, `b_v`, `b_o` are columns, initially 0.
    W_k, W_v : Tensor of shape (kv_heads * d_model / n_heads, kdim or vdim)

    Examples
    --------
    >>> ag.ag_multihead_attention(4, 2)(ag.ag_tensor([[1.0, 2.0, 3.0]] * 4), causal_mask=True).shape
    (4, 3)
    """

    _adjustable = MappingProxyType({"dropout": _rate})
    _largest = ("d_model", "d_model")

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0, bias: bool = True, *, qkv_bias: bool = False,
                 kdim: int | None = None, vdim: int | None = None, kv_heads: int | None = None) -> None:
        if not counts(d_model, n_heads) or d_model % n_heads:
            raise ValueError(f"ag_multihead_attention: d_model is {d_model!r} and n_heads is {n_heads!r}; both must be "
                             f"whole numbers of at least 1, and d_model a multiple of n_heads.")
        self.d_model, self.n_heads = int(d_model), int(n_heads)
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
        before: _Kept | None = None
        if cache is not None:
            tensors = self.named_tensors()
            _check_call(cache, causal_mask, others, [q, *tensors.values()])
            before = cache._last(self, q, tensors)
            began, weights = before.began if before else now(), {name: ref(t.buffer) for name, t in tensors.items()}
        given = ((self.W_q, q, "b_q"), (self.W_k, k, "b_k"), (self.W_v, v, "b_v"))
        queries, keys, values = (affine(W, x, getattr(self, b)) if self.qkv_bias else ag_matmul(W, x)
                                 for W, x, b in given)
        if before is not None:
            causal_mask = False  # a later query is the last position, which sees all
            keys, values = ops.concat([before.keys, keys], dim=1), ops.concat([before.values, values], dim=1)
        if self.kv_heads == self.n_heads and (
                attn_mask is attn_bias is scale is window is softcap is alibi is segments is None):
            heads = attention_of_heads(queries, keys, values, self.n_heads, causal_mask, rate)
        else:
            heads = ag_attention(
                queries, keys, values, causal_mask, rate, self.n_heads, kv_heads=self.kv_heads, attn_mask=attn_mask,
                attn_bias=attn_bias, scale=scale, window=window, softcap=softcap, alibi=alibi, segments=segments)
        out = ag_matmul(self.W_o, heads)
        if self.bias:
            out = ops.add(out, self.b_o if out.ndim == 2 else self.b_o.reshape(self.d_model, 1, 1))
        if cache is not None:
            cache._keep(self, before, _Kept(keys, values, began, weights))
        return out


ag_multihead_attention = MultiheadAttention
