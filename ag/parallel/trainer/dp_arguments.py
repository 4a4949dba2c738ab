"""What the arguments of `dp_train` say: refused where they make no sense, and turned into what a job is made of."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ag.autograd.tensor import Tensor
from ag.engine.device import canonical
from ag.engine.devices import ag_vulkan_devices
from ag.parallel.trainer.load_balance import AutoBalance, Balance
from ag.parallel.trainer.replica import LossOf

__all__ = ["balance_of", "check_arguments", "loss_rule", "replica_devices"]

log = logging.getLogger("ag")


def check_arguments(data: Sequence[Any], n_gpu: int | None, n_iter: int, max_norm: float, verbose: int | None,
                    micro_batch: int, accumulate: int, on_nonfinite: str, capture: bool | str,
                    devices: Sequence[str] | None, timeout: float) -> None:
    """Refuse what is out of range, before anything is made."""
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


def balance_of(balance: str | Sequence[float], names: list[str]) -> Balance:
    """Who gets how many samples."""
    if balance == "auto":
        return AutoBalance(names)
    weights = [1.0] * len(names) if isinstance(balance, str) else [float(w) for w in balance]
    if balance != "equal" and (isinstance(balance, str) or len(weights) != len(names) or min(weights) < 0
                               or not sum(weights) > 0):
        raise ValueError(f"dp_train: balance is {balance!r}; use 'equal', 'auto', or {len(names)} weights, none "
                         f"negative.")
    return Balance(weights)


def replica_devices(n_gpu: int | None, devices: Sequence[str] | None) -> list[str]:
    """The device of every replica: as told, or dealt out over all Vulkan devices, or CPU devices."""
    if devices is not None:
        if not devices:
            raise ValueError("dp_train: devices is empty; name at least one.")
        return [canonical(d) for d in devices]
    found = [d.name for d in ag_vulkan_devices()]
    count = n_gpu if n_gpu is not None else max(1, len(found))
    if found:
        return [found[i % len(found)] for i in range(count)]
    log.warning("dp_train: no Vulkan device was found; %d replica(s) run on the CPU. "
                "`python -m ag devices` says what is missing.", count)
    return ["cpu" if i == 0 else f"cpu:{i}" for i in range(count)]


def loss_rule(loss_fn: Any, forward_fn: Any, target_fn: Any) -> LossOf:
    """The loss of a sample, from the three functions that a user gives."""
    def loss_of(model: Any, sample: Any) -> Tensor:
        output: Tensor = model.forward(sample) if forward_fn is None else forward_fn(model, sample)
        if loss_fn is None:
            return output
        loss: Tensor = loss_fn(output, sample if target_fn is None else target_fn(sample))
        return loss

    return loss_of
