"""A cache of keys and values in memory of a fixed size, for attention of your own, also in a captured step.

The positions are counted on the device, so a step does the same for each token.  The host counts along: in Python, and
after a replay by an effect of the recording, so that a full cache is an error before anything runs.
"""

from __future__ import annotations

from functools import partial
from typing import NoReturn
from weakref import WeakSet, ref

import numpy as np

from ag.autograd.operands import KINDS, as_mask, as_numbers, checked_ids, operands_on_one_device, to_buffer
from ag.autograd.tape import is_recording
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.autograd.watched import notes_here
from ag.engine.buffer import Buffer, Device
from ag.engine.device import backend_of, default_backend
from ag.engine.dtype import F32, F64, I32, as_dtype
from ag.engine.interpreter import current, recording_here
from ag.engine.kernels.attention import cache_append, cache_mask, cache_places
from ag.engine.kernels.convert import converted
from ag.engine.kernels.reduce import expand
from ag.engine.primitive import Array
from ag.engine.program import Recording
from ag.errors import CacheError, CaptureError, DtypeError, ExportError, ShapeError, TapeError
from ag.nn.layer import sizes

__all__ = ["StaticCache"]

_KINDS = [KINDS["Wide"], KINDS["Buffer"], KINDS["Buffer"]]  # of a cache, and of what it is given
_AGAIN = "Call cache.rollback(snapshot), or cache.reset() and begin with the whole sequence."


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
        ``"f32"``, also for 16-bit keys, or ``"f64"`` on the CPU.

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
        if kind not in (F32, F64):
            raise DtypeError(f"StaticCache: dtype is {kind}; f32, which 16-bit keys are kept in, or f64 is required.")
        backend: Device = default_backend(kind) if device is None else backend_of(device)
        self._kept = [tuple([Tensor(backend.zeros((n, self.capacity, self.batch), kind))
                             for n in (self.features, self.value_features)]) for _ in range(self.layers)]
        self._at = to_buffer(np.zeros(self.batch, np.int32), backend, I32)
        self._snapshots: WeakSet[Snapshot] = WeakSet()
        self._taken, self._before = 0, 0  # positions, with and without those of a recording
        self._during: Recording | None = None  # which counts unless it was dropped
        self._layer = 0  # the next one of a chunk
        self._chunk: tuple[Tensor, Tensor] | None = None  # its places and its mask

    # -------------------------------------------------------------------------------------- the count of the host

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

    @property
    def _replayed(self) -> int:
        """Count of positions; a replay of a captured step sets it to those that it takes."""
        return self._count()

    @_replayed.setter
    def _replayed(self, more: int) -> None:
        self._count(more)

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

    # -------------------------------------------------------------------------------------- a chunk of tokens

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
                             f"{self.layers} layers; a forward pass ended midway. {_AGAIN}")
        if (here := current()) is not None and here.exports:
            raise ExportError("StaticCache: a cache was used while the model is exported; export it without one.")
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
                             f"next; layers come in order, and each once in a forward pass. {_AGAIN}")
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
        if is_recording() is not False and (k.requires_grad or v.requires_grad):
            raise TapeError("StaticCache: keys were given while gradients are recorded, which would not reach what is "
                            "kept; call the model outside with_grad_tape, or inside `with ag.no_grad():`.")
        return as_numbers(k.buffer, kept.buffer.dtype), as_numbers(v.buffer, kept.buffer.dtype)

    # -------------------------------------------------------------------------------------- going back

    def snapshot(self) -> Snapshot:
        """The position now, for `rollback`; what is kept is not copied."""
        self._refuse("takes a snapshot of a cache", chunk=True)
        at = self._at.backend.alloc(self._at.shape, I32)
        self._at.backend.assign(at, self._at)
        found = Snapshot(self._count(), at)
        self._snapshots.add(found)
        return found

    def rollback(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, as to other tokens behind it; later snapshots end."""
        self._refuse("rolls a cache back")
        if snapshot not in self._snapshots:
            raise CacheError("StaticCache: the snapshot is of another cache, or of a position behind one that was "
                             "gone back to since; take another one.")
        self._go(snapshot.positions, snapshot.at)

    def reset(self) -> None:
        """Forget everything and begin at position 0."""
        self._refuse("resets a cache")
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

    def _refuse(self, what: str, chunk: bool = False) -> None:
        self._at.backend.refuse_while_recording(what)
        if chunk and self._chunk is not None:
            raise CacheError(f"StaticCache: a chunk has come to {self._layer} of {self.layers} layers; take a snapshot "
                             f"between forward passes.")

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
