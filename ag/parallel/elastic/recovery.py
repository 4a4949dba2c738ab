"""After a device has failed: which ones still work, and everything that was on it put on another.

Values are not moved, as a lost device does not give them away: whoever calls loads them from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.tape import no_grad
from ag.engine.device import backend_of
from ag.engine.random import forget_generator
from ag.errors import CommError, DeviceError
from ag.nn.layer import state_of
from ag.optim.optimizer import Optimizer

__all__ = ["failed_among", "is_timeout", "leave", "substitutes"]

_DEVICE_NAMES = {"devices", "device_ids", "output_device", "_groups"}  # attributes in which layers keep them


def failed_among(devices: Iterable[str]) -> list[str]:
    """The devices on which nothing can be computed any more."""
    return [device for device in dict.fromkeys(devices) if not _works(device)]


def _works(device: str) -> bool:
    try:
        with no_grad():
            one = ag_tensor(np.ones(1, np.float32), device)
            return bool((one + one).item() == 2.0)
    except DeviceError:
        return False


def is_timeout(error: BaseException) -> bool:
    """Whether a group of replicas broke up by itself, and not for what one of them raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, CommError)


def substitutes(devices: tuple[str, ...], failed: list[str]) -> dict[str, str]:
    """For each failed device one of the others: that which occurs, or stands in, least often so far."""
    serving = [device for device in devices if device not in failed]
    left = list(dict.fromkeys(serving))
    found: dict[str, str] = {}
    for device in failed:
        found[device] = min(left, key=serving.count)
        serving.append(found[device])
    return found


def leave(model: Any, optimizer: Optimizer, instead: Mapping[str, str]) -> None:
    """Put what a model and its optimizer have on failed devices on others, without its values."""
    for device in instead:
        forget_generator(backend_of(device))
    for x in state_of(model).values():
        x.grad = None
        if x.device in instead:
            x.buffer = backend_of(instead[x.device]).zeros(x.shape, x.buffer.dtype)
    optimizer.follow()
    _rename(model, instead, set())


def _rename(part: Any, instead: Mapping[str, str], seen: set[int]) -> None:
    """Let layers that keep names of devices, as the parallel ones do, keep the others' names."""
    if id(part) in seen:
        return
    seen.add(id(part))
    parts: Iterable[Any] = ()
    if isinstance(part, (list, tuple)):
        parts = part
    elif isinstance(part, dict):
        parts = part.values()
    elif hasattr(part, "parameters") and not isinstance(part, type):
        for name in _DEVICE_NAMES & vars(part).keys():
            setattr(part, name, _renamed(getattr(part, name), instead))
        parts = vars(part).values()
    for inner in parts:
        _rename(inner, instead, seen)


def _renamed(value: Any, instead: Mapping[str, str]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_renamed(item, instead) for item in value)
    return instead.get(value, value) if isinstance(value, str) else value
