"""Membership: the ranks that a group still has, and calls that all of them have made, or none.

A rank may be lost in the middle of a call, when some of the others have its result and some have not.  So every call
ends with an agreement, and counts only if all have come through; else the group shrinks to those who are left:

    rank 0   has the sum       says yes   -> told no: throws the sum away     rank 0 of 2
    rank 1   killed
    rank 2   has an error      says no    -> told no                          rank 1 of 2

Both make the call again, or whatever else has led to it.  A network that is cut in two looks the same from either side,
and only one side may go on, the one with the quorum: more than half of the last members, or half of them with the
lowest rank.  Of five ranks cut into 0 1 | 2 3 4 the right side goes on; of four cut into 0 1 | 2 3 the left one.

Knows a communicator; not what is called, nor what the ranks train.  The trainer's ranks and `train_distributed` make
their calls through it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

from ag.errors import CommError, RankLostError
from ag.parallel.comm.comm import Comm

__all__ = ["Membership"]

T = TypeVar("T")

log = logging.getLogger("ag")


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
    old_ranks : list of int
        For each rank, which one it was before the last loss.
    """

    def __init__(self, comm: Comm, who: str, least: int = 1) -> None:
        self.comm = comm
        self.old_ranks = list(range(comm.size))
        self._who, self._least = who, least

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
            log.warning("%s: %s was lost %s; rank %s of %d goes on after %.2f s.", self._who, named, where, left,
                        before.size, perf_counter() - began)
        raise RankLostError(f"{self._who}: {named} was lost {where}.", tuple(gone)) from lost

    def part(self, stays: bool, where: str) -> None:
        """Go on as two groups, of those who stay and of those who do not; as `agreed`."""
        self.comm = self.agreed(lambda comm: comm.split(int(stays)), where)


def _has_quorum(left: list[int], of: int) -> bool:
    return 2 * len(left) > of or (2 * len(left) == of and 0 in left)
