"""Replicas, which work at the same time, each on its device, their shares of the samples, and the ranks that have them.

Load balance: with ``balance="auto"`` shares follow the host's time per sample.  Gradients do not depend on them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import accumulate, zip_longest
from math import inf, isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ag.autograd.frozen import FrozenTensor
from ag.autograd.op import Cotangents, Need, Result, Run, part_of
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import copy
from ag.engine.primitive import Array
from ag.engine.random import ag_seed, current_seed, generator_state
from ag.errors import CommError, DeviceError, RankLostError, ShapeError
from ag.nn.layer import buffers_of, frozen_of, load_into
from ag.nn.mode import ag_eval, modes_kept
from ag.parallel.comm.comm import Comm, Json, Member, comm_of, everyone, this_process
from ag.parallel.comm.device_threads import DeviceThreads, Task, named
from ag.parallel.comm.threads import Combine, ThreadComm
from ag.parallel.comm.tree_reduction import Node, RowSums, shard_sizes, tree_sum
from ag.parallel.replicas.data_parallel import ReplicaGroup, SyncBatchNorm, Turns, turns_of
from ag.parallel.trainer.checkpoint import Dealt, DPState, load_state
from ag.parallel.trainer.replica import Replica
from ag.parallel.trainer.samples import Shard, Stack, cut, why_not_stacked
from ag.version import __version__


class Replicas:
    """Replicas with like models; a CommError names the first difference of unlike ones."""

    def __init__(self, replicas: list[Replica], balance: Balance, timeout: float, together: bool) -> None:
        check_same_models(replicas)
        self._replicas, self._balance, self._timeout = replicas, balance, timeout
        self._failed: DeviceError | None = None  # after the last step was done
        self._find_tasks()
        several = {r.device for r in replicas if not r.backend.asynchronous}
        names = [r.device for r in replicas]
        alone = several if len(several) > 1 else set()
        self._threads = DeviceThreads(names, alone, timeout) if len({*names}) > 1 else None
        self._synchronized = SynchronizedSamples(replicas, timeout) if together else None

    def _find_tasks(self) -> None:
        """List the calls of a step: first all replicas start, then all are waited for."""
        self._tasks = [_task(r, r.start) for r in self._replicas if r.backend.asynchronous]
        self._tasks += [_task(r, r.finish if r.backend.asynchronous else r.start_and_finish) for r in self._replicas]

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def first(self) -> Replica:
        return self._replicas[0]

    @property
    def synchronizes(self) -> bool:
        return self._synchronized is not None

    def close(self) -> None:
        """Return the threads and release captured steps with their memory."""
        if self._threads is not None:
            self._threads.close()
        if self._synchronized is not None:
            self._synchronized.close()
        for replica in self:
            if not self._hangs(replica):
                replica.close()

    # -------------------------------------------------------------------------------------- the samples of a step

    def shards(self, k: int, shard: Shard, dealt: Dealt) -> list[list[Stack]]:
        if len(self._replicas) == 1:
            return [cut(shard, dealt.stack, dealt.batch, k)]
        sizes = self._balance.sizes(len(shard.samples))
        return [cut(shard.part(end - size, end), dealt.stack, dealt.batch, k)
                for end, size in zip(accumulate(sizes), sizes, strict=True)]

    def compute(self, k: int, shards: Sequence[list[Stack]], first: int, draws: int | None) -> list[list[Node]]:
        """Return the sums of every replica's samples in step `k`, valid until the next call; see `Replica.run`."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        if self._synchronized is not None:
            self._synchronized.run(k, shards, first)
            self._run([_task(r, r.finish) for r in self], k)
        else:
            for r, stacks in zip(self._replicas, shards, strict=True):
                r.given = stacks, first, draws
            self._run(self._tasks, k)
        self._note_times(shards)
        return [r.collected for r in self._replicas]

    def _run(self, tasks: Sequence[Task], step: int) -> None:
        """Make all calls; the caller itself makes those of a single device, without a limit of time."""
        if self._threads is not None:
            self._threads.run(tasks, step)
            return
        for task in tasks:
            try:
                task.call()
            except BaseException as error:
                named(error, task, step)
                raise

    def _hangs(self, replica: Replica) -> bool:
        return self._threads is not None and self._threads.hangs(replica.device)

    def count_draws(self, k: int, shards: Sequence[list[Stack]]) -> int | None:
        """Compute the first stack of the job, if it is here, and return how many random streams it took."""
        for replica, stacks in zip(self, shards, strict=True):
            if stacks and stacks[0].place == 0 and stacks[0].heads:
                self._run([_task(replica, partial(replica.count, stacks[0]))], k)
                return replica.drawn
        return None

    def _note_times(self, shards: Sequence[list[Stack]]) -> None:
        sizes = [sum([len(stack.samples) for stack in stacks]) for stacks in shards]
        if len(sizes) == 1:  # hot path of small steps
            first = self._replicas[0]
            first.note(sizes[0], first.ended - first.began, 0.0)
            return
        seconds = []
        last = max([r.ended for r in self._replicas])
        free: dict[str, float] = {}  # when a device was done with its last replica
        for replica, size in zip(self._replicas, sizes, strict=True):
            began, ended = replica.began, replica.ended
            seconds.append(ended - max(began, free.get(replica.device, began)))
            free[replica.device] = ended
            replica.note(size, seconds[-1], last - ended)
        self._balance.note(sizes, seconds)

    def why_not_stacked(self, shard: Shard, step: int) -> str | None:
        """Return why these samples should not be passed at once, or None."""
        replica, found = self.first, list[str | None]()
        half = replica.group.stored_dtype.is_half

        def trial() -> None:
            found.append(why_not_stacked(replica.loss_of, shard, half))

        try:
            with modes_kept(replica.model):
                ag_eval(replica.model)
                self._run([_task(replica, trial)], step)
        finally:
            replica.buffers.begin()
        return found[0]

    # -------------------------------------------------------------------------------------- between two steps

    def send(self, work: Callable[[Replica], None]) -> None:
        """Call `work` for every replica at the end of a step; the error of a device is raised in the next step."""
        for replica in self._replicas:
            try:
                work(replica)
            except DeviceError as error:
                self._failed = error

    def settle(self, weights: Array, buffers: Array) -> None:
        def settled(replica: Replica) -> None:
            if not self._hangs(replica):
                replica.settle()
                replica.load(weights, buffers)

        self.send(settled)

    def go_on_without(self, failed: Sequence[str]) -> Sequence[float]:
        """Drop the replicas on failed devices; return the shares of the others."""
        left = [i for i, r in enumerate(self) if r.device not in failed]
        used = set().union(*(r.used for r in self))
        self._replicas = [self._replicas[i] for i in left]
        self.first.used.update(used)
        self._find_tasks()
        self._balance.keep(left)
        if self._synchronized is not None:
            self._synchronized.close()
            self._synchronized = SynchronizedSamples(self._replicas, self._timeout)
        return self._balance.weights

    def share_constants(self) -> None:
        """Copy the first model's constant buffers to all others, and let them share its frozen tensors."""
        def constants(replica: Replica) -> dict[str, Tensor]:
            return {name: x for name, x in buffers_of(replica.model).items() if name not in replica.buffers.tensors}

        values = {name: x.numpy() for name, x in constants(self.first).items()}
        for replica in self._replicas[1:]:
            load_into(constants(replica), values, source="dp_train: a buffer of replica 0")
            for name, x in frozen_of(replica.model).items():
                x.share(frozen_of(self.first.model)[name])

    def compare(self, part: str, host: Array, theirs: Sequence[Array], why: str) -> None:
        """Raise a CommError unless the weights or buffers of every replica are the host's."""
        wanted = digest(host)
        for replica, found in zip(self, map(digest, theirs), strict=True):
            if found != wanted:
                raise CommError(f"dp_train: the {part} of {replica.name} have SHA-256 {found} and the host's {wanted}; "
                                f"{why}.")


def digest(array: Array) -> str:
    """Return the first digits of the SHA-256 of an array, for messages."""
    return f"{sha256(array.tobytes()).hexdigest()[:16]}..."


def _task(replica: Replica, call: Callable[[], None]) -> Task:
    return Task(replica.device, replica.name, call)


def check_same_models(replicas: list[Replica]) -> None:
    """Raise a CommError unless every replica has its own parameters, and all have like parameters and buffers."""
    first = replicas[0]
    owners: dict[int, int] = {}
    for replica in replicas:
        _check_same_tensors("parameter", first.params, replica.params, replica.index)
        _check_same_tensors("buffer", first.buffers.tensors, replica.buffers.tensors, replica.index)
        _check_same_tensors("frozen tensor", frozen_of(first.model), frozen_of(replica.model), replica.index)
        for name, p in replica.params.items():
            if owners.setdefault(p.id, replica.index) != replica.index:
                raise CommError(f"dp_train: parameter {name} of replica {replica.index} is the same tensor as on "
                                f"replica {owners[p.id]}; make_model must create new parameters on every call.")


def _check_same_tensors(kind: str, first: Mapping[str, Tensor | FrozenTensor],
                        other: Mapping[str, Tensor | FrozenTensor], index: int) -> None:
    theirs, mine = ([(name, x.shape, x.dtype) for name, x in tensors.items()] for tensors in (first, other))
    for a, b in zip_longest(theirs, mine, fillvalue="none"):
        if a != b:
            raise CommError(f"dp_train: replica 0 has {kind} {a} where replica {index} has {b}; make_model must build "
                            f"the same model every time.")


# ---------------------------------------------------------------------------------------------- synchronized samples
# Every sample of a step, or stack, has a thread and a tape, for layers that need sums over all of them.

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


# ---------------------------------------------------------------------------------------------- shares of samples

_NEW = 0.5  # weight of the newest measurement


class Balance:
    """Fixed shares."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = weights  # of each replica

    def sizes(self, samples: int) -> list[int]:
        return shard_sizes(samples, self.weights)

    def note(self, samples: Sequence[int], seconds: Sequence[float]) -> None:
        """Learn from a step: the samples of each replica, and its time."""

    def keep(self, replicas: Sequence[int]) -> None:
        self.weights = [self.weights[i] for i in replicas]


class AutoBalance(Balance):
    """Shares in proportion to the measured speeds; replicas on one device share its speed."""

    def __init__(self, devices: list[str]) -> None:
        super().__init__([1.0] * len(devices))
        self._devices = devices  # of each replica
        self._per_sample: dict[str, float] = {}  # seconds
        self._warm: set[str] = set()

    def sizes(self, samples: int) -> list[int]:
        """Give every replica a sample if there are enough: one without samples would not be measured again."""
        least = 1 if samples >= len(self._devices) else 0
        return [least + n for n in super().sizes(samples - least * len(self._devices))]

    def keep(self, replicas: Sequence[int]) -> None:
        super().keep(replicas)
        self._devices = [self._devices[i] for i in replicas]
        self._per_sample = {device: s for device, s in self._per_sample.items() if device in self._devices}

    def note(self, samples: Sequence[int], seconds: Sequence[float]) -> None:
        """Learn from a step; the first one of a device does not count: it captures and compiles."""
        for device in dict.fromkeys(self._devices):
            mine = [i for i, name in enumerate(self._devices) if name == device]
            count = sum(samples[i] for i in mine)
            if count and device in self._warm:
                measured = max(sum(seconds[i] for i in mine) / count, 1e-9)
                before = self._per_sample.get(device, measured)
                self._per_sample[device] = measured + (1 - _NEW) * (before - measured)
            if count:
                self._warm.add(device)
        if len(self._per_sample) == len(set(self._devices)):
            self.weights = [1.0 / (self._per_sample[d] * self._devices.count(d)) for d in self._devices]


def balance_of(balance: str | Sequence[float], names: list[str]) -> Balance:
    if isinstance(balance, str) and balance == "auto":
        return AutoBalance(names)
    if isinstance(balance, str) and balance == "equal":
        return Balance([1.0] * len(names))
    try:
        weights = [] if isinstance(balance, str) else [float(w) for w in balance]
    except (TypeError, ValueError):
        weights = []
    if len(weights) != len(names) or not all(isfinite(w) and w >= 0 for w in weights) or not 0 < sum(weights) < inf:
        raise ValueError(f"dp_train: balance is {balance!r}; use 'equal', 'auto', or {len(names)} weights, finite and "
                         f"none negative.")
    return Balance(weights)


# ---------------------------------------------------------------------------------------------- ranks
# Each rank adds up one part of all nodes (reduce-scatter), then parts are put together (all-gather).

_HOSTS = 1 << 16  # CPU devices from this number on are the hosts of ranks that are threads of one process


class Ranks(Member):
    """A rank's place among those that train together, of which there may be one."""

    who = "dp_train"
    advice = "weights are those of the last step that was finished."

    host = "cpu"  # device of the optimizer, which no other rank of the process uses

    def __init__(self, world: object) -> None:
        super().__init__(comm_of(world, "dp_train"), getattr(world, "min_ranks", 1))
        self.begun = False  # the first step has begun: the others go on if a rank is lost
        self.leaves = False  # a rank was asked to leave: all of them leave after the same step
        self.used: set[str] = set()  # parameters that samples of any rank have used; empty for one rank
        self._shares: list[list[float]] = []  # of every rank, the weights of its replicas
        self._told: set[str] = set()  # names in `used` that this rank has told the others
        self._rows, self._parts = RowSums(), RowSums()  # of this rank's replicas, and of all ranks
        self._exchange_s, self._sent = 0.0, 0

    # -------------------------------------------------------------------------------------- errors

    def _tell_error(self, error: str) -> None:
        self._tell({"error": f"failed {self.where} ({error})"})

    def _tell(self, message: dict[str, Json]) -> None:
        try:
            self._values(message)
        except RankLostError as error:
            if error.ranks:
                self._tell(message)
        except CommError:
            pass  # the first error is raised

    def _has_shrunk(self) -> bool:
        if self.begun:
            self._shares = [self._shares[i] for i in self.old_ranks]
            self._parts = RowSums()  # which are longer now
        return self.begun

    def _part(self) -> None:
        """Split off the ranks that have no replicas left."""
        stays = bool(self._shares[self.rank])
        try:
            self._split(stays)
        except RankLostError:
            self._shares = [self._shares[i] for i in self.old_ranks]
            raise
        self._shares = [shares for shares in self._shares if bool(shares) is stays]
        self._parts = RowSums()
        self.over = not stays

    def exchange(self, value: Json = None) -> list[Json]:
        """Return the values of all ranks, in their order; after a RankLostError the step must be made again."""
        if self.size == 1:
            return [value]
        return self._values({"value": value})

    def _values(self, message: dict[str, Json]) -> list[Json]:
        messages = self._agreed(partial(everyone, value=message))
        for rank, theirs in enumerate(messages):
            if "error" in theirs:
                self.over = True
                raise CommError(f"dp_train: rank {rank} {theirs['error']}; weights are those of the last step that all "
                                f"ranks made.")
        changed = {rank: theirs["shares"] for rank, theirs in enumerate(messages) if "shares" in theirs}
        if changed:
            self._shares = [changed.get(rank, shares) for rank, shares in enumerate(self._shares)]
            if not all(self._shares):
                self._part()
            raise RankLostError(f"dp_train: rank {', '.join(map(str, changed))} has lost a device {self.where}.")
        return [theirs["value"] for theirs in messages]

    def gather(self, value: Json = None) -> list[Json]:
        """`exchange` between two steps, where only this call is made again."""
        return [value] if self.size == 1 else self._at_last(partial(self.exchange, value))

    @property
    def replicas(self) -> int:
        """Return the number of replicas of all ranks."""
        return sum(map(len, self._shares))

    def compare(self, named: Sequence[tuple[str, object]], advice: str) -> None:
        """Raise a CommError, ended by `advice`, unless all ranks have the same names and values."""
        self._compare(self.gather([(what, str(value)) for what, value in named]), advice)

    # -------------------------------------------------------------------------------------- before the first step

    def meet(self, alike: Sequence[tuple[str, object]], weights: Sequence[float], devices: Sequence[str]) -> None:
        """Compare what must be `alike`, and exchange shares and devices; a CommError names a difference."""
        self.compare([("the library's version", __version__), *alike], "all ranks must be given the same")
        process = this_process()
        members = self.gather([list(weights), process, list(devices)])
        self._shares = [theirs[0] for theirs in members]
        self._refuse_shared([(where, used) for _, where, used in members], "give each rank devices of its own.")
        if [where for _, where, _ in members].count(process) > 1:
            self.host = f"cpu:{_HOSTS + self.rank}"

    def begin_alike(self, first: Replica) -> None:
        """Copy weights, buffers and the seed of rank 0 to all ranks, whose models must have the same tensors."""
        if self.size == 1:
            return
        table = [(f"parameter {i}", f"{name} {p.shape} {p.dtype}") for i, (name, p) in enumerate(first.params.items())]
        table += [(f"buffer {i}", f"{name} {x.shape} {x.dtype}")
                  for i, (name, x) in enumerate(first.buffers.tensors.items())]
        self.compare(table, "make_model must build the same model on all ranks")
        weights, buffers = first.state()
        seed = self.gather(current_seed())[0]
        if seed != current_seed():
            ag_seed(seed)
        for array in (weights, buffers):
            if array.size:
                self._agreed(partial(Comm.broadcast, array=array))
        first.load(weights, buffers)

    def state(self, path: str | os.PathLike[str]) -> DPState | None:
        """Return the checkpoint in rank 0's file on all ranks; None if there is no file."""
        state = load_state(path) if self.rank == 0 else None
        if self.size == 1:
            return state
        with self._file_of_first(Path(path)) as copy:
            return load_state(copy) if self.rank and copy is not None else state

    # -------------------------------------------------------------------------------------- in a step

    def positions(self, samples: int) -> range:
        """Return the positions of this rank's samples in a step, in the order of all replicas."""
        if self.size == 1:
            return range(samples)
        sizes = iter(shard_sizes(samples, [w for weights in self._shares for w in weights]))
        counts = [sum(next(sizes) for _ in weights) for weights in self._shares]
        start = sum(counts[: self.rank])
        return range(start, start + counts[self.rank])

    def nodes(self, nodes: Sequence[Node], used: Iterable[set[str]], leave: bool = False) -> Sequence[Node]:
        """Return the rows to add up: these of a single rank, else their sum over all ranks, equal bits on each."""
        self.leaves = leave
        if self.size == 1:
            return nodes
        joined = self._rows.joined(nodes)
        new = set().union(*used) - self._told
        layouts = self.exchange([[(start, count) for start, count, _ in joined], sorted(new), leave])
        self._told |= new
        self.used.update(name for _, names, _ in layouts for name in names)
        self.leaves = any(leaves for *_, leaves in layouts)
        began = perf_counter()
        total = self._agreed(partial(self._added_up, joined, [places for places, *_ in layouts]))
        self._exchange_s += perf_counter() - began
        return [(0, 1, total)]

    def _added_up(self, nodes: Sequence[Node], layouts: list[list[tuple[int, int]]], comm: Comm) -> Array:
        """Return the sum of the nodes of all ranks, whose samples are in `layouts`."""
        parts = comm.all_to_all([row for _, _, row in nodes])
        part = self._parts.total([(start, count, part) for places, theirs in zip(layouts, parts, strict=True)
                                  for (start, count), part in zip(places, theirs, strict=True)])
        self._sent = part.nbytes * (comm.size - 1) + sum(row.nbytes - theirs.nbytes for (_, _, row), theirs in zip(
            nodes, parts[comm.rank], strict=True))
        return comm.all_gather(part)

    def share(self, weights: Sequence[float]) -> None:
        """Tell all ranks this rank's shares after a device was lost; without shares, the others go on without it."""
        self._shares[self.rank] = list(weights)
        if self.size > 1:
            self._tell({"shares": list(weights)})

    def report(self) -> dict[str, Any]:
        """Return the part of `DPResult.report` about the exchange."""
        return {"rank": self.rank, "exchange_ms": self._exchange_s * 1e3, "wire_bytes_per_step": self._sent}
