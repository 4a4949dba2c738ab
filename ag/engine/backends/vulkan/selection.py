"""Which Vulkan devices are used where nobody names any, and which one a name or a UUID means.

One card may be there several times, under several drivers, and beside it a driver that computes on the processor.
Knows what the drivers tell of their devices, and opens none.  The registry asks through the package.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ag.engine.backend import DeviceInfo
from ag.errors import DeviceError

__all__ = ["Listed", "find", "preferred"]

_KINDS = ("discrete", "integrated", "virtual", "other", "cpu")
# Of two drivers of a card, by their VkDriverId, the one of the smaller number is used; one that translates to another
# API comes last.
_ORDER = {4: 0, 3: 0, 6: 0, 2: 1, 5: 1, 24: 1, 1: 2, 23: 100}  # NVIDIA, RADV, ANV; AMDVLK, Intel, NVK; AMD; Dozen
_UNKNOWN = 10


class Listed(NamedTuple):
    """A device as its driver lists it: its number, what is known of it, and its driver's VkDriverId."""

    number: int
    info: DeviceInfo
    driver_id: int


def _once(devices: Sequence[Listed]) -> list[Listed]:
    """Every card once, under the driver that is best for it."""
    best: dict[str, Listed] = {}
    for device in devices:
        key = device.info.uuid if device.info.kind != "cpu" else ""
        key = key or device.info.name  # software devices of one driver may share a UUID
        known = best.get(key)
        if known is None or _ORDER.get(device.driver_id, _UNKNOWN) < _ORDER.get(known.driver_id, _UNKNOWN):
            best[key] = device
    return [device for device in devices if device in best.values()]


def preferred(devices: Sequence[Listed]) -> list[DeviceInfo]:
    """The devices to use where none is named, best first.

    Those that the environment variable AG_VULKAN_DEVICES lists, in its order; else every card once, discrete ones
    first, and with AG_SOFTWARE=1 software devices behind them.

    Raises
    ------
    DeviceError
        If AG_VULKAN_DEVICES lists what is not there.
    """
    parts = os.environ.get("AG_VULKAN_DEVICES", "").split(",")
    asked = [text for part in parts if (text := part.strip().removeprefix("vulkan:"))]
    if asked:
        numbers = dict.fromkeys(find(text, devices, "AG_VULKAN_DEVICES: ") for text in asked)
        return [device.info for number in numbers for device in devices if device.number == number]
    software = os.environ.get("AG_SOFTWARE") == "1"
    found = [device.info for device in _once(devices) if software or device.info.kind != "cpu"]
    return sorted(found, key=lambda info: _KINDS.index(info.kind))


def find(text: str, devices: Sequence[Listed], where: str = "") -> int:
    """The number of the device that a number, a part of its product's name, or the beginning of its UUID means.

    Raises
    ------
    DeviceError
        If that is none, or if there are several.
    """
    word = text.casefold()
    hexadecimal = word.replace("-", "")
    if word.isascii() and word.isdigit():
        found = [device for device in devices if device.number == int(word)]
    else:
        found = _once([device for device in devices if word in device.info.description.casefold()
                       or (len(hexadecimal) >= 4 and device.info.uuid.startswith(hexadecimal))])
    if len(found) != 1:
        those = found or devices
        listed = ", ".join(f"{device.info.name} ({device.info.description})" for device in those)
        raise DeviceError(f"{where}vulkan:{text}: {'several devices are' if found else 'no device is'} called so: "
                          f"{listed}; give a number, more of the name, or the beginning of its UUID.")
    return found[0].number
