"""The trainer: one data-parallel training, its replicas, weights and buffers on the host, and what happens in a step.

    samples -> shards -> replicas -> rows -> one tree -> / samples -> optimizers -> weights -> all replicas

A step is made by all replicas or by none: weights, buffers and schedules change only after every gradient is there and
finite.  Knows replicas, ranks and the host's optimizers; not where samples come from, no file and no user's argument.
`dp_train` makes it and calls `step`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from itertools import accumulate
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine import cpu_threads as blocks
from ag.engine.primitive import Array
from ag.engine.random import ag_seed, current_seed
from ag.errors import CommError
from ag.nn.layer import ag_eval, ag_train, buffers_of, load_into
from ag.parallel.comm.comm import Json
from ag.parallel.comm.tree_reduction import RowSums, TreeSum
from ag.parallel.trainer.callbacks import Endings, Observed, modes_of
from ag.parallel.trainer.checkpoint import Dealt, DPState
from ag.parallel.trainer.device_threads import DeviceThreads, Task
from ag.parallel.trainer.host_optimizer import HostOptimizers, MakeOptimizer
from ag.parallel.trainer.load_balance import Balance
from ag.parallel.trainer.model_buffers import HostBuffers
from ag.parallel.trainer.plans import CapturePolicy
from ag.parallel.trainer.ranks import Ranks, check_same_models
from ag.parallel.trainer.replica import LOSS_WORDS, LossOf, MakeModel, Node, Replica
from ag.parallel.trainer.stacks import Shard, Stack, cut, why_not_stacked
from ag.parallel.trainer.synchronized_samples import SynchronizedSamples

__all__ = ["Trainer"]

CHECK_EVERY = 100  # steps between checks that all replicas have the weights and buffers of the host

log = logging.getLogger("ag")


class Trainer:
    """Replicas that train together.

    Parameters
    ----------
    make_model : callable
    devices : list of str
    loss_of : callable
    capture : bool or "auto"
    make_optimizer : callable
        Called once, with the host's copies of the parameters; returns an optimizer or several.
    max_norm : float
    on_nonfinite : {"raise", "skip"}
    balance : Balance
        How many samples each replica gets.
    timeout : float
        Seconds that a device may take for its part of a step.
    together : bool
        Whether batch norm is over all samples of a step, which are then synchronized.
    ranks : Ranks
        The ranks that train together.
    """

    def __init__(self, make_model: MakeModel, devices: list[str], loss_of: LossOf, capture: bool | str,
                 make_optimizer: MakeOptimizer, max_norm: float, on_nonfinite: str, balance: Balance, timeout: float,
                 together: bool, ranks: Ranks) -> None:
        policy = CapturePolicy(capture)
        self.replicas = [Replica(i, d, make_model, loss_of, policy) for i, d in enumerate(devices)]
        check_same_models(self.replicas)
        first = self.replicas[0]
        ranks.begin_alike(first)
        self.seed = current_seed()  # chosen now, if there is none yet, for all threads
        self._ranks = ranks
        self.optimizers = HostOptimizers(first.group, make_optimizer, max_norm, ranks.host, tells=ranks.rank == 0)
        self._buffers = HostBuffers(first.buffers, ranks.host)
        _share_constants(self.replicas)
        self.endings = Endings()
        self._skip = on_nonfinite == "skip"
        self._draws: int | None = None
        self._used = 0
        self._reduce_s = 0.0
        self._sums = RowSums()
        self._balance = balance
        # A synchronous device computes in the thread that launches; several of them use one core each.
        self._blocking = [r for r in self.replicas if not r.backend.asynchronous]
        several = {r.device for r in self._blocking}
        self._separate = len(several) == len(self._blocking) > 1
        names = [r.device for r in self.replicas]
        alone = several if len(several) > 1 else set()
        self._threads = DeviceThreads(names, alone, timeout, direct=len(set(names)) == 1)
        self._synchronized = SynchronizedSamples(self.replicas, timeout) if together else None
        for replica in self.replicas:
            ag_train(replica.model)
            replica.scale_gradients(self.optimizers.loss_scale)
        self._broadcast()

    def close(self) -> None:
        """Give the threads back and release captured steps, and with them all work memory."""
        self._threads.close()
        if self._synchronized is not None:
            self._synchronized.close()
        for replica in self.replicas:
            if not self._threads.hangs(replica.device):
                replica.close()

    def state(self, step: int, dealt: Dealt, losses: Array, schedules: list[Json]) -> DPState:
        """Everything to go on from, after `step` steps."""
        optimizers = self.optimizers.optimizers
        return DPState(step, dealt, self.seed, self._draws or 0, losses,
                       {name: p.numpy() for name, p in self.optimizers.params.items()}, self._buffers.state(),
                       [optimizer.state_dict() for optimizer in optimizers],
                       [optimizer.lr for optimizer in optimizers], schedules)

    def restore(self, state: DPState) -> None:
        """Go on from a state."""
        self.optimizers.load(state.weights, state.optimizers, state.rates)
        self._buffers.load(state.buffers)
        for replica in self.replicas:
            replica.scale_gradients(self.optimizers.loss_scale)
        self._draws = state.draws if state.step else None  # the first step counts them
        self._broadcast()

    # -------------------------------------------------------------------------------------- a step

    def step(self, k: int, shard: Shard, dealt: Dealt, done: Callable[[float], None]) -> None:
        """One optimizer step, over the samples of all ranks, of which these are this one's.

        An interrupt leaves it out, or comes when it is over and ``done(loss)`` was called with the mean loss.
        """
        if current_seed() != self.seed:  # a callback has seeded the generator for purposes of its own
            ag_seed(self.seed)
        nodes = self._compute(k, shard, dealt)
        begin = perf_counter()
        self._sums.restart()
        tree: TreeSum[Array] = TreeSum(self._sums.added)
        size = self.replicas[0].group.size
        with np.errstate(all="ignore"):  # infinities and NaN are dealt with below
            for of_replica in nodes:
                for node in of_replica:
                    tree.push(*node)
            total = self._ranks.total(tree, self.replicas[0].row_size, (r.used for r in self.replicas))
            count = float(total[size + 1])
            if count == 0:
                raise ValueError(f"dp_train: the weights of the samples of step {k} add up to 0, so there is no mean; "
                                 f"at least one must count.")
            total /= count
        gradient, loss, moved = total[:size], float(total[size]), total[size + LOSS_WORDS :]
        finite = isfinite(float(total.dot(total))) or bool(np.isfinite(total).all())
        overflow = not finite and self.optimizers.scaled and isfinite(loss) and bool(np.isfinite(moved).all())  # of f16
        if not finite and not overflow:
            self._nonfinite(k, nodes)
        with self.endings.quiet():
            if finite:
                self._note_used()
                self.optimizers.step(gradient)
                self._buffers.move(moved)
                self._move_scale(0.0)
                self._broadcast()
                self._reduce_s += perf_counter() - begin
            else:
                if overflow:
                    self._move_scale(1.0)
                self._of_all(lambda replica: replica.buffers.begin())
            done(loss)
        if finite and (k + 1) % CHECK_EVERY == 0:
            self.check_equal()

    def _compute(self, k: int, shard: Shard, dealt: Dealt) -> list[list[Node]]:
        """The sums of every replica's samples.

        Each device has a thread that launches its work and waits for it, so no device waits for the launches of
        another, and each is timed on its own.
        """
        sizes = self._balance.sizes(len(shard.samples))
        shards = [cut(shard.part(end - size, end), dealt.stack, dealt.batch, k)
                  for end, size in zip(accumulate(sizes), sizes, strict=True)]
        first = k * -(-dealt.batch // dealt.stack)
        if self._synchronized is not None:
            self._synchronized.run(k, shards, first)
            self._threads.run([self._task(r, r.finish) for r in self.replicas], k)
            self._note_times(sizes)
            return [r.collected for r in self.replicas]
        if self._draws is None:
            self._count_draws(k, shards)
        work = list(zip(self.replicas, shards, strict=True))
        starts = [self._task(r, partial(r.start, stacks, first, self._draws))
                  for r, stacks in work if r.backend.asynchronous]
        ends = [self._task(r, r.finish if r.backend.asynchronous else
                           partial(r.start_and_finish, stacks, first, self._draws)) for r, stacks in work]
        self._threads.run([*starts, *ends], k)
        self._note_times(sizes)
        return [r.collected for r in self.replicas]

    def _count_draws(self, k: int, shards: list[list[Stack]]) -> None:
        """Run the first stack of the job, on its rank, to learn how many random streams one is expected to take."""
        mine = None
        for replica, stacks in zip(self.replicas, shards, strict=True):
            if stacks and stacks[0].place == 0 and stacks[0].heads:
                self._threads.run([self._task(replica, partial(replica.run, stacks[:1], 0, None))], k)
                mine = replica.plans.drawn
        self._draws = next(draws for draws in self._ranks.gather(mine) if draws is not None)

    def _task(self, replica: Replica, call: Callable[[], None]) -> Task:
        return Task(replica.device, replica.name, call)

    def _note_times(self, sizes: list[int]) -> None:
        seconds = []
        last = max(r.ended for r in self.replicas)
        free: dict[str, float] = {}  # when a device was done with its last replica
        for replica, size in zip(self.replicas, sizes, strict=True):
            seconds.append(replica.ended - max(replica.began, free.get(replica.device, 0.0)))
            free[replica.device] = replica.ended
            replica.note(size, seconds[-1], last - replica.ended)
        self._balance.note(sizes, seconds)

    def _of_all(self, work: Callable[[Replica], None]) -> None:
        """Do something for every replica; CPU devices do it at the same time, on all cores."""
        for replica in self.replicas:
            if not self._separate or replica.backend.asynchronous:
                work(replica)
        if self._separate:
            blocks.together([partial(work, replica) for replica in self._blocking])

    def _note_used(self) -> None:
        """Tell the optimizers when samples have used parameters that none had used before."""
        used = sum(len(r.used) for r in self.replicas) + len(self._ranks.used)
        if used != self._used:
            self._used = used
            self.optimizers.use(self._ranks.used.union(*(r.used for r in self.replicas)))

    def _move_scale(self, bad: float) -> None:
        """Update the loss scale of f16 gradients after a step, on the host and on all devices."""
        if not self.optimizers.scaled:
            return
        self.optimizers.move_loss_scale(bad)
        for replica in self.replicas:
            replica.scale_gradients(self.optimizers.loss_scale)

    def _broadcast(self) -> None:
        weights, buffers = self._sent = self.optimizers.weights(), self._buffers.read()
        self._of_all(lambda replica: replica.load(weights, buffers))

    def follow(self, observed: Observed, since: int) -> None:
        """Let what a callback has set since then (`ag.engine.arena.now`) hold for all replicas."""
        observed.spread_modes()
        self.endings.renew()
        if not (self.optimizers.changed_since(since) or any(r.changed_since(since) for r in self.replicas)):
            return
        found = [(self.optimizers.followed(), self._buffers.read()), *[r.followed() for r in self.replicas]]
        weights, buffers = observed.values(self._sent, found)
        self._buffers.take(buffers)
        self._compare("buffers", [r.buffers.read() for r in self.replicas], "and a callback has set them there only; "
                      "set them on all models")
        self.optimizers.take(weights)
        self._broadcast()

    @property
    def synchronizes(self) -> bool:
        """Whether batch norm is over all samples of a step."""
        return self._synchronized is not None

    def why_not_stacked(self, shard: Shard, step: int) -> str | None:
        """Why these samples should not be passed at once, in words; None if they may be."""
        replica, found = self.replicas[0], list[str | None]()
        modes = modes_of(replica.model)
        half = replica.group.stored_dtype.is_half

        def trial() -> None:
            found.append(why_not_stacked(replica.loss_of, shard, half))

        ag_eval(replica.model)
        try:
            self._threads.run([self._task(replica, trial)], step)
        finally:
            for layer, mode in modes:
                layer.training = mode
            replica.buffers.begin()
        return found[0]

    def settle(self) -> None:
        """After an interrupted step: on all replicas, all is as after the last step that was finished."""
        weights, buffers = self.optimizers.weights(), self._buffers.read()
        for replica in self.replicas:
            if not self._threads.hangs(replica.device):
                replica.settle()
                replica.load(weights, buffers)

    def _nonfinite(self, k: int, nodes: list[list[Node]]) -> None:
        for replica, of_replica in zip(self.replicas, nodes, strict=True):
            for _, _, row in of_replica:
                if np.isfinite(row).all():
                    continue
                what = replica.not_finite(row)
                message = f"dp_train: {what} is not finite on {replica.name} in step {k}"
                if not self._skip:
                    raise FloatingPointError(f"{message}; weights are as before the step. Lower lr, set max_norm, "
                                             f"or pass on_nonfinite='skip'.")
                log.warning("%s; the step is left out on all replicas.", message)
                return
        if not self._skip:
            self._ranks.gather()  # raises the error of the rank that has it

    # -------------------------------------------------------------------------------------- checks and report

    def check_equal(self) -> None:
        """Raise if weights or buffers of a replica, or of another rank, differ from the host's in any bit."""
        parts = ("weights", "buffers")
        for part, theirs in zip(parts, zip(*(r.state() for r in self.replicas), strict=True), strict=True):
            self._compare(part, theirs, "a transfer to that device is wrong")
        wanted = [_digest(x) for x in (self.optimizers.weights(), self._buffers.read())]
        self._ranks.compare([(f"the SHA-256 of the {what}", host) for what, host in zip(parts, wanted, strict=True)],
                            "the hosts compute differently, or an optimizer or a callback does other things on one of "
                            "them")

    def _compare(self, part: str, theirs: Sequence[Array], why: str) -> None:
        """Raise unless weights or buffers of every replica are the host's."""
        host = _digest(self.optimizers.weights() if part == "weights" else self._buffers.read())
        for replica, digest in zip(self.replicas, map(_digest, theirs), strict=True):
            if digest != host:
                raise CommError(f"dp_train: the {part} of {replica.name} have SHA-256 {digest} and the host's {host}; "
                                f"{why}.")

    def report(self) -> list[dict[str, Any]]:
        """Per replica: device, driver, samples, milliseconds, bytes moved per step."""
        first = self.replicas[0]
        moved = (first.row_size + first.group.size + first.buffers.size) * first.group.dtype.itemsize
        return [{**r.report(), "reduce_ms": self._reduce_s * 1e3, "bytes_per_step": moved, **self._ranks.report()}
                for r in self.replicas]


def _digest(array: Array) -> str:
    return f"{sha256(array.tobytes()).hexdigest()[:16]}…"


def _share_constants(replicas: list[Replica]) -> None:
    """Give all models the first one's buffers that no step moves."""
    def constants(replica: Replica) -> dict[str, Tensor]:
        return {name: x for name, x in buffers_of(replica.model).items() if name not in replica.buffers.tensors}

    values = {name: x.numpy() for name, x in constants(replicas[0]).items()}
    for replica in replicas[1:]:
        load_into(constants(replica), values, source="dp_train: a buffer of replica 0")
