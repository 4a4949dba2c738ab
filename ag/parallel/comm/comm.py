"""Communicators: what the members (ranks) of a group can do together, on numpy arrays.

`Comm` says what every kind of group offers; `SoloComm` is a group of one, and `ag.parallel.comm.threads` has groups of
threads.  Sums are made in one fixed binary tree over the ranks, so they are the same to the bit from run to run, and on
every rank.  Every wait has a limit, and the error names the rank that did not come.  Knows arrays only, no tensor and
no device.  `syncgrads`, replicas that exchange values, and the trainer's ranks call it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ag.engine.primitive import Array
from ag.errors import CommError

__all__ = ["Comm", "Json", "SoloComm", "everyone"]

Json = Any  # numbers, strings, None, and lists and dicts of them


class Comm(ABC):
    """A member's place in a group.  All members make the same calls in the same order.

    Attributes
    ----------
    rank : int
        The member's number in the group, from 0.
    size : int
        How many members there are.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, array: Array) -> None:
        """Replace `array`, contiguous and of one shape and type on all ranks, by the sum over the ranks."""

    @abstractmethod
    def reduce_scatter(self, array: Array) -> Array:
        """This rank's part of the sum over the ranks of a flat array, cut into `size` parts as `shares_of` says."""

    @abstractmethod
    def all_gather(self, part: Array) -> Array:
        """The flat arrays of all ranks, which may differ in length, one after the other."""

    @abstractmethod
    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace `array` by that of rank `root`."""

    @abstractmethod
    def send(self, array: Array, to: int) -> None:
        """Give a copy of `array` to another rank; does not wait for it."""

    @abstractmethod
    def recv(self, source: int) -> Array:
        """The next array that rank `source` sends here."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all ranks are here."""

    @abstractmethod
    def split(self, color: int) -> Comm:
        """The group of those that give the same `color`, in the order of their ranks."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the group: every rank that waits in it, now or later, gets a CommError with the reason."""

    def shares_of(self, length: int) -> list[slice]:
        """The parts of a flat array that the ranks add up: nearly equal, in the order of the ranks."""
        ends = [length * i // self.size for i in range(self.size + 1)]
        return [slice(a, b) for a, b in pairwise(ends)]


class SoloComm(Comm):
    """A group of one: nothing to wait for."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._sent: deque[Array] = deque()
        self._error: str | None = None

    def _check(self, operation: str, other: int = 0) -> None:
        if self._error is not None:
            raise CommError(f"{operation}: the group was ended: {self._error}")
        check_rank(operation, other, 1)

    def all_reduce(self, array: Array) -> None:
        self._check("all_reduce")

    def reduce_scatter(self, array: Array) -> Array:
        self._check("reduce_scatter")
        return array.copy()

    def all_gather(self, part: Array) -> Array:
        self._check("all_gather")
        return part.copy()

    def broadcast(self, array: Array, root: int = 0) -> None:
        self._check("broadcast", root)

    def send(self, array: Array, to: int) -> None:
        self._check("send", to)
        self._sent.append(array.copy())

    def recv(self, source: int) -> Array:
        self._check("recv", source)
        if not self._sent:
            raise CommError("recv: rank 0 waits for an array that it has not sent itself; the group has one rank.")
        return self._sent.popleft()

    def barrier(self) -> None:
        self._check("barrier")

    def split(self, color: int) -> Comm:
        self._check("split")
        return SoloComm()

    def abort(self, reason: str) -> None:
        self._error = reason


def everyone(comm: Comm, value: Json) -> list[Json]:
    """The values of all ranks, in their order: anything that JSON can hold."""
    if comm.size == 1:
        return [value]
    texts = comm.all_gather(np.frombuffer((json.dumps(value) + "\n").encode(), np.uint8))
    return [json.loads(text) for text in texts.tobytes().decode().splitlines()]


def check_rank(operation: str, rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise CommError(f"{operation}: there is no rank {rank}; the group has ranks 0..{size - 1}.")


def contiguous(operation: str, array: Array) -> Array:
    if not array.flags.c_contiguous:
        raise CommError(f"{operation}: the array of shape {array.shape} is not contiguous; "
                        f"pass numpy.ascontiguousarray of it.")
    return array


def alike(operation: str, values: Sequence[object], what: str) -> None:
    for rank, value in enumerate(values):
        if value != values[0]:
            raise CommError(f"{operation}: rank 0 has {values[0]} and rank {rank} has {value}; the {what} must be "
                            f"equal on all ranks.")
