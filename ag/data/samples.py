"""Numbered samples of a data loader: in arrays, or made by threads, for which no loop or process waits at its end."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from contextvars import ContextVar, copy_context
from numbers import Number
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ag.autograd.operands import host_values
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree, sequence_of, tree_flatten, tree_leaves, tree_map, tree_unflatten
from ag.engine.arena import after_fork
from ag.engine.primitive import Array
from ag.errors import DtypeError, ShapeError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_LOOK = 0.5  # seconds; Ctrl-C that comes just before a wait does not end it, so no wait is longer
Check = Callable[[], None]  # called between the parts of long work; raises if the result is no longer wanted


def made_ahead(make: Callable[[int, Check], T], numbers: range, most: int) -> Generator[T, None, None]:
    """Yield ``make(n, check)`` for each number in order, up to the first error; a thread makes at most `most` ahead."""
    over = False

    def check() -> None:
        if over:
            raise _UnwantedError

    def made(n: int) -> T:
        nonlocal over
        try:
            check()
            return make(n, check)
        except BaseException:
            over = True
            raise

    ahead = Prefetcher(made, threads=1)
    try:
        for n in numbers:
            yield ahead.take([n], range(n + 1, min(n + 1 + most, numbers.stop)))[0]
        over = True
    finally:
        idle, over = over, True
        ahead.close(idle)


class OneByOne(Iterator[T]):
    """A generator that several threads share: each gets what no other does."""

    def __init__(self, generator: Generator[T, None, None]) -> None:
        self._generator, self._turn = generator, Lock()

    def __next__(self) -> T:
        with self._turn():
            return next(self._generator)

    def close(self) -> None:
        """End the generator."""
        self._generator.close()


class _UnwantedError(Exception):
    """The loop that wanted the thing has ended."""


class Prefetcher(Generic[K, T]):
    """Things that threads make by key before they are asked for; one thread keeps the order, several may not."""

    def __init__(self, make: Callable[[K], T], threads: int) -> None:
        self._make, self._threads = make, threads
        self._coming: dict[K, Future[T]] = {}
        self._due: SimpleQueue[tuple[K, Future[T]] | None] = SimpleQueue()
        self._workers: list[Thread] = []
        self._owner = _forks  # a forked child has no threads

    def take(self, wanted: Sequence[K], coming: Sequence[K] = ()) -> list[T]:
        """Return these things, or raise the error of one; those in `coming` are made meanwhile, others forgotten."""
        if self._owner != _forks or not self._workers:
            self._owner, self._coming, self._due = _forks, {}, SimpleQueue()
            # daemons: other threads are waited for when the process ends, and these may hang in a sample
            self._workers = [Thread(target=copy_context().run, args=(self._run,), daemon=True, name="ag_samples")
                             for _ in range(self._threads)]
            for worker in self._workers:
                worker.start()
        needed = {*wanted, *coming}
        for key in [key for key in self._coming if key not in needed]:
            self._coming.pop(key).cancel()
        for key in (*wanted, *coming):
            if key not in self._coming:
                self._coming[key] = Future()
                self._due.put((key, self._coming[key]))
        found = {key: self._coming.pop(key) for key in dict.fromkeys(wanted)}
        for thing in found.values():
            while not thing.done():
                wait([thing], _LOOK)
        return [found[key].result() for key in wanted]

    def _run(self) -> None:
        while (due := self._due.get()) is not None:
            key, thing = due
            if thing.set_running_or_notify_cancel():
                try:
                    thing.set_result(self._make(key))
                except BaseException as error:  # noqa: BLE001 - it is raised where the thing is asked for
                    thing.set_exception(error)

    def close(self, idle: bool = False) -> None:
        """Forget the keys and end the threads; waits for them if they are known to have nothing to do."""
        for thing in self._coming.values():
            thing.cancel()
        self._coming.clear()
        for _ in self._workers:
            self._due.put(None)
        for worker in self._workers if idle else ():
            worker.join()


_forks = 0  # between the first process and this one


@after_fork
def _forked() -> None:
    global _forks
    _forks += 1


class Lock:
    """A lock of one object in one process: copies, and forked children, find theirs open."""

    def __init__(self) -> None:
        self._owner = _forks, RLock()

    def __call__(self) -> AbstractContextManager[bool]:
        """To be held in a ``with``."""
        if self._owner[0] != _forks:
            self._owner = _forks, RLock()
        return self._owner[1]

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


_SHUFFLES = {"RandomSampler": True, "SequentialSampler": False}
_within: ContextVar[tuple[Samples, ...]] = ContextVar("ag_samples_within", default=())  # of which one is being made


class Pass(NamedTuple):
    """A pass through all samples: random numbers of a sample follow from this and its number."""

    seed: int
    number: int


class Samples(ABC):
    """Numbered samples of x, of y, or of both."""

    threads = 0  # that should make samples at a time; 0 where nothing has to be made

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, chosen: Array, check: Check, of: Pass) -> tuple[Tree, ...]:
        """Return copies of the chosen samples, on the last axis; two trees of pairs. Calls `check` now and then."""

    def some(self, numbers: Array, held: bool) -> Samples:
        """Return those with these numbers; of held-out samples nothing is drawn."""
        return _Some(self, numbers)


class Keys(NamedTuple):
    """The keys of samples that are dicts: of x, None for all others, and of y."""

    inputs: str | Sequence[str] | None = None
    target: str | None = None


def samples_of(data: object, name: str, col_major: bool, pairs: bool, keys: Keys) -> Samples:
    """Return the samples of what the user gave as `name`; with `pairs` a tuple is a sample with its target."""
    if isinstance(data, Samples):
        return data
    if _is_array(data):
        if keys != Keys():
            raise TypeError(f"ag_dataloader: {name} is an array, and inputs or target is given, a key of samples that "
                            f"are dicts; leave them out.")
        return _Stored(data, name, col_major and not hasattr(data, "iloc"))  # pandas has samples in rows
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, Mapping):
        return _Made(data, name, pairs, keys)
    raise DtypeError(f"ag_dataloader: {name} is of type {type(data).__name__}; an array, or an object with len() and "
                     f"{name}[i], is required. Make a list of its samples, or give one entry of a dict.")


class _Some(Samples):
    def __init__(self, of: Samples, numbers: Array) -> None:
        self._of, self._numbers, self.threads = of, numbers, of.threads

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, chosen: Array, check: Check, of: Pass) -> tuple[Tree, ...]:
        return self._of.take(self._numbers[chosen], check, of)


def _is_array(data: object) -> bool:
    """Return whether it is one array: by ``__array__``, or as plain numbers, nested or not."""
    if isinstance(data, (list, tuple)):
        return all(isinstance(v, (Number, list, tuple)) and _is_array(v) for v in data)
    return isinstance(data, Number) or hasattr(data, "__array__")


class _Stored(Samples):
    def __init__(self, data: object, name: str, col_major: bool) -> None:
        array = _numbers(data, name)
        if array.ndim == 0:
            raise ShapeError(f"ag_dataloader: {name} is a single number; an array of samples is required.")
        self._array = array if col_major else np.moveaxis(array, 0, -1)

    def __len__(self) -> int:
        return int(self._array.shape[-1])

    def take(self, chosen: Array, check: Check, of: Pass) -> tuple[Array, ...]:
        return (self._array[..., chosen],)


class _Made(Samples):
    """Samples that an object makes when it is asked for them by number."""

    threads = 1

    def __init__(self, data: Any, name: str, pairs: bool, keys: Keys) -> None:
        self._data = data
        self._name = name
        self._pairs = pairs
        self._keys, self._has_keys = keys, keys != Keys()
        self._asking = Lock()  # one thread at a time: a loop that was left may still be at a sample

    def __len__(self) -> int:
        return len(self._data)

    def take(self, chosen: Array, check: Check, of: Pass) -> tuple[Tree, ...]:
        names = ("x", "y") if self._pairs else (self._name,)
        numbers: list[int] = chosen.tolist()
        rows: list[list[Tree]] = []
        for i in numbers:
            parts = self._parts(i, check)
            if not 1 <= len(parts) == len(rows[0] if rows else parts) <= 2:
                raise ShapeError(f"ag_dataloader: sample {i} has {len(parts)} part{'s' * (len(parts) != 1)}; every "
                                 f"sample must be an x alone, or every sample a pair (x, y). A sample of several "
                                 f"numbers is a list or an array; several inputs are a pair ((a, b), y).")
            rows.append([_sample(part, f"sample {i} of {name}") for part, name in zip(parts, names, strict=False)])
        return tuple(_stacked(parts, numbers, name) for parts, name in zip(zip(*rows, strict=True), names,
                                                                           strict=False))

    def _parts(self, i: int, check: Check) -> tuple[Any, ...]:
        if self in (within := _within.get()):  # it would wait for itself
            raise RuntimeError(f"ag_dataloader: sample {i} of {self._name} is asked for while one of them is being "
                               f"made; a sample must not ask the loader that it is for.")
        with self._asking():
            check()
            token = _within.set((*within, self))
            try:
                item = self._data[i]
            except StopIteration as error:  # which would end the loop as if there were no more samples
                raise RuntimeError(f"ag_dataloader: sample {i} of {self._name} raised StopIteration; a sample must be "
                                   f"returned, or another error raised.") from error
            except BaseException as error:
                if sys.version_info >= (3, 11):  # exceptions of 3.10 take no notes
                    error.add_note(f"ag_dataloader was asking for sample {i} of {self._name}.")
                raise
            finally:
                _within.reset(token)
        if self._has_keys:
            return self._by_keys(item, i)
        if isinstance(item, tuple):
            return item if self._pairs else ([*item],)  # x and y are apart: it must be an array
        return (item,)

    def _by_keys(self, item: object, i: int) -> tuple[Tree, ...]:
        """Return x, and perhaps y, of a sample that is a dict."""
        inputs, target = self._keys
        known: Mapping[str, Tree] = item if isinstance(item, Mapping) else {}
        there = [*known]
        listed = [inputs] if isinstance(inputs, str) else [key for key in there if key != target] if (
            inputs is None) else inputs
        if missing := [key for key in (*listed, target) if key is not None and key not in there]:
            raise ValueError(f"ag_dataloader: sample {i} is a {type(item).__name__} with keys {there!s:.99}, and not "
                             f"{missing[0]!r}; inputs and target must name keys that all samples have.")
        x = known[inputs] if isinstance(inputs, str) else {key: known[key] for key in listed}
        return (x,) if target is None else (x, known[target])


def _stacked(trees: Sequence[Tree], numbers: list[int], name: str) -> Tree:
    shapes = [tree.shape if isinstance(tree, np.ndarray) else tree_map(np.shape, tree) for tree in trees]
    for i, shape in zip(numbers, shapes, strict=True):
        if shape != shapes[0]:
            raise ShapeError(f"ag_dataloader: sample {numbers[0]} of {name} has shape {shapes[0]!s:.99} and sample {i} "
                             f"{shape!s:.99}; the samples of a batch must have one shape. Pad or resize them.")
    if isinstance(trees[0], np.ndarray):
        return np.stack(trees, axis=-1)
    columns = zip(*map(tree_leaves, trees), strict=True)
    return tree_unflatten(tree_flatten(trees[0])[1], [np.stack(column, axis=-1) for column in columns])


def _sample(item: object, what: str) -> Tree:
    """Return copies of a sample's arrays, as the maker may use the same memory for the next sample."""
    if isinstance(item, np.ndarray):  # hot path: most samples are
        return np.array(_numbers(item, what))
    if isinstance(item, Mapping) and item:
        if texts := [key for key, part in item.items() if isinstance(part, (str, bytes))]:
            raise DtypeError(f"ag_dataloader: {texts[0]!r} of {what} is text; numbers are required. Make numbers of "
                             f"it, such as token ids, or leave it out of inputs=[...].")
        return {key: _sample(item[key], f"{key!r} of {what}") for key in sorted(item, key=str)}
    if isinstance(item, tuple) and not _is_array(item):
        return sequence_of(type(item), [_sample(part, f"part {k} of {what}") for k, part in enumerate(item)])
    array = np.array(_numbers(item, what))
    column = isinstance(item, Tensor) and array.ndim == 2 and array.shape[1] == 1  # what ag_tensor makes of a vector
    return array[:, 0] if column else array


def _numbers(data: object, what: str) -> Array:
    try:
        array = host_values(data, f"ag_dataloader: {what}")
    except ValueError as error:
        raise ShapeError(f"ag_dataloader: {what} is a {type(data).__name__} and not an array; numbers in rows of one "
                         f"length are required.") from error
    if array.dtype.kind == "O":
        mixed = ""
        for at, x in np.ndenumerate(array):  # the first object that is no plain number
            if at and (isinstance(x, bool) or not isinstance(x, (int, float))):
                column = f" in column {at[1]}" if len(at) == 2 else ""
                mixed = f", and holds objects of various types, such as {x!r:.40}{column}"
                break
        raise DtypeError(f"ag_dataloader: {what} is of type {type(data).__name__}{mixed}; numbers are required.")
    if array.dtype.kind not in "biuf":
        advice = " Make ids of names: names, y = np.unique(y, return_inverse=True)." if array.dtype.kind in "US" else ""
        raise DtypeError(f"ag_dataloader: {what} is of type {array.dtype}; numbers are required.{advice}")
    return array


def is_torch_loader(given: object) -> bool:
    """Return whether it is a DataLoader of PyTorch, or derived from one; does not import PyTorch."""
    return any(kind.__name__ == "DataLoader" and kind.__module__.startswith("torch.") for kind in type(given).__mro__)


def torch_settings(loader: Any) -> tuple[object, int, bool, bool]:
    """Return dataset, batch size, shuffle and drop_last of a DataLoader of PyTorch."""
    sampler, collate = type(loader.sampler).__name__, getattr(loader.collate_fn, "__name__", "an object")
    if sampler not in _SHUFFLES or getattr(loader.sampler, "replacement", False) or (
            len(loader.sampler) != len(loader.dataset)) or loader.batch_size is None or collate != "default_collate":
        raise ValueError(f"ag_dataloader: the DataLoader of PyTorch has batch_size {loader.batch_size}, {sampler} and "
                         f"{collate}; a batch_size, shuffle=True or False, and no collate_fn are required. Give its "
                         f"dataset, or a list of its samples.")
    return loader.dataset, int(loader.batch_size), _SHUFFLES[sampler], bool(loader.drop_last)
