"""Synchronized samples: all samples of a step computed together, for layers that need sums over all of them.

Every sample, or stack, has a thread and a tape.  Gradients of the parts are sums, too, in the order of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ag.autograd.op import Cotangents, Need, Result, Run, part_of
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import copy
from ag.engine.primitive import Array
from ag.engine.random import generator_state
from ag.errors import ShapeError
from ag.parallel.comm.device_threads import DeviceThreads, Task
from ag.parallel.comm.threads import Combine, ThreadComm
from ag.parallel.comm.tree_reduction import tree_sum
from ag.parallel.replicas.data_parallel import ReplicaGroup, SyncBatchNorm, Turns, turns_of
from ag.parallel.trainer.replica import Replica
from ag.parallel.trainer.samples import Stack

_STREAMS = 1 << 16  # random streams set aside for a stack of samples
_APART = 1 << 46  # streams from there times as many on are those of the rests of stacks
_FOREVER = 1e6  # seconds; the device threads have the limit, as they know which replica is late


class SampleGroup(ReplicaGroup):
    """The place of a sample, which `replica` has, among those of a step."""

    def __init__(self, comm: ThreadComm, turns: Turns, place: int, replica: Replica) -> None:
        super().__init__(comm, turns, place)
        self.waits = True
        self.row: Buffer | None = None
        self._replica, self._backend, self._buffers = replica, replica.backend, replica.buffers
        self._meter = replica.clock.meter

    def compute(self, stack: Stack, stream: int) -> None:
        """Compute the row of a stack in its turn."""
        self.run(partial(self._compute, stack, stream), "another sample")

    def _compute(self, stack: Stack, stream: int) -> None:
        self.waits = False
        self._backend.meter(self._meter)
        try:
            self.row = self._replica.gradients_of(stack, stream)
        finally:
            self._backend.meter(None)

    def exchange(self, value: object, combine: Combine = list) -> list[Any]:
        """Exchange values; random state, buffers and meter are set aside for samples that run meanwhile."""
        state = generator_state(self._backend)
        own_state = self._backend.launch(copy, state)
        own_buffers = self._buffers.set_aside()
        self.waits = True
        values = super().exchange(value, combine)
        self.waits = False
        self._backend.meter(self._meter)
        self._buffers.go_on(own_buffers)
        self._backend.launch(copy, own_state, into=state)
        return values

    def total(self, mine: Tensor | None, device: str) -> Tensor:
        if mine is None:
            raise ShapeError("dp_train: a sample without values reached a synchronous batch norm; leave it out.")
        total: Tensor = _sum_of_all(mine, group=self)
        return total

    def sum(self, part: Buffer) -> Buffer:
        arrays: list[Array] = self.exchange(self._backend.download(part))
        with np.errstate(all="ignore"):  # the trainer deals with infinities and NaN at the end of the step
            total = self._backend.alloc(part.shape, part.dtype)
            self._backend.upload(tree_sum(arrays, np.add), total)
        return total


@part_of("SyncBatchNorm")
def _sum_of_all(run: Run, x: Buffer, group: SampleGroup) -> Result[None]:
    part: Any = x
    return group.sum(part), None


@_sum_of_all.vjp
def _sum_of_all_vjp(run: Run, g: Buffer, saved: None, need: Need, group: SampleGroup) -> Cotangents:
    return (group.sum(g),)


class SynchronizedSamples:
    """Computes the samples of a step together, on replicas whose batch norms it makes synchronous."""

    def __init__(self, replicas: list[Replica], timeout: float) -> None:
        self._replicas = replicas
        self._timeout = timeout
        self._threads: DeviceThreads | None = None
        self._count = 0
        for replica in replicas:
            SyncBatchNorm.convert(replica.model)

    def run(self, step: int, shards: Sequence[Sequence[Stack]], first: int) -> None:
        """Compute all stacks and add up the sums of each shard; `first` is the number of stacks in earlier steps."""
        began = perf_counter()
        held = [(replica, stack) for replica, shard in zip(self._replicas, shards, strict=True) for stack in shard]
        for _, stack in held:
            if not stack.passes:
                raise ShapeError(f"dp_train: the samples from number {stack.number} of the job on differ in structure, "
                                 f"shape, type or weight, so they cannot be passed at once, as sync_batch_norm needs "
                                 f"it; give stack=1.")
        if self._threads is None or len(held) != self._count:
            self.close()
            self._count = len(held)
            names = [str(i) for i in range(len(held))]
            several = len({r.device for r in self._replicas}) > 1
            self._threads = DeviceThreads(names, set(names) if several else set(), self._timeout, wait=True)
        groups, tasks = list[SampleGroup](), list[Task]()
        for (replica, stack), turn in zip(held, turns_of([r.device for r, _ in held], _FOREVER), strict=True):
            group = SampleGroup(*turn, replica)
            stream = (first + stack.place if stack.heads else _APART + stack.number) * _STREAMS
            tasks.append(Task(str(group.rank), replica.name, partial(group.compute, stack, stream),
                              partial(getattr, group, "waits")))
            groups.append(group)
        self._threads.run(tasks, step)
        for replica in self._replicas:
            replica.began = began
            replica.add_up([(stack, group.row) for group, (owner, stack) in zip(groups, held, strict=True)
                            if owner is replica and group.row is not None])

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()
