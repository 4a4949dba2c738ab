"""The samples of a job: their order, the shards of replicas, and the stacks in which they are passed.

A stack, a sample with several on its last axis, is one leaf of the reduction tree and counts its samples' weights.  So
the loss of a step is ``sum(w * loss) / sum(w)``, whatever the stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import suppress
from functools import lru_cache, partial
from inspect import signature
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ag.autograd.operands import host_values
from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree, sequence_of, tree_leaves, tree_map
from ag.data.dataloader import DataLoader
from ag.data.samples import Pass, Prefetcher
from ag.engine.kernels.random import philox
from ag.engine.primitive import Array
from ag.errors import DtypeError, ShapeError
from ag.ops.indexing import ag_concat, ag_reshape
from ag.parallel.comm.tree_reduction import PART

_LOW32 = 0xFFFFFFFF
_ORDERS = (1 << 31) + 1  # high word of the random streams of orders; initial weights have those of 1 << 31
_CLOSE, _CLOSE_16_BITS = 1e-3, 3e-2  # of the mean size of the samples' losses
_FAR = 32  # powers of 2 between 1 and weights that are scaled
_BEYOND, _EACH = 1 << 62, 1 << 20  # streams of samples that draw more often than the first, a million for each

Numbers = tuple[int, int | None, int]  # the streams of a sample, as `Streams.prepare` takes them


class LoaderSample(NamedTuple):
    """One sample of a data loader: trees of arrays with the samples, of which there is one, on the last axis."""

    x: Tree
    y: Tree

    @property
    def samples(self) -> int:
        """Return how many samples are on the last axis."""
        return int(tree_leaves(self.x)[0].shape[-1])


class Weighted(NamedTuple):
    """A sample, or several on the last axis, and what each counts."""

    sample: Tree
    weights: Array

    def total(self) -> float:
        """Return what all count together."""
        return float(self.weights.sum())


def loader_sample(x: Tree, y: Tree = None) -> LoaderSample:
    """Make a sample of a loader's trees; numbers, one per sample, are one feature, as in batches."""
    return LoaderSample(_with_features(x) if isinstance(x, np.ndarray) else tree_map(_floats_with_features, x),
                        None if y is None else _floats_with_features(y))


def input_of(sample: Any) -> Any:
    sample = sample.sample if isinstance(sample, Weighted) else sample
    return sample.x if isinstance(sample, LoaderSample) else sample


def target_of(sample: Any) -> Any:
    sample = sample.sample if isinstance(sample, Weighted) else sample
    return sample.y if isinstance(sample, LoaderSample) and sample.y is not None else input_of(sample)


def loss_of(loss_fn: Callable[..., Tensor] | None, forward_fn: Callable[[Any, Any], Tensor] | None,
            target_fn: Callable[[Any], Any] | None, model: Any, sample: Any) -> Tensor:
    """Return the loss of a sample, by the three functions that a user gives."""
    weights = {}
    if isinstance(sample, Weighted):
        sample, weights["sample_weight"] = sample
    output: Tensor = model.forward(input_of(sample)) if forward_fn is None else forward_fn(model, sample)
    return output if loss_fn is None else loss_fn(output, (target_fn or target_of)(sample), **weights)


class Batches:
    """Data whose items have several samples each, with numbers of their own; those of `fit`."""

    columns: Sequence[object] = ()  # names of features

    def numbers(self, i: int) -> Sequence[int]:
        """Return the numbers of the samples of an item."""
        raise NotImplementedError


class Samples:
    """Numbered samples of a loader, or of anything with ``len(data)`` and ``data[i]``."""

    def __init__(self, data: Any) -> None:
        self.loader = data if isinstance(data, DataLoader) else None
        self.held = isinstance(data, (list, tuple))  # rather than made on request
        self.weights: Array | None = None  # of the samples, which carry them
        self._data = data
        self._count = data.n_samples if self.loader is not None else _length(data)
        if self._count == 0:
            raise ValueError("dp_train: data is empty; at least one sample is required.")
        self.begin(0, False)
        threads = 0 if self.loader is None else self.loader.threads
        self.ahead = 0 if self.loader is None or not threads else self.loader.prefetch  # steps
        self._prefetcher = Prefetcher(self._made, threads) if self.ahead else None
        self.waited_s = 0.0  # for samples

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Tree]:
        return (self._made((0, i)) for i in range(self._count))

    def _made(self, of: tuple[int, int]) -> Tree:
        turn, i = of
        if self.loader is not None:
            sample = loader_sample(*self.loader.sample(i, Pass(self._seed, turn)))
            return sample if self.weights is None else Weighted(sample, self.weights[i : i + 1])
        try:
            sample = self._data[i]
        except IndexError as error:
            if len(self._data) == self._count:
                raise
            raise IndexError(f"dp_train: sample {i} was asked for, and data has {len(self._data)} samples, where there "
                             f"were {self._count} when the job began; leave data as they are.") from error
        return sample if self.weights is None else Weighted(sample, self.weights[i : i + 1])

    def targets(self) -> Array | None:
        """Return the targets of all samples, where each is a number in memory."""
        if self.loader is not None:
            return None if self.loader.threads else self.loader.targets()
        if not self.held or not all(isinstance(x, tuple) and len(x) == 2 and np.size(x[1]) == 1 for x in self._data):
            return None
        return np.concatenate([np.ravel(y) for _, y in self._data])

    def begin(self, seed: int, shuffle: bool) -> None:
        """Set the seed of what samples draw and, with `shuffle`, of the order of every pass."""
        self._seed, self._shuffled = seed, shuffle
        self.order: Callable[[int], Array] = lru_cache(2)(partial(_order, seed if shuffle else None, self._count))

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
        if self._prefetcher is not None:
            self._prefetcher.close()

    def numbered(self, samples: Sequence[Tree], place: int) -> list[tuple[Tree, Sequence[int]]]:
        """Return the samples from a place of the job on, each with its number, or those that it has in it."""
        numbers = [self._numbered(place + j)[1] for j in range(len(samples))]
        several = self._data.numbers if isinstance(self._data, Batches) else lambda i: [i]
        return [(sample, several(i)) for sample, i in zip(samples, numbers, strict=True)]

    @property
    def columns(self) -> Sequence[object]:
        """Return the names of features, where they are known."""
        return self._data.columns if isinstance(self._data, Batches) else ()

    def _numbered(self, place: int) -> tuple[int, int]:
        turn, i = divmod(place, self._count)
        return turn, int(self.order(turn)[i]) if self._shuffled else i


def _order(seed: int | None, count: int, turn: int) -> Array:
    """Return the order of samples in a pass; without a seed that in which they are given."""
    if seed is None:
        return np.arange(count)
    words = philox((seed & _LOW32, seed >> 32 & _LOW32), (turn & _LOW32, _ORDERS + (turn >> 32)),
                   2 * count).astype(np.uint64)
    return np.argsort(words[0::2] << np.uint64(32) | words[1::2], kind="stable")


def _with_features(array: Array) -> Array:
    """Give numbers, one per sample, an axis of one feature."""
    return array if array.ndim > 1 else array[None, :]


def _floats_with_features(tree: Tree) -> Tree:
    if not isinstance(tree, np.ndarray):
        return tree_map(_floats_with_features, tree)
    return _with_features(tree) if tree.dtype.kind == "f" else tree


def _length(data: Any) -> int:
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


class Shard(NamedTuple):
    """Consecutive samples of a step."""

    start: int  # position of the first in the step
    samples: list[Tree]
    weights: list[float]  # of each sample

    def part(self, start: int, end: int) -> Shard:
        return Shard(self.start + start, self.samples[start:end], self.weights[start:end])


class Stack(NamedTuple):
    """Samples of a step that are passed at once, or one by one where they are unlike."""

    place: int  # of the leaf in the step's reduction tree
    parts: int  # 1 for a whole stack; PART if another replica has the rest of it
    heads: bool  # it begins with the stack's first sample
    number: int  # of its first sample, in the whole job
    samples: list[Tree]
    weights: list[float]  # of each sample

    @property
    def weight(self) -> float:
        return sum(self.weights)

    @property
    def passes(self) -> bool:
        """Return whether its samples can be passed at once: one, or alike, and of one weight or with weights."""
        if len(self.samples) == 1:
            return True
        return (isinstance(self.samples[0], Weighted) or _are_one({*self.weights})) and all_alike(self.samples)

    @property
    def together(self) -> Tree:
        return self.samples[0] if len(self.samples) == 1 else stacked(self.samples)

    def streams(self, first: int, draws: int | None) -> Numbers:
        """Return its random streams, after `first` stacks in earlier steps; a stack takes `draws`."""
        known = draws if self.heads else 0  # the rest of a stack has separate streams
        return (first + self.place) * (draws or 0), known, _BEYOND + self.number * _EACH

    def one_by_one(self) -> list[Stack]:
        return [Stack(i, 1, False, self.number + i, [sample], [weight])
                for i, (sample, weight) in enumerate(zip(self.samples, self.weights, strict=True))]


def weighed(samples: list[Tree], start: int, weight_of: Callable[[Tree], float] | None) -> Shard:
    """Make a shard of samples with their weights; a ValueError refuses wrong weights."""
    return Shard(start, samples, [1.0] * len(samples) if weight_of is None else [
        _weight(weight_of(sample)) for sample in samples])


def cut(shard: Shard, size: int, batch: int, step: int) -> list[Stack]:
    """Cut a shard of a step of `batch` samples into stacks of `size`; the first and the last may be parts."""
    if size == 1:  # hot path of small steps
        first, start, weights = step * batch, shard.start, shard.weights
        return [Stack(start + i, 1, True, first + start + i, [sample], [weights[i]])
                for i, sample in enumerate(shard.samples)]
    stacks = []
    at, end = shard.start, shard.start + len(shard.samples)
    while at < end:
        place = at // size
        until = min((place + 1) * size, end)
        whole = at == place * size and until == min((place + 1) * size, batch)
        here = slice(at - shard.start, until - shard.start)
        stacks.append(Stack(place, 1 if whole else PART, at == place * size, step * batch + at, shard.samples[here],
                            shard.weights[here]))
        at = until
    return stacks


def _weight(given: Any) -> float:
    with suppress(TypeError, ValueError):
        if isfinite(weight := float(given)) and weight >= 0:
            return weight
    raise ValueError(f"dp_train: weight_fn returned {given!r}; a finite number of at least 0 is required.")


def all_alike(samples: Iterable[Tree]) -> bool:
    """Return whether any of the samples may be stacked."""
    column = list(samples)  # hot path: two columns of 32 arrays are compared more quickly than 32 trees of two
    if not column:
        return True
    first = column[0]
    if not _are_one({x.__class__ for x in column}):
        return False
    if first.__class__ is np.ndarray:
        alike = _are_one({x.shape for x in column}) and _are_one({x.dtype for x in column})
        return alike and first.dtype.kind in "biuf"
    if first.__class__ is Tensor:
        return _are_one({(x.shape, x.dtype, x.device) for x in column}) and not any(x.requires_grad for x in column)
    if first.__class__ is dict:
        return _are_one({tuple(x) for x in column}) and all(all_alike([x[key] for x in column]) for key in first)
    if first.__class__ in (list, tuple) or hasattr(first, "_fields"):
        return _are_one({len(x) for x in column}) and all(map(all_alike, zip(*column, strict=True)))
    if first is None or isinstance(first, (str, bytes)):
        return _are_one({*column})
    return isinstance(first, (bool, int, float, np.generic))


def _are_one(found: Sized) -> bool:
    return len(found) == 1


def stacked(samples: Sequence[Tree]) -> Tree:
    """Stack samples that are `all_alike`."""
    first = samples[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(samples, -1) if _has_axis(first) else np.stack(samples, -1)
    if isinstance(first, Tensor):
        with no_grad():
            columns = samples if _has_axis(first) else [ag_reshape(x, *x.shape, 1) for x in samples]
            return ag_concat(list(columns), -1)
    if isinstance(first, dict):
        return {key: stacked([x[key] for x in samples]) for key in first}
    if isinstance(first, (list, tuple)):
        return sequence_of(type(first), [stacked(column) for column in zip(*samples, strict=True)])
    return np.array(samples) if isinstance(first, (bool, int, float, np.generic)) else first


def _has_axis(x: Array | Tensor) -> bool:
    return len(x.shape) > 0 and x.shape[-1] == 1


def why_not_stacked(loss_of: Callable[[Tree], float], stack: Shard | Stack, half: bool) -> str | None:
    """Return why a stack's loss, by `loss_of`, is not its samples' mean; None if it is, or cannot be compared."""
    count = len(stack.samples)
    if not all_alike(stack.samples):
        return None
    try:
        # functions may change lists and dicts in samples, which are to see that once
        apart = [loss_of(tree_map(lambda x: x, sample)) for sample in stack.samples]
    except Exception:  # noqa: BLE001 - it is raised again where the samples are passed
        return None
    try:
        whole = stacked(stack.samples)
        together, again = loss_of(whole), loss_of(whole)
    except Exception as error:  # noqa: BLE001 - a function for single samples may fail in any way
        return f"A stack of {count} samples cannot be passed at once ({type(error).__name__}: {error})."
    if not (isfinite(together) and all(map(isfinite, apart))):
        return None
    if together != again:
        return (f"The loss of one stack of {count} samples is {together:.6g} and then {again:.6g}, so it cannot be "
                f"compared with the losses of its samples.")
    mean, weight, size = sum(apart) / count, sum(stack.weights), sum(map(abs, apart)) / count
    weighted = sum(loss * w for loss, w in zip(apart, stack.weights, strict=True)) / weight if weight else mean
    close = (_CLOSE_16_BITS if half else _CLOSE) * max(size, abs(together)) + 1e-6
    if isinstance(stack.samples[0], Weighted):
        mean = weighted
    if min(abs(together - mean), abs(together - weighted)) <= close:  # the same where weights are equal
        return None
    return (f"The loss of a stack of {count} samples is {together:.6g} and the mean of their losses {mean:.6g}; "
            f"forward_fn, target_fn and loss_fn must take samples on the last axis, and the loss be their mean. Give "
            f"weights of classes as class_weight.")


def refuse_unweighted(function: str, loss: object) -> None:
    try:
        takes = callable(loss) and "sample_weight" in signature(loss).parameters
    except ValueError:  # it does not tell
        takes = False
    if not takes:
        raise TypeError(f"{function}: samples have weights, and the loss {getattr(loss, '__name__', loss)!s:.60} takes "
                        f"none; write def loss(output, target, sample_weight), the weighted mean, or use "
                        f"'cross_entropy', 'mse' or 'bce_with_logits'.")


def sample_weights(function: str, count: int, sample_weight: object, class_weight: object,
                   targets: Callable[[], object]) -> Array | None:
    """Return what each of `count` samples counts, by itself times by its class; None if nobody has said."""
    if sample_weight is None and class_weight is None:
        return None
    weights = np.ones(count) if sample_weight is None else host_values(sample_weight, function)
    if weights.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: sample_weight is of type {weights.dtype}; numbers are required.")
    if weights.shape != (count,):
        raise ShapeError(f"{function}: sample_weight is {weights.shape}; ({count},), a number per sample, is required.")
    parts = np.ones((2, count))  # what the samples count themselves, and for their classes
    parts[0] = weights
    if class_weight is not None:
        parts[1] = _of_classes(function, class_weight, targets(), parts[0])
    counted: Array = _in_range(parts[0]) * _in_range(parts[1])
    if not ((parts >= 0) & (parts < np.inf)).all() or not counted.any():
        raise ValueError(f"{function}: the weights of samples or classes go from {parts.min()} to {parts.max()}; "
                         f"finite numbers of at least 0 are required, that are not all zero.")
    return counted


def checksum(weights: Array | None) -> str:
    """Return what tells other weights from these."""
    return "None" if weights is None else f"an array of checksum {crc32(weights.tobytes()):08x}"


def _in_range(weights: Array) -> Array:
    """Return weights that float32 can add up, in the same ratios to the bit: those that are far from 1 are scaled."""
    power = int(np.frexp(weights.max())[1])
    return np.ldexp(weights, -power) if abs(power) > _FAR else weights


def _of_classes(function: str, given: object, targets: object, weights: Array) -> Array:
    """Return what each sample counts for its class; "balanced": all classes count the same together."""
    if not isinstance(targets, np.ndarray):
        raise TypeError(f"{function}: class_weight is given, and the class of each sample is not in memory; give "
                        f"sample_weight instead, an array with a number for each sample.")
    if targets.size != len(weights) or (targets.dtype.kind == "f" and (targets % 1).any()):
        raise ValueError(f"{function}: class_weight is given, and the targets are no class ids; give ids, or "
                         f"sample_weight.")
    classes, numbers = np.unique(targets.ravel(), return_inverse=True)
    if isinstance(given, str) and given == "balanced":
        counts = np.bincount(numbers, weights)
        each = weights.sum() / max(1, np.count_nonzero(counts))
        return np.asarray(each / np.where(counts > 0, counts, np.inf))[numbers]
    if not isinstance(given, Mapping):
        raise TypeError(f"{function}: class_weight is {given!r:.60}; use 'balanced', or a dict of class to weight.")
    odd = [key for key in given if key not in classes.tolist()]
    if odd and len(given) - len(odd) < len(classes):  # otherwise some samples lack a class, such as a fold
        raise ValueError(f"{function}: class_weight has the class {odd[0]!r}, and the targets have "
                         f"{', '.join(map(repr, classes.tolist()[:10]))} only; name these, or each of them besides it.")
    return np.array([given.get(label, 1.0) for label in classes.tolist()], np.float64)[numbers]


def bad_values(samples: Iterable[tuple[Tree, Sequence[int]]], columns: Sequence[object] = ()) -> str | None:
    """Say which samples have NaN or infinities; None if none has.  An item has some, on the last axis, and numbers."""
    counts, found = 0, dict[str, list[str]]()
    for sample, numbers in samples:
        counts += len(numbers)
        for name, array in _parts(sample) if numbers else ():  # a leaf may have no samples of its own
            for j in np.flatnonzero(~np.isfinite(rows := _rows(array, len(numbers))).all(0)).tolist():
                place = int(np.argmin(np.isfinite(rows[:, j])))
                is_table = name == "X" and array.ndim == 2
                label = f" ({columns[place]!r})" if is_table and place < len(columns) else ""
                where = f", column {place}{label}" if is_table else ""
                what = "NaN" if np.isnan(rows[place, j]) else "infinities"
                found.setdefault(f"{name} has {what}", []).append(f"sample {numbers[j]} of the data given{where}")
    return next((f"{what} in {len(places)} of the step's {counts} samples, such as {places[0]}"
                 for what, places in found.items()), None)


def _parts(sample: Tree) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of floats in a sample, by name."""
    sample = sample.sample if isinstance(sample, Weighted) else sample
    for name, part in zip(("X", "y"), sample, strict=False) if isinstance(sample, LoaderSample) else [("data", sample)]:
        inner = [(f"{name}[{key!r}]", x) for key, x in part.items()] if isinstance(part, dict) else [(name, part)]
        yield from ((own, x) for own, tree in inner for x in tree_leaves(tree)
                    if isinstance(x, np.ndarray) and x.dtype.kind == "f")


def _rows(array: Array, samples: int) -> Array:
    """Return the values of each sample as a column, in float32, in which they are used."""
    with np.errstate(all="ignore"):
        return array.astype(np.float32).reshape(-1, samples)
