"""Choose the default Vulkan devices, and find a device by number, name or UUID.

One card may appear several times, under several drivers, beside a software device.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ag.engine.backend import DeviceInfo
from ag.errors import DeviceError

_KINDS = ("discrete", "integrated", "virtual", "other", "cpu")
# Of two drivers of a card, by VkDriverId, the one with the smaller rank is used; translation to another API is last.
_ORDER = {4: 0, 3: 0, 6: 0, 2: 1, 5: 1, 24: 1, 1: 2, 23: 100}  # NVIDIA, RADV, ANV; AMDVLK, Intel, NVK; AMD; Dozen
_UNKNOWN = 10


class Listed(NamedTuple):
    """A device as its driver lists it, with the driver's VkDriverId."""

    number: int
    info: DeviceInfo
    driver_id: int


def _once(devices: Sequence[Listed]) -> list[Listed]:
    """Return every card once, under its best driver."""
    best: dict[str, Listed] = {}
    for device in devices:
        key = device.info.uuid if device.info.kind != "cpu" else ""
        key = key or device.info.name  # software devices of one driver may share a UUID
        known = best.get(key)
        if known is None or _ORDER.get(device.driver_id, _UNKNOWN) < _ORDER.get(known.driver_id, _UNKNOWN):
            best[key] = device
    return [device for device in devices if device in best.values()]


def preferred(devices: Sequence[Listed]) -> list[DeviceInfo]:
    """Return the default devices, best first.

    AG_VULKAN_DEVICES lists them; DeviceError if one does not exist.  Else it is every card once, discrete ones first,
    and with AG_SOFTWARE=1 software devices behind them.
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
    """Return the device with this number, part of a product's name, or beginning of a UUID; DeviceError unless one."""
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
