"""The samples of a job, and their order: a new one for every pass, from the seed and the pass alone.

A step may begin in one pass and end in the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree
from ag.data.dataloader import DataLoader
from ag.data.samples import Pass
from ag.data.threads import Prefetcher
from ag.engine.kernels.random import philox
from ag.engine.primitive import Array

_LOW32 = 0xFFFFFFFF
_ORDERS = (1 << 31) + 1  # high word of the random streams of orders; initial weights have those of 1 << 31


class LoaderSample(NamedTuple):
    """One sample of a data loader: arrays with the samples, of which there is one, on the last axis."""

    x: Array
    y: Array | None


def loader_sample(x: Array, y: Array | None = None) -> LoaderSample:
    """Make a sample of a loader's arrays; numbers, one per sample, are one feature, as in batches."""
    return LoaderSample(_with_features(x), y if y is None or y.dtype.kind != "f" else _with_features(y))


def input_of(sample: Any) -> Any:
    """Return the part of a sample that the model gets."""
    return sample.x if isinstance(sample, LoaderSample) else sample


def target_of(sample: Any) -> Any:
    """Return the part of a sample that the loss compares the output with."""
    return sample.y if isinstance(sample, LoaderSample) and sample.y is not None else input_of(sample)


def loss_of(loss_fn: Callable[[Tensor, Any], Tensor] | None, forward_fn: Callable[[Any, Any], Tensor] | None,
            target_fn: Callable[[Any], Any] | None, model: Any, sample: Any) -> Tensor:
    """Return the loss of a sample, by the three functions that a user gives."""
    output: Tensor = model.forward(input_of(sample)) if forward_fn is None else forward_fn(model, sample)
    return output if loss_fn is None else loss_fn(output, (target_fn or target_of)(sample))


class Samples:
    """Numbered samples of a loader, or of anything with ``len(data)`` and ``data[i]``."""

    def __init__(self, data: Any) -> None:
        self.loader = data if isinstance(data, DataLoader) else None
        self.held = isinstance(data, (list, tuple))  # rather than made on request
        self._data = data
        self._count = data.n_samples if self.loader is not None else _length(data)
        if self._count == 0:
            raise ValueError("dp_train: data is empty; at least one sample is required.")
        self._seed, self._shuffled = 0, False
        self._orders: dict[int, Array] = {}
        threads = 0 if self.loader is None else self.loader.threads
        self.ahead = 0 if self.loader is None or not threads else self.loader.prefetch  # steps
        self._prefetcher = Prefetcher(self._made, threads) if self.ahead else None
        self.waited_s = 0.0  # for samples

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Tree]:
        return (self._made((0, i)) for i in range(self._count))

    def _made(self, of: tuple[int, int]) -> Tree:
        """Make the sample of a pass with this number."""
        turn, i = of
        if self.loader is not None:
            return loader_sample(*self.loader.sample(i, Pass(self._seed, turn)))
        try:
            return self._data[i]
        except IndexError as error:
            if len(self._data) == self._count:
                raise
            raise IndexError(f"dp_train: sample {i} was asked for, and data has {len(self._data)} samples, where there "
                             f"were {self._count} when the job began; leave data as they are.") from error

    def begin(self, seed: int, shuffle: bool) -> None:
        """Set the seed of what samples draw and, with `shuffle`, of the order of every pass."""
        self._seed, self._shuffled = seed, shuffle

    def at(self, places: Iterable[int], coming: Iterable[int] = ()) -> list[Tree]:
        """Return the samples at these places of the whole job; a loader prefetches those at the places `coming`."""
        began = perf_counter()
        wanted = [self._numbered(place) for place in places]
        if self._prefetcher is None:
            samples = [*map(self._made, wanted)]
        else:
            samples = self._prefetcher.take(wanted, [self._numbered(place) for place in coming])
        self.waited_s += perf_counter() - began
        return samples

    def close(self) -> None:
        """Stop prefetching."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    def _numbered(self, place: int) -> tuple[int, int]:
        """Return the pass and the number of the sample at a place."""
        turn, i = divmod(place, self._count)
        return turn, int(self.order(turn)[i]) if self._shuffled else i

    def order(self, turn: int) -> Array:
        """Return the numbers of all samples in the order of a pass."""
        order = self._orders.get(turn)
        if order is None:
            for old in list(islice(self._orders, max(0, len(self._orders) - 1))):
                del self._orders[old]
            order = self._orders[turn] = self._drawn(turn) if self._shuffled else np.arange(self._count)
        return order

    def _drawn(self, turn: int) -> Array:
        seed = self._seed
        words = philox((seed & _LOW32, seed >> 32 & _LOW32), (turn & _LOW32, _ORDERS + (turn >> 32)),
                       2 * self._count).astype(np.uint64)
        return np.argsort(words[0::2] << np.uint64(32) | words[1::2], kind="stable")


def _with_features(array: Array) -> Array:
    """Give numbers, one per sample, an axis of one feature."""
    return array if array.ndim > 1 else array[None, :]


def _length(data: Any) -> int:
    """Return how many samples there are, or refuse what cannot be data."""
    bad = isinstance(data, (str, bytes, Mapping, Set, Iterator)) or not (
        hasattr(data, "__len__") and hasattr(data, "__getitem__"))
    if bad or (isinstance(data, (np.ndarray, Tensor)) and data.ndim == 0):
        raise TypeError(f"dp_train: data is a {type(data).__name__}; a sequence of samples with len(data) and data[i] "
                        f"is required, such as a list, or an ag_dataloader. Make a list of the samples.")
    count = len(data)
    if isinstance(data, tuple) and count == 2 and all(isinstance(x, (np.ndarray, Tensor)) for x in data):
        x, y = (tuple(part.shape) for part in data)
        if x != y and x and y and {x[0], x[-1]} & {y[0], y[-1]} - {1}:
            raise ValueError(f"dp_train: data is a pair of arrays of shapes {x} and {y}; a sequence of samples is "
                             f"required. Give ag_dataloader(x, y), or a list of pairs.")
    return count
