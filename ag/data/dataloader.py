"""Batches of samples, shuffled reproducibly and resumable in the middle of an epoch.

The order of an epoch follows from the seed and the epoch's number alone, so the loader's state is a few numbers.  Knows
samples (`ag.data.samples`) and makes tensors of them; no model, no file.  Training loops ask it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor
from ag.data.samples import samples_of
from ag.engine.primitive import Array
from ag.engine.random import host_seed
from ag.engine.shape import counts
from ag.errors import CheckpointError, ShapeError

__all__ = ["Batch", "DataLoader", "ag_dataloader"]

_64_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class Batch:
    """One batch.

    Attributes
    ----------
    x : Tensor of shape (features, batch) or (..., batch)
    y : Tensor, ndarray of int, or None
        Targets: a tensor if they are floating-point numbers, the array itself if they are class ids.
    """

    x: Tensor
    y: Any = None


class DataLoader:
    """Batches of samples, from arrays or from anything that makes sample i when asked for it.

    Parameters
    ----------
    x : array_like of shape (..., samples), or sequence of samples
        An object with a length and ``x[i]``, such as a map-style dataset of PyTorch, is a sequence; see Notes.
    y : array_like of shape (..., samples), or sequence of targets, optional
        Without it, the samples of a sequence may be pairs ``(x, y)``.
    batch_size : int, optional
        At least 1.
    shuffle : bool, optional
        A new order every epoch.
    col_major : bool, optional
        Whether the samples of an array are on its last axis (the default) or its first; sequences know no such axis.
    drop_last : bool, optional
        Leave out a last batch that is smaller than the others.
    seed : int, optional
        For the orders; default: from `ag_seed`'s generator.
    prefetch : int, optional
        How many batches a background thread gathers ahead in `epoch`, making their samples; 0 makes them in the
        calling thread, as `next_batch` does.

    Raises
    ------
    ShapeError
        If `x` and `y` hold different numbers of samples; when a batch is due, if its samples differ in shape.
    DtypeError
        If the data, or a sample when it is due, are not numbers.
    ValueError
        If there are no samples, or `batch_size` is not positive.

    Notes
    -----
    Numpy arrays, tensors, whatever else offers itself as an array (``__array__``), and lists or tuples of plain
    numbers, nested or not, are arrays.  Every other list or tuple, such as one of arrays, and every other object with
    ``len()`` and ``[i]`` is a sequence of samples, each an array, a tensor, a number or a list of numbers.  `x` and
    `y` need not be of one kind.

    Batches have the batch on the last axis, whatever the layout of `x`, and tensors are on the default device.  Samples
    of shape S make a batch of shape ``(*S, batch)``, and numbers one of shape ``(1, batch)``.  Targets that are
    integers stay an array, and if they are numbers its shape is ``(batch,)``.  A tensor of shape ``(n, 1)`` counts as
    the vector of length n that `ag_tensor` made it of.

    A sequence is asked for a sample when its batch is due, or `prefetch` batches earlier, and once an epoch.  An error
    in it ends the loop; the batch that failed is the next one, if the loop is begun again.

    References
    ----------
    ggmlR ``ag_dataloader`` (which drops a partial last batch silently).

    Examples
    --------
    >>> import ag, numpy as np
    >>> loader = ag.ag_dataloader(np.zeros((4, 10)), np.arange(10), batch_size=4, seed=1)
    >>> [batch.x.shape for batch in loader]
    [(4, 4), (4, 4), (4, 2)]
    >>> vectors = [np.zeros(4) for _ in range(10)]
    >>> ag.ag_dataloader(vectors, range(10), batch_size=4).next_batch().x.shape
    (4, 4)
    """

    _function = "ag_dataloader"  # the name users know it by

    def __init__(self, x: object, y: object = None, batch_size: int = 32, shuffle: bool = True, col_major: bool = True,
                 drop_last: bool = False, seed: int | None = None, prefetch: int = 0) -> None:
        self._data = [samples_of(x, "x", col_major, pairs=y is None)]
        samples = len(self._data[0])
        if y is not None:
            self._data.append(samples_of(y, "y", col_major, pairs=False))
            if len(self._data[1]) != samples:
                raise ShapeError(f"ag_dataloader: x holds {samples} samples and y {len(self._data[1])}; "
                                 f"they must hold the same number.")
        if samples == 0:
            raise ValueError("ag_dataloader: x holds no samples; at least one is required.")
        if not (counts(batch_size) and counts(prefetch, least=0)):
            raise ValueError(f"{self._function}: batch_size is {batch_size!r} and prefetch {prefetch!r}; "
                             f"whole numbers of at least 1 and 0 are required.")
        self.n_samples = samples
        self.batch_size = int(batch_size)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.prefetch = prefetch
        self._seed = host_seed() if seed is None else int(seed)
        self._epoch = 0
        self._next = 0
        self.order = self._order_of(0)

    def _order_of(self, epoch: int) -> Array:
        if not self.shuffle:
            return np.arange(self.n_samples)
        return np.random.Generator(np.random.Philox(key=self._seed & _64_BITS, counter=[0, 0, epoch, 0])).permutation(
            self.n_samples)

    def n_batches(self) -> int:
        """Batches in an epoch."""
        full, rest = divmod(self.n_samples, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __len__(self) -> int:
        return self.n_batches()

    def reset(self) -> None:
        """Begin the next epoch, in its own order."""
        self._epoch += 1
        self._next = 0
        self.order = self._order_of(self._epoch)

    def has_next(self) -> bool:
        """Whether the epoch has another batch."""
        return self._next < self.n_batches()

    def next_batch(self) -> Batch:
        """The next batch of the epoch.

        Raises
        ------
        StopIteration
            At the end of the epoch; `reset` begins the next.
        """
        if not self.has_next():
            raise StopIteration(f"{self._function}: the epoch is over; call reset() to begin the next.")
        return self._deliver(self._gather(self._chosen(self._next)))

    def epoch(self) -> Iterator[Batch]:
        """The rest of the epoch's batches; then the next epoch begins."""
        if self.prefetch:
            yield from self._prefetched()
        while self.has_next():
            yield self.next_batch()
        self.reset()

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch()

    def _prefetched(self) -> Iterator[Batch]:
        thread = ThreadPoolExecutor(1, thread_name_prefix="ag_dataloader")
        ahead: dict[tuple[int, ...], Future[list[Array]]] = {}
        try:
            while self.has_next():
                # by place: the loader may have been moved since the last batch, and then other ones are due
                due = range(self._next, min(self._next + 1 + self.prefetch, self.n_batches()))
                places = [(self._seed, self._epoch, k) for k in due]
                ahead = {at: ahead.get(at) or thread.submit(copy_context().run, self._gather, self._chosen(at[-1]))
                         for at in places}
                yield self._deliver(ahead.pop(places[0]).result())
        finally:
            thread.shutdown(cancel_futures=True)

    def _chosen(self, k: int) -> Array:
        """The numbers of the samples of batch `k`."""
        return self.order[k * self.batch_size : (k + 1) * self.batch_size]

    def _gather(self, chosen: Array) -> list[Array]:
        """The arrays of a batch, x and perhaps y; with `prefetch`, a background thread calls it."""
        return [array for samples in self._data for array in samples.take(chosen)]

    def _deliver(self, arrays: list[Array]) -> Batch:
        batch = _batch(*arrays)
        self._next += 1  # now that nothing can fail: a batch that failed is still the next
        return batch

    def state_dict(self) -> dict[str, int]:
        """Where the loader is: seed, epoch, next batch."""
        return {"seed": self._seed, "epoch": self._epoch, "next": self._next, "samples": self.n_samples,
                "batch_size": self.batch_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where `state_dict` was taken, with the same sequence of batches.

        Raises
        ------
        CheckpointError
            If the state is of a loader with other samples or batches; nothing changes.
        """
        missing = [name for name in self.state_dict() if not isinstance(state, Mapping) or name not in state]
        if missing:
            raise CheckpointError(f"load_state_dict: the loader's state is missing {', '.join(missing)}.")
        if (state["samples"], state["batch_size"]) != (self.n_samples, self.batch_size):
            raise CheckpointError(f"load_state_dict: the state is of a loader with {state['samples']} samples in "
                                  f"batches of {state['batch_size']}, and this one has {self.n_samples} in batches of "
                                  f"{self.batch_size}; they must be equal.")
        seed, epoch, following = (state[k] for k in ("seed", "epoch", "next"))
        if not (all(isinstance(v, (int, np.integer)) for v in (seed, epoch, following)) and 0 <= epoch <= _64_BITS
                and 0 <= following <= self.n_batches()):
            raise CheckpointError(f"load_state_dict: the loader's state has seed {seed!r}, epoch {epoch!r} and next "
                                  f"{following!r}; whole numbers are required, and at most {self.n_batches()} batches.")
        self._seed, self._epoch, self._next = int(seed), int(epoch), int(following)
        self.order = self._order_of(self._epoch)


def _batch(x: Array, y: Array | None = None) -> Batch:
    x_tensor = ag_tensor(x if x.ndim > 1 else x[None, :])
    if y is None or y.dtype.kind != "f":
        return Batch(x_tensor, y)
    return Batch(x_tensor, ag_tensor(y if y.ndim > 1 else y[None, :]))


ag_dataloader = DataLoader
