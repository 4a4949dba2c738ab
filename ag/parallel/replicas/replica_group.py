"""What replicas that run at the same time need of each other: turns on a device, and an exchange of values.

Replicas on one device take turns in their order, so random numbers do not depend on timing.  A layer that needs values
of all replicas, such as `SyncBatchNorm`, calls `exchange`; while a replica waits there, the next of its device runs:

    replica 0 (cpu)    runs ... exchange                          gets all values, runs ... ends
    replica 1 (cpu)                      runs ... exchange                                       gets all values, ...
    replica 2 (cpu:1)  runs ... exchange                          gets all values, ...

Knows threads and tensors; no model.  `parallel_apply` and the trainer's synchronized samples make the groups.
"""

from __future__ import annotations

from contextvars import ContextVar
from threading import Condition
from typing import Any

from ag.autograd.tensor import Tensor
from ag.errors import CommError
from ag.ops.arithmetic import ag_add
from ag.ops.convert import ag_to_device
from ag.parallel.comm.threads import Combine, ThreadComm
from ag.parallel.comm.tree_reduction import tree_sum
from ag.parallel.replicas.replicate import copy_for_replica

__all__ = ["ReplicaGroup", "Turns", "current_group"]


class Turns:
    """Lets one of several threads run at a time, one after the other."""

    def __init__(self, count: int) -> None:
        self._left = list(range(count))
        self._now = 0
        self._changed = Condition()

    def wait(self, i: int) -> None:
        """Wait for the turn of thread `i`."""
        with self._changed:
            self._changed.wait_for(lambda: self._now == i)

    def pass_on(self, i: int, last: bool = False) -> None:
        """End the turn of thread `i`, which does not come again if it was its `last`."""
        with self._changed:
            following = [k for k in self._left if k > i] or [k for k in self._left if k < i or not last]
            if last:
                self._left.remove(i)
            self._now = following[0] if following else -1
            self._changed.notify_all()


class ReplicaGroup:
    """A replica's place among those that run with it.

    Parameters
    ----------
    comm : ThreadComm
        Of all replicas.
    turns : Turns
        Of those on the replica's device.
    place : int
        The replica's number among those.
    """

    def __init__(self, comm: ThreadComm, turns: Turns, place: int) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._turns, self._place = comm, turns, place
        self._has_ended = False

    def end(self) -> None:
        """End the replica's last turn."""
        self._has_ended = True
        self._turns.pass_on(self._place, last=True)

    def exchange(self, value: object, combine: Combine = list) -> list[Any]:
        """The values that all replicas gave in this call, in their order; each must make the same calls.

        With `combine`, its result for those values: one thread calls it while the others wait.
        """
        if self._has_ended:
            raise CommError(f"ag_checkpoint: the layer needs values of all {self.size} replicas, which have ended when "
                            f"backward computes it again; leave SyncBatchNorm out of ag_checkpoint.")
        self._turns.pass_on(self._place)
        try:
            return self._comm.exchange(value, combine)
        finally:
            self._turns.wait(self._place)

    def total(self, mine: Tensor | None, device: str) -> Tensor:
        """The sum of the replicas' tensors, on this one's device; None adds nothing."""
        total: Tensor = self.exchange((mine, device), _totals)[self.rank]
        return total


def _totals(parts_and_devices: list[tuple[Tensor | None, str]]) -> list[Tensor]:
    """The sum of all replicas' parts, copied to each replica's device; every replica gave its part and its device.

    One thread makes all copies, since `backward` adds up gradients in the order of the copies: if each replica made
    its own, that would be the order in which the threads happened to run.
    """
    parts = [part for part, _ in parts_and_devices if part is not None]
    total = tree_sum((ag_to_device(part, parts[0].device) for part in parts), ag_add)
    return [copy_for_replica(total, device) for _, device in parts_and_devices]


_current: ContextVar[ReplicaGroup | None] = ContextVar("ag_replica_group", default=None)
current_group = _current.get
set_group = _current.set
