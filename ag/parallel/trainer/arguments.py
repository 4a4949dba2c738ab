"""The arguments of `dp_train`: what is wrong is named before a model is built, and what was not given is chosen.

`dealing` chooses how many samples a step has, and how many are passed at once.

Knows names, numbers and devices' names; no model and no sample.  `dp_train` calls it first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import isfinite
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from ag.engine.device import canonical, default_devices, is_accelerator, is_software, was_named
from ag.engine.registry import accelerator_titles, list_devices, unusable_devices
from ag.errors import CheckpointError
from ag.io.safetensors_file import check_writable
from ag.log import log
from ag.parallel.trainer.load_balance import AutoBalance, Balance

__all__ = ["UnwritableError", "balance_of", "check_arguments", "check_path", "dealing",
           "replica_devices"]

_WHOLE = {"n_gpu": 1, "n_iter": 0, "micro_batch": 1, "accumulate": 1, "batch": 1, "checkpoint_every": 1}
_OPTIONAL = ("n_gpu", "batch", "checkpoint_every")
_FUNCTIONS = ("loss_fn", "forward_fn", "target_fn", "optimizer", "scheduler", "weight_fn", "callback")
_SWITCHES = ("shuffle", "sync_batch_norm", "resume")


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments of `dp_train`, given by name, that are of a wrong kind or out of range."""
    _check_functions(given)
    for name, least in _WHOLE.items():
        _check_whole(name, given[name], least, name in _OPTIONAL)
    if given["verbose"] is not None and not isinstance(given["verbose"], (bool, np.bool_)):
        _check_whole("verbose", given["verbose"], 0, False)
    if isinstance(given["stack"], str) or given["stack"] is None:
        _one_of("stack", given["stack"], ("auto",), "or a whole number of at least 1")
    else:
        _check_whole("stack", given["stack"], 1, False)
    seed = given["seed"]
    if seed is not None and not _is_whole(seed):
        raise ValueError(f"dp_train: seed is {seed!r}; a whole number, or None, is required.")
    for name in ("max_norm", "timeout"):
        if not _is_number(given[name]) or not given[name] > 0:
            raise ValueError(f"dp_train: {name} is {given[name]!r}; it must be a positive number.")
    lr = given["lr"]
    if not _is_number(lr) or not isfinite(lr) or lr < 0:
        raise ValueError(f"dp_train: lr is {lr!r}; it must be a finite number of at least 0.")
    _one_of("on_nonfinite", given["on_nonfinite"], ("raise", "skip"))
    if not isinstance(given["capture"], (bool, np.bool_)):
        _one_of("capture", given["capture"], ("auto",), "True or False")
    for name in _SWITCHES:
        if not isinstance(given[name], (bool, np.bool_)):
            raise ValueError(f"dp_train: {name} is {given[name]!r}; True or False is required.")
    _check_devices(given["devices"], given["n_gpu"])
    _check_checkpoint(given)
    if given["sync_batch_norm"] and given["capture"] is True:
        raise ValueError("dp_train: capture=True was given with sync_batch_norm; the samples then wait for each other, "
                         "which a captured step cannot: use capture='auto'.")


class UnwritableError(CheckpointError, OSError):
    """A checkpoint's path to which nothing can be written; saving would raise an OSError."""


def check_path(path: str | os.PathLike[str], resume: bool) -> Path:
    """Try whether a checkpoint can be written there, log if it will replace another, and return the absolute path."""
    try:
        check_writable(path, "dp_train")
    except CheckpointError as error:
        raise UnwritableError(str(error)) from error
    if not resume and os.path.exists(path):
        log.warning("dp_train: %s is there and will be replaced, as resume is False; resume=True goes on from it.",
                    os.fspath(path))
    return Path(path).absolute()  # now: the user's functions may change the directory


def _check_functions(given: Mapping[str, Any]) -> None:
    make_model = given["make_model"]
    is_model = callable(getattr(make_model, "parameters", None)) and not isinstance(make_model, type)
    if is_model or not callable(make_model):
        raise TypeError(f"dp_train: make_model is a {type(make_model).__name__}; a function that returns a new model "
                        f"for each replica is required, such as `lambda: ag.ag_linear(2, 1)`.")
    for name in _FUNCTIONS:
        function = given[name]
        if function is not None and not callable(function):
            raise TypeError(f"dp_train: {name} is a {type(function).__name__}; a function is required, or None."
                            + (" Give one that makes it of the parameters, such as `lambda params: "
                               "ag.optimizer_sgd(params, lr=0.1)`." if name == "optimizer" else ""))


def _is_whole(value: object) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, (bool, np.ndarray)) and not hasattr(
        value, "requires_grad")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _check_whole(name: str, value: Any, least: int, optional: bool) -> None:
    if value is None and optional:
        return
    if not _is_whole(value) or index(value) < least:
        raise ValueError(f"dp_train: {name} is {value!r}; a whole number of at least {least} is required.")


def _one_of(name: str, value: object, words: tuple[str, ...], more: str = "") -> None:
    if not (isinstance(value, str) and value in words):
        allowed = " or ".join([*map(repr, words), *([more.removeprefix("or ")] if more else [])])
        raise ValueError(f"dp_train: {name} is {value!r}; use {allowed}.")


def _check_devices(devices: Any, n_gpu: int | None) -> None:
    if devices is None:
        return
    if isinstance(devices, str) or not isinstance(devices, Sequence) or not all(isinstance(d, str) for d in devices):
        raise TypeError(f"dp_train: devices is {devices!r}; a list of names is required, such as ['cpu', 'cpu:1'].")
    if not devices:
        raise ValueError("dp_train: devices is empty; name at least one.")
    if n_gpu is not None and len(devices) != n_gpu:
        raise ValueError(f"dp_train: n_gpu is {n_gpu} and devices names {len(devices)}; give one of them, or as many.")


def _check_checkpoint(given: Mapping[str, Any]) -> None:
    path = given["checkpoint"]
    if path is None:
        if given["resume"] or given["checkpoint_every"] is not None:
            raise ValueError("dp_train: resume or checkpoint_every was given without checkpoint; name the file.")
    elif not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"dp_train: checkpoint is {path!r}; the name of a file is required.")


# ---------------------------------------------------------------------------------------------- what follows from them


def dealing(samples: int, replicas: int, micro_batch: int, accumulate: int, batch: int | None,
            stack: int | str) -> tuple[int, int]:
    """How many samples a step has, and how many of them are passed at once where they are alike."""
    usual = replicas * micro_batch * accumulate
    if batch is not None and accumulate != 1 and batch != usual:
        raise ValueError(f"dp_train: batch is {batch}, and {replicas} replica(s) * micro_batch={micro_batch} * "
                         f"accumulate={accumulate} make {usual} samples per step; give batch, or accumulate.")
    wanted = usual if batch is None else batch
    if batch is not None and batch > samples:
        log.warning("dp_train: batch is %d and there are %d samples; a step has all of them.", batch, samples)
    each = micro_batch if isinstance(stack, str) else stack
    return min(wanted, samples), min(each, wanted, samples)


def replica_devices(n_gpu: int | None, devices: Sequence[str] | None) -> list[str]:
    """The device of every replica: as told, or the default device, or dealt out over all cards, or CPU devices."""
    if devices is not None:
        return [canonical(d) for d in devices]
    names = default_devices(n_gpu)
    if not was_named() and not is_accelerator(names[0]):
        why = " ".join(unusable_devices()).rstrip(".") or _why_no_card()
        log.warning("dp_train: %s; %d replica(s) run on the CPU. `python -m ag devices` says what is missing.", why,
                    len(names))
    return names


def _why_no_card() -> str:
    software = ", ".join(info.name for info in list_devices(accelerators_only=True) if is_software(info))
    found = f"no {accelerator_titles()} device was found"
    return f"{found} but software ({software}), which is used by name only" if software else found


def balance_of(balance: str | Sequence[float], names: list[str]) -> Balance:
    """The shares of the replicas."""
    if isinstance(balance, str) and balance == "auto":
        return AutoBalance(names)
    if isinstance(balance, str) and balance == "equal":
        return Balance([1.0] * len(names))
    try:
        weights = [] if isinstance(balance, str) else [float(w) for w in balance]
    except (TypeError, ValueError):
        weights = []
    if len(weights) != len(names) or not all(isfinite(w) and w >= 0 for w in weights) or not 0 < sum(weights) < np.inf:
        raise ValueError(f"dp_train: balance is {balance!r}; use 'equal', 'auto', or {len(names)} weights, finite and "
                         f"none negative.")
    return Balance(weights)
