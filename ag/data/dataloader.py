"""Batches of samples in an order that follows from seed and epoch; every loop, and `next_batch`, has its own place."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree, tree_map
from ag.data.samples import Check, Keys, Lock, OneByOne, Pass, is_torch_loader, made_ahead, samples_of, torch_settings
from ag.data.splits import Splittable, is_whole
from ag.engine.primitive import Array
from ag.engine.random import draws_from, host_seed
from ag.engine.shape import counts
from ag.errors import CheckpointError, ShapeError
from ag.names import missing
from ag.names.elsewhere import BATCH, LOADER

__all__ = ["Batch", "DataLoader", "ag_dataloader"]

Loader = TypeVar("Loader", bound="DataLoader")
MASK = (1 << 64) - 1  # of 64 bits
_NUMBERS = ("seed", "epoch", "next", "begun")  # of a state


class Batch(NamedTuple):
    """A batch; ``x, y = batch`` takes it apart, and so does ``for x, y in loader``.

    Attributes
    ----------
    x : Tensor of shape (features, batch) or (..., batch)
        Or a dict of tensors and arrays, if samples are dicts; ``batch["image"]`` is ``batch.x["image"]``.
    y : Tensor, ndarray of int, or None
        A tensor if targets are floating-point numbers, the array itself if they are class ids.

    Examples
    --------
    >>> x, y = ag.data.DataLoader([[1.0, 2.0, 3.0]], [0, 1, 1], batch_size=2, shuffle=False).next_batch()
    >>> x.shape, y.tolist()
    ((1, 2), [0, 1])
    """

    x: Tensor
    y: Any = None

    def __getitem__(self, key: object) -> Tree:
        by_key = isinstance(key, str) and isinstance(self.x, dict)
        return self.x[key] if by_key else tuple.__getitem__(self, cast(int, key))


if not TYPE_CHECKING:
    Batch.__getattr__ = missing(BATCH)
    Batch.__new__.__annotations__.update(x="Tensor", y="Any")  # help() would show a ForwardRef


class DataLoader(Splittable):
    """Batches of samples, from arrays or from anything that makes sample i when asked for it.

    Reference: ggmlR ``ag_dataloader`` (which drops a partial last batch silently).

    Parameters
    ----------
    x : array_like of shape (..., samples), or sequence of samples
        An object with a length and ``x[i]``, such as a dataset of PyTorch or Hugging Face, is a sequence; see Notes.
    y : array_like of shape (..., samples), or sequence of targets, optional
        Without it, the samples of a sequence may be pairs ``(x, y)``.
    batch_size : int, optional
    shuffle : bool, optional
        A new order every epoch.
    col_major : bool, optional
        Whether the samples of an array are on its last axis or its first; those of DataFrames are in rows.
    drop_last : bool, optional
        Leave out a last batch that is smaller than the others.
    seed : int, optional
        For the orders; default: from `ag_seed`'s generator.
    prefetch : int, optional
        How many batches a background thread gathers ahead in a loop, and how many steps `dp_train` is ahead; 0 makes
        them in the calling thread, as `next_batch` does.
    target : str, optional
        Of samples that are dicts, the key of the target.
    inputs : str or sequence of str, optional
        Of samples that are dicts, the key of x, or those in it; default: all but `target`.

    Notes
    -----
    A ShapeError says that `x` and `y` hold different numbers of samples or, when a batch is due, that its samples have
    other shapes or keys; a DtypeError, that the data or a sample are not numbers.

    Every ``for`` loop over the loader is an epoch of its own, from its start.  ``has_next()``, ``next_batch()`` and
    ``reset()`` go through epochs beside them.  After `load_state_dict`, the next of them goes on in the middle of one.

    Numpy arrays, tensors, other objects with ``__array__``, and nested lists of plain numbers are arrays.  They are not
    copied: later batches see assignments.  Every other object with ``len()`` and ``[i]`` is a sequence of samples, each
    an array, a tensor, a number or a list of numbers.  A tensor of shape ``(n, 1)`` counts as a vector of length n.

    Samples of shape S make a batch of shape ``(*S, batch)``, and numbers one of shape ``(1, batch)``.  Targets that are
    integers stay an array, of numbers one of shape ``(batch,)``.  Samples that are dicts, or whose x is a tuple of
    arrays, make batches of that form, in which whole numbers, such as token ids, stay arrays.  Texts are refused.

    Of PyTorch's DataLoader come dataset, batch_size, drop_last and shuffle; other samplers and collate_fn are refused.

    One thread at a time asks a sequence for samples, once an epoch and in the epoch's order.  An error in a sample ends
    the loop; that batch is the next one for `next_batch` and `state_dict`.  This library's random numbers in a sample
    follow from the loader's seed and the batch alone; a generator of your own goes on from sample to sample.

    Examples
    --------
    >>> import numpy as np
    >>> [batch.x.shape for batch in ag.ag_dataloader(np.zeros((4, 10)), np.arange(10), batch_size=4, seed=1)]
    [(4, 4), (4, 4), (4, 2)]
    >>> ag.ag_dataloader([np.zeros(4) for _ in range(10)], range(10), batch_size=4).next_batch().x.shape
    (4, 4)
    """

    _function = "ag_dataloader"  # the name users know it by
    _settled = frozenset({"n_samples", "batch_size", "shuffle", "drop_last", "prefetch"})

    def __init__(self, x: object, y: object = None, batch_size: int = 32, shuffle: bool = True, col_major: bool = True,
                 drop_last: bool = False, seed: int | None = None, prefetch: int = 0, *, target: str | None = None,
                 inputs: str | Sequence[str] | None = None) -> None:
        self._check_settings(batch_size, prefetch, seed, shuffle=shuffle, col_major=col_major, drop_last=drop_last)
        if is_torch_loader(x):
            if y is not None or (batch_size, shuffle, drop_last) != (32, True, False):
                raise ValueError("ag_dataloader: x is a DataLoader of PyTorch, which brings y, batch_size, shuffle and "
                                 "drop_last along; leave them out, or give its dataset.")
            x, batch_size, shuffle, drop_last = torch_settings(x)
        if isinstance(x, DataLoader):
            raise TypeError("ag_dataloader: x is a loader already; samples are required. Use it as it is.")
        if target is not None and y is not None:
            raise TypeError(f"ag_dataloader: y and target={target!r:.60} are both given; leave one out.")
        self._data = [samples_of(x, "x", col_major, y is None, Keys(inputs, target))]
        samples = len(self._data[0])
        if y is not None:
            self._data.append(samples_of(y, "y", col_major, False, Keys()))
            if len(self._data[1]) != samples:
                raise ShapeError(f"ag_dataloader: x holds {samples} samples and y {len(self._data[1])}; equally many "
                                 f"are required. Of arrays with samples on the first axis, pass col_major=False.")
        if samples == 0:
            raise ValueError("ag_dataloader: x holds no samples; at least one is required.")
        self.n_samples = samples
        self.batch_size = int(batch_size)
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.prefetch = int(prefetch)
        self._seed = host_seed() if seed is None else int(seed)
        self._is_seeded = seed is not None
        self._part = 0, 1  # which part of every batch it has, of how many
        self._lock, self._turn = Lock(), Lock()  # around every change of a place; around next_batch
        self._begun = 0  # epochs, with the one that waits
        self._own: _Place | None = None  # the place of `next_batch`
        self._left: _Place | None = None  # of the loop that may go on at the place that waits
        self._at = self._fresh()  # of which `state_dict` and `order` speak
        self._waiting: _Place | None = self._at

    if not TYPE_CHECKING:
        __getattr__ = missing(LOADER)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={getattr(self, name)}" for name in ("batch_size", "shuffle", "drop_last",
                                                                          "prefetch"))
        rank, size = self._part
        share = f", share {rank} of {size}" if size > 1 else ""
        return f"{type(self).__name__}({self.n_samples} samples in {self.n_batches()} batches, {settings}{share})"

    def __copy__(self) -> DataLoader:
        """Return a loader of the same samples, at places of its own."""
        twin, memo = object.__new__(type(self)), dict[int, object]()
        vars(twin).update(vars(self), _lock=Lock(), _turn=Lock())
        for name in ("_own", "_left", "_at", "_waiting"):
            vars(twin)[name] = deepcopy(vars(self)[name], memo)
        return twin

    def _check_settings(self, batch_size: object, prefetch: object, seed: object, **switches: object) -> None:
        if not (counts(batch_size) and counts(prefetch, least=0)):
            raise ValueError(f"{self._function}: batch_size is {batch_size!r} and prefetch {prefetch!r}; "
                             f"whole numbers of at least 1 and 0 are required.")
        if not (seed is None or is_whole(seed)):
            raise ValueError(f"{self._function}: seed is {seed!r}; a whole number, or None, is required.")
        for name, value in switches.items():
            if not isinstance(value, (bool, np.bool_)):
                raise ValueError(f"{self._function}: {name} is {value!r}; True or False is required.")

    def __setattr__(self, name: str, value: object) -> None:
        if name in self._settled and name in vars(self):
            raise AttributeError(f"{self._function}: {name} was set to {value!r} after the loader was made; its "
                                 f"settings stay as they are. Make another loader.")
        super().__setattr__(name, value)

    def _fresh(self) -> _Place:
        self._begun += 1
        return _Place(self._begun - 1)

    def _begin(self) -> _Place:
        """Return the place to begin at: the waiting one, or the start of the next epoch."""
        with self._lock():
            self._at = self._waiting or self._fresh()
            self._waiting = None
            return self._at

    def _moved(self, place: _Place) -> _Place:
        """Return where a loop goes on: at its place, or at a state that was loaded since."""
        if self._waiting is None:
            return place
        with self._lock():
            return self._begin() if self._waiting is not None and place is self._left else place

    def _order(self, place: _Place) -> Array:
        if place.order is None:
            place.order = np.arange(self.n_samples) if not self.shuffle else np.random.Generator(np.random.Philox(
                key=self._seed & MASK, counter=[0, 0, place.epoch, 0])).permutation(self.n_samples)
            place.order.flags.writeable = False
        return place.order

    @property
    def order(self) -> Array:
        """Return the numbers of the samples in the order of `state_dict`'s epoch."""
        return self._order(self._at)

    @property
    def threads(self) -> int:
        """Return how many threads should make samples at a time; 0 for samples in memory."""
        return max(part.threads for part in self._data)

    def sample(self, i: int, of: Pass) -> list[Tree]:
        """Return the arrays of one sample, x and perhaps y, each with a last axis of 1; for `dp_train`."""
        with draws_from(*of, i):
            return self.samples(np.array([i]), of)

    def samples(self, numbers: Array, of: Pass) -> list[Tree]:
        """Return the arrays of some samples, x and perhaps y, with the samples last; for `fit`."""
        return [array for part in self._data for array in part.take(numbers, lambda: None, of)]

    def targets(self) -> Tree:
        """Return all targets, or the first where they are made; on the last axis, for `fit`."""
        last, of = self._data[-1], Pass(0, 0)
        return self.sample(0, of)[-1] if last.threads else last.take(np.arange(len(last)), lambda: None, of)[-1]

    def _some(self: Loader, numbers: Array, held: bool) -> Loader:
        part = copy(self)
        vars(part).update(n_samples=len(numbers), _data=[data.some(numbers, held) for data in self._data], _begun=0,
                          _own=None, _left=None, **({"shuffle": False, "drop_last": False} if held else {}))
        part._at = part._waiting = part._fresh()
        return part

    def labels(self) -> Tree:
        return self.targets() if len(self._data) == 2 and not self._data[1].threads else None

    def share(self, rank: int, size: int) -> DataLoader:
        """Return a loader of the part of `rank`, from 0, of every batch, where `size` ranks make steps together.

        It is at this one's place; of a share it is a share of the whole, too.  The parts of all ranks, one after the
        other, are this loader's batches, and differ by one sample at most.  The last ones are empty where a batch has
        fewer samples than there are ranks: ``batch.x.shape[-1]`` is 0.  Random numbers in a sample follow from the
        rank, too.  A loader that shuffles needs a `seed`, or each rank would have its own order.

        A state of this loader, or of any share, is good for all.  ``len``, `order` and `n_samples` are the whole
        loader's.  ``ag.syncgrads([gradients], [samples], world=world)`` averages gradients over unequal parts.

        Examples
        --------
        >>> import numpy as np
        >>> loader = ag.ag_dataloader(np.arange(6.0), batch_size=4, shuffle=False)
        >>> [[b.x.numpy().ravel().tolist() for b in loader.share(rank, 2)] for rank in (0, 1)]
        [[[0.0, 1.0], [4.0]], [[2.0, 3.0], [5.0]]]
        """
        if not (counts(size) and counts(rank, least=0) and rank < size):
            raise ValueError(f"{self._function}.share: rank is {rank!r} and size {size!r}; whole numbers are required, "
                             f"size at least 1, and rank from 0 to below it.")
        if size > 1 and self.shuffle and not self._is_seeded:
            raise ValueError(f"{self._function}.share: the loader shuffles and was made without a seed, so every rank "
                             f"has an order of its own; give all ranks the same seed.")
        with self._lock():
            part, place = copy(self), self._at
            part._part = int(rank), int(size)
            part._own = part._left = None
            part._at = part._waiting = _Place(place.epoch, place.next)
        return part

    def n_batches(self) -> int:
        """Return the number of batches in an epoch."""
        full, rest = divmod(self.n_samples, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __len__(self) -> int:
        return self.n_batches()

    def reset(self) -> None:
        """Let `next_batch` begin the next epoch, in its own order."""
        if self._waiting is not None:
            self._begin()  # the one that it leaves
        self._own = self._begin()

    def has_next(self) -> bool:
        """Return whether `next_batch` has another batch in its epoch."""
        place = self._own or self._waiting
        return (0 if place is None else place.next) < self.n_batches()

    def next_batch(self) -> Batch:
        """Return the next batch of an epoch that no loop shares; StopIteration ends it, `reset` begins the next."""
        with self._turn():
            if not self.has_next():
                raise StopIteration(f"{self._function}: the epoch is over; call reset() to begin the next.")
            self._own = place = self._own or self._begin()
            return self._deliver(self._gather(place, place.next), place)

    def epoch(self) -> Iterator[Batch]:
        """Return the batches of the next epoch, or the rest of a loaded one; threads may share them."""
        return OneByOne(self._batches())

    def _batches(self) -> Generator[Batch, None, None]:
        place = self._begin()
        try:
            while place.next < self.n_batches():
                with closing(self._gathered(place)) as gathered:
                    for arrays in gathered:
                        yield self._deliver(arrays, place)
                        before, place = place, self._moved(place)
                        if place is not before:
                            break
        finally:  # the loop ends, or is left
            with self._lock():
                if place is self._at and place.next >= self.n_batches():
                    self._left = None
                    self._at = self._waiting = self._waiting or self._fresh()

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch()

    def _gathered(self, place: _Place) -> Generator[list[Tree], None, None]:
        """Yield the arrays of the batches that are left of an epoch."""
        due = range(place.next, self.n_batches())
        if self.prefetch:
            return made_ahead(lambda k, check: self._gather(place, k, check), due, self.prefetch)
        return (self._gather(place, k) for k in due)

    def _gather(self, place: _Place, k: int, check: Check = lambda: None) -> list[Tree]:
        """Return the arrays of batch `k`, x and perhaps y; with `prefetch`, in a background thread."""
        chosen = self._order(place)[k * self.batch_size : (k + 1) * self.batch_size]
        rank, size = self._part
        each, more = divmod(len(chosen), size)
        begin = rank * each + min(rank, more)
        mine = chosen[begin : begin + each + (rank < more)]
        by = (rank,) if size > 1 else ()
        with draws_from(self._seed, place.epoch, k, *by):  # whatever is drawn meanwhile, and whenever this is
            of = Pass(self._seed, place.epoch)
            parts = [samples.take(mine if len(mine) else chosen[:1], check, of) for samples in self._data]
        return [tree if len(mine) else tree_map(lambda array: array[..., :0], tree) for part in parts for tree in part]

    def _deliver(self, arrays: list[Tree], place: _Place) -> Batch:
        x, *y = arrays
        batch = Batch(_tensor(x) if isinstance(x, np.ndarray) else tree_map(_tensor_of_floats, x),
                      tree_map(_tensor_of_floats, y[0]) if y else None)
        with self._lock():
            place.next += 1  # now that nothing can fail: a batch that failed is still the next
            self._at = place
        return batch

    def state_dict(self) -> dict[str, int]:
        """Return where the loader is, and the settings that a loader must have to go on there.

        ``epoch`` and ``next`` batch are of the loop that took the last batch, or of `next_batch` if that was later.
        ``begun`` counts the epochs that were taken, with that one.
        """
        with self._lock():
            return {"seed": self._seed, "epoch": self._at.epoch, "next": self._at.next, "begun": self._begun,
                    **self._settings()}

    def _settings(self) -> dict[str, int]:
        return {"samples": self.n_samples, "batch_size": self.batch_size, "shuffle": self.shuffle,
                "drop_last": self.drop_last}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken, with the same batches and seed: in the next loop, or `next_batch`.

        The loop that took the last batch goes on there if it asks before another begins.  A CheckpointError says that
        the state is of other samples or settings; nothing changes then.
        """
        self.check_state_dict(state)
        seed, epoch, following, begun = (int(cast(int, state[k])) for k in _NUMBERS)
        with self._lock():
            if self._waiting is None:
                self._left = self._at
            self._seed, self._is_seeded, self._begun, self._own = seed, True, begun, None
            self._at = self._waiting = _Place(epoch, following)

    def check_state_dict(self, state: Mapping[str, object]) -> None:
        """Raise the error that `load_state_dict` would, and change nothing."""
        settings = self._settings()
        missing = [name for name in (*_NUMBERS, *settings) if not isinstance(state, Mapping) or name not in state]
        if missing:
            raise CheckpointError(f"load_state_dict: the loader's state is missing {', '.join(missing)}.")
        other = [name for name, value in settings.items() if state[name] != value]
        if other:
            theirs, mine = (", ".join(f"{of[name]!r:.60} {name}" if name == "samples" else f"{name} {of[name]!r:.60}"
                                      for name in other) for of in (state, settings))
            raise CheckpointError(f"load_state_dict: the state is of a loader with {theirs}, and this one has {mine}; "
                                  f"they must be equal.")
        seed, epoch, following, begun = numbers = [state[k] for k in _NUMBERS]
        if not (all(map(is_whole, numbers)) and all(0 <= cast(int, n) <= MASK for n in numbers[1:])
                and cast(int, following) <= self.n_batches()):
            raise CheckpointError(f"load_state_dict: the loader's state has seed {seed!r:.60}, epoch {epoch!r:.60}, "
                                  f"begun {begun!r:.60} and next {following!r:.60}; whole numbers are required, and "
                                  f"at most {self.n_batches()} batches.")


@dataclass(eq=False)
class _Place:
    """The next batch of an epoch; every loop has one, and `next_batch` has."""

    epoch: int
    next: int = 0
    order: Array | None = None  # once it was asked for


def _tensor(x: Array) -> Tensor:
    return ag_tensor(x if x.ndim > 1 else x[None, :])


def _tensor_of_floats(x: Array) -> Tensor | Array:
    return _tensor(x) if x.dtype.kind == "f" else x


ag_dataloader = DataLoader
