"""Samples shared out at random to parts, such as for training and validation, class by class or group by group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Real
from typing import TypeVar, cast

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.errors import ShapeError

__all__ = ["split"]

_SPLITS = 2  # last word of the counter of splits; orders of a loader have 0, cuts of images 1
S = TypeVar("S", bound="Splittable")
D = TypeVar("D")


def is_whole(value: object) -> bool:
    """Return whether it is a whole number; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


class Splittable(ABC):
    """A loader whose samples can be shared out."""

    n_samples: int
    _function: str

    @abstractmethod
    def _some(self: S, numbers: Array, held: bool) -> S:
        """Return a loader of the samples with these numbers; a held-out one takes all in order, and draws nothing."""

    @abstractmethod
    def labels(self) -> object:
        """Return the targets in memory."""

    def __getitem__(self: S, numbers: object) -> S:
        """Return a loader of some samples, with the same settings: ``loader[:100]``, ``loader[[3, 1, 4]]``."""
        try:
            found = np.arange(self.n_samples)[numbers if isinstance(numbers, slice) else np.asarray(numbers)]
        except IndexError as error:
            raise IndexError(f"{self._function}: {error}; of {self.n_samples} samples a slice or an array of numbers "
                             f"is required, such as [:100].") from error
        if found.ndim != 1 or not found.size:
            raise ValueError(f"{self._function}: [{numbers!r:.60}] makes no loader; a slice or an array of numbers is "
                             f"required that chooses samples, such as [:100].")
        return self._some(found, False)

    def split(self: S, sizes: float | Sequence[float] = 0.8, *, seed: int = 0, stratify: object = False,
              groups: object = None) -> tuple[S, ...]:
        """Share the samples out as `ag.data.split` does, such as ``train, valid = loader.split(0.8)``.

        The first part is like this loader.  The others are for measuring, with all their samples in one order; what a
        dataset of your own draws, it draws in them, too.
        """
        parts = _shares(f"{self._function}.split", self.n_samples, sizes, seed, stratify, groups, self.labels)
        return tuple(self._some(numbers, k > 0) for k, numbers in enumerate(parts))


def split(data: D, sizes: float | Sequence[float] = 0.8, *, seed: int = 0, stratify: object = False,
          groups: object = None) -> tuple[D, ...]:
    """Share samples out at random, such as ``train, valid = ag.data.split((X, y), 0.8)``.

    Each part is like `data`, but of tensors arrays, and of a dataset views with ``len()`` and ``[i]``.  A ValueError
    says that a part would be empty, or that the parts together are not all samples.
    Reference: PyTorch ``random_split``, scikit-learn ``train_test_split``.

    Parameters
    ----------
    data : pair of arrays, array_like, list, loader or dataset
        Samples are on the first axis, as `fit` takes them; a dataset is anything with ``len()`` and ``[i]``.
    sizes : float, int or sequence of them, optional
        Fraction or number of the samples in the first of two parts, or of each part.
    seed : int, optional
        The parts follow from it alone.
    stratify : bool or array_like of shape (samples,), optional
        Let each part have its share of every class, to within one sample; True: of the targets.
    groups : array_like of shape (samples,), optional
        Keep samples with equal entries in one part; `sizes` are of the groups then.

    Examples
    --------
    >>> train, valid, test = ag.data.split(ag.data.load_iris(), (0.7, 0.15, 0.15), stratify=True)
    >>> [part[0].shape for part in (train, valid, test)]
    [(105, 4), (23, 4), (22, 4)]
    """
    if isinstance(data, Splittable):
        return data.split(sizes, seed=seed, stratify=stratify, groups=groups)
    columns = cast(tuple[Sequence[object], ...], data if isinstance(data, tuple) else (data,))
    if odd := [x for x in columns if isinstance(x, (str, bytes, dict, tuple)) or not hasattr(x, "__getitem__")
               or getattr(x, "shape", None) == ()]:
        raise TypeError(f"split: data is or has a {type(odd[0]).__name__}; arrays (X, y) are required, a list, a "
                        f"loader, or a dataset with len() and [i]. Make a list of samples: list(data).")
    counts = [x.shape[0] if hasattr(x, "shape") else len(x) for x in columns]
    if len(set(counts)) != 1:
        raise ShapeError(f"split: data has {counts} samples; equally many are required, on the first axis.")
    parts = [tuple(_taken(x, numbers) for x in columns) for numbers in _shares(
        "split", counts[0], sizes, seed, stratify, groups, lambda: columns[1] if len(columns) in (2, 3) else None)]
    return cast(tuple[D, ...], tuple(parts if isinstance(data, tuple) else [part[0] for part in parts]))


def _taken(data: object, numbers: Array) -> object:
    if isinstance(data, Tensor):
        return data.numpy()[numbers]
    if hasattr(data, "__array__"):  # which a dataset of Hugging Face has not, beside its shape
        return cast(Array, getattr(data, "iloc", data))[numbers]
    return [data[i] for i in numbers] if isinstance(data, list) else _Subset(cast(Sequence[object], data), numbers)


class _Subset:
    def __init__(self, data: Sequence[object], numbers: Array) -> None:
        self._data, self._numbers = data, numbers.tolist()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: int) -> object:
        return self._data[self._numbers[i]]


def _shares(function: str, count: int, sizes: object, seed: object, stratify: object, groups: object,
            targets: Callable[[], object]) -> list[Array]:
    """Return the numbers of each part's samples, in random order."""
    labels = targets() if stratify is True else None if stratify is False else stratify
    if not is_whole(seed) or (stratify is True and labels is None) or (
            labels is not None and groups is not None):
        raise ValueError(f"{function}: seed is {seed!r:.60}, stratify {stratify!r:.60} and groups {groups!r:.60}; a "
                         f"whole number is required, and at most one of the others. Where targets are not in memory, "
                         f"give an array of labels as stratify.")
    random = np.random.Generator(np.random.Philox(key=int(cast(int, seed)) % (1 << 64), counter=[0, 0, 0, _SPLITS]))
    unit_of = np.arange(count) if groups is None else _numbered(function, "groups", groups, count)
    units = int(unit_of.max(initial=-1)) + 1  # that stay whole
    wanted = _wanted(function, sizes, units, "samples" if groups is None else "groups")
    class_of = np.zeros(units, int) if labels is None else _numbered(function, "stratify", labels, count)
    table = _table(np.bincount(class_of), wanted, random)
    order, part_of = random.permutation(units), np.empty(units, int)
    part_of[order[np.argsort(class_of[order], kind="stable")]] = np.repeat(
        np.tile(np.arange(len(wanted)), len(table)), table.ravel())
    shuffled = random.permutation(count)
    return [shuffled[part_of[unit_of[shuffled]] == part] for part in range(len(wanted))]


def _wanted(function: str, sizes: object, count: int, what: str) -> Array:
    listed = isinstance(sizes, (Sequence, np.ndarray)) and not isinstance(sizes, str)
    given = cast(list[float], [*cast(Sequence[float], sizes)] if listed else [sizes])
    whole = all(map(is_whole, given))
    if given and (whole or all(isinstance(x, Real) and 0 < float(x) < 1 for x in given)):
        ends = np.cumsum(given) * (1 if whole else count)
        found = np.diff(np.rint(ends if len(given) == 1 else ends[:-1]).astype(int), prepend=0, append=count)
        if found.min() > 0 and (len(given) == 1 or abs(ends[-1] - count) <= (0 if whole else 1e-6 * count)):
            return np.asarray(found)
    raise ValueError(f"{function}: sizes is {sizes!r:.60} of {count} {what}; a fraction between 0 and 1 or a number is "
                     f"required, or one for each part that make up all, such as (0.7, 0.15, 0.15). None may be empty.")


def _numbered(function: str, name: str, given: object, count: int) -> Array:
    """Return the number of every sample's class or group."""
    values = np.asarray(given)
    if values.shape != (count,) or (values.dtype.kind == "f" and (values != np.rint(values)).any()) or (
            values.dtype.kind == "O" and len({*map(type, values)}) > 1):
        raise ShapeError(f"{function}: {name} is {values.dtype} of shape {values.shape}; a class of one type for each "
                         f"of {count} samples is required, no fractions; np.digitize(y, bins) makes some.")
    return np.unique(values, return_inverse=True)[1]


def _table(classes: Array, wanted: Array, random: np.random.Generator) -> Array:
    """Return how many samples of each class every part gets, within one of its share; the parts' sizes are exact."""
    # rounded down; the rest goes where most is missing, as Gale and Ryser (1957) fill a table with given sums
    table: Array = classes[:, None] * wanted // wanted.sum()
    missing = wanted - table.sum(0)
    for row, count in zip(table, classes, strict=True):
        most = np.lexsort((random.random(len(wanted)), -missing))[: count - row.sum()]
        row[most] += 1
        missing[most] -= 1
    return table
