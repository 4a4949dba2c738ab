"""The trainer: one data-parallel training, its replicas, weights and buffers on the host, and what happens in a step.

All replicas make a step, or none: weights, buffers and schedules change only after every gradient is there and finite.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from functools import partial
from math import isfinite, nan
from operator import attrgetter
from threading import current_thread, main_thread
from time import perf_counter
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
from tqdm import tqdm

from ag.engine.arena import now
from ag.engine.device import backend_of
from ag.engine.primitive import Array
from ag.engine.random import ag_seed, current_seed
from ag.errors import CommError, DeviceError, RankLostError
from ag.io.checkpoint import Stateful
from ag.io.safetensors_file import to_json
from ag.log import Forgiving, log, shows_bars, write_line
from ag.nn.layer import Layer, Model, modes_of, restore_modes
from ag.nn.mode import ag_train
from ag.optim.flat import FlatGroup
from ag.optim.optimizer import Adam
from ag.parallel.comm.device_threads import failed_among, noted
from ag.parallel.comm.tree_reduction import Node, add_up, sum_at
from ag.parallel.trainer.callbacks import DPResult, DPStep, Observed
from ag.parallel.trainer.checkpoint import Dealt, DPState, refuse_unlike, save_state, tell_of_unlike
from ag.parallel.trainer.host_optimizer import HostOptimizers, RateSchedules
from ag.parallel.trainer.replica import LOSS_WORDS, CapturePolicy, Replica
from ag.parallel.trainer.replicas import Balance, Ranks, Replicas, digest
from ag.parallel.trainer.samples import Samples, Shard, all_alike, bad_values, checksum, loss_of, weighed

CHECK_EVERY = 100  # steps between checks that all replicas have the weights and buffers of the host
_64_BITS = (1 << 64) - 1

Sent = tuple[Callable[[], Array], Array]  # what returns the weights, and the buffers

_used = attrgetter("used")  # of a replica


class Trainer:
    """Replicas that train together; `given` has the arguments of `dp_train`."""

    def __init__(self, given: SimpleNamespace, devices: list[str], balance: Balance, ranks: Ranks) -> None:
        policy = CapturePolicy(given.capture)
        loss = partial(loss_of, given.loss_fn, given.forward_fn, given.target_fn)
        self.replicas = Replicas([Replica(i, d, given.make_model, loss, policy) for i, d in enumerate(devices)],
                                 balance, given.timeout, given.sync_batch_norm)
        first = self.replicas.first
        ranks.begin_alike(first)
        self.seed = current_seed()  # chosen now, if there is none yet, for all threads
        self._ranks = ranks
        alone = len(devices) == ranks.size == 1 and first.device == ranks.host  # its row may be overwritten
        row = first.row if alone else backend_of(ranks.host).zeros(first.row.shape, first.row.dtype)
        self._mean: Array = row.native  # over all samples of a step
        self._size = first.group.size  # of the gradients, with which it begins
        self._moved = self._mean[self._size + LOSS_WORDS :]  # how far the buffers move
        self.optimizers = HostOptimizers(first.group, row.view((self._size,)),
                                         given.optimizer or partial(Adam, lr=given.lr), given.max_norm, ranks.host,
                                         tells=ranks.rank == 0)
        self._buffers = first.buffers.read()  # with which all replicas begin a step, in their flat layout
        self._reach()
        self.replicas.share_constants()
        self.endings = Endings()
        self._skip = given.on_nonfinite == "skip"
        self._draws: int | None = None
        self._used: tuple[int, set[str]] = 0, set()
        self._reduce_s = 0.0
        self._told_of_0 = False  # that the samples of a step count nothing
        for replica in self.replicas:
            ag_train(replica.model)
            replica.scale_gradients(self.optimizers.loss_scale)
        self._broadcast()

    def close(self) -> None:
        self.replicas.close()

    def state(self) -> dict[str, Any]:
        """Return its part of a `DPState`."""
        optimizers = self.optimizers.optimizers
        return {"seed": self.seed, "draws": self._draws or 0, "layers": modes_of(self.replicas.first.model),
                "weights": {name: p.numpy() for name, p in self.optimizers.params.items()},
                "buffers": self.replicas.first.buffers.named(self._buffers),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "rates": [optimizer.lr for optimizer in optimizers]}

    def restore(self, state: DPState) -> None:
        self.optimizers.load(state.weights, state.optimizers, state.rates)
        self._buffers = self.replicas.first.buffers.restored(state.buffers)
        for replica in self.replicas:
            replica.scale_gradients(self.optimizers.loss_scale)
            restore_modes(replica.model, state.layers)
        self._draws = state.draws if state.step else None  # the first step counts them
        self._broadcast()

    # -------------------------------------------------------------------------------------- a step

    def step(self, k: int, shard: Shard, dealt: Dealt, done: Callable[[float], None],
             cause: Callable[[], str | None]) -> None:
        """Make one optimizer step over all ranks' samples; an interrupt skips it, or comes after ``done(loss)``."""
        if current_seed() != self.seed:  # a callback has seeded the generator
            ag_seed(self.seed)
        looks = k & (k - 1) == 0 and (len(self.replicas) > 1 or self._ranks.size > 1)
        before = _numbers(self.replicas.first.model) if looks else {}
        nodes = self._compute(k, shard, dealt)
        for name, value in before.items():
            if (now := _numbers(self.replicas.first.model).get(name)) != value and value == value:
                raise CommError(f"dp_train: the model changes its own {name} from {value} to {now} in step {k}, and "
                                f"every replica would have a number of its own, so that results depend on how many "
                                f"there are; keep it in a buffer, or set it in a callback.")
        begin = perf_counter()
        counted, finite = self._reduce(k, nodes)
        loss, moved = float(self._mean[self._size]) if counted else nan, self._moved
        overflow = not finite and self.optimizers.scaled and isfinite(loss) and bool(np.isfinite(moved).all())  # of f16
        if counted and not finite and not overflow:
            self._nonfinite(k, nodes, cause)

        def end() -> None:
            if finite:
                self._note_used()
                self.optimizers.step()
                if moved.size:
                    with np.errstate(all="ignore"):
                        self._buffers = self._buffers + moved
                self._move_scale(0.0)
                self._broadcast(self._reached)
                self._reduce_s += perf_counter() - begin
            else:
                if overflow:
                    self._move_scale(1.0)
                self.replicas.send(lambda replica: replica.begin_anew())
            done(loss)

        self.endings.end_of_step(end)

    def _reduce(self, k: int, computed: list[list[Node]]) -> tuple[bool, bool]:
        """Compute the mean row over all samples of a step; return whether any counts, and whether it is finite."""
        nodes = self._ranks.nodes([node for of_replica in computed for node in of_replica],
                                  map(_used, self.replicas), self.endings.asked)
        count = sum_at(nodes, self._size + 1)
        if count == 0:
            say = log.debug if self._told_of_0 or self._ranks.rank else log.warning
            say("dp_train: the weights of the samples of step %d add up to 0; it has no loss and changes nothing.", k)
            self._told_of_0 = True
            return False, False
        return True, add_up(nodes, self._mean, count)

    def _compute(self, k: int, shard: Shard, dealt: Dealt) -> list[list[Node]]:
        shards = self.replicas.shards(k, shard, dealt)
        for replica in self.replicas:
            replica.counted = 0  # of an attempt that failed
        if self._draws is None and not self.replicas.synchronizes:
            counted = self._ranks.exchange(self.replicas.count_draws(k, shards))
            self._draws = next(draws for draws in counted if draws is not None)
        return self.replicas.compute(k, shards, k * -(-dealt.batch // dealt.stack), self._draws)

    def _note_used(self) -> None:
        """Tell the optimizers when samples use parameters for the first time, or when some are frozen."""
        frozen = {name for name, p in self.replicas.first.params.items() if not p.requires_grad}
        used = sum(map(len, map(_used, self.replicas))) + len(self._ranks.used), frozen
        if used != self._used:
            self._used = used
            self.optimizers.use(self._ranks.used.union(*map(_used, self.replicas)), frozen)

    def _move_scale(self, bad: float) -> None:
        """Update the loss scale of f16 gradients after a step, on the host and on all devices."""
        if not self.optimizers.scaled:
            return
        self.optimizers.move_loss_scale(bad)
        self.replicas.send(lambda replica: replica.scale_gradients(self.optimizers.loss_scale))

    def _reach(self) -> None:
        self._reached = self.optimizers.reach([replica.group for replica in self.replicas])

    def _broadcast(self, done: Collection[FlatGroup] = ()) -> None:
        """Send weights and buffers to all replicas; those in `done` have the weights already."""
        reached = len(done) == len(self.replicas)
        weights, buffers = None if reached else self.optimizers.weights(), self._buffers
        self.replicas.send(lambda replica: replica.load(None if replica.group in done else weights, buffers))

    def sent(self) -> Sent:
        """Return weights and buffers as all replicas have them now; later changes do not show."""
        return self.optimizers.lend(), self._buffers

    def follow(self, observed: Observed, since: int, sent: Sent) -> None:
        """Spread to all replicas what a callback has set since the time `since`, when all had `sent`."""
        observed.spread_settings()
        self.endings.renew()
        if not (self.optimizers.changed_since(since) or any(r.changed_since(since) for r in self.replicas)):
            return
        found = [(self.optimizers.followed(), self._buffers), *[r.followed() for r in self.replicas]]
        weights, buffers = observed.values((sent[0](), sent[1]), found)
        self._buffers = buffers
        self.replicas.compare("buffers", buffers, [r.buffers.read() for r in self.replicas],
                              "and a callback has set them there only; set them on all models")
        self.optimizers.take(weights)
        self._broadcast()

    def settle(self) -> None:
        """Restore all replicas to the last finished step, after an interrupted one."""
        self.replicas.settle(self.optimizers.weights(), self._buffers)

    def go_on_without(self, error: DeviceError) -> None:
        """Continue on the devices that still compute; raise `error` if all of them do, or none does."""
        failed = failed_among(r.device for r in self.replicas)
        before, left = len(self.replicas), sum(r.device not in failed for r in self.replicas)
        if left == 0:
            self._ranks.share([])
        if left in (0, before):
            raise error
        log.warning("dp_train: %s failed %s (%s); %d of %d replicas go on.", ", ".join(failed), self._ranks.where,
                    str(error).rstrip("."), left, before)
        self._ranks.share(self.replicas.go_on_without(failed))
        self._reach()

    def _nonfinite(self, k: int, nodes: list[list[Node]], cause: Callable[[], str | None]) -> None:
        for replica, of_replica in zip(self.replicas, nodes, strict=True):
            for _, _, row in of_replica:
                if np.isfinite(row).all():
                    continue
                bad = cause()
                message = f"dp_train: {replica.not_finite(row)} is not finite on {replica.name} in step {k}"
                message += "" if bad is None else f", as {bad}"
                if not self._skip:
                    advice = "Lower lr, set max_norm" if bad is None else "Fill in such values, leave the samples out"
                    raise FloatingPointError(f"{message}; weights are as before the step. {advice}, or pass "
                                             f"on_nonfinite='skip'.")
                log.warning("%s; the step is left out on all replicas.", message)
                return
        if not self._skip:
            self._ranks.exchange()  # raises the error of the rank that has it

    # -------------------------------------------------------------------------------------- checks and report

    def check_equal(self) -> None:
        """Raise a CommError if weights or buffers of a replica or rank differ from the host's in any bit."""
        host = {"weights": self.optimizers.weights(), "buffers": self._buffers}
        for part, theirs in zip(host, zip(*(r.state() for r in self.replicas), strict=True), strict=True):
            self.replicas.compare(part, host[part], theirs, "a transfer to that device is wrong")
        self._ranks.compare([(f"the SHA-256 of the {part}", digest(array)) for part, array in host.items()],
                            "the hosts compute differently, or an optimizer or a callback does other things on one of "
                            "them")

    def report(self) -> list[dict[str, Any]]:
        """Return a row per replica: device, driver, samples, milliseconds, bytes moved per step."""
        first = self.replicas.first
        moved = (first.row.size + first.group.size + first.buffers.size) * first.group.dtype.itemsize
        return [{**r.report(), "reduce_ms": self._reduce_s * 1e3, "bytes_per_step": moved, **self._ranks.report()}
                for r in self.replicas]


def _numbers(model: Model) -> dict[str, float]:
    """Return the numbers among the attributes of a model and its layers."""
    layers = model.modules() if isinstance(model, Layer) else [("", model)]
    return {".".join(filter(None, (name, attribute))): value for name, layer in layers
            for attribute, value in getattr(layer, "__dict__", {}).items() if type(value) in (int, float)}


class Endings:
    """A context in which Ctrl-C waits while a step ends; `renew` replaces a handler that the program has set since."""

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._busy = False
        self._came: tuple[int, FrameType | None] | None = None
        self.asked = False  # SIGTERM has come, after `listen`
        self._listens = False

    def __enter__(self) -> Endings:
        try:
            self.renew()
        except BaseException:  # Ctrl-C, when the handler was there already
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._handler)
        if self._listens and not self.asked:  # otherwise this process is leaving: a second one would cut that short
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def listen(self) -> None:
        """Let SIGTERM ask for the end, unless the program handles it."""
        if current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._listens = True
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True

    def renew(self) -> None:
        if current_thread() is not main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and handler != self._handle:
            self._handler = handler
            signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._busy:
            self._came = number, frame
        elif self._handler is not None:
            self._handler(number, frame)

    def end_of_step(self, end: Callable[[], None]) -> None:
        """Call `end`; Ctrl-C waits for it."""
        self._busy = True
        try:
            end()
        finally:
            self._busy = False
            came, self._came = self._came, None
            if came is not None:
                self._handle(*came)


class Job:
    """The loop over the steps of a training."""

    def __init__(self, given: SimpleNamespace, trainer: Trainer, ranks: Ranks, samples: Samples) -> None:
        self._given, self._trainer, self._ranks, self._samples = given, trainer, ranks, samples
        self._schedules = RateSchedules(given.scheduler, trainer.optimizers.optimizers)
        self._losses = np.zeros(given.n_iter)
        self._callback: Callable[[DPStep], object] | None = given.callback
        self._free = given.stack == "auto"  # stacks may have size 1 where no other is possible
        self._done = self._seen = 0  # steps, and those for which the callback has returned
        self._saved = -1
        self._watched = False  # whether samples are passed at once though nobody has asked for it
        if given.checkpoint is not None:
            to_json(self._schedules.state(), "the state of the scheduler", "dp_train")  # now, not after hours

    def begin(self, dealt: Dealt) -> None:
        self._samples.begin(self._trainer.seed, dealt.shuffle)
        self._dealt = dealt
        self._ranks.place = "in", 0
        reason = None
        if dealt.stack > 1:
            shard = self._shard(0)
            if self._free and not all_alike(self._samples if self._samples.held else shard.samples):
                reason = ""  # said in the documentation
            elif not self._trainer.replicas.synchronizes:
                reason = self._why_not_stacked(0, shard)
        reason = next((r for r in self._ranks.gather(reason) if r is not None), None)
        self._watched = self._free and reason is None and dealt.stack > 1 and not self._trainer.replicas.synchronizes
        if self._free and reason is not None:
            self._dealt = dealt._replace(stack=1)
        if reason and self._ranks.rank == 0:
            log.warning("dp_train: %s %s", reason, "Samples are passed one by one, which is slower." if self._free else
                        "Give stack=1 if that is not meant.")

    def _why_not_stacked(self, k: int, shard: Shard) -> str | None:
        """Return why the first stack of a step should not be passed at once, or None."""
        first = shard.part(0, self._dealt.stack)
        return self._trainer.replicas.why_not_stacked(first, k) if shard.start == 0 and len(first.samples) > 1 else None

    def restore(self, state: DPState, dealt: Dealt) -> None:
        if isinstance(self._callback, Stateful) and state.callback:
            self._callback.load_state_dict({**state.callback})
        old, seed = state.dealt, self._given.seed
        refuse_unlike(state, dealt, self._free, len(self._losses))
        if old.samples != dealt.samples:
            log.warning("dp_train: the checkpoint was made with %d samples and there are %d now; the job goes on with "
                        "these.", old.samples, dealt.samples)
        if seed is not None and seed & _64_BITS != state.seed:
            log.warning("dp_train: seed is %d and the checkpoint's is %d; the job goes on with that.", seed, state.seed)
        self._schedules.restore(state.step, state.schedules, state.rates)
        self._trainer.restore(state)  # and with it the rates that the schedules had set
        tell_of_unlike(state.made, self._made())
        self._losses[: state.step] = state.losses
        self._done, self._seen = state.step, state.seen
        self._saved = state.step if state.seen == state.step else -1
        self._samples.begin(self._trainer.seed, dealt.shuffle)
        self._dealt = dealt._replace(stack=old.stack)

    def _made(self) -> dict[str, str]:
        return {**self._trainer.optimizers.made(), **self._schedules.made(),
                "weight_fn": "None" if self._given.weight_fn is None else "a function",
                "sample_weight": checksum(self._samples.weights),
                "sync_batch_norm": str(self._trainer.replicas.synchronizes)}

    def _shard(self, k: int, until: int = 0) -> Shard:
        """Return this rank's samples of step `k`; those of the steps before `until` are prefetched."""
        batch = self._dealt.batch
        places = self._ranks.positions(batch)
        coming = [s * batch + j for s in range(k + 1, until) for j in places] if until > k + 1 else ()
        try:
            samples = self._samples.at(range(k * batch + places.start, k * batch + places.stop), coming)
        except Exception as error:  # of any kind, as users make the samples
            if self._ranks.size > 1:
                noted(error, f"dp_train: rank {self._ranks.rank} was asking for its samples of step {k}.")
            raise
        return weighed(samples, places.start, self._given.weight_fn)

    def run(self) -> DPResult:
        """Make the steps that are left, until the callback or Ctrl-C ends the job."""
        interrupted = False
        began, waited = perf_counter(), self._samples.waited_s
        endings = self._trainer.endings
        try:
            with endings:
                if self._given.checkpoint is not None:
                    endings.listen()
                self._steps(int(self._given.verbose or 0))
        except KeyboardInterrupt:
            if self._ranks.size > 1:  # the other ranks are told, and end with an error
                self._trainer.settle()
                self._save()
                raise
            interrupted = True
        if interrupted:
            log.warning("dp_train: interrupted after %d of %d steps; the result is what was trained so far.",
                        self._done, len(self._losses))
            self._trainer.settle()
        self._save()
        self._check()
        self._ranks.finish()
        if endings.asked or self._ranks.leaves:
            raise SystemExit(128 + signal.SIGTERM)
        replicas, losses = self._trainer.replicas, self._losses[: self._done]
        waited = self._samples.waited_s - waited
        waiting = {"data_wait_ms": waited * 1e3, "data_wait_share": waited / (perf_counter() - began)}
        return DPResult(replicas.first.params, losses, float(losses[-1]) if self._done else float("nan"),
                        replicas.first.model, [r.device for r in replicas],
                        [{**row, **waiting} for row in self._trainer.report()], self._trainer.optimizers.state(),
                        interrupted)

    def _steps(self, verbose: int) -> None:
        steps, asked = len(self._losses), any(self._ranks.gather(self._callback is not None))
        if asked and self._seen < self._done and self._asked_to_end(self._done - 1):
            return
        shows = verbose and self._ranks.rank == 0 and shows_bars()
        with closing(tqdm(total=steps, initial=self._done, disable=not shows, desc="dp_train", leave=False,
                          file=Forgiving(sys.stderr))) as bar:
            for k in range(self._done, steps):
                self._ranks.place, self._ranks.begun = ("in", k), True
                self._step(k)
                self._ranks.place = "after", k
                if (k + 1) % CHECK_EVERY == 0:
                    self._check()
                bar.update()
                if verbose and self._ranks.rank == 0 and ((k + 1) % verbose == 0 or k + 1 == steps):
                    bar.set_postfix(loss=f"{self._losses[k]:.6g}", refresh=False)
                    with tqdm.external_write_mode():
                        write_line(f"dp_train: step {k + 1}/{steps}, loss {self._losses[k]:.6g}")
                if (asked and self._asked_to_end(k)) or self._ranks.leaves:
                    return
                if self._given.checkpoint_every and (k + 1) % self._given.checkpoint_every == 0:
                    self._save()

    def _step(self, k: int) -> None:
        """Make a step, again each time that a rank or a device is lost before it is done."""
        while True:
            shard = self._shard(k, min(k + 1 + self._samples.ahead, len(self._losses)))
            looks = self._watched and k > 0 and k & (k - 1) == 0
            if looks and (reason := self._why_not_stacked(k, shard)) is not None:
                raise ValueError(f"dp_train: {reason} That was not so in the first step, and is in step {k}; give "
                                 f"stack=1.")
            try:
                return self._trainer.step(k, shard, self._dealt, self._finished, partial(self._bad_values, k, shard))
            except RankLostError:
                pass
            except DeviceError as error:
                self._trainer.go_on_without(error)
                self._trainer.settle()
            except Exception:
                self._trainer.settle()  # a step that fails changes nothing
                raise

    def _bad_values(self, k: int, shard: Shard) -> str | None:
        place = k * self._dealt.batch + shard.start
        return bad_values(self._samples.numbered(shard.samples, place), self._samples.columns)

    def _check(self) -> None:
        while True:
            try:
                return self._trainer.check_equal()
            except DeviceError as error:
                self._trainer.go_on_without(error)

    def _finished(self, loss: float) -> None:
        self._losses[self._done] = loss
        self._done += 1  # before a scheduler, which may raise
        self._schedules.step()

    def _asked_to_end(self, k: int) -> bool:
        """Call the callback and spread what it sets; return whether that of any rank ends the job."""
        end = False
        if self._callback is not None:
            models = [r.model for r in self._trainer.replicas]
            observed, since, sent = Observed([*self._trainer.replicas]), now(), self._trainer.sent()
            returned = self._callback(DPStep(k, float(self._losses[k]), models, self._ranks))
            end = isinstance(returned, (bool, np.bool_)) and not returned
            self._trainer.follow(observed, since, sent)
        self._seen = k + 1
        return any(self._ranks.gather(end))

    def _save(self) -> None:
        """Write the checkpoint unless this step's is there."""
        if self._given.checkpoint is not None and self._ranks.rank == 0 and self._saved != self._done:
            k = self._done
            told: Mapping[str, Any] = self._callback.state_dict() if isinstance(self._callback, Stateful) else {}
            save_state(self._given.checkpoint, DPState(
                k, self._dealt, losses=self._losses[:k], schedules=self._schedules.state(), callback=told,
                seen=self._seen if self._callback else k, made=self._made(), **self._trainer.state()))
            self._saved = k
