"""Recovery after a device has failed: which devices take over, and moving everything to them.

    devices        cpu  cpu:1  cpu:2  cpu          cpu:1 fails
    substitutes    cpu:1 -> cpu:2                  the device with the least to do: cpu has two replicas already
    evacuate       tensors on cpu:1 become zeros on cpu:2; layers that keep names of devices replace cpu:1
    checkpoint     loaded by the caller into the tensors, wherever they are now

Values are not moved, as a lost device does not return them.  Knows models, optimizers and devices; no checkpoint and no
loop.  `train_distributed` calls it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ag.engine.device import backend_of
from ag.engine.random import forget_generator
from ag.errors import CommError
from ag.nn.layer import Layer, Model, state_of
from ag.nn.mode import objects_in
from ag.optim.optimizer import Optimizer

__all__ = ["evacuate", "is_timeout", "substitutes"]


def is_timeout(error: BaseException) -> bool:
    """Whether a replica did not answer in time, rather than raise an error of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, CommError)


def substitutes(devices: tuple[str, ...], failed: list[str]) -> dict[str, str]:
    """For each failed device one that works: the one with the least to do so far, its substitutions counted."""
    serving = [device for device in devices if device not in failed]
    working = list(dict.fromkeys(serving))
    instead: dict[str, str] = {}
    for device in failed:
        instead[device] = min(working, key=serving.count)
        serving.append(instead[device])
    return instead


def evacuate(model: Model, optimizer: Optimizer, instead: Mapping[str, str]) -> None:
    """Move a model and its optimizer off failed devices, to the devices `instead`; values are lost."""
    for device in instead:
        forget_generator(backend_of(device))
    for x in state_of(model).values():
        x.grad = None
        if x.device in instead:
            x.rebind(backend_of(instead[x.device]).zeros(x.shape, x.buffer.dtype))
    optimizer.follow()
    for part in objects_in(model):
        if isinstance(part, Layer):
            part.replace_devices(instead)
