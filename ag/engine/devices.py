"""Which devices to use where a user names none, or names one by its number.

Asks the registry what this machine has.  It knows devices by name only, and must not know what any family of them is
called.  Whatever spreads work over devices asks here: `dp_train`, `start`, `DataParallel`, `ModelParallel`,
`DistributedWorld`.
"""

from __future__ import annotations

from ag.engine.device import ag_default_device, family_and_index
from ag.engine.registry import families, list_devices
from ag.errors import DeviceError

__all__ = ["accelerator_name", "default_devices"]


def default_devices(count: int | None = None) -> list[str]:
    """Names of the devices to use where none are named.

    Parameters
    ----------
    count : int, optional
        How many; default: every accelerator once, and where there is none the current default device.

    Returns
    -------
    list of str
        `count` devices are dealt out over the accelerators; where there is none they are the first of the default
        device's family, such as ``["cpu", "cpu:1"]``.
    """
    names = [info.name for info in list_devices(accelerators_only=True)]
    if names:
        return names if count is None else [names[i % len(names)] for i in range(count)]
    default = ag_default_device()
    family, _ = family_and_index(default)
    return [default] if count is None else [family.device_name(i) for i in range(count)]


def accelerator_name(index: int) -> str:
    """The name of an accelerator given by its number only: of the family that training prefers."""
    preferred = next((family for family in families() if family.is_accelerator), None)
    if preferred is None:
        raise DeviceError(f"device {index}: no accelerator could have a number, as no backend for one is registered.")
    return preferred.device_name(index)
