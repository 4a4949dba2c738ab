"""One data-parallel job: the replicas, the weights on the host, and what happens in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from hashlib import sha256
from math import isfinite
from time import perf_counter
from typing import Any

import numpy as np

from ag.blocks import cut, makes, one_thread, together
from ag.buffer import Program
from ag.create import ag_param, lift
from ag.dtype import F16, F32
from ag.errors import CommError
from ag.nn.layer import ag_train, load_into
from ag.optim.clip import clip_grad_norm
from ag.optim.optimizer import Optimizer
from ag.parallel.dp_checkpoint import DPState
from ag.parallel.reduction import TreeSum
from ag.parallel.replica import Capturing, LossOf, Node, Replica, log
from ag.rng import current_seed
from ag.tensor import Array, Tensor

__all__ = ["Job"]

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
    """

    def __init__(self, make_model: Callable[[], Any], devices: list[str], loss_of: LossOf, capture: bool | str,
                 make_optimizer: Callable[[dict[str, Tensor]], Optimizer], max_norm: float, on_nonfinite: str) -> None:
        capturing = Capturing(capture)
        self.replicas = [Replica(i, d, make_model, loss_of, capturing) for i, d in enumerate(devices)]
        _check_same_tables(self.replicas)
        first = self.replicas[0]
        self.master = {name: ag_param(p.numpy(), device="cpu", dtype=p.dtype) for name, p in first.params.items()}
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
        self._times = [{"samples": 0, "compute": 0.0, "wait": 0.0} for _ in self.replicas]
        self._reduce_s = 0.0
        self._sums = _Sums()
        self._collected: dict[int, list[Node]] = {}  # by the replica's number, where its own thread did it
        # A synchronous device works in the thread that launches; several of them need a thread each, and no more.
        self._blocking = [r for r in self.replicas if not r.backend.asynchronous]
        separate = len({r.device for r in self._blocking}) == len(self._blocking) > 1
        self._threads = ThreadPoolExecutor(len(self._blocking), initializer=one_thread) if separate else None
        for replica in self.replicas:
            ag_train(replica.model)
            replica.scale_gradients(self.optimizer.loss_scale)
        self._broadcast()

    def close(self) -> None:
        """End the threads and let go of captured steps, and with them of all work memory."""
        if self._threads is not None:
            self._threads.shutdown()
        for replica in self.replicas:
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

    def step(self, k: int, samples: Sequence[Sample], sizes: Sequence[int]) -> float:
        """One optimizer step over `samples`, dealt out by `sizes`; the mean loss."""
        shards = []
        for size in sizes:
            shards.append(samples[:size])
            samples = samples[size:]
        self._compute(shards)
        nodes = self._collect()
        begin = perf_counter()
        count = sum(sizes)
        self._sums.restart()
        tree: TreeSum[Array] = TreeSum(self._sums.added)
        with np.errstate(all="ignore"):  # what is not finite is dealt with below
            for of_replica in nodes:
                for node in of_replica:
                    tree.push(*node)
            total = tree.total()
            total /= count
        self._trained += count
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
        return loss

    def _compute(self, shards: list[Sequence[Sample]]) -> None:
        if self._draws is None:
            # The first sample of all tells how many random streams a sample takes.
            first = self.replicas[0]
            first.run(shards[0][:1] or next(s for s in shards if s)[:1], self._trained, None)
            self._draws = first.streams_used()
        work = list(zip(self.replicas, shards, strict=True))
        waiting = []
        for replica, shard in work:
            if replica.backend.asynchronous:
                self._run(replica, shard)
        for replica, shard in work:
            if not replica.backend.asynchronous:
                if self._threads is None:
                    self._run(replica, shard)
                else:
                    waiting.append(self._threads.submit(copy_context().run, self._run_and_collect, replica, shard))
        for future in waiting:
            future.result()

    def _run(self, replica: Replica, shard: Sequence[Sample]) -> None:
        begin = perf_counter()
        replica.run(shard, self._trained, self._draws)
        times = self._times[replica.index]
        times["compute"] += perf_counter() - begin
        times["samples"] += len(shard)

    def _run_and_collect(self, replica: Replica, shard: Sequence[Sample]) -> None:
        self._run(replica, shard)
        self._collected[replica.index] = replica.collect()

    def _collect(self) -> list[list[Node]]:
        nodes = []
        for replica in self.replicas:
            begin = perf_counter()
            nodes.append(self._collected.pop(replica.index, []) or replica.collect())
            self._times[replica.index]["wait"] += perf_counter() - begin
        return nodes

    def _of_all(self, work: Callable[[Replica], None]) -> None:
        """Do something for every replica; where several devices are the processor's, all its threads take part."""
        for replica in self.replicas:
            if self._threads is None or replica.backend.asynchronous:
                work(replica)
        if self._threads is not None:
            together([partial(work, replica) for replica in self._blocking])

    def _update(self, gradient: Array) -> None:
        used = sum(len(r.used) for r in self.replicas)
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
        used = set().union(*(r.used for r in self.replicas))
        unused = [name for name in self.master if name not in used]
        if unused and not self._unused_named:
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
                message = f"dp_train: {what} is not finite on replica {replica.index} ({replica.device}) in step {k}"
                if not self._skip:
                    raise FloatingPointError(f"{message}; weights are as before the step. Lower lr, set max_norm, "
                                             f"or pass on_nonfinite='skip'.")
                log.warning("%s; the step is left out on all replicas.", message)
                return

    # -------------------------------------------------------------------------------------- checks and report

    def check_equal(self) -> None:
        """Raise if a replica's weights are not those of the host, to the bit."""
        wanted = sha256(self._group.backend.download(self._group.values).tobytes()).hexdigest()
        for replica in self.replicas:
            found = sha256(replica.weights().tobytes()).hexdigest()
            if found != wanted:
                raise CommError(f"dp_train: the weights of replica {replica.index} ({replica.device}) have SHA-256 "
                                f"{found[:16]}… and the host's {wanted[:16]}…; a transfer to that device is wrong.")

    def report(self) -> list[dict[str, Any]]:
        """Per replica: device, driver, samples, milliseconds, bytes moved per step."""
        row_bytes = (self._group.size + 4) * self._group.dtype.itemsize
        return [
            {
                "replica": r.index, "device": r.device, "driver": r.backend.info.driver, "samples": t["samples"],
                "compute_ms": t["compute"] * 1e3, "wait_ms": t["wait"] * 1e3, "reduce_ms": self._reduce_s * 1e3,
                "bytes_per_step": row_bytes + self._group.size * self._group.dtype.itemsize,
            }
            for r, t in zip(self.replicas, self._times, strict=True)
        ]


class _Sums:
    """Sums of rows, in memory that stays from step to step; the rows themselves are left alone."""

    def __init__(self) -> None:
        self._rows: list[Array] = []
        self._used = 0

    def restart(self) -> None:
        """The sums of the last step are not needed any more."""
        self._used = 0

    def added(self, left: Array, right: Array) -> Array:
        """The sum of two rows, in the place of `left` if that is a sum itself; all threads take part."""
        if any(left is row for row in self._rows[: self._used]):
            out = left
        else:
            if self._used == len(self._rows):
                self._rows.append(np.empty_like(left))
            out = self._rows[self._used]
            self._used += 1
        pieces = cut(out.size)
        makes(pieces)([partial(np.add, left[p], right[p], out=out[p]) for p in pieces])
        return out


def _check_same_tables(replicas: list[Replica]) -> None:
    """Every replica must have parameters of its own, with the same names, shapes and order."""
    first = replicas[0]
    owners: dict[int, int] = {}
    for replica in replicas:
        mine = [(name, p.shape, p.dtype) for name, p in replica.params.items()]
        theirs = [(name, p.shape, p.dtype) for name, p in first.params.items()]
        for a, b in zip(theirs, mine, strict=False):
            if a != b:
                raise CommError(f"dp_train: replica 0 has parameter {a} where replica {replica.index} has {b}; "
                                f"make_model must build the same model every time.")
        if len(mine) != len(theirs):
            raise CommError(f"dp_train: replica 0 has {len(theirs)} parameters and replica {replica.index} "
                            f"{len(mine)}; make_model must build the same model every time.")
        for name, p in replica.params.items():
            if owners.setdefault(p.id, replica.index) != replica.index:
                raise CommError(f"dp_train: parameter {name} of replica {replica.index} is the same tensor as on "
                                f"replica {owners[p.id]}; make_model must create new parameters on every call.")
