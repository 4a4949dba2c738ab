"""Which devices to use where a user names none, or names one by its number.

Asks the registry what this machine has.  It knows devices by name only, and must not know what any family of them is
called.  Whatever spreads work over devices asks here: `dp_train`, `start`, `DataParallel`, `ModelParallel`,
`DistributedWorld`.
"""

from __future__ import annotations

from ag.engine.device import ag_default_device, family_and_index, is_accelerator, opened, was_named
from ag.engine.registry import families, preferred_devices
from ag.errors import DeviceError

__all__ = ["accelerator_name", "cards", "default_devices"]


def default_devices(count: int | None = None) -> list[str]:
    """Names of the devices to use where none are named.

    Parameters
    ----------
    count : int, optional
        How many; default: the device that the user named by `ag_device`, else every card once, else the CPU.

    Returns
    -------
    list of str
        `count` devices are dealt out over the cards; where there is none, or the CPU was named, they are
        ``["cpu", "cpu:1", ...]``.
    """
    default = ag_default_device()
    names = [] if was_named() else opened(preferred_devices(), count)
    if not names:
        names = [default]
        family, _ = family_and_index(default)
        if count is not None and not family.is_accelerator:
            return [family.device_name(i) for i in range(count)]
    return names if count is None else [names[i % len(names)] for i in range(count)]


def cards() -> list[str]:
    """Names of the accelerators to choose from where none are named, best first; opens none.

    Returns
    -------
    list of str
        The one that the user named by `ag_device`, else every card once; empty if there is none, or the CPU was named.
    """
    if was_named():
        return [name for name in [ag_default_device()] if is_accelerator(name)]
    return [info.name for info in preferred_devices()]


def accelerator_name(index: int) -> str:
    """The name of an accelerator given by its number only: of the family that training prefers."""
    preferred = next((family for family in families() if family.is_accelerator), None)
    if preferred is None:
        raise DeviceError(f"device {index}: no accelerator could have a number, as no backend for one is registered.")
    return preferred.device_name(index)
