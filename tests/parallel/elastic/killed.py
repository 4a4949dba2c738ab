"""Ranks that are threads and are killed in a meeting with the others, for the tests of what goes on without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ag.parallel.comm.comm import Comm
from ag.parallel.comm.threads import ThreadComm


class Killed(BaseException):
    """Stands for the end of a process: nobody catches it, and nothing is said to the others."""


class Doomed(ThreadComm):
    """A place whose rank is killed in its n-th meeting with the others, before or after it has brought its part."""

    left: int

    def _agree(self, operation: str, *args: Any) -> Any:
        return self._until_killed(super()._agree, operation, *args)

    def _meet(self, operation: str, *args: Any) -> Any:
        return self._until_killed(super()._meet, operation, *args)

    def _until_killed(self, work: Callable[..., Any], *args: Any) -> Any:
        if self.left <= 0:
            raise Killed
        self.left -= 1
        if self.left == 0:
            self.lose()
            raise Killed
        found = work(*args)
        if self.left == 1:
            self.left = 0
            self.lose()
            raise Killed
        return found

    def survivors(self) -> tuple[Comm, list[int]]:
        comm, old_ranks = super().survivors()
        return doomed(comm, self.left), old_ranks

    def abort(self, reason: str) -> None:
        if self.left > 0:
            super().abort(reason)


class Counted(ThreadComm):
    """A place that counts its rank's meetings with the others."""

    meetings: int

    def _agree(self, *args: Any) -> Any:
        self.meetings += 1
        return super()._agree(*args)

    def _meet(self, *args: Any) -> Any:
        self.meetings += 1
        return super()._meet(*args)


def counted(comm: Comm) -> None:
    """Count the meetings of a place from now on."""
    comm.__class__ = Counted
    comm.meetings = 0


def doomed(comm: Comm, meetings: int) -> Comm:
    """The same place, whose rank is killed."""
    assert isinstance(comm, ThreadComm)
    comm.__class__ = Doomed
    comm.left = meetings
    return comm
