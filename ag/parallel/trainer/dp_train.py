"""`dp_train`: data-parallel training; one replica per device, one optimizer step on the host, equal bits everywhere.

This module runs the loop: samples, schedules, checkpoints, callbacks, Ctrl-C; and a step again if a device or a rank
was lost before it was done.  It does not know how gradients come about, which the `Trainer` knows.  Users, `start`,
`fit` and `find_lr` call it.

A step of 8 samples on two devices, each of which has a shard of 4:

    cpu      samples 0-3, forward, backward   ->  gradients of 0-3
    cpu:1    samples 4-7, forward, backward   ->  gradients of 4-7
    host     tree sum, / 8, clip, optimizers  ->  weights, to cpu and cpu:1

All devices start before any is waited for.  Gradients are summed in one fixed tree (`ag.parallel.comm.tree_reduction`)
and divided once by what the samples count together: their number, unless `weight_fn` says otherwise; the optimizers
step once, on the host; the new weights and buffers go to every replica.  So replicas stay equal to the bit, on any mix
of devices, and any number of them gives the same result.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from tqdm import tqdm

from ag.autograd.tensor import Tensor
from ag.data.dataloader import DataLoader
from ag.engine.arena import now
from ag.engine.device import same_default
from ag.engine.output import Forgiving, shows_bars, write_line
from ag.engine.random import ag_seed, go_on_after
from ag.errors import DeviceError, RankLostError
from ag.io.safetensors_file import to_json
from ag.log import log
from ag.names import answers
from ag.names.elsewhere import TRAINING_ARGUMENTS
from ag.optim.optimizer import Optimizer
from ag.optim.rules import Adam
from ag.parallel.comm.comm import Comm, HasComm
from ag.parallel.comm.device_threads import noted
from ag.parallel.trainer.arguments import balance_of, check_arguments, check_path, dealing, replica_devices
from ag.parallel.trainer.callbacks import Observed, Stateful
from ag.parallel.trainer.checkpoint import Dealt, DPState, refuse_unlike, save_state, tell_of_unlike
from ag.parallel.trainer.host_optimizer import RateSchedules
from ag.parallel.trainer.ranks import Ranks
from ag.parallel.trainer.result import DPResult, DPStep
from ag.parallel.trainer.samples import Samples, loss_of
from ag.parallel.trainer.stacks import Shard, all_alike, weighed
from ag.parallel.trainer.trainer import Trainer

__all__ = ["DPResult", "DPStep", "dp_train"]

CHECK_EVERY = 100  # steps between checks that all replicas have the weights and buffers of the host
_64_BITS = (1 << 64) - 1


@answers("dp_train", TRAINING_ARGUMENTS)
def dp_train(
    make_model: Callable[[], Any],
    data: Sequence[Any] | DataLoader,
    loss_fn: Callable[[Tensor, Any], Tensor] | None = None,
    forward_fn: Callable[[Any, Any], Tensor] | None = None,
    target_fn: Callable[[Any], Any] | None = None,
    n_gpu: int | None = None,
    n_iter: int = 10,
    lr: float = 1e-3,
    max_norm: float = inf,
    verbose: bool | int | None = 10,
    *,
    devices: Sequence[str] | None = None,
    optimizer: Callable[[dict[str, Tensor]], Optimizer | Sequence[Optimizer]] | None = None,
    scheduler: Callable[[Optimizer], Any] | None = None,
    micro_batch: int = 1,
    accumulate: int = 1,
    batch: int | None = None,
    stack: int | str = "auto",
    shuffle: bool = True,
    weight_fn: Callable[[Any], float] | None = None,
    seed: int | None = None,
    balance: str | Sequence[float] = "equal",
    on_nonfinite: str = "raise",
    sync_batch_norm: bool = False,
    capture: bool | str = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    timeout: float = 600.0,
    world: Comm | HasComm | None = None,
    callback: Callable[[DPStep], object] | None = None,
) -> DPResult:
    """Train one model on several devices at once, each working on its own samples.

    Parameters
    ----------
    make_model : callable
        Returns a new model: an object with ``forward(x)`` and ``parameters()``.  Called once per replica.
    data : sequence, `ag_dataloader` or `ag_image_folder`
        Training samples, any objects that `forward_fn` understands, with ``len(data)`` and ``data[i]``.  A loader is
        asked for its samples one by one: each has ``x`` and ``y``, with one sample on the last axis.  Its threads make
        those of the next ``prefetch`` steps while devices work.
    loss_fn : callable, optional
        ``loss_fn(output, target)``: a loss of one element, the mean over the samples it is given.  Without it, the
        output is the loss.
    forward_fn : callable, optional
        ``forward_fn(model, sample)``: the output.  Default: ``model.forward(sample)``, or ``model.forward(sample.x)``
        where data is a loader.  What it makes of a sample with numpy, such as a slice, cannot be replayed; make it in
        ``data[i]``.
    target_fn : callable, optional
        ``target_fn(sample)``: the target.  Default: the sample itself, or ``sample.y``.
    n_gpu : int, optional
        Number of replicas.  Default: one on the device that `ag_device` was given, else one per card, else one on the
        CPU.  More replicas than cards share them.  Software drivers are used only by name, or with ``AG_SOFTWARE=1``.
    n_iter : int, optional
        Number of optimizer steps.
    lr : float, optional
        Learning rate of Adam.  An `optimizer` has its own; a warning in the log says so where the two differ.
    max_norm : float, optional
        Clip the global gradient norm, over all parameters that an optimizer has, to this.
    verbose : int, bool or None, optional
        Print the loss every `verbose` steps; True: every step; False, 0 or None: never.
    devices : sequence of str, optional
        Device of every replica, instead of `n_gpu`.  Default: those of `world`, if it has some.
    optimizer : callable, optional
        ``optimizer(params)``: another optimizer, such as ``lambda p: optimizer_sgd(p, lr=0.1)``, or a list of several
        that share the parameters.  A parameter that none has is frozen, and named once in the log.
    scheduler : callable, optional
        ``scheduler(optimizer)``: an object whose ``step()`` is called after every step.  Called for each optimizer.
    micro_batch : int, optional
        Samples per replica and pass; where it is 1 and data is a loader, the loader's ``batch_size``.
    accumulate : int, optional
        Passes per optimizer step.
    batch : int, optional
        Samples per step of the whole job, whatever the replicas and ranks; default: replicas * `micro_batch` *
        `accumulate`.  Never more than there are.
    stack : int or "auto", optional
        How many samples are passed at once; see Notes.  "auto": `micro_batch` where all samples are arrays and numbers
        of one structure and shape, and where the loss of a stack is the mean of its samples' losses; else 1.
    shuffle : bool, optional
        Begin every pass over the data in a new order, which follows from the seed and the pass alone.  False: sample
        ``(k * batch + j) % len(data)`` is at place j of step k, as in ggmlR.
    weight_fn : callable, optional
        ``weight_fn(sample)``: what the sample counts, such as its size where samples are batches; default: 1.
    seed : int, optional
        Call `ag_seed` with it first.
    balance : "equal", "auto" or sequence of float, optional
        Share of the samples for each replica; "auto": by its measured speed.
    on_nonfinite : {"raise", "skip"}, optional
        What to do if a loss or gradient is not finite: raise, or leave that step's update out on all replicas.
    sync_batch_norm : bool, optional
        Let every batch norm use the statistics of all samples of a step, on all replicas; otherwise each sample is
        normalised on its own.  Steps are uncaptured then.
    capture : bool or "auto", optional
        Replay captured steps; "auto" where possible.
    checkpoint : path, optional
        File to write the job's state to, at the end, after Ctrl-C and every `checkpoint_every` steps; whether it can
        be written is tried before the first step.
    checkpoint_every : int, optional
        Default: only at the end.
    resume : bool, optional
        Go on from `checkpoint` if that file exists, with its seed, learning rates, order and stacks; `n_iter` counts
        the steps done before, too.  What the optimizers, `max_norm`, schedules or `weight_fn` are otherwise is said in
        the log, and the job's own hold.  Without it a file that is there is replaced, which the log says.
    timeout : float, optional
        Seconds after which a device that has not finished its part of a step is given up; ``math.inf``: never.  A
        single device has none to tell of it, and no limit.
    world : communicator or DistributedWorld, optional
        This rank's place among others that train the same model, each with devices of its own.  All ranks give the same
        arguments, but for `n_gpu`, `devices` and `balance`.
    callback : callable, optional
        Called with a `DPStep` after every step, on every rank.  If it returns False, on any rank, the job ends with
        what was trained so far.  If it has `state_dict` and `load_state_dict`, a checkpoint holds its state, too.

    Returns
    -------
    DPResult
        With ``params``, ``loss_history``, ``loss``, ``model``, ``devices``, ``report``, ``interrupted``.

    Raises
    ------
    ValueError
        If there are no samples, an argument is out of range, `optimizer` makes no optimizers of the parameters, or the
        loss of a stack turns out not to be the mean of its samples' losses.
    TypeError
        If an argument is of a wrong kind, such as a model in the place of `make_model`.
    CaptureError
        If a replayed step turns out to differ from what the functions do; with ``capture=True``, if a step cannot be
        captured.
    FloatingPointError
        If a loss or gradient is not finite, naming replica, step and parameter; weights are those before the step.
    CommError
        If replicas differ in their parameters or buffers, or a device did not finish in time, naming replica and step;
        if ranks were given different arguments, or another rank failed or did not come in time, naming rank and step;
        if ranks were lost and those that are left may not go on.
    DeviceError
        If a device is not there, or none is left.
    CheckpointError
        If `checkpoint` cannot be read or written, or belongs to another trainer.

    Notes
    -----
    A step takes the next `batch` samples; replica i gets the i-th contiguous share of them.  The places of a step are
    cut into stacks of n, and the samples of a stack are passed to `forward_fn` at once, as one sample of the same
    structure with the samples on the last axis.  An array whose last axis has one element is joined along it, as that
    is its axis of samples; any other array, and a number, gets a new last axis::

        a sample           {"x": array of shape (4, 1), "label": array of shape (1,), "image": (3, 8, 8), "w": 0.5}
        a stack of 32      {"x": (4, 32), "label": (32,), "image": (3, 8, 8, 32), "w": (32,)}

    A stack counts n times what a sample counts, so its loss must be a mean over its samples.  In the
    first step, and with ``stack="auto"`` in some later ones, the loss of one stack is compared with those of its
    samples, in eval mode.  Batch norm in train mode is over the stack.  Samples of a stack that differ in structure,
    shape, type or `weight_fn` are passed one by one.

    Sums of gradients, times what each stack counts, are reduced in one fixed tree, whose leaves are the stacks, and
    divided once: for the same batch and stack, any number of replicas on like devices that get whole stacks gives the
    same parameters, buffers, optimizer state and losses, to the bit; with ``stack=1``, any number at all.  So does a
    resumed job, also with another number of replicas.  (On the CPU, BLAS libraries round products with inner axes of
    several hundred elements otherwise with one thread than with more: where replicas share the cores, set one thread
    for all jobs to compare, such as by ``OPENBLAS_NUM_THREADS=1``.)  The default device is the same after as before;
    the random generator goes on from a seed that follows from the job's, whatever the replicas.

    ``capture="auto"`` replays what was computed twice in the same way, and computes in Python where functions do
    something else for every sample, which is said once; where a difference shows later, the job ends with an error.

    Weights, modes, ``requires_grad``, and numbers, strings and functions in attributes that a callback sets on the
    model of any replica hold for all; buffers, and other objects, are to be set on all models alike.  After Ctrl-C
    between or in two steps the result is that of the steps done, with ``interrupted`` set; it is raised before the
    first step, and where there are several ranks.  A resumed job begins with the call of the callback that was
    interrupted.

    With a `checkpoint`, SIGTERM on any rank ends all of them after the same step: the checkpoint is written, and
    `SystemExit` raised with status 143, so that a job that was told to go can be resumed.  A handler of the program's
    own is left alone.

    Buffers, such as running statistics, move once in a step: every sample begins with the same ones, and they move by
    the mean over all samples, also where each sample is normalised on its own.  Those of another type than the
    gradients (float32 for 16-bit models), or with infinities in them, are constants.

    Several optimizers step together, each has a schedule of its own, and a parameter may be in one of them only.  A
    checkpoint holds parameters, buffers, optimizers, learning rates and what schedules with `state_dict` and
    `load_state_dict` say, as JSON; others are stepped anew as often as before.  Files of versions that kept no buffers
    load if the model has none.

    A step is done on all replicas or on none.  What `forward_fn` raises on one of them comes out with a line that names
    it (on Python 3.11 or later), when the others have finished; weights are as before the step, and a job with a
    checkpoint goes on from there.  Of several devices each has a thread, which calls `forward_fn`.  One that hangs
    cannot be ended: after a timeout, do not use its device until the call has returned.  Without a device that fails
    with a DeviceError the others make the step again, and go on.  Every 100 steps, and at the end, the SHA-256 of every
    replica's parameters, and of its buffers, is compared with the host's.

    With a `world`, replicas are those of all ranks, in the order of ranks, and all of the above holds for them: the
    result is to the bit that of one process with all devices.  A rank asks `data` for its own samples only.  Rank 0
    gives weights, seed and checkpoint to all, and alone prints and saves; ``balance="auto"`` moves samples between
    the replicas of a rank.  In a step, sums of gradients are exchanged once; ``report`` has the bytes.  A rank that
    fails raises its own error and all others a CommError that names it.  Without a rank that is lost, as its process
    was killed or its host is cut off, the others make the step again, and go on, if they are more than half of the
    ranks, or half of them with the lowest.  Ranks that are threads of one process must not share a device.

    References
    ----------
    ggmlR ``dp_train``.

    Examples
    --------
    >>> import ag, numpy as np
    >>> data = [np.full((2, 1), i / 8) for i in range(8)]
    >>> result = ag.dp_train(lambda: ag.ag_linear(2, 2), data, ag.ag_mse_loss, n_gpu=2, n_iter=5,
    ...                      devices=["cpu", "cpu:1"], verbose=False)
    >>> result.loss_history.shape
    (5,)
    """
    check_arguments(locals())
    samples = Samples(data)  # whose threads begin with the first step
    if samples.loader is not None and batch is None and micro_batch == 1:
        micro_batch = samples.loader.batch_size
    with Ranks(world) as ranks, same_default(), ExitStack() as held:
        if sync_batch_norm and ranks.size > 1:
            raise ValueError(f"dp_train: sync_batch_norm was given with a world of {ranks.size} ranks, and it works "
                             f"between replicas of one rank only; use one rank with all devices, or layer norm.")
        path = None if checkpoint is None or ranks.rank else check_path(checkpoint, resume)
        if n_gpu is None and devices is None:
            devices = getattr(world, "devices", None)
        names = replica_devices(n_gpu, devices)
        shares = balance_of(balance, names)
        ranks.meet([("samples per replica", micro_batch * accumulate), ("len(data)", len(samples)), ("n_iter", n_iter),
                    ("lr", lr), ("max_norm", max_norm), ("on_nonfinite", on_nonfinite), ("resume", resume),
                    ("batch", batch), ("stack", stack), ("shuffle", shuffle), ("weight_fn", weight_fn is not None)],
                   shares.weights, names)
        state = ranks.state(checkpoint) if resume and checkpoint is not None else None
        if seed is not None or state is not None:
            ag_seed(state.seed if state is not None else seed or 0)
        trainer = held.enter_context(closing(Trainer(
            make_model, names, partial(loss_of, loss_fn, forward_fn, target_fn), capture,
            optimizer or partial(Adam, lr=lr), max_norm, on_nonfinite, shares, timeout, sync_batch_norm, ranks)))
        held.callback(go_on_after, trainer.seed)
        trainer.optimizers.tell_of_unused(lr)
        held.callback(samples.close)
        batch, each = dealing(len(samples), ranks.replicas, micro_batch, accumulate, batch, stack)
        ordered = bool(shuffle) and (samples.loader is None or samples.loader.shuffle)
        job = _Job(trainer, ranks, samples, RateSchedules(scheduler, trainer.optimizers.optimizers), weight_fn,
                   np.zeros(n_iter), path, checkpoint_every, callback)
        if state is not None:
            job.restore(state, Dealt(batch, each, ordered, len(samples)), stack == "auto", seed)
        else:
            job.begin(Dealt(batch, each, ordered, len(samples)), stack == "auto")
        return job.run(int(verbose or 0))


class _Job:
    """The loop over steps, and how far it is."""

    def __init__(self, trainer: Trainer, ranks: Ranks, samples: Samples, schedules: RateSchedules,
                 weight_fn: Callable[[Any], float] | None, losses: np.ndarray[Any, Any],
                 checkpoint: Path | None, every: int | None,
                 callback: Callable[[DPStep], object] | None) -> None:
        self._trainer, self._ranks, self._samples, self._schedules = trainer, ranks, samples, schedules
        self._weight_fn, self._losses = weight_fn, losses
        self._checkpoint, self._every, self._callback = checkpoint, every, callback
        self._done = self._seen = 0  # steps, and those for which the callback has returned
        self._saved = -1
        self._watched = False  # whether samples are passed at once though nobody has asked for it
        if checkpoint is not None:
            to_json(schedules.state(), "the state of the scheduler", "dp_train")  # now, not after hours

    # -------------------------------------------------------------------------------------- before the first step

    def begin(self, dealt: Dealt, free: bool) -> None:
        """Begin with the first step; `free`: whether the size of stacks may be 1 where it cannot be another."""
        self._samples.begin(self._trainer.seed, dealt.shuffle)
        self._dealt = dealt
        self._ranks.place = "in", 0
        reason = None
        if dealt.stack > 1:
            shard = self._shard(0)
            if free and not all_alike(self._samples if self._samples.held else shard.samples):
                reason = ""  # said in the documentation
            elif not self._trainer.replicas.synchronizes:
                reason = self._why_not_stacked(0, shard)
        reason = next((r for r in self._ranks.gather(reason) if r is not None), None)
        self._watched = free and reason is None and dealt.stack > 1 and not self._trainer.replicas.synchronizes
        if free and reason is not None:
            self._dealt = dealt._replace(stack=1)
        if reason and self._ranks.rank == 0:
            log.warning("dp_train: %s %s", reason, "Samples are passed one by one, which is slower." if free else
                        "Give stack=1 if that is not meant.")

    def _why_not_stacked(self, k: int, shard: Shard) -> str | None:
        """Why the first stack of a step should not be passed at once; None if it may, or another rank has it."""
        first = shard.part(0, self._dealt.stack)
        return self._trainer.replicas.why_not_stacked(first, k) if shard.start == 0 and len(first.samples) > 1 else None

    def restore(self, state: DPState, dealt: Dealt, free: bool, seed: int | None) -> None:
        """Go on from a checkpoint."""
        if isinstance(self._callback, Stateful) and state.callback:
            self._callback.load_state_dict(state.callback)
        old = state.dealt
        refuse_unlike(state, dealt, free, len(self._losses))
        if old.samples not in (0, dealt.samples):
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
        """What the steps are made with, in words."""
        return {**self._trainer.optimizers.made(), **self._schedules.made(),
                "weight_fn": "None" if self._weight_fn is None else "a function",
                "sync_batch_norm": str(self._trainer.replicas.synchronizes)}

    def _shard(self, k: int, until: int = 0) -> Shard:
        """This rank's samples of a step; those of the steps after it, before `until`, are made ahead."""
        batch = self._dealt.batch
        places = self._ranks.positions(batch)
        coming = [s * batch + j for s in range(k + 1, until) for j in places] if until > k + 1 else ()
        try:
            samples = self._samples.at(range(k * batch + places.start, k * batch + places.stop), coming)
        except Exception as error:  # of any kind, as users make the samples
            if self._ranks.size > 1:
                noted(error, f"dp_train: rank {self._ranks.rank} was asking for its samples of step {k}.")
            raise
        return weighed(samples, places.start, self._weight_fn)

    # -------------------------------------------------------------------------------------- the steps

    def run(self, verbose: int) -> DPResult:
        """Make all steps that are left, or as many as the callback or Ctrl-C allow."""
        interrupted = False
        began, waited = perf_counter(), self._samples.waited_s
        endings = self._trainer.endings
        try:
            with endings:
                if self._checkpoint is not None:
                    endings.listen()
                self._steps(verbose)
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
                if self._every and (k + 1) % self._every == 0:
                    self._save()

    def _step(self, k: int) -> None:
        """Make a step; again, by those that are left, as often as a rank or a device is lost before it is done."""
        while True:
            shard = self._shard(k, min(k + 1 + self._samples.ahead, len(self._losses)))
            looks = self._watched and k > 0 and k & (k - 1) == 0
            if looks and (reason := self._why_not_stacked(k, shard)) is not None:
                raise ValueError(f"dp_train: {reason} That was not so in the first step, and is in step {k}; give "
                                 f"stack=1.")
            try:
                return self._trainer.step(k, shard, self._dealt, self._finished)
            except RankLostError:
                pass
            except DeviceError as error:
                self._trainer.go_on_without(error)
                self._trainer.settle()

    def _check(self) -> None:
        """Compare all replicas with the host; nothing is made again if a device is lost in between."""
        while True:
            try:
                return self._trainer.check_equal()
            except DeviceError as error:
                self._trainer.go_on_without(error)

    def _finished(self, loss: float) -> None:
        """A step is done on all replicas."""
        self._losses[self._done] = loss
        self._schedules.step()
        self._done += 1

    def _asked_to_end(self, k: int) -> bool:
        """Call the callback and let what it sets hold for all replicas; whether it, or that of a rank, ends the job."""
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
        """Write the checkpoint, unless it is there already."""
        if self._checkpoint is not None and self._saved != self._done:
            k = self._done
            state = self._trainer.state(k, self._dealt, self._losses[:k], self._schedules.state())
            if isinstance(self._callback, Stateful):
                state = replace(state, callback=self._callback.state_dict())
            save_state(self._checkpoint, replace(state, seen=self._seen if self._callback else k, made=self._made()))
            self._saved = k
