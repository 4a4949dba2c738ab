"""Communicators: what the members (ranks) of a group do together, on numpy arrays, and which ranks are left of it.

Sums are made in one fixed binary tree over the ranks: equal bits on all groups.  Every call of a `Member` ends with an
agreement and counts only if all ranks came through; else the group shrinks and calls again.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations, pairwise, zip_longest
from pathlib import Path
from secrets import token_hex
from socket import gethostname
from tempfile import TemporaryDirectory
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ag.engine.primitive import Array
from ag.errors import CommError, RankLostError
from ag.log import log
from ag.parallel.comm.tree_reduction import add_rows, tree_sum

T = TypeVar("T")
M = TypeVar("M", bound="Member")
Json = Any  # numbers, strings, None, and lists and dicts of them
Moves = Mapping[int, Sequence[Array]]  # flat arrays to or from each of some ranks


class Comm(ABC):
    """A member's place in a group.  All members make the same calls in the same order.

    After an error in a call the arrays it should have written have any values.  If the error is a `RankLostError`,
    every rank that is left gets one, in this call or a later one, and all of them may go on::

        while True:
            try:
                comm.all_reduce(sums := mine.copy())
                if comm.commit(True):
                    break
            except RankLostError:
                pass
            comm, old_ranks = comm.survivors()
    """

    rank: int  # from 0
    size: int
    hosts: tuple[str, ...]  # of all ranks

    @abstractmethod
    def _gate(self, operation: str, text: str) -> list[str]:
        """Wait for all ranks and return their texts; raise if one makes another call."""

    @abstractmethod
    def _move(self, operation: str, out: Moves, into: Moves) -> None:
        """Copy `out` to other ranks and `into` from them; both know the lengths and the types."""

    @abstractmethod
    def _end(self, reason: str) -> None:
        """End the group for a reason that every rank finds by itself."""

    @abstractmethod
    def send(self, array: Array, to: int) -> None:
        """Give a copy of `array` to another rank; does not wait for it."""

    @abstractmethod
    def recv(self, source: int) -> Array:
        """Return the next array that rank `source` sends here."""

    @abstractmethod
    def split(self, color: int) -> Comm:
        """Return the group of the ranks with the same `color`, in their order."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the group: every rank that waits in it, now or later, gets a CommError with the reason."""

    @abstractmethod
    def commit(self, ok: bool) -> bool:
        """Agree with all ranks: True on each if all said True and none was lost; else False, and a loss raises next."""

    @abstractmethod
    def survivors(self) -> tuple[Comm, list[int]]:
        """Return the group of the ranks that are left and their former numbers, after a loss; all call it."""

    def all_reduce(self, array: Array) -> None:
        """Replace `array`, contiguous and of one shape and type on all ranks, by the sum over the ranks."""
        flat = numbers("all_reduce", array, True).reshape(-1)
        self._alike("all_reduce", array)
        part = self._part_of_sum("all_reduce", flat)
        cuts = self.shares_of(flat.size)
        self._spread("all_reduce", part, [flat[cut] for cut in cuts])

    def reduce_scatter(self, array: Array) -> Array:
        """Return this rank's part, by `shares_of`, of the sum over the ranks of a flat array."""
        flat = numbers("reduce_scatter", array).reshape(-1)
        self._alike("reduce_scatter", array)
        part = self._part_of_sum("reduce_scatter", flat)
        return part.copy() if self.size == 1 else part

    def all_to_all(self, rows: Sequence[Array]) -> list[list[Array]]:
        """Return this rank's part, by `shares_of`, of the rows of each rank, all alike; its own are views."""
        flat = [numbers("all_to_all", row).reshape(-1) for row in rows]
        kinds = sorted({f"{row.size} {row.dtype}" for row in flat})
        told = self._told("all_to_all", [len(rows), kinds])
        known: dict[str, int] = {}
        for rank, (_, kinds) in enumerate(told):
            for kind in kinds:
                known.setdefault(kind, rank)
        if len(known) > 1:
            (one, a), (other, b) = [*known.items()][:2]
            self._refuse(f"all_to_all: rank {a} has a row of {one} and rank {b} one of {other}; the lengths and types "
                         f"of all rows must be equal.")
        return self._parts("all_to_all", flat, [count for count, _ in told], *next(iter(known), "0 uint8").split())

    def all_gather(self, part: Array) -> Array:
        """Join the flat arrays of all ranks, which may differ in length."""
        flat = sent_array("all_gather", part).reshape(-1)
        told = self._told("all_gather", [flat.size, str(flat.dtype)])
        self._equal("all_gather", [kind for _, kind in told], "types")
        ends = np.cumsum([0, *(size for size, _ in told)])
        whole = np.empty(ends[-1], flat.dtype)
        self._spread("all_gather", flat, [whole[a:b] for a, b in pairwise(ends)])
        return whole

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace `array` by that of rank `root`."""
        check_rank("broadcast", root, self.size)
        flat = sent_array("broadcast", array, root != self.rank).reshape(-1)
        told = self._told("broadcast", [root, f"{array.shape} {array.dtype}"])
        self._equal("broadcast", [where for where, _ in told], "roots")
        self._equal("broadcast", [kind for _, kind in told], "shapes or types")
        if self.rank == root:
            self._move("broadcast", {i: [flat] for i in self._others()}, {})
        else:
            self._move("broadcast", {}, {root: [flat]})

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._gate("barrier", "")

    def shares_of(self, length: int) -> list[slice]:
        """Return the part of a flat array that each rank adds up; the parts are nearly equal."""
        ends = [length * i // self.size for i in range(self.size + 1)]
        return [slice(a, b) for a, b in pairwise(ends)]

    def _others(self) -> list[int]:
        """List the other ranks from the next one on, so that not all send to the same rank first."""
        return [(self.rank + i) % self.size for i in range(1, self.size)]

    def _part_of_sum(self, operation: str, flat: Array) -> Array:
        """Return this rank's part of the sum over the ranks, in the order of one binary tree."""
        counts = [1] * self.size  # every rank has one row
        parts = self._parts(operation, [flat], counts, flat.size, flat.dtype)
        with np.errstate(all="ignore"):  # the caller deals with infinities and NaN
            return tree_sum([part for part, in parts], _added)

    def _parts(self, operation: str, rows: Sequence[Array], counts: Sequence[int], length: int | str,
               dtype: DTypeLike) -> list[list[Array]]:
        """Return this rank's part of the rows of all ranks, of which rank i has ``counts[i]``."""
        cuts = self.shares_of(int(length))
        mine = cuts[self.rank]
        parts = [[np.empty(mine.stop - mine.start, dtype) for _ in range(count)] for count in counts]
        parts[self.rank] = [row[mine] for row in rows]
        self._move(operation, {i: [row[cuts[i]] for row in rows] for i in self._others()},
                   {i: parts[i] for i in self._others()})
        return parts

    def _spread(self, operation: str, part: Array, places: Sequence[Array]) -> None:
        np.copyto(places[self.rank], part)
        self._move(operation, {i: [part] for i in self._others()}, {i: [places[i]] for i in self._others()})

    def _told(self, operation: str, value: Json) -> list[Json]:
        return [json.loads(text) for text in self._gate(operation, json.dumps(value))]

    def _alike(self, operation: str, array: Array) -> None:
        self._equal(operation, self._gate(operation, f"{array.shape} {array.dtype}"), "shapes and types")

    def _equal(self, operation: str, values: Sequence[object], what: str) -> None:
        for rank, value in enumerate(values):
            if value != values[0]:
                self._refuse(f"{operation}: rank 0 has {values[0]} and rank {rank} has {value}; the {what} must be "
                             f"equal on all ranks.")

    def _refuse(self, reason: str) -> None:
        self._end(reason)
        raise CommError(reason)


class HasComm(Protocol):
    """Something with a communicator, such as a `DistributedWorld`."""

    @property
    def comm(self) -> Comm: ...


class SoloComm(Comm):
    """A group of one rank."""

    def __init__(self) -> None:
        self.rank, self.size, self.hosts = 0, 1, (gethostname(),)
        self._sent: deque[Array] = deque()
        self._error: str | None = None

    def _gate(self, operation: str, text: str) -> list[str]:
        if self._error is not None:
            raise CommError(f"{operation}: the group was ended: {self._error}")
        return [text]

    def _move(self, operation: str, out: Moves, into: Moves) -> None:
        pass

    def _end(self, reason: str) -> None:
        self._error = reason

    def send(self, array: Array, to: int) -> None:
        check_rank("send", to, 1)
        self._gate("send", "")
        self._sent.append(sent_array("send", array).copy())

    def recv(self, source: int) -> Array:
        check_rank("recv", source, 1)
        self._gate("recv", "")
        if not self._sent:
            raise CommError("recv: rank 0 waits for an array that it has not sent itself; the group has one rank.")
        return self._sent.popleft()

    def split(self, color: int) -> Comm:
        self._gate("split", "")
        return SoloComm()

    def abort(self, reason: str) -> None:
        self._error = self._error or reason

    def commit(self, ok: bool) -> bool:
        self._gate("commit", "")
        return bool(ok)

    def survivors(self) -> tuple[Comm, list[int]]:
        self._gate("survivors", "")
        return SoloComm(), [0]


def comm_of(world: object, who: str) -> Comm:
    """Return the communicator of a world, or the given one; for None that of this process alone."""
    comm = SoloComm() if world is None else getattr(world, "comm", world)
    if not isinstance(comm, Comm):
        raise TypeError(f"{who}: world is {world!r}; a communicator is required, such as one of "
                        f"ag.parallel.comm.threads.thread_comms(2), or None.")
    return comm


def everyone(comm: Comm, value: Json) -> list[Json]:
    """Return the JSON values of all ranks, in their order."""
    return [value] if comm.size == 1 else comm._told("everyone", value)


def check_rank(operation: str, rank: int, size: int) -> None:
    """Raise a CommError unless a group of `size` has the rank."""
    if not 0 <= rank < size:
        raise CommError(f"{operation}: there is no rank {rank}; the group has ranks 0..{size - 1}.")


def sent_array(operation: str, array: Array, written: bool = False) -> Array:
    """Return the array; refuse one whose bytes cannot be moved, or that is read-only where it will be written."""
    if not isinstance(array, np.ndarray):
        raise CommError(f"{operation}: {array!r} is a {type(array).__name__}; a numpy array is required.")
    if array.dtype.kind in "OV":
        raise CommError(f"{operation}: the array has elements of type {array.dtype}; numbers or text are required.")
    if not array.flags.c_contiguous:
        raise CommError(f"{operation}: the array of shape {array.shape} is not contiguous; "
                        f"pass numpy.ascontiguousarray of it.")
    if written and not array.flags.writeable:
        raise CommError(f"{operation}: the array of shape {array.shape} is read-only, and the result would be written "
                        f"to it; pass a copy of it.")
    return array


def numbers(operation: str, array: Array, written: bool = False) -> Array:
    """Return the array; refuse one that cannot be added up."""
    if sent_array(operation, array, written).dtype.kind not in "biufc":
        raise CommError(f"{operation}: the array has elements of type {array.dtype}; numbers are required.")
    return array


def _added(left: Array, right: Array) -> Array:
    return add_rows(left, right, np.empty(left.size, left.dtype))


_PROCESS = token_hex(8)  # with the process number, which processes in containers may share


class Member:
    """A rank's place among those that are left of a group; as a context it tells the others of an error."""

    who: str  # begin of messages
    advice: str  # ends the message where the ranks cannot go on

    def __init__(self, comm: Comm, least: int) -> None:
        self._join(comm)
        self.place = "before", 0  # before, in or after which step
        self.old_ranks = list(range(comm.size))  # number of each rank before the last loss
        self._least = least  # with fewer ranks training ends
        self.over = False  # all ranks know that the training is over

    def __enter__(self: M) -> M:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Make the other ranks raise in their next call after an error."""
        if error is None or self.over or self.size == 1:
            return
        if isinstance(error, Exception):
            self._tell_error(f"{type(error).__name__}: {error}")
        else:  # KeyboardInterrupt, SystemExit: end now
            self._abort(error)

    def finish(self) -> None:
        """Note that the training is over: this rank's later errors are not told to the others."""
        self.over = True

    def _join(self, comm: Comm) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size  # of the ranks that are left

    @property
    def where(self) -> str:
        """Describe how far the training is, for messages."""
        return f"{self.place[0]} step {self.place[1]}"

    def _has_shrunk(self) -> bool:
        """Follow the group after a loss; return whether the remaining ranks go on."""
        raise NotImplementedError(f"{type(self).__name__} does not define _has_shrunk()")

    def _tell_error(self, error: str) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not define _tell_error()")

    def _abort(self, error: BaseException) -> None:
        self.over = True
        self.comm.abort(f"failed {self.where} ({type(error).__name__}: {error})")

    def _agreed(self, call: Callable[[Comm], T]) -> T:
        """Return the result of a call that all ranks made; any error but a RankLostError ends the group."""
        try:
            return self._unless_lost(call)
        except BaseException as error:
            if isinstance(error, RankLostError) and self._has_shrunk():
                raise
            self._abort(error)
            if isinstance(error, CommError):
                raise CommError(f"{self.who}: the ranks cannot go on {self.where}: "
                                f"{str(error).rstrip('.')}; {self.advice}") from error
            raise

    def _unless_lost(self, call: Callable[[Comm], T]) -> T:
        """Return the result of a call that all ranks made, or raise a RankLostError on those that are left."""
        began = perf_counter()
        lost: RankLostError | None = None
        try:
            found = call(self.comm)
            if self.comm.commit(True):
                return found
        except RankLostError as error:
            lost = error
        before = self.comm
        left, self.old_ranks = before.survivors()
        self._join(left)
        gone = [i for i in range(before.size) if i not in self.old_ranks]
        named = ", ".join(f"rank {i} ({before.hosts[i]})" for i in gone) or "a connection"
        numbers = ", ".join(map(str, self.old_ranks))
        if 2 * self.size < before.size or (2 * self.size == before.size and 0 not in self.old_ranks):
            raise CommError(f"{named} was lost, and rank {numbers} alone may not go on, as the others may have gone on "
                            f"without it; more than half of the {before.size} ranks must be left, or half of them with "
                            f"rank 0.") from lost
        if self.size < self._least:
            raise CommError(f"{named} was lost, and {self.size} of {before.size} ranks are left; min_ranks is "
                            f"{self._least}.") from lost
        if self.rank == 0:
            log.warning("%s: %s was lost %s; rank %s of %d goes on after %.2f s.", self.who, named, self.where, numbers,
                        before.size, perf_counter() - began)
        raise RankLostError(f"{self.who}: {named} was lost {self.where}.", tuple(gone)) from lost

    def _split(self, stays: bool) -> None:
        """Split into two groups, of the ranks that stay and of the others; as `_unless_lost`."""
        self._join(self._unless_lost(lambda comm: comm.split(int(stays))))

    def _at_last(self, call: Callable[[], T]) -> T:
        """Return the result of a call, made again whenever a rank is lost."""
        while True:
            try:
                return call()
            except RankLostError:
                continue

    def exchange(self, value: Json = None) -> list[Json]:
        """Return the JSON values of all ranks, in their order."""
        raise NotImplementedError(f"{type(self).__name__} does not define exchange()")

    @contextmanager
    def _file_of_first(self, path: Path) -> Iterator[Path | None]:
        """Yield a file like that of rank 0, or None if it has none; all ranks call."""
        content = np.fromfile(path, np.uint8) if self.rank == 0 and path.exists() else np.empty(0, np.uint8)
        size, *_ = self.exchange(content.size)
        content = content if self.rank == 0 else np.empty(size, np.uint8)
        self._agreed(partial(Comm.broadcast, array=content))
        with TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            if size and self.rank:
                content.tofile(copy)
            yield (copy if self.rank else path) if size else None

    def _compare(self, lists: Sequence[Json], advice: str) -> None:
        """Raise a CommError, on every rank, unless all ranks gave the same pairs of name and value."""
        for rank, theirs in enumerate(lists):
            for first, other in zip_longest(lists[0], theirs):
                if first != other:
                    self.over = True
                    what = (first or other)[0]
                    a, b = (pair[1] if pair and pair[0] == what else "not there" for pair in (first, other))
                    raise CommError(f"{self.who}: {what} is {a} on rank 0 and {b} on rank {rank}; {advice}.")

    def _refuse_shared(self, places: Sequence[tuple[Json, Sequence[str]]], advice: str) -> None:
        """Raise a CommError, on every rank, if two are threads of one process and have a device of both."""
        for (a, (one, mine)), (b, (other, theirs)) in combinations(enumerate(places), 2):
            if one == other and (shared := {*mine} & {*theirs}):
                self.over = True
                raise CommError(f"{self.who}: rank {a} and rank {b} are threads of one process and both use "
                                f"{min(shared)}; {advice}")


def this_process() -> list[Json]:
    """Return what identifies this process among those of other ranks."""
    return [_PROCESS, os.getpid()]
