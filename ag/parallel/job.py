"""One data-parallel job: the replicas, the weights on the host, and what happens in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from itertools import accumulate
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from ag import blocks
from ag.buffer import Program
from ag.create import ag_param, lift
from ag.dtype import F16, F32
from ag.errors import CommError
from ag.nn.layer import ag_train, load_into
from ag.optim.clip import clip_grad_norm
from ag.optim.optimizer import Optimizer
from ag.parallel.balance import Balance
from ag.parallel.capturing import Capturing, log
from ag.parallel.dp_checkpoint import DPState
from ag.parallel.lanes import Lanes, Task
from ag.parallel.lockstep import Lockstep
from ag.parallel.ranks import Ranks
from ag.parallel.reduction import RowSums, TreeSum
from ag.parallel.replica import LossOf, Node, Replica, check_same_tables
from ag.rng import current_seed
from ag.tensor import Array, Tensor

__all__ = ["Job"]

CHECK_EVERY = 100  # steps between checks that all replicas have the weights of the host

Sample = tuple[int, int | None, Any]  # position in the step, place in the data if it is held there, sample


class Job:
    """Replicas that train together.

    Parameters
    ----------
    make_model : callable
    devices : list of str
    loss_of : callable
    capture : bool or "auto"
    make_optimizer : callable
        Called once, with the host's copies of the parameters.
    max_norm : float
    on_nonfinite : {"raise", "skip"}
    balance : Balance
        Who gets how many samples.
    timeout : float
        Seconds that a device may take for its part of a step.
    together : bool
        Whether batch norm is over all samples of a step, which are then computed in lock step.
    ranks : Ranks
        Who trains with this process.
    """

    def __init__(self, make_model: Callable[[], Any], devices: list[str], loss_of: LossOf, capture: bool | str,
                 make_optimizer: Callable[[dict[str, Tensor]], Optimizer], max_norm: float, on_nonfinite: str,
                 balance: Balance, timeout: float, together: bool, ranks: Ranks) -> None:
        current_seed()  # chooses one, if there is none yet, for all threads
        capturing = Capturing(capture)
        self.replicas = [Replica(i, d, make_model, loss_of, capturing) for i, d in enumerate(devices)]
        check_same_tables(self.replicas)
        first = self.replicas[0]
        ranks.begin_alike(first)
        self._ranks = ranks
        self.master = {name: ag_param(p.numpy(), device=ranks.host, dtype=p.dtype) for name, p in first.params.items()}
        self.optimizer = make_optimizer(self.master)
        groups = self.optimizer.groups if isinstance(self.optimizer, Optimizer) else []
        if len(groups) != 1 or groups[0].offsets != first.group.offsets:
            raise ValueError("dp_train: optimizer(params) must return an optimizer over exactly these parameters.")
        for p, name in zip(self.master.values(), self.master, strict=True):
            p.name = name
        self._group = self.optimizer.groups[0]
        self._scaled = self._group.stored_dtype is F16
        self.optimizer.restart_loss_scale()
        self._grads = self.optimizer.flat_gradients(self._group)
        self._grad_tensors = {name: Tensor(view) for name, view in self._group.split(self._grads).items()}
        self._max_norm = max_norm
        self._skip = on_nonfinite == "skip"
        self._draws: int | None = None
        self._trained = 0
        self._unused_named = False
        self._used = 0
        self._runs: list[tuple[int, int]] = []
        self._optimizer_step: Program | None = None
        self._reduce_s = 0.0
        self._sums = RowSums()
        self._balance = balance
        # A synchronous device works in the thread that launches; several of them share the cores by being one each.
        self._blocking = [r for r in self.replicas if not r.backend.asynchronous]
        several = {r.device for r in self._blocking}
        self._separate = len(several) == len(self._blocking) > 1
        names = [r.device for r in self.replicas]
        self._lanes = Lanes(names, several if len(several) > 1 else set(), timeout, direct=len(set(names)) == 1)
        self._lockstep = Lockstep(self.replicas, timeout) if together else None
        for replica in self.replicas:
            ag_train(replica.model)
            replica.scale_gradients(self.optimizer.loss_scale)
        self._broadcast()

    def close(self) -> None:
        """End the threads and let go of captured steps, and with them of all work memory."""
        self._lanes.close()
        if self._lockstep is not None:
            self._lockstep.close()
        for replica in self.replicas:
            if not self._lanes.hangs(replica.device):
                replica.close()

    def state(self, step: int, batch: int, losses: Array) -> DPState:
        """Everything to go on from, after `step` steps."""
        weights = {name: p.numpy() for name, p in self.master.items()}
        return DPState(step, batch, current_seed(), self._draws or 0, losses, weights, self.optimizer.state_dict())

    def restore(self, state: DPState) -> None:
        """Go on from a state; nothing changes if it does not fit."""
        load_into(self.master, state.weights)
        self.optimizer.load_state_dict(state.optimizer)
        for replica in self.replicas:
            replica.scale_gradients(self.optimizer.loss_scale)
        self._draws = state.draws
        self._trained = state.step * state.batch
        self._broadcast()

    # -------------------------------------------------------------------------------------- a step

    def step(self, k: int, samples: Sequence[Sample], batch: int) -> float:
        """One optimizer step over `batch` samples, of which `samples` are this rank's; the mean loss."""
        nodes = self._compute(k, samples)
        begin = perf_counter()
        self._sums.restart()
        tree: TreeSum[Array] = TreeSum(self._sums.added)
        with np.errstate(all="ignore"):  # what is not finite is dealt with below
            for of_replica in nodes:
                for node in of_replica:
                    tree.push(*node)
            total = self._ranks.total(tree, self.replicas[0].row_size, (r.used for r in self.replicas))
            total /= batch
        self._trained += batch
        loss = float(total[self._group.size])
        gradient = total[: self._group.size]
        if not isfinite(float(gradient.dot(gradient)) + loss) and not np.isfinite(total).all():
            if self._scaled and isfinite(loss):  # an overflow of f16
                self._move_scale(1.0)
            else:
                self._nonfinite(k, nodes)
            return loss
        self._update(gradient)
        self._move_scale(0.0)
        self._broadcast()
        self._reduce_s += perf_counter() - begin
        if (k + 1) % CHECK_EVERY == 0:
            self.check_equal()
        return loss

    def _compute(self, k: int, samples: Sequence[Sample]) -> list[list[Node]]:
        """The sums of every replica's samples.

        Every device is given its work, and waited for, by a thread of its own, so that no device waits for another to
        be given its work, and the times are its own, too.
        """
        if self._draws is None and self._lockstep is None:
            self._count_draws(k, samples[:1])
        sizes = self._balance.sizes(len(samples))
        shards = [samples[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]
        work = list(zip(self.replicas, shards, strict=True))
        if self._lockstep is not None:
            self._lockstep.run(k, shards, self._trained)
            self._lanes.run([self._task(r, r.finish) for r in self.replicas], k)
            self._note_times(sizes)
            return [r.collected for r in self.replicas]
        starts = [self._task(r, partial(r.start, shard, self._trained, self._draws))
                  for r, shard in work if r.backend.asynchronous]
        ends = [self._task(r, r.finish if r.backend.asynchronous else
                           partial(r.start_and_finish, shard, self._trained, self._draws)) for r, shard in work]
        self._lanes.run([*starts, *ends], k)
        self._note_times(sizes)
        return [r.collected for r in self.replicas]

    def _count_draws(self, k: int, first: Sequence[Sample]) -> None:
        """Run the first sample of all, where it is, to learn how many random streams a sample takes."""
        def count() -> None:
            replica.run(first, self._trained, None)
            self._draws = replica.streams_used()

        replica = self.replicas[0]
        if first and first[0][0] == 0:
            self._lanes.run([self._task(replica, count)], k)
        self._draws = next(draws for draws in self._ranks.gather(self._draws) if draws is not None)

    def _task(self, replica: Replica, call: Callable[[], None]) -> Task:
        return Task(replica.device, replica.name, call)

    def _note_times(self, sizes: list[int]) -> None:
        seconds = []
        last = max(r.ended for r in self.replicas)
        free: dict[str, float] = {}  # since when a device works for the next replica only
        for replica, size in zip(self.replicas, sizes, strict=True):
            seconds.append(replica.ended - max(replica.began, free.get(replica.device, 0.0)))
            free[replica.device] = replica.ended
            replica.note(size, seconds[-1], last - replica.ended)
        self._balance.note(sizes, seconds)

    def _of_all(self, work: Callable[[Replica], None]) -> None:
        """Do something for every replica; where several devices are the processor's, all its threads take part."""
        for replica in self.replicas:
            if not self._separate or replica.backend.asynchronous:
                work(replica)
        if self._separate:
            blocks.together([partial(work, replica) for replica in self._blocking])

    def _update(self, gradient: Array) -> None:
        used = sum(len(r.used) for r in self.replicas) + len(self._ranks.used)
        if used != self._used:
            self._used, self._runs = used, self._stretches()
            self._optimizer_step = None
        self._group.backend.upload(gradient, self._grads)
        if isfinite(self._max_norm):
            clip_grad_norm(self.master, self._grad_tensors, self._max_norm)
        self._optimize()

    def _optimize(self) -> None:
        """One optimizer step: recorded once, and replayed until other parameters get gradients."""
        if self._optimizer_step is not None:
            self._optimizer_step.run()
            return
        with self._group.backend.record() as recording:
            self.optimizer.update(self._group, self._grads, self._runs)
        self._optimizer_step = recording.finished()

    def _move_scale(self, bad: float) -> None:
        """Let the loss scale of f16 gradients follow a step, on the host and on all devices."""
        if not self._scaled:
            return
        backend = self._group.backend
        self.optimizer.move_loss_scale({backend: lift(bad, backend, F32, "dp_train").buffer})
        for replica in self.replicas:
            replica.scale_gradients(self.optimizer.loss_scale)

    def _stretches(self) -> list[tuple[int, int]]:
        """Where in the flat buffer the parameters are that some sample has used; names the others once."""
        used = self._ranks.used.union(*(r.used for r in self.replicas))
        unused = [name for name in self.master if name not in used]
        if unused and not self._unused_named and self._ranks.rank == 0:
            log.warning("dp_train: no sample so far uses %s; they keep their values.", ", ".join(unused))
            self._unused_named = True
        return self._group.runs(used)

    def _broadcast(self) -> None:
        weights = self._group.backend.download(self._group.values)
        self._of_all(lambda replica: replica.load(weights))

    def _nonfinite(self, k: int, nodes: list[list[Node]]) -> None:
        for replica, of_replica in zip(self.replicas, nodes, strict=True):
            for _, _, row in of_replica:
                if np.isfinite(row).all():
                    continue
                views = {name: row[o : o + p.size] for (name, p), o in
                         zip(replica.params.items(), self._group.offsets.values(), strict=True)}
                bad = next((name for name, v in views.items() if not np.isfinite(v).all()), None)
                what = f"the gradient of {bad}" if bad else "the loss"
                message = f"dp_train: {what} is not finite on {replica.name} in step {k}"
                if not self._skip:
                    raise FloatingPointError(f"{message}; weights are as before the step. Lower lr, set max_norm, "
                                             f"or pass on_nonfinite='skip'.")
                log.warning("%s; the step is left out on all replicas.", message)
                return
        if not self._skip:
            self._ranks.gather()  # another rank's it is

    # -------------------------------------------------------------------------------------- checks and report

    def check_equal(self) -> None:
        """Raise if a replica's weights are not those of the host, or another rank's are not, to the bit."""
        wanted = sha256(self._group.backend.download(self._group.values).tobytes()).hexdigest()
        for replica in self.replicas:
            found = sha256(replica.weights().tobytes()).hexdigest()
            if found != wanted:
                raise CommError(f"dp_train: the weights of {replica.name} have SHA-256 "
                                f"{found[:16]}… and the host's {wanted[:16]}…; a transfer to that device is wrong.")
        self._ranks.compare([("the SHA-256 of the weights", f"{wanted[:16]}…")],
                            "the hosts compute differently, or one of them has an optimizer of its own")

    def report(self) -> list[dict[str, Any]]:
        """Per replica: device, driver, samples, milliseconds, bytes moved per step."""
        moved = (2 * self._group.size + 4) * self._group.dtype.itemsize
        return [{**r.report(), "reduce_ms": self._reduce_s * 1e3, "bytes_per_step": moved, **self._ranks.report()}
                for r in self.replicas]
