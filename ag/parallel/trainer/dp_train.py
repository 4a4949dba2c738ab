"""`dp_train`: data-parallel training; one replica per device, one optimizer step on the host, equal bits everywhere.

A step of 8 samples on two devices, each of which has a shard of 4:

    cpu      samples 0-3, forward, backward   ->  gradients of 0-3
    cpu:1    samples 4-7, forward, backward   ->  gradients of 4-7
    host     tree sum, / 8, clip, optimizers  ->  weights, to cpu and cpu:1

All devices start before any is waited for.  Gradients are summed in one fixed tree (`ag.parallel.comm.tree_reduction`)
and divided once by the number of samples; the optimizers step once, on the host; the new weights and buffers go to
every replica.  So replicas stay equal to the bit, on any mix of devices, and any number of them gives the same result.

This module checks the arguments and runs the loop: samples, schedules, checkpoints, callbacks.  It does not know how
gradients come about, which the `Trainer` knows.  Users and `start` call it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from tqdm import tqdm

from ag.autograd.tensor import Tensor
from ag.engine.device import ag_default_device, ag_device, canonical, is_accelerator
from ag.engine.devices import default_devices
from ag.engine.primitive import Array
from ag.engine.random import ag_seed
from ag.engine.registry import accelerator_titles
from ag.errors import CheckpointError
from ag.io.safetensors_file import to_json
from ag.optim.adam import Adam
from ag.optim.optimizer import Optimizer
from ag.parallel.comm.comm import Comm
from ag.parallel.trainer.checkpoint import DPState, save_state
from ag.parallel.trainer.host_optimizer import RateSchedules
from ag.parallel.trainer.load_balance import AutoBalance, Balance
from ag.parallel.trainer.ranks import Ranks
from ag.parallel.trainer.replica import LossOf
from ag.parallel.trainer.trainer import Trainer

__all__ = ["DPResult", "DPStep", "dp_train"]

log = logging.getLogger("ag")


@dataclass(frozen=True)
class DPStep:
    """What a callback is given after every step.

    Attributes
    ----------
    step : int
        Number of the step, from 0.
    loss : float
        Mean loss over the step's samples.
    models : list
        The replicas' models, with the new weights.
    """

    step: int
    loss: float
    models: list[Any]


@dataclass(frozen=True)
class DPResult:
    """What `dp_train` returns; ``result["loss"]`` works like ``result.loss``.

    Attributes
    ----------
    params : dict of str to Tensor
        Final parameters, on replica 0's device.
    loss_history : ndarray of shape (n_iter,)
        Mean loss of every step, before its update.
    loss : float
        The last of them.
    model : object
        Replica 0's model; its buffers are those of all replicas.
    devices : list of str
        Device of every replica.
    report : list of dict
        Per replica: ``replica``, ``device``, ``driver``; ``samples`` of all steps and ``shard``, those of the last one;
        over all steps ``compute_ms`` that the device has worked on them, ``elapsed_ms`` from giving it the work to
        having the sums on the host, ``wait_ms`` from then until the last replica had its own, ``reduce_ms`` for sums,
        optimizer and new weights; ``bytes_per_step`` moved both ways.  `compute_ms` is from the device's timestamps
        where ``clock`` is ``"device"``: those of the first two steps and every 16th, as they cost time; a sample of
        the steps between counts as long as one of the last such step.  Where it is ``"host"``, there are none, and
        it is `elapsed_ms`.
        Of the world, ``rank``; ``exchange_ms``, which is part of ``reduce_ms``; ``wire_bytes_per_step``, what this rank
        sent to others in the last step.
    optimizer_state : dict of str to ndarray, or list of dict
        State of the optimizer, to go on with; a list if `optimizer` made a list.
    """

    params: dict[str, Tensor]
    loss_history: Array
    loss: float
    model: Any
    devices: list[str]
    report: list[dict[str, Any]]
    optimizer_state: dict[str, Array] | list[dict[str, Array]] = field(repr=False)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def dp_train(
    make_model: Callable[[], Any],
    data: Sequence[Any],
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
    seed: int | None = None,
    balance: str | Sequence[float] = "equal",
    on_nonfinite: str = "raise",
    sync_batch_norm: bool = False,
    capture: bool | str = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    timeout: float = 600.0,
    world: Comm | None = None,
    callback: Callable[[DPStep], None] | None = None,
) -> DPResult:
    """Train one model on several devices at once, each working on its own samples.

    Parameters
    ----------
    make_model : callable
        Returns a new model: an object with ``forward(x)`` and ``parameters()``.  Called once per replica.
    data : sequence
        Training samples; any objects that `forward_fn` understands.
    loss_fn : callable, optional
        ``loss_fn(output, target)``: a loss of one element.  Without it, the output is the loss.
    forward_fn : callable, optional
        ``forward_fn(model, sample)``: the output.  Default: ``model.forward(sample)``.
    target_fn : callable, optional
        ``target_fn(sample)``: the target.  Default: the sample itself.
    n_gpu : int, optional
        Number of replicas.  Default: one per Vulkan device, at least one.  More replicas than devices share them.
    n_iter : int, optional
        Number of optimizer steps.
    lr : float, optional
        Learning rate of Adam.
    max_norm : float, optional
        Clip the global gradient norm, over all parameters that an optimizer has, to this.
    verbose : int, bool or None, optional
        Print the loss every `verbose` steps; True: every step; False, 0 or None: never.
    devices : sequence of str, optional
        Device of every replica, instead of `n_gpu`.
    optimizer : callable, optional
        ``optimizer(params)``: another optimizer, such as ``lambda p: optimizer_sgd(p, lr=0.1)``, or a list of several
        that share the parameters.  A parameter that none has is frozen, and named once in the log.
    scheduler : callable, optional
        ``scheduler(optimizer)``: an object whose ``step()`` is called after every step.  Called for each optimizer.
    micro_batch : int, optional
        Samples per replica and pass.
    accumulate : int, optional
        Passes per optimizer step.
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
        File to write the job's state to, at the end and every `checkpoint_every` steps.
    checkpoint_every : int, optional
        Default: only at the end.
    resume : bool, optional
        Go on from `checkpoint` if that file exists; `n_iter` counts the steps done before, too.
    timeout : float, optional
        Seconds after which a device that has not finished its part of a step is given up; ``math.inf``: never.  A
        single device has none to tell of it, and no limit.
    world : communicator, optional
        This rank's place among others that train the same model, each with devices of its own.  All ranks give the same
        arguments, but for `n_gpu`, `devices` and `balance`.
    callback : callable, optional
        Called with a `DPStep` after every step, on every rank.

    Returns
    -------
    DPResult
        With ``params``, ``loss_history``, ``loss``, ``model``, ``devices``, ``report``.

    Raises
    ------
    ValueError
        If there are no samples, an argument is out of range, or `optimizer` makes no optimizers of the parameters.
    FloatingPointError
        If a loss or gradient is not finite, naming replica, step and parameter; weights are those before the step.
    CommError
        If replicas differ in their parameters or buffers, or a device did not finish in time, naming replica and step;
        if ranks were given different arguments, or another rank failed or did not come in time, naming rank and step.
    DeviceError
        If a device is not there.
    CheckpointError
        If `checkpoint` cannot be read or belongs to another trainer.

    Notes
    -----
    With B = replicas * `micro_batch` * `accumulate`, step k uses samples ``(k*B + j) mod len(data)`` for
    j = 0..B-1, and replica i gets the i-th contiguous share of them; a step never uses a sample twice.  Samples are
    passed to `forward_fn` one by one.  Gradients of summed losses and the number of samples are reduced in one fixed
    tree and divided once: for the same B, any number of replicas on like devices gives the same parameters, buffers,
    optimizer state and losses, to the bit.  So does a resumed job, also with another number of replicas.  The default
    device is the same after as before.

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
    cannot be ended: after a timeout, do not use its device until the call has returned.  Every 100 steps, and at the
    end, the SHA-256 of every replica's parameters, and of its buffers, is compared with the host's.

    With a `world`, replicas are those of all ranks, in the order of ranks, and all of the above holds for them: the
    result is to the bit that of one process with all devices.  A rank asks `data` for its own samples only.  Rank 0
    gives weights, seed and checkpoint to all, and alone prints and saves; ``balance="auto"`` moves samples between
    the replicas of a rank.  In a step, sums of gradients are exchanged once; ``report`` has the bytes.  A rank that
    fails raises its own error and all others a CommError that names it.  Ranks that are threads of one process must
    not share a device.

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
    _check_arguments(data, n_gpu, n_iter, max_norm, verbose, micro_batch, accumulate, on_nonfinite, capture, devices,
                    timeout)
    if sync_batch_norm and capture is True:
        raise ValueError("dp_train: capture=True was given with sync_batch_norm; the samples then wait for each other, "
                         "which a captured step cannot: use capture='auto'.")
    if (resume or checkpoint_every is not None) and checkpoint is None:
        raise ValueError("dp_train: resume or checkpoint_every was given without checkpoint; name the file.")
    with Ranks(world) as ranks, ag_device(ag_default_device()), ExitStack() as stack:
        if sync_batch_norm and ranks.size > 1:
            raise ValueError(f"dp_train: sync_batch_norm was given with a world of {ranks.size} ranks, and it works "
                             f"between replicas of one rank only; use one rank with all devices, or layer norm.")
        names = _replica_devices(n_gpu, devices)
        shares = _balance_of(balance, names)
        ranks.meet([("samples per replica", micro_batch * accumulate), ("len(data)", len(data)), ("n_iter", n_iter),
                    ("lr", lr), ("max_norm", max_norm), ("on_nonfinite", on_nonfinite), ("resume", resume)],
                   shares.weights, names)
        state = ranks.state(checkpoint) if resume and checkpoint is not None else None
        if seed is not None or state is not None:
            ag_seed(state.seed if state is not None else seed or 0)
        make_optimizer = optimizer or (lambda params: Adam(params, lr=lr))
        loss_of = _loss_rule(loss_fn, forward_fn, target_fn)
        trainer = stack.enter_context(closing(Trainer(make_model, names, loss_of, capture, make_optimizer, max_norm,
                                                      on_nonfinite, shares, timeout, sync_batch_norm, ranks)))
        schedules = RateSchedules(scheduler, trainer.optimizers.optimizers)
        if checkpoint is not None:
            to_json(schedules.state(), "the state of the scheduler", "dp_train")  # now, not after hours
        batch = min(ranks.replicas * micro_batch * accumulate, len(data))
        mine, losses = ranks.positions(batch), np.zeros(n_iter)
        held = isinstance(data, (list, tuple))  # other sequences may make their samples anew each time
        done = _restored(trainer, state, batch, losses, schedules)
        verbose = verbose if ranks.rank == 0 else None
        bar = tqdm(range(done, n_iter), disable=not (verbose and sys.stderr.isatty()), desc="dp_train", leave=False)
        for k in bar:
            ranks.where = f"in step {k}"
            indices = [(j, (k * batch + j) % len(data)) for j in mine]
            losses[k] = trainer.step(k, [(j, i if held else None, data[i]) for j, i in indices], batch)
            ranks.where = f"after step {k}"
            schedules.step()
            if verbose and ((k + 1) % int(verbose) == 0 or k + 1 == n_iter):
                bar.write(f"dp_train: step {k + 1}/{n_iter}, loss {losses[k]:.6g}")
            if callback is not None:
                callback(DPStep(k, float(losses[k]), [r.model for r in trainer.replicas]))
            due = k + 1 == n_iter or (checkpoint_every and (k + 1) % checkpoint_every == 0)
            if checkpoint is not None and due and ranks.rank == 0:
                save_state(checkpoint, trainer.state(k + 1, batch, losses[: k + 1], schedules.state()))
        trainer.check_equal()
        ranks.finish()
        first = trainer.replicas[0]
        return DPResult(first.params, losses, float(losses[-1]) if n_iter else float("nan"), first.model, names,
                        trainer.report(), trainer.optimizers.state())


def _restored(trainer: Trainer, state: DPState | None, batch: int, losses: Array, schedules: RateSchedules) -> int:
    """Load the checkpoint's state, if there is one; the number of steps done."""
    if state is None:
        return 0
    if state.batch != batch:
        raise CheckpointError(f"dp_train: the checkpoint was made with {state.batch} samples per step and the job has "
                              f"{batch}; choose micro_batch so that replicas * micro_batch * accumulate is "
                              f"{state.batch}.")
    if state.step > len(losses) or len(state.losses) != state.step:
        raise CheckpointError(f"dp_train: the checkpoint is at step {state.step} and holds {len(state.losses)} losses, "
                              f"and n_iter is {len(losses)}; n_iter counts all steps, those done before too.")
    schedules.restore(state.step, state.schedules)
    trainer.restore(state)  # and with it the rates that the schedules had set
    losses[: state.step] = state.losses
    return state.step


def _check_arguments(data: Sequence[Any], n_gpu: int | None, n_iter: int, max_norm: float, verbose: int | None,
                    micro_batch: int, accumulate: int, on_nonfinite: str, capture: bool | str,
                    devices: Sequence[str] | None, timeout: float) -> None:
    """Refuse arguments that are out of range, before a model is built."""
    if len(data) == 0:
        raise ValueError("dp_train: data is empty; at least one sample is required.")
    for name, value, least in (("n_gpu", n_gpu, 1), ("n_iter", n_iter, 0), ("micro_batch", micro_batch, 1),
                               ("accumulate", accumulate, 1), ("verbose", verbose, 0)):
        if value is not None and (int(value) != value or value < least):
            raise ValueError(f"dp_train: {name} is {value!r}; a whole number of at least {least} is required.")
    for name, limit in (("max_norm", max_norm), ("timeout", timeout)):
        if not limit > 0:
            raise ValueError(f"dp_train: {name} is {limit}; it must be positive.")
    if on_nonfinite not in ("raise", "skip"):
        raise ValueError(f"dp_train: on_nonfinite is {on_nonfinite!r}; use 'raise' or 'skip'.")
    if capture not in (True, False, "auto"):
        raise ValueError(f"dp_train: capture is {capture!r}; use True, False or 'auto'.")
    if devices is not None and n_gpu is not None and len(devices) != n_gpu:
        raise ValueError(f"dp_train: n_gpu is {n_gpu} and devices names {len(devices)}; give one of them, or as many.")


def _balance_of(balance: str | Sequence[float], names: list[str]) -> Balance:
    """The shares of the replicas."""
    if balance == "auto":
        return AutoBalance(names)
    weights = [1.0] * len(names) if isinstance(balance, str) else [float(w) for w in balance]
    if balance != "equal" and (isinstance(balance, str) or len(weights) != len(names) or min(weights) < 0
                               or not sum(weights) > 0):
        raise ValueError(f"dp_train: balance is {balance!r}; use 'equal', 'auto', or {len(names)} weights, none "
                         f"negative.")
    return Balance(weights)


def _replica_devices(n_gpu: int | None, devices: Sequence[str] | None) -> list[str]:
    """The device of every replica: as told, or dealt out over all accelerators, or CPU devices."""
    if devices is not None:
        if not devices:
            raise ValueError("dp_train: devices is empty; name at least one.")
        return [canonical(d) for d in devices]
    names = default_devices(n_gpu)
    if not is_accelerator(names[0]):
        log.warning("dp_train: no %s device was found; %d replica(s) run on the CPU. "
                    "`python -m ag devices` says what is missing.", accelerator_titles(), len(names))
    return names


def _loss_rule(loss_fn: Callable[[Tensor, Any], Tensor] | None, forward_fn: Callable[[Any, Any], Tensor] | None,
               target_fn: Callable[[Any], Any] | None) -> LossOf:
    """The loss of a sample, from the three functions that a user gives."""
    def loss_of(model: Any, sample: Any) -> Tensor:
        output: Tensor = model.forward(sample) if forward_fn is None else forward_fn(model, sample)
        return output if loss_fn is None else loss_fn(output, sample if target_fn is None else target_fn(sample))

    return loss_of
