"""The samples of a training, as `dp_train` takes them: arrays with samples on the first axis, loaders, datasets.

A sample of `dp_train` is a leaf, which counts as many times as it has samples.  Leaves of a batch are equally large, as
far as possible, as batch norm needs two samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import cast

import numpy as np

from ag.autograd.tensor import Tensor
from ag.autograd.tree import tree_map
from ag.data.dataloader import DataLoader
from ag.data.samples import Pass, is_torch_loader
from ag.engine.primitive import Array
from ag.engine.random import current_seed
from ag.errors import ShapeError
from ag.parallel.trainer.samples import (
    Batches,
    LoaderSample,
    Samples,
    Weighted,
    all_alike,
    loader_sample,
    sample_weights,
    stacked,
    target_of,
)

_ENDLESS = 1 << 62  # leaves, of any number of epochs


class Data:
    """The samples of a training, or of its validation, in batches; `name` begins messages, as "fit: train"."""

    def __init__(self, given: object, name: str, batch_size: int | None = None, whole: bool = False, *,
                 shuffle: bool | None = None, sample_weight: object = None, class_weight: object = None) -> None:
        self._name = name
        self._likely = False  # whether targets should be distributions, as the first is
        self._begun, self._shuffles = shuffle is None, bool(shuffle)
        if whole and isinstance(given, tuple) and len(given) == 3:
            *pair, sample_weight = given
            given = tuple(pair)
        self._loader = given if isinstance(given, DataLoader) else _loader(given, name)
        self.columns = list(getattr(given[0] if isinstance(given, tuple) else given, "columns", ()))
        weights = sample_weights(name, self._loader.n_samples, sample_weight, class_weight, self._loader.labels)
        self.weighed = weights  # also those of samples that count nothing
        self._numbers = np.arange(self._loader.n_samples)  # of the samples as they were given
        if weights is not None and not weights.all() and not (whole or self._loader.threads or self._loader is given):
            self._numbers = weights.nonzero()[0]  # the others count nothing
            arrays = self._loader.samples(self._numbers, Pass(0, 0))
            self._loader = DataLoader(arrays[0], arrays[1] if len(arrays) > 1 else None, seed=0)
            weights = weights[self._numbers]
        self.weights = weights
        self._samples = Samples(self._loader)
        self.close, self.ahead = self._samples.close, self._samples.ahead  # steps for which samples are announced
        self.targets = self._loader.targets  # all, or the first where they are made
        self._all = self._loader.n_samples
        asked = self._loader.batch_size if batch_size is None else int(batch_size)
        self.batch_size = min(asked, self._all)
        drops = self._loader.drop_last and not whole
        if drops and asked > self._all:
            raise ValueError(f"{name} drops a last batch that is smaller, and {self._all} samples make no batch of "
                             f"{asked}; give a smaller batch_size, or drop_last=False.")
        # samples and batches per epoch
        self.count = self._all - self._all % self.batch_size if drops else self._all
        self.steps = -(-self.count // self.batch_size)

    @property
    def shuffles(self) -> bool:
        """Return whether every epoch has an order of its own."""
        return self._shuffles and self._loader.shuffle

    @property
    def in_memory(self) -> bool:
        """Return whether samples are parts of arrays: taking one draws nothing."""
        return not self._loader.threads

    def step(self, k: int) -> range:
        """Return the places of a step's samples, of all epochs."""
        epoch, batch = divmod(k, self.steps)
        start = epoch * self._all
        return range(start + batch * self.batch_size, start + min((batch + 1) * self.batch_size, self.count))

    def chosen(self, places: range) -> Array:
        """Return the numbers of samples of one epoch; the job's seed is settled when it asks for the first."""
        if not self._begun:  # epochs have orders of their own, unless the loader has none
            self._begun = True
            self._samples.begin(current_seed(), self.shuffles)
        turn, first = divmod(places.start, self._all)
        return self._samples.order(turn)[first : first + len(places)]

    def counted(self, k: int) -> float:
        """Return what a step's samples count together."""
        places = self.step(k)
        return len(places) if self.weights is None else float(self.weights[self.chosen(places)].sum())

    def numbers(self, places: range) -> Sequence[int]:
        numbers: list[int] = self._numbers[self.chosen(places)].tolist()
        return numbers

    def take(self, places: range, coming: Iterable[int] = ()) -> LoaderSample | Weighted:
        """Return samples of one epoch, on the last axis; threads make those that come next meanwhile."""
        chosen = self.chosen(places)
        leaf = loader_sample(*self._loader.samples(chosen, Pass(0, 0))) if self.in_memory else self._made(
            places, coming)
        return leaf if self.weights is None else Weighted(leaf, self.weights[chosen])

    def _made(self, places: range, coming: Iterable[int]) -> LoaderSample:
        made = self._samples.at(places, coming)
        if not all_alike(made):
            shape, dtype = tree_map(np.shape, made[0].x), tree_map(lambda x: x.dtype, made[0].x)
            raise ShapeError(f"{self._name} holds samples of different shapes or types, such as {shape} of {dtype}; "
                             f"the samples of a batch must be alike. Pad or resize them.")
        leaf: LoaderSample = stacked(made)
        if self._likely and not _are_distributions(target_of(leaf)):
            raise ValueError(f"{self._name} begins with a target of whole numbers that is a distribution, at least 0 "
                             f"with the sum 1, and has others that are none; give loss, or targets of one kind.")
        return leaf

    def batches(self) -> Iterator[LoaderSample | Weighted]:
        for k in range(self.steps):
            yield self.take(self.step(k), chain.from_iterable(
                self.step(later) for later in range(k + 1, min(k + 1 + self.ahead, self.steps))))

    def kind_of_targets(self) -> str:
        """Return "numbers"; or of whole numbers "distributions" if all are, as one-hot vectors, or else "ids".

        Of samples that are made when they are needed the first decides, and others must be like it.
        """
        targets = self.targets()
        if not isinstance(targets, np.ndarray):
            raise TypeError(f"{self._name} has {type(targets).__name__}s for samples, in which no array is the target; "
                            f"give ag.data.DataLoader(samples, target=\"label\"), or a loss of your own.")
        if targets.dtype.kind not in "biu":
            return "numbers"
        if targets.ndim == 1 or not _are_distributions(targets):
            return "ids"
        self._likely = bool(self._loader.threads)
        return "distributions"


def _are_distributions(targets: Array) -> bool:
    """Return whether columns are of numbers from 0 that add up to 1."""
    return bool((targets >= 0).all() and (targets.sum(0) == 1).all())


class _Spare(LoaderSample):
    """A leaf that counts nothing."""


class _WeightedSpare(Weighted):
    """A leaf with weights that counts nothing all the same."""


class Leaves(Batches):
    """All leaves of all epochs in order, with a length and items: the data of `dp_train`."""

    def __init__(self, data: Data, size: int, steps: int) -> None:
        self._data, self._size, self._until = data, min(size, data.batch_size), steps
        self.each = -(-data.batch_size // self._size)  # leaves in a step
        self.columns = data.columns
        self._last: LoaderSample | Weighted | None = None

    def __len__(self) -> int:
        return _ENDLESS

    def _places(self, i: int) -> tuple[range, range]:
        """Return the places of a leaf's samples, and those of its step."""
        k, j = divmod(i, self.each)
        places = self._data.step(k)
        each, more = divmod(len(places), -(-len(places) // self._size))
        start = j * each + min(j, more)
        return places[start : start + each + (j < more)], places

    def numbers(self, i: int) -> Sequence[int]:
        """Return the numbers of a leaf's samples; a spare one has none of its own."""
        return self._data.numbers(self._places(i)[0])

    def __getitem__(self, i: int) -> LoaderSample | Weighted:
        mine, places = self._places(i)
        if not mine and self._last is not None:
            return _WeightedSpare(*self._last) if isinstance(self._last, Weighted) else _Spare(*self._last)
        k = i // self.each
        later = range(k + 1, min(k + 1 + self._data.ahead, self._until)) if self._data.ahead else ()
        coming = chain(range(mine.stop, places.stop), *map(self._data.step, later))
        self._last = self._data.take(mine, coming)
        return self._last

    @staticmethod
    def weight(leaf: LoaderSample | Weighted) -> float:
        """Return how many samples a leaf counts, or what its weights are together."""
        if isinstance(leaf, (_Spare, _WeightedSpare)):
            return 0.0
        return leaf.total() if isinstance(leaf, Weighted) else float(leaf.samples)


def _loader(given: object, name: str) -> DataLoader:
    if is_torch_loader(given):
        return DataLoader(given, seed=0)
    parts = given if isinstance(given, tuple) and not hasattr(given, "__array__") else (given,)
    if parts is given and len(parts) != 2:
        raise TypeError(f"{name} is a tuple of {len(parts)}; a pair (X, y) is required; what samples count is given as "
                        f"sample_weight.")
    for part in parts:
        bad = isinstance(part, (str, bytes, Mapping)) or not (hasattr(part, "__len__") and hasattr(part, "__getitem__"))
        if bad or (hasattr(part, "ndim") and part.ndim == 0):
            raise TypeError(f"{name} {'has' if parts is given else 'is'} a {type(part).__name__}; a pair of arrays "
                            f"(X, y) with samples on the first axis is required, an ag_dataloader, an ag_image_folder, "
                            f"or a dataset with len() and [i].")
    lengths = [part.shape[0] if isinstance(part, Tensor) else len(cast(Sequence[object], part)) for part in parts]
    if lengths[0] != lengths[-1]:
        raise ShapeError(f"{name} has {lengths[0]} inputs and {lengths[1]} targets; as many are required, on the first "
                         f"axis of both.")
    if lengths[0] == 0:
        raise ValueError(f"{name} holds no samples; at least one is required.")
    # A seed of its own, which is never used: nothing is drawn from ag's generator.
    return DataLoader(parts[0], parts[1] if parts is given else None, col_major=False, seed=0)
