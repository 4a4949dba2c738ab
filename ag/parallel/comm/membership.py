"""Membership: the ranks that a group still has, and calls that all of them have made, or none.

Every call ends with an agreement and counts only if all ranks came through; else the group shrinks and calls again.  Of
a network that is cut in two, the side with the quorum goes on: more than half of the last members, or half of them with
the lowest rank.  Of five ranks cut into 0 1 | 2 3 4 the right side goes on; of four cut into 0 1 | 2 3 the left one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations, zip_longest
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from time import perf_counter
from types import TracebackType
from typing import TypeVar

import numpy as np

from ag.errors import CommError, RankLostError
from ag.log import log
from ag.parallel.comm.comm import Comm, Json

T = TypeVar("T")
M = TypeVar("M", bound="Member")

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
        """Tell the others that this rank has failed."""
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
        if not _has_quorum(self.old_ranks, before.size):
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
        """Raise a CommError, on every rank, if two ranks have a `shared_device`; `advice` ends the message."""
        if (shared := shared_device(places)) is not None:
            self.over = True
            a, b, device = shared
            raise CommError(f"{self.who}: rank {a} and rank {b} are threads of one process and both use "
                            f"{device}; {advice}")


def this_process() -> list[Json]:
    """Return what identifies this process among those of other ranks."""
    return [_PROCESS, os.getpid()]


def shared_device(places: Sequence[tuple[Json, Sequence[str]]]) -> tuple[int, int, str] | None:
    """Return two ranks that are threads of one process and a device of both; `places` are processes and devices."""
    for (a, (one, mine)), (b, (other, theirs)) in combinations(enumerate(places), 2):
        shared = sorted(set(mine) & set(theirs))
        if one == other and shared:
            return a, b, shared[0]
    return None


def _has_quorum(left: list[int], of: int) -> bool:
    return 2 * len(left) > of or (2 * len(left) == of and 0 in left)
