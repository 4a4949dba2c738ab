"""Membership: the ranks that a group still has, and calls that all of them have made, or none.

A rank may be lost in the middle of a call, when some of the others have its result and some have not.  So every call
ends with an agreement, and counts only if all have come through; else the group shrinks to those who are left:

    rank 0   has the sum       says yes   -> told no: throws the sum away     rank 0 of 2
    rank 1   killed
    rank 2   has an error      says no    -> told no                          rank 1 of 2

Both make the call again, or whatever else has led to it.  A network that is cut in two looks the same from either side,
and only one side may go on, the one with the quorum: more than half of the last members, or half of them with the
lowest rank.  Of five ranks cut into 0 1 | 2 3 4 the right side goes on; of four cut into 0 1 | 2 3 the left one.

Knows a communicator; not what is called, nor what the ranks train.  The ranks of `dp_train` and those of
`train_distributed` are `Member`s, and make their calls through it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import combinations
from secrets import token_hex
from time import perf_counter
from typing import TypeVar

from ag.errors import CommError, RankLostError
from ag.log import log
from ag.parallel.comm.comm import Comm, Json

__all__ = ["Member", "Membership", "shared_device", "this_process"]

T = TypeVar("T")

_PROCESS = token_hex(8)  # names this process together with its number, as containers may have equal numbers


class Membership:
    """The ranks that are left of a group.

    Parameters
    ----------
    comm : Comm
    who : str
        Begins lines of the log.
    least : int, optional
        With fewer ranks nobody goes on.

    Attributes
    ----------
    comm : Comm
        The group now.
    who : str
    old_ranks : list of int
        For each rank, which one it was before the last loss.
    """

    def __init__(self, comm: Comm, who: str, least: int = 1) -> None:
        self.comm = comm
        self.old_ranks = list(range(comm.size))
        self.who, self._least = who, least

    def agreed(self, call: Callable[[Comm], T], where: str) -> T:
        """What the call returns, if it was made by all ranks; else the group has shrunk.

        Parameters
        ----------
        call : callable
            ``call(comm)``; must leave nothing behind that making it again would not overwrite.
        where : str
            For the log: where in its work the rank is.

        Raises
        ------
        RankLostError
            On all ranks that are left, if one was lost; `comm` is their group.
        CommError
            If those who are left have no quorum.
        """
        began = perf_counter()
        lost: RankLostError | None = None
        try:
            found = call(self.comm)
            if self.comm.commit(True):
                return found
        except RankLostError as error:
            lost = error
        before = self.comm
        self.comm, self.old_ranks = before.survivors()
        gone = [i for i in range(before.size) if i not in self.old_ranks]
        named = ", ".join(f"rank {i} ({before.hosts[i]})" for i in gone) or "a connection"
        left = ", ".join(map(str, self.old_ranks))
        if not _has_quorum(self.old_ranks, before.size):
            raise CommError(f"{named} was lost, and rank {left} alone may not go on, as the others may have gone on "
                            f"without it; more than half of the {before.size} ranks must be left, or half of them with "
                            f"rank 0.") from lost
        if self.comm.size < self._least:
            raise CommError(f"{named} was lost, and {self.comm.size} of {before.size} ranks are left; min_ranks is "
                            f"{self._least}.") from lost
        if self.comm.rank == 0:
            log.warning("%s: %s was lost %s; rank %s of %d goes on after %.2f s.", self.who, named, where, left,
                        before.size, perf_counter() - began)
        raise RankLostError(f"{self.who}: {named} was lost {where}.", tuple(gone)) from lost

    def part(self, stays: bool, where: str) -> None:
        """Go on as two groups, of those who stay and of those who do not; as `agreed`."""
        self.comm = self.agreed(lambda comm: comm.split(int(stays)), where)


class Member:
    """A rank's place among those that train together.

    Parameters
    ----------
    members : Membership

    Attributes
    ----------
    place : tuple of (str, int)
        How far the training is: before, in or after which step.
    """

    advice: str  # what to do if the ranks cannot go on; ends the message

    def __init__(self, members: Membership) -> None:
        self._members = members
        self.place = "before", 0
        self._over = False  # whether all ranks know that the training is over

    @property
    def where(self) -> str:
        """How far the training is, for messages."""
        return f"{self.place[0]} step {self.place[1]}"

    @property
    def rank(self) -> int:
        """This rank's number among those that are left."""
        return self._members.comm.rank

    @property
    def size(self) -> int:
        """How many ranks are left."""
        return self._members.comm.size

    def _has_shrunk(self) -> bool:
        """Follow the group, which has lost a rank; whether those who are left go on."""
        raise NotImplementedError(f"{type(self).__name__} does not define _has_shrunk()")

    def _abort(self, error: BaseException) -> None:
        self._over = True
        self._members.comm.abort(f"failed {self.where} ({type(error).__name__}: {error})")

    def _agreed(self, call: Callable[[Comm], T]) -> T:
        """What a call of the communicator returns, if all ranks have made it.

        Raises
        ------
        RankLostError
            If it must be made again, as a rank was lost.
        CommError
            After any other error, which ends the group: no rank knows how far the others have got.
        """
        try:
            return self._members.agreed(call, self.where)
        except BaseException as error:
            if isinstance(error, RankLostError) and self._has_shrunk():
                raise
            self._abort(error)
            if isinstance(error, CommError):
                raise CommError(f"{self._members.who}: the ranks cannot go on {self.where}: "
                                f"{str(error).rstrip('.')}; {self.advice}") from error
            raise


def this_process() -> list[Json]:
    """What tells this process from those of other ranks."""
    return [_PROCESS, os.getpid()]


def shared_device(places: Sequence[tuple[Json, Sequence[str]]]) -> tuple[int, int, str] | None:
    """Two ranks that are threads of one process, and a device that both have; `places` are processes and devices.

    Examples
    --------
    >>> from ag.parallel.comm.membership import shared_device
    >>> shared_device([("a", ["cpu", "cpu:1"]), ("b", ["cpu"]), ("a", ["cpu:1"])])
    (0, 2, 'cpu:1')
    """
    for (a, (one, mine)), (b, (other, theirs)) in combinations(enumerate(places), 2):
        shared = sorted(set(mine) & set(theirs))
        if one == other and shared:
            return a, b, shared[0]
    return None


def _has_quorum(left: list[int], of: int) -> bool:
    return 2 * len(left) > of or (2 * len(left) == of and 0 in left)
