"""Communicators: what the members (ranks) of a group can do together, on numpy arrays.

`Comm` says what every kind of group offers; `SoloComm` is a group of one, `ag.parallel.comm.threads` has groups of
threads, and `ag.parallel.comm.mpi` groups of processes.  A kind says how its ranks meet, with a short text from each,
and how arrays move between them; what is made of that is the same for all kinds, and written here.  Sums are made in
one fixed binary tree over the ranks, so they are the same to the bit from run to run, on every rank, and for every
kind.  `all_reduce` of [a b] on rank 0 and [c d] on rank 1:

    meet             both have an array of 2 numbers
    parts            rank 0 gets c and adds a + c                 rank 1 gets b and adds b + d
    spread           rank 0 gets b + d: [a+c b+d]                 rank 1 gets a + c: [a+c b+d]

Every wait has a limit, and the error names the rank that did not come.  A rank that is lost ends every call of the
others with a `RankLostError`; `survivors` is the group of those who are left.  `everyone` exchanges small values, as
JSON, so that ranks can compare what they are about to do.  Knows arrays and such values, no tensor and no device.
`syncgrads`, replicas that exchange values, the trainer's ranks, and those of `ag.parallel.elastic` call it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from socket import gethostname
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from ag.engine.primitive import Array
from ag.errors import CommError
from ag.parallel.comm.tree_reduction import add_rows, tree_sum

__all__ = ["Comm", "HasComm", "Json", "SoloComm", "check_rank", "comm_of", "everyone", "sent_array"]

Json = Any  # numbers, strings, None, and lists and dicts of them
Moves = Mapping[int, Sequence[Array]]  # flat arrays to or from each of some ranks


class Comm(ABC):
    """A member's place in a group.  All members make the same calls in the same order.

    Attributes
    ----------
    rank : int
        The member's number in the group, from 0.
    size : int
        How many members there are.
    hosts : tuple of str
        The name of every rank's host.

    Notes
    -----
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

    rank: int
    size: int
    hosts: tuple[str, ...]

    # -------------------------------------------------------------------------------------- of each kind

    @abstractmethod
    def _gate(self, operation: str, text: str) -> list[str]:
        """Wait for all ranks, and raise if one makes another call; the texts of all."""

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
        """The next array that rank `source` sends here."""

    @abstractmethod
    def split(self, color: int) -> Comm:
        """The group of those that give the same `color`, in the order of their ranks."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the group: every rank that waits in it, now or later, gets a CommError with the reason."""

    @abstractmethod
    def commit(self, ok: bool) -> bool:
        """Agree with all ranks: True, on each of them, if all said True and nobody was lost; else False on each.

        Raises no `RankLostError`: if it is a loss that made it False, the next call does.
        """

    @abstractmethod
    def survivors(self) -> tuple[Comm, list[int]]:
        """The group of those who are left, in the order of their ranks, and what their ranks were.

        All who are left call it, after a `RankLostError` or a `commit` that was False.  This group is of no use from
        then on: whoever still waits in it gets a `RankLostError`.  If nobody was lost the new group is like this one.
        """

    # -------------------------------------------------------------------------------------- of all kinds

    def all_reduce(self, array: Array) -> None:
        """Replace `array`, contiguous and of one shape and type on all ranks, by the sum over the ranks."""
        flat = numbers("all_reduce", array, True).reshape(-1)
        self._alike("all_reduce", f"{array.shape} {array.dtype}", "shapes and types")
        part = self._part_of_sum("all_reduce", flat)
        cuts = self.shares_of(flat.size)
        self._spread("all_reduce", part, [flat[cut] for cut in cuts])

    def reduce_scatter(self, array: Array) -> Array:
        """This rank's part of the sum over the ranks of a flat array, cut into `size` parts as `shares_of` says."""
        flat = numbers("reduce_scatter", array).reshape(-1)
        self._alike("reduce_scatter", f"{array.shape} {array.dtype}", "shapes and types")
        part = self._part_of_sum("reduce_scatter", flat)
        return part.copy() if self.size == 1 else part

    def all_to_all(self, rows: Sequence[Array]) -> list[list[Array]]:
        """This rank's part, cut as `shares_of` says, of the rows of every rank.

        Parameters
        ----------
        rows : sequence of ndarray
            Flat arrays of one length and type on all ranks; a rank may have any number, or none.

        Returns
        -------
        list of list of ndarray
            For each rank the parts of its rows, in their order; this rank's own are views.
        """
        flat = [numbers("all_to_all", row).reshape(-1) for row in rows]
        kinds = sorted({f"{row.size} {row.dtype}" for row in flat})
        told = [json.loads(text) for text in self._gate("all_to_all", json.dumps([len(rows), kinds]))]
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
        """The flat arrays of all ranks, which may differ in length, one after the other."""
        flat = sent_array("all_gather", part).reshape(-1)
        told = [text.split(maxsplit=1) for text in self._gate("all_gather", f"{flat.size} {flat.dtype}")]
        self._equal("all_gather", [kind for _, kind in told], "types")
        ends = np.cumsum([0, *(int(size) for size, _ in told)])
        whole = np.empty(ends[-1], flat.dtype)
        self._spread("all_gather", flat, [whole[a:b] for a, b in pairwise(ends)])
        return whole

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace `array` by that of rank `root`."""
        check_rank("broadcast", root, self.size)
        flat = sent_array("broadcast", array, root != self.rank).reshape(-1)
        told = [text.split(maxsplit=1) for text in self._gate("broadcast", f"{root} {array.shape} {array.dtype}")]
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
        """The parts of a flat array that the ranks add up: nearly equal, in the order of the ranks."""
        ends = [length * i // self.size for i in range(self.size + 1)]
        return [slice(a, b) for a, b in pairwise(ends)]

    def _others(self) -> list[int]:
        """The other ranks, beginning with the next one, so that not all send to the same one first."""
        return [(self.rank + i) % self.size for i in range(1, self.size)]

    def _part_of_sum(self, operation: str, flat: Array) -> Array:
        """This rank's part of the sum over the ranks, in the order of one binary tree."""
        counts = [1] * self.size  # every rank has one row
        parts = self._parts(operation, [flat], counts, flat.size, flat.dtype)
        with np.errstate(all="ignore"):  # the caller deals with infinities and NaN
            return tree_sum([part for part, in parts], _added)

    def _parts(self, operation: str, rows: Sequence[Array], counts: Sequence[int], length: int | str,
               dtype: DTypeLike) -> list[list[Array]]:
        """This rank's part of the rows of all ranks, of which rank i has ``counts[i]``."""
        cuts = self.shares_of(int(length))
        mine = cuts[self.rank]
        parts = [[np.empty(mine.stop - mine.start, dtype) for _ in range(count)] for count in counts]
        parts[self.rank] = [row[mine] for row in rows]
        self._move(operation, {i: [row[cuts[i]] for row in rows] for i in self._others()},
                   {i: parts[i] for i in self._others()})
        return parts

    def _spread(self, operation: str, part: Array, places: Sequence[Array]) -> None:
        """Copy this rank's part, and those of all others, to their places."""
        np.copyto(places[self.rank], part)
        self._move(operation, {i: [part] for i in self._others()}, {i: [places[i]] for i in self._others()})

    def _alike(self, operation: str, mine: str, what: str) -> None:
        self._equal(operation, self._gate(operation, mine), what)

    def _equal(self, operation: str, values: Sequence[str], what: str) -> None:
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
    def comm(self) -> Comm:
        """The communicator."""


class SoloComm(Comm):
    """A group of one: nothing to wait for."""

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
    """The communicator of a world, or the one that is given, or for None that of this process alone.

    Raises
    ------
    TypeError
        If `world` is something else.
    """
    comm = SoloComm() if world is None else getattr(world, "comm", world)
    if not isinstance(comm, Comm):
        raise TypeError(f"{who}: world is {world!r}; a communicator is required, such as one of "
                        f"ag.parallel.comm.threads.thread_comms(2), or None.")
    return comm


def everyone(comm: Comm, value: Json) -> list[Json]:
    """The values of all ranks, in their order: anything that JSON can hold."""
    if comm.size == 1:
        return [value]
    return [json.loads(text) for text in comm._gate("everyone", json.dumps(value))]


def check_rank(operation: str, rank: int, size: int) -> None:
    """Raise unless a group of `size` has that rank."""
    if not 0 <= rank < size:
        raise CommError(f"{operation}: there is no rank {rank}; the group has ranks 0..{size - 1}.")


def sent_array(operation: str, array: Array, written: bool = False) -> Array:
    """The array, if it is one whose bytes can be moved, and which can be written to where it will be."""
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
    """The array, if it is one that can be added up."""
    if sent_array(operation, array, written).dtype.kind not in "biufc":
        raise CommError(f"{operation}: the array has elements of type {array.dtype}; numbers are required.")
    return array


def _added(left: Array, right: Array) -> Array:
    """The sum of two flat arrays."""
    return add_rows(left, right, np.empty(left.size, left.dtype))
