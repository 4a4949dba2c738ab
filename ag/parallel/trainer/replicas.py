"""The replicas of a rank, which work at the same time, each on its device, and their shares of the samples.

Load balance: a step takes as long as its slowest device, so with ``balance="auto"`` shares follow the host's time per
sample.  That includes launches and transfers, which grow with the samples, too.  Gradients do not depend on the shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import accumulate
from math import inf, isfinite

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.errors import CommError, DeviceError
from ag.nn.layer import buffers_of, load_into
from ag.nn.mode import ag_eval, modes_kept
from ag.parallel.comm.device_threads import DeviceThreads, Task, named
from ag.parallel.comm.tree_reduction import Node, shard_sizes
from ag.parallel.trainer.checkpoint import Dealt
from ag.parallel.trainer.replica import Replica
from ag.parallel.trainer.samples import Shard, Stack, cut, why_not_stacked
from ag.parallel.trainer.synchronized_samples import SynchronizedSamples


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
        """Deal the samples out to the replicas."""
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
        """Copy the first model's constant buffers to all others."""
        def constants(replica: Replica) -> dict[str, Tensor]:
            return {name: x for name, x in buffers_of(replica.model).items() if name not in replica.buffers.tensors}

        values = {name: x.numpy() for name, x in constants(self.first).items()}
        for replica in self._replicas[1:]:
            load_into(constants(replica), values, source="dp_train: a buffer of replica 0")

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
        for name, p in replica.params.items():
            if owners.setdefault(p.id, replica.index) != replica.index:
                raise CommError(f"dp_train: parameter {name} of replica {replica.index} is the same tensor as on "
                                f"replica {owners[p.id]}; make_model must create new parameters on every call.")


def _check_same_tensors(kind: str, first: dict[str, Tensor], other: dict[str, Tensor], index: int) -> None:
    theirs, mine = ([(name, x.shape, x.dtype) for name, x in tensors.items()] for tensors in (first, other))
    for a, b in zip(theirs, mine, strict=False):
        if a != b:
            raise CommError(f"dp_train: replica 0 has {kind} {a} where replica {index} has {b}; make_model must build "
                            f"the same model every time.")
    if len(mine) != len(theirs):
        raise CommError(f"dp_train: replica 0 has {len(theirs)} {kind}s and replica {index} {len(mine)}; make_model "
                        f"must build the same model every time.")


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
