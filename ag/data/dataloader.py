"""Batches of samples, shuffled reproducibly and resumable in the middle of an epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ag.create import ag_tensor
from ag.errors import CheckpointError, DtypeError, ShapeError
from ag.rng import host_seed
from ag.tensor import Array, Tensor

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
    """Batches over arrays of samples.

    Parameters
    ----------
    x : array_like of shape (features, samples) or (..., samples), or sequence of samples
        With ``col_major=False``, samples are on the first axis.
    y : array_like, optional
        Targets, samples on the same axis; a vector is one number per sample.
    batch_size : int, optional
        At least 1.
    shuffle : bool, optional
        A new order every epoch.
    col_major : bool, optional
        Whether samples are on the last axis (the default) or the first.
    drop_last : bool, optional
        Leave out a last batch that is smaller than the others.
    seed : int, optional
        For the orders; default: from `ag_seed`'s generator.
    prefetch : int, optional
        How many batches a background thread prepares ahead.

    Raises
    ------
    ShapeError
        If `x` and `y` hold different numbers of samples.
    ValueError
        If there are no samples, or `batch_size` is not positive.

    Notes
    -----
    Batches come with the batch on the last axis, whatever the layout of `x`, on the default device.

    References
    ----------
    ggmlR ``ag_dataloader`` (which drops a partial last batch silently).

    Examples
    --------
    >>> import ag, numpy as np
    >>> loader = ag.ag_dataloader(np.zeros((4, 10)), np.arange(10), batch_size=4, seed=1)
    >>> [batch.x.shape for batch in loader]
    [(4, 4), (4, 4), (4, 2)]
    """

    _function = "ag_dataloader"  # the name users know it by

    def __init__(self, x: Any, y: Any = None, batch_size: int = 32, shuffle: bool = True, col_major: bool = True,
                 drop_last: bool = False, seed: int | None = None, prefetch: int = 0) -> None:
        self._x = _samples_last(x, col_major)
        self._y = None if y is None else _samples_last(y, col_major)
        samples = int(self._x.shape[-1])
        if self._y is not None and self._y.shape[-1] != samples:
            raise ShapeError(f"ag_dataloader: x holds {samples} samples and y {self._y.shape[-1]}; "
                             f"they must hold the same number.")
        if samples == 0:
            raise ValueError("ag_dataloader: x holds no samples; at least one is required.")
        self._start(samples, batch_size, shuffle, drop_last, seed, prefetch)

    def _start(self, samples: int, batch_size: int, shuffle: bool, drop_last: bool, seed: int | None,
               prefetch: int) -> None:
        """Begin the first epoch; for loaders of all kinds."""
        if batch_size < 1 or prefetch < 0:
            raise ValueError(f"{self._function}: batch_size is {batch_size} and prefetch {prefetch}; "
                             f"at least 1 and 0 are required.")
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
        self._next += 1
        return self._batch(self._gather(self._next - 1))

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
        with ThreadPoolExecutor(1) as thread:
            ahead: deque[Future[tuple[Array, Array | None]]] = deque()
            asked = self._next
            while self.has_next():
                while asked < min(self.n_batches(), self._next + 1 + self.prefetch):
                    ahead.append(thread.submit(self._gather, asked))
                    asked += 1
                self._next += 1
                yield self._batch(ahead.popleft().result())

    def _gather(self, k: int) -> tuple[Array, Array | None]:
        """The arrays of batch number `k`; with `prefetch`, a background thread calls it."""
        chosen = self.order[k * self.batch_size : (k + 1) * self.batch_size]
        return self._x[..., chosen], None if self._y is None else self._y[..., chosen]

    def _batch(self, arrays: tuple[Array, Array | None]) -> Batch:
        x, y = arrays
        x_tensor = ag_tensor(x if x.ndim > 1 else x[None, :])
        if y is None or y.dtype.kind != "f":
            return Batch(x_tensor, y)
        return Batch(x_tensor, ag_tensor(y if y.ndim > 1 else y[None, :]))

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


def _samples_last(data: Any, col_major: bool) -> Array:
    array = data.numpy() if isinstance(data, Tensor) else np.asarray(data)
    if array.ndim == 0:
        raise ShapeError("ag_dataloader: a single number was given; an array of samples is required.")
    if array.dtype.kind not in "biuf":
        raise DtypeError(f"ag_dataloader: data of type {array.dtype} were given; numbers are required.")
    return array if col_major else np.moveaxis(array, 0, -1)


ag_dataloader = DataLoader
