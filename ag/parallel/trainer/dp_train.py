"""`dp_train`: data-parallel training; one replica per device, one optimizer step on the host, equal bits everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from math import inf
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ag.autograd.tensor import Tensor
from ag.data.dataloader import DataLoader
from ag.engine.device import canonical, default_devices, is_accelerator, is_software, same_default, was_named
from ag.engine.random import ag_seed, go_on_after
from ag.engine.registry import accelerator_titles, list_devices, unusable_devices
from ag.engine.shape import counts, is_whole
from ag.errors import CheckpointError
from ag.io.safetensors_file import check_writable
from ag.log import log
from ag.optim.optimizer import Optimizer
from ag.optim.settings import number_or_nan
from ag.parallel.comm.comm import Comm, HasComm
from ag.parallel.trainer.callbacks import DPResult, DPStep
from ag.parallel.trainer.checkpoint import Dealt
from ag.parallel.trainer.host_optimizer import LOSSES, named, optimizer_for, schedule_for
from ag.parallel.trainer.replicas import Ranks, balance_of
from ag.parallel.trainer.samples import Samples, Weighted, refuse_unweighted, sample_weights
from ag.parallel.trainer.trainer import Job, Trainer

__all__ = ["DPResult", "DPStep", "dp_train", "start"]


def dp_train(make_model: Callable[[], Any], data: Sequence[Any] | DataLoader,
             loss_fn: Callable[..., Tensor] | str | None = None,
             forward_fn: Callable[[Any, Any], Tensor] | None = None, target_fn: Callable[[Any], Any] | None = None,
             n_gpu: int | None = None, n_iter: int = 10, lr: float = 1e-3, max_norm: float = inf,
             verbose: bool | int | None = 10, *, devices: Sequence[str] | None = None,
             optimizer: Callable[[dict[str, Tensor]], Optimizer | Sequence[Optimizer]] | str | None = None,
             scheduler: Callable[[Optimizer], Any] | str | None = None,
             micro_batch: int = 1, accumulate: int = 1, batch: int | None = None, stack: int | str = "auto",
             shuffle: bool = True, weight_fn: Callable[[Any], float] | None = None, seed: int | None = None,
             balance: str | Sequence[float] = "equal", on_nonfinite: str = "raise", sync_batch_norm: bool = False,
             capture: bool | str = "auto", checkpoint: str | os.PathLike[str] | None = None,
             checkpoint_every: int | None = None, resume: bool = False, timeout: float = 600.0,
             world: Comm | HasComm | None = None, callback: Callable[[DPStep], object] | None = None,
             sample_weight: object = None, class_weight: object = None) -> DPResult:
    """Train one model on several devices at once, each working on its own samples.

    docs/parallel.md says what is promised, and how stacks, order, weights, callbacks and ranks work.
    Reference: ggmlR ``dp_train``.

    Parameters
    ----------
    make_model : callable
        Returns a new model: an object with ``forward(x)`` and ``parameters()``.  Called once per replica.
    data : sequence, `ag_dataloader` or `ag_image_folder`
        Samples, any objects that `forward_fn` understands, with ``len(data)`` and ``data[i]``.  Those of a loader have
        ``x`` and ``y``, with one sample on the last axis; its threads make those of the next ``prefetch`` steps.
    loss_fn : callable or str, optional
        ``loss_fn(output, target)``: a loss of one element, the mean over the samples it is given; or "cross_entropy",
        "mse", "l1", "huber" or "bce_with_logits".  Without it, the output is the loss.
    forward_fn : callable, optional
        ``forward_fn(model, sample)``: the output; default: ``model.forward(sample)``, or of a loader's ``sample.x``.
        What it makes of a sample with numpy, such as a slice, cannot be replayed; make it in ``data[i]``.
    target_fn : callable, optional
        ``target_fn(sample)``: the target; default: the sample itself, or ``sample.y``.
    n_gpu : int, optional
        Number of replicas; more than cards share them.  Default: one on the device that `ag_device` was given, else one
        per card, else one on the CPU.
    n_iter : int, optional
        Number of optimizer steps.
    lr : float, optional
        Learning rate of Adam, and of an optimizer that is named; one that is made has its own.
    max_norm : float, optional
        Clip the global gradient norm, over all parameters that an optimizer has, to this.
    verbose : int, bool or None, optional
        Print the loss every `verbose` steps; True: every step; False, 0 or None: never.
    devices : sequence of str, optional
        Device of every replica, instead of `n_gpu`.  Default: those of `world`, if it has some.
    optimizer : callable or str, optional
        ``optimizer(params)``, such as ``lambda p: optimizer_sgd(p, lr=0.1)``, or several in a list, which share the
        parameters, each in one only; or "adam", "adamw" or "sgd".  What none has is frozen, and named once in the log.
    scheduler : callable or str, optional
        ``scheduler(optimizer)``, called for each optimizer: an object whose ``step()`` is called after every step.  Or
        a name or class as of `fit`, for `n_iter` steps.
    micro_batch, accumulate : int, optional
        Samples per replica and pass, of a loader by default its ``batch_size``; and passes per optimizer step.
    batch : int, optional
        Samples per step of the whole job; default: replicas * `micro_batch` * `accumulate`.  Never more than there are.
    stack : int or "auto", optional
        How many samples are passed at once; see Notes.  "auto": `micro_batch` where samples are alike, and the loss of
        a stack is the mean of its samples' losses; else 1.
    shuffle : bool, optional
        Begin every pass over the data in a new order, by the seed.  False: sample ``(k * batch + j) % len(data)`` is at
        place j of step k, as in ggmlR.
    weight_fn : callable, optional
        ``weight_fn(sample)``: what the sample counts, such as its size where samples are batches; default: 1.
    seed : int, optional
        Call `ag_seed` with it first.
    balance : "equal", "auto" or sequence of float, optional
        Share of the samples for each replica; "auto": by its measured speed, within a rank.
    on_nonfinite : {"raise", "skip"}, optional
        What to do if a loss or gradient is not finite: raise, or leave that step's update out on all replicas.
    sync_batch_norm : bool, optional
        Let every batch norm use the statistics of all samples of a step, uncaptured, on all replicas of one rank.
    capture : bool or "auto", optional
        Replay captured steps; "auto": what was computed twice in the same way, and the rest in Python.
    checkpoint, checkpoint_every : path and int, optional
        File for the job's state at the end, after Ctrl-C and every so many steps; tried before the first.
    resume : bool, optional
        Go on from `checkpoint` if that file exists, with its seed, learning rates, order and stacks; else it is
        replaced.  `n_iter` counts the steps done before, too.  Where other arguments differ, the job's own hold.
    timeout : float, optional
        Seconds for a device's part of a step before it is given up; ``math.inf``: never.  A single device has no limit.
    world : communicator or DistributedWorld, optional
        This rank's place among others that train the same model, each with devices of its own.  All ranks give the same
        arguments, but for `n_gpu`, `devices` and `balance`.
    callback : callable, optional
        Called with a `DPStep` after every step, on every rank.  If it returns False, on any rank, the job ends with
        what was trained so far.  If it has `state_dict` and `load_state_dict`, a checkpoint holds its state, too.
    sample_weight : array_like of float, optional
        What each sample of `data` counts, instead of `weight_fn`.  The loss gets those of a stack as ``sample_weight``,
        and is their weighted mean; samples with other weights are passed at once, too.
    class_weight : "balanced" or dict of class to float, optional
        What the samples of each class count, times `sample_weight`; for loaders of arrays, and lists of pairs.

    Returns
    -------
    DPResult

    Raises
    ------
    ValueError, TypeError
        If there are no samples, an argument is out of range or of a wrong kind, `optimizer` makes no optimizers of the
        parameters, or the loss of a stack turns out not to be the mean of its samples' losses.
    CaptureError
        If a replay turns out to differ from what the functions do; with ``capture=True``, if it is not possible.
    FloatingPointError
        If a loss or gradient is not finite, naming replica, step and parameter; weights are those before the step.
    CommError, DeviceError
        If replicas or ranks differ, a device or rank is not there, does not finish in time or fails, naming it and the
        step, or too few are left.
    CheckpointError
        If `checkpoint` cannot be read or written, or belongs to another trainer.

    Notes
    -----
    A stack is passed to `forward_fn` as one sample of the same structure with the samples on the last axis.  An array
    whose last axis has one element is joined along it; others, and numbers, get a new last axis::

        a sample           {"x": array of shape (4, 1), "label": array of shape (1,), "image": (3, 8, 8), "w": 0.5}
        a stack of 32      {"x": (4, 32), "label": (32,), "image": (3, 8, 8, 32), "w": (32,)}

    The loss of a stack must be the mean over its samples; some steps compare, in eval mode.  Samples that differ in
    structure, shape, type or `weight_fn` are passed one by one.

    For the same batch and stack, any replicas and ranks on like devices that get whole stacks give the same result to
    the bit; with ``stack=1``, any at all.  So does a resumed job.  The random generator goes on from a seed that
    follows from the job's.

    Weights, modes, ``requires_grad``, and numbers, strings and functions in attributes that a callback sets on the
    model of any replica hold for all; buffers, and other objects, are to be set on all models alike.  After Ctrl-C the
    result is that of the steps done, with ``interrupted`` set; it is raised before the first step, and where there are
    several ranks.  With a `checkpoint`, SIGTERM on any rank ends all of them after the same step, by `SystemExit` 143.

    Buffers, such as running statistics, move once in a step, by the mean over all samples.  Those of another type than
    the gradients (float32 for 16-bit models), or with infinities in them, are constants.  A checkpoint holds what
    schedules with `state_dict` and `load_state_dict` say, as JSON; others are stepped anew.

    Examples
    --------
    >>> import ag, numpy as np
    >>> data = [np.full((2, 1), i / 8) for i in range(8)]
    >>> result = ag.dp_train(lambda: ag.ag_linear(2, 2), data, ag.ag_mse_loss, n_gpu=2, n_iter=5,
    ...                      devices=["cpu", "cpu:1"], verbose=False)
    >>> result.loss_history.shape
    (5,)
    """
    given = SimpleNamespace(**locals())
    given.loss_fn = named("dp_train", "loss_fn", LOSSES, loss_fn)
    given.optimizer = None if optimizer is None else optimizer_for("dp_train", optimizer, lr=lr)
    given.scheduler = schedule_for("dp_train", scheduler, int(n_iter) if counts(n_iter) else 1)
    _check_arguments(given)
    samples = Samples(data)  # whose threads begin with the first step
    samples.weights = sample_weights("dp_train", len(samples), sample_weight, class_weight, samples.targets)
    if samples.weights is not None:
        if weight_fn is not None:
            raise ValueError("dp_train: weight_fn is given, and sample_weight or class_weight; give one of them.")
        refuse_unweighted("dp_train", given.loss_fn)
        given.weight_fn = Weighted.total
    if samples.loader is not None and batch is None and micro_batch == 1:
        micro_batch = samples.loader.batch_size
    with ExitStack() as held:
        ranks = held.enter_context(Ranks(world))  # which tells others of an error
        held.enter_context(same_default())
        if sync_batch_norm and ranks.size > 1:
            raise ValueError(f"dp_train: sync_batch_norm was given with a world of {ranks.size} ranks, and it works "
                             f"between replicas of one rank only; use one rank with all devices, or layer norm.")
        if checkpoint is not None:
            if ranks.rank == 0:
                _check_path(checkpoint, resume)
            # Absolute on each rank: the user's functions may change the directory, and any rank may become rank 0.
            given.checkpoint = Path(checkpoint).absolute()
        if n_gpu is None and devices is None:
            devices = getattr(world, "devices", None)
        names = _replica_devices(n_gpu, devices)
        shares = balance_of(balance, names)
        ranks.meet([("samples per replica", micro_batch * accumulate), ("len(data)", len(samples)),
                    *((name, getattr(given, name)) for name in _ALIKE), ("weight_fn", given.weight_fn is not None)],
                   shares.weights, names)
        state = ranks.state(checkpoint) if resume and checkpoint is not None else None
        if seed is not None or state is not None:
            ag_seed(state.seed if state is not None else seed or 0)
        trainer = held.enter_context(closing(Trainer(given, names, shares, ranks)))
        held.callback(go_on_after, trainer.seed)
        trainer.optimizers.tell_of_unused(lr)
        held.callback(samples.close)
        ordered = bool(shuffle) and (samples.loader is None or samples.loader.shuffle)
        dealt = Dealt(*_dealing(len(samples), ranks.replicas, micro_batch, accumulate, batch, stack), ordered,
                      len(samples))
        job = Job(given, trainer, ranks, samples)
        if state is None:
            job.begin(dealt)
        else:
            job.restore(state, dealt)
        return job.run()


def start(loss: Callable[[Tensor, Any], Tensor], data: Sequence[Any] | DataLoader, model_fn: Callable[[], Any],
          workers: int | None = None, *, cycles: int = 1, batchsize: int = 48, nsamples: int | None = None,
          opt: Callable[[dict[str, Tensor]], Optimizer] | None = None, verbose: bool = False,
          devices: Sequence[str] | None = None, world: Comm | HasComm | None = None, **options: Any) -> DPResult:
    """Train a model on several devices, as many cycles through its samples as asked for.

    Reference: ResNetImageNet.jl ``start``, which draws with replacement and has each worker step an optimizer.

    Parameters
    ----------
    loss : callable
        ``loss(output, target)``: a loss of one element, the mean over the samples it is given.
    data : sequence of pairs, `ag_dataloader` or `ag_image_folder`
        ``(input, target)`` of each sample, tensors or arrays; or a loader, whose own batch size does not count.
    model_fn : callable
        Returns a new model.
    workers : int, optional
        As `n_gpu` of `dp_train`, which also says what is raised.
    cycles : int, optional
        How often each worker takes `nsamples` samples.
    batchsize : int, optional
        Samples per worker and step.
    nsamples : int, optional
        Samples per worker and cycle; default: its share of `data`, so that a cycle is a pass through all.
    opt : callable, optional
        ``opt(params)``: the optimizer; default: Adam.
    verbose : bool, optional
        Print the loss of every step.
    devices, world : optional
        As of `dp_train`; the workers of all ranks share the samples.
    **options : object
        Passed on to `dp_train`, such as ``seed``, ``lr``, ``shuffle``, ``stack`` or ``checkpoint``.

    Returns
    -------
    DPResult

    Examples
    --------
    >>> import ag, numpy as np
    >>> data = [(np.ones((2, 1)), np.ones((1, 1)))] * 2
    >>> done = ag.start(ag.ag_mse_loss, data, lambda: ag.ag_linear(2, 1), cycles=3, batchsize=1, devices=["cpu"] * 2)
    >>> len(done.loss_history)
    3
    """
    for name, value in (("cycles", cycles), ("batchsize", batchsize), ("nsamples", nsamples), ("workers", workers)):
        if value is not None and value < 1:
            raise ValueError(f"start: {name} is {value}; it must be at least 1.")
    samples = data.n_samples if isinstance(data, DataLoader) else len(data)
    if not samples:
        raise ValueError("start: data is empty; give at least one (input, target) pair.")
    if devices is None and workers is None:
        devices = getattr(world, "devices", None)
    mine = len(devices) if devices is not None else workers or len(default_devices())
    with Ranks(world) as ranks:
        count = max(1, sum(ranks.gather(mine)))
        ranks.finish()
    if nsamples is None:
        each = min(batchsize, -(-samples // count))
        step = options.get("batch") or each * count * options.get("accumulate", 1)
        steps = cycles * -(-samples // step)
    else:
        each, steps = min(batchsize, nsamples), cycles * -(-nsamples // batchsize)
    return dp_train(model_fn, data, loss, lambda model, sample: model.forward(sample[0]), itemgetter(1), workers, steps,
                    verbose=verbose, devices=devices, optimizer=opt, micro_batch=each, world=world, **options)


def _is_switch(x: object) -> bool:
    return isinstance(x, (bool, np.bool_))


def _is_one_of(x: object, *words: str) -> bool:
    return isinstance(x, str) and x in words


_ALIKE = ("n_iter", "lr", "max_norm", "on_nonfinite", "resume", "batch", "stack", "shuffle")  # on all ranks
_FUNCTIONS = ("loss_fn", "forward_fn", "target_fn", "optimizer", "scheduler", "weight_fn", "callback")
_COUNT, _FROM_0 = (f"a whole number of at least {least} is required" for least in (1, 0))
_CHECKS: list[tuple[Sequence[str], Callable[[Any], bool], str]] = [  # arguments, what they must be, how messages say so
    (("n_gpu", "batch", "checkpoint_every"), lambda x: x is None or counts(x), _COUNT),
    (("micro_batch", "accumulate"), counts, _COUNT),
    (("n_iter",), lambda x: counts(x, least=0), _FROM_0),
    (("verbose",), lambda x: x is None or _is_switch(x) or counts(x, least=0), _FROM_0),
    (("stack",), lambda x: _is_one_of(x, "auto") or counts(x), "use 'auto' or a whole number of at least 1"),
    (("seed",), lambda x: x is None or (is_whole(x) and not _is_switch(x)), "a whole number, or None, is required"),
    (("max_norm", "timeout"), lambda x: number_or_nan(x) > 0, "it must be a positive number"),
    (("lr",), lambda x: 0 <= number_or_nan(x) < inf, "it must be a finite number of at least 0"),
    (("on_nonfinite",), lambda x: _is_one_of(x, "raise", "skip"), "use 'raise' or 'skip'"),
    (("capture",), lambda x: _is_switch(x) or _is_one_of(x, "auto"), "use 'auto' or True or False"),
    (("shuffle", "sync_batch_norm", "resume"), _is_switch, "True or False is required"),
]


def _check_arguments(given: SimpleNamespace) -> None:
    _check_functions(given)
    for names, is_right, required in _CHECKS:
        for name in names:
            if not is_right(getattr(given, name)):
                raise ValueError(f"dp_train: {name} is {getattr(given, name)!r}; {required}.")
    check_devices("dp_train", given.devices)
    if given.devices is not None and given.n_gpu not in (None, len(given.devices)):
        raise ValueError(f"dp_train: n_gpu is {given.n_gpu} and devices names {len(given.devices)}; give one of them.")
    if given.checkpoint is None:
        if given.resume or given.checkpoint_every is not None:
            raise ValueError("dp_train: resume or checkpoint_every was given without checkpoint; name the file.")
    elif not isinstance(given.checkpoint, (str, os.PathLike)):
        raise TypeError(f"dp_train: checkpoint is {given.checkpoint!r}; the name of a file is required.")
    if given.sync_batch_norm and given.capture is True:
        raise ValueError("dp_train: capture=True was given with sync_batch_norm; the samples then wait for each other, "
                         "which a captured step cannot: use capture='auto'.")


class UnwritableError(CheckpointError, OSError):
    """Raised for a checkpoint's path to which nothing can be written."""


def _check_path(path: str | os.PathLike[str], resume: bool) -> None:
    """Try whether a checkpoint can be written there, and log if it will replace another."""
    try:
        check_writable(path, "dp_train")
    except CheckpointError as error:
        raise UnwritableError(str(error)) from error
    if not resume and os.path.exists(path):
        log.warning("dp_train: %s is there and will be replaced, as resume is False; resume=True goes on from it.",
                    os.fspath(path))


def _check_functions(given: SimpleNamespace) -> None:
    make_model = given.make_model
    is_model = callable(getattr(make_model, "parameters", None)) and not isinstance(make_model, type)
    if is_model or not callable(make_model):
        raise TypeError(f"dp_train: make_model is a {type(make_model).__name__}; a function that returns a new model "
                        f"for each replica is required, such as `lambda: ag.ag_linear(2, 1)`.")
    for name in _FUNCTIONS:
        function = getattr(given, name)
        if function is not None and not callable(function):
            raise TypeError(f"dp_train: {name} is a {type(function).__name__}; a function is required, or None."
                            + (" Give one that makes it of the parameters, such as `lambda params: "
                               "ag.optimizer_sgd(params, lr=0.1)`." if name == "optimizer" else ""))


def check_devices(function: str, devices: object) -> None:
    if devices is None:
        return
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not all(isinstance(d, str) for d in devices):
        raise TypeError(f"{function}: devices is {devices!r:.60}; a list of names is needed, such as ['cpu', 'cpu:1'].")
    if not devices:
        raise ValueError(f"{function}: devices is empty; name at least one.")


def _dealing(samples: int, replicas: int, micro_batch: int, accumulate: int, batch: int | None,
            stack: int | str) -> tuple[int, int]:
    """Return the samples per step, and how many of them are passed at once where they are alike."""
    usual = replicas * micro_batch * accumulate
    if batch is not None and accumulate != 1 and batch != usual:
        raise ValueError(f"dp_train: batch is {batch}, and {replicas} replica(s) * micro_batch={micro_batch} * "
                         f"accumulate={accumulate} make {usual} samples per step; give batch, or accumulate.")
    wanted = usual if batch is None else batch
    if batch is not None and batch > samples:
        log.warning("dp_train: batch is %d and there are %d samples; a step has all of them.", batch, samples)
    each = micro_batch if isinstance(stack, str) else stack
    return min(wanted, samples), min(each, wanted, samples)


def _replica_devices(n_gpu: int | None, devices: Sequence[str] | None) -> list[str]:
    """Return the device of every replica: the given ones, the default device, all cards, or CPU devices."""
    if devices is not None:
        return [canonical(d) for d in devices]
    names = default_devices(n_gpu)
    if not was_named() and not is_accelerator(names[0]):
        why = " ".join(unusable_devices()).rstrip(".")
        software = ", ".join(info.name for info in list_devices(accelerators_only=True) if is_software(info))
        found = f"no {accelerator_titles()} device was found" + (
            f" but software ({software}), which is used by name only" if software else "")
        say = log.warning if why else log.info
        say("dp_train: %s; %d replica(s) run on the CPU. `python -m ag devices` says what is missing.",
            why or found, len(names))
    return names
