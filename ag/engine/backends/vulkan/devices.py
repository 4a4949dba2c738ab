"""Find the drivers and their devices; choose the default ones, and open each once.

Devices are listed without opening any, as opening takes seconds and wakes cards.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import NamedTuple, cast
from weakref import WeakSet

from ag.engine.arena import after_fork
from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.kp import Faults, Guarded, Manager, Properties, kompute
from ag.errors import ArenaError, DeviceError, switched_on

_VENDORS = {
    0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel", 0x106B: "Apple", 0x13B5: "Arm", 0x5143: "Qualcomm",
    0x1AE0: "Google", 0x10005: "Mesa",
}
_NVIDIA, _INTEL_WINDOWS, _MOLTENVK = 4, 5, 14  # VkDriverIds; the last gives the two dies of a card one UUID
_WRITTEN = re.compile(r"(?<![\w.])\d+\.[\w.-]*\w")  # as in "Mesa 24.0.2-devel (git-1f5e)" and "2023.Q3.3 (LLPC)"
_TYPES = {1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}
_INSTALL_DRIVER = "install libvulkan1 and your card's driver, or mesa-vulkan-drivers for a software device"
_KINDS = ("discrete", "integrated", "virtual", "other", "cpu")
# Of two drivers of a card, by VkDriverId, the one with the smaller rank is used; translation to another API is last.
_ORDER = {4: 0, 3: 0, 6: 0, 2: 1, 5: 1, 24: 1, 1: 2, 23: 100}  # NVIDIA, RADV, ANV; AMDVLK, Intel, NVK; AMD; Dozen
_UNKNOWN = 10
VULKAN_1_1 = 1 << 22 | 1 << 12  # has vkCmdDispatchBase
_COUNTED = 1 << 32  # Kompute counts bytes in 32 bits
_PAGE = 4096  # drivers round allocations up to pages at most


class Listed(NamedTuple):
    number: int
    info: DeviceInfo
    driver_id: int


def _once(devices: Sequence[Listed]) -> list[Listed]:
    best: dict[str, Listed] = {}
    for device in devices:
        key = device.info.uuid if device.info.kind != "cpu" else ""
        key = key or device.info.name  # software devices of one driver may share a UUID
        known = best.get(key)
        if known is None or _ORDER.get(device.driver_id, _UNKNOWN) < _ORDER.get(known.driver_id, _UNKNOWN):
            best[key] = device
    return [device for device in devices if device in best.values()]


def preferred(devices: Sequence[Listed]) -> list[DeviceInfo]:
    """Return the default devices, best first: those of AG_VULKAN_DEVICES, or every card once."""
    parts = os.environ.get("AG_VULKAN_DEVICES", "").split(",")
    asked = [text for part in parts if (text := part.strip().removeprefix("vulkan:"))]
    if asked:
        numbers = dict.fromkeys(find(text, devices, "AG_VULKAN_DEVICES: ") for text in asked)
        return [device.info for number in numbers for device in devices if device.number == number]
    software = switched_on("AG_SOFTWARE")
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


def no_room(device: str, error: BaseException) -> ArenaError:
    while error.__cause__ is not None:
        error = error.__cause__  # the driver's own words
    return ArenaError(f"{device}: the device has no memory left to be opened ({error}); close what else uses it, or "
                      f"use another device, such as 'cpu'.")


class Drivers:
    """List the Vulkan devices, and own the `kp.Manager` of each open one."""

    def __init__(self) -> None:
        self._managers: dict[int, Manager] = {}
        self._open: WeakSet[Manager] = WeakSet()  # also of closed devices that are still referenced
        self._listed: list[Listed] = []
        self.parent = 0  # the process that opened the devices, if this one was forked from it
        after_fork(self.forked)

    def forked(self) -> None:
        """Mark open devices as the parent's, in a forked child."""
        if self._open:
            self.parent = os.getppid()

    def inheritance(self, name: str) -> str:
        return (f"{name}: the device was opened in process {self.parent} and this is a forked child, where drivers "
                f"hang; start workers with multiprocessing's 'spawn' method.")

    def manager(self, index: int) -> Manager:
        count = len(self.listed(f"vulkan:{index}"))
        if index not in self._managers:
            if index >= count:
                raise DeviceError(f"vulkan:{index}: there is no such device; this machine has {count}, numbered from "
                                  f"0. `python -m ag devices` lists them.")
            kp = kompute()
            try:
                manager = kp.Manager(index)
            except kp.OutOfMemoryError as error:
                raise no_room(f"vulkan:{index}", error) from error
            except kp.Error as error:
                raise DeviceError(f"vulkan:{index}: the device cannot be opened ({error}); "
                                  f"{_INSTALL_DRIVER}.") from error
            self._open.add(manager)
            self._managers[index] = cast(Manager, Guarded(manager, Faults(kp, f"vulkan:{index}")))
        return self._managers[index]

    def release(self, index: int) -> None:
        self._managers.pop(index, None)

    def listed(self, name: str = "vulkan:0") -> list[Listed]:
        """List all devices by number; DeviceError if Kompute, the loader or all drivers are missing, or of a parent."""
        if self.parent:
            raise DeviceError(self.inheritance(name))
        if not self._listed:
            kp = kompute()
            try:
                found: list[Properties] = kp.list_devices()
            except (kp.Error, kp.OutOfMemoryError) as error:
                raise DeviceError(f"vulkan:0: the drivers list no devices ({error}); {_INSTALL_DRIVER}.") from error
            if not found:
                raise DeviceError(f"vulkan:0: there is no Vulkan device on this machine; {_INSTALL_DRIVER}.")
            self._listed = [Listed(i, _info(i, properties), properties["driver_id"])
                            for i, properties in enumerate(found)]
        return self._listed


def _info(index: int, properties: Properties) -> DeviceInfo:
    vendor_id = properties["vendor_id"]
    return DeviceInfo(
        f"vulkan:{index}",
        properties["device_name"],
        _VENDORS.get(vendor_id, f"vendor {vendor_id:#x}"),
        driver_version(properties),
        _TYPES.get(properties["device_type"], "other"),
        sum(properties["memory_heaps"][i][0] for i in properties["arena_heaps"]),
        tuple(sorted(name for name, on in properties["features"].items() if on)),
        properties["uuid"].hex() if any(properties["uuid"]) and properties["driver_id"] != _MOLTENVK else "",
        properties["compute_units"],
    )


def driver_version(properties: Properties, windows: bool = sys.platform == "win32") -> str:
    """Return a driver's version as its vendor writes it: its own text, or unpacked from the number."""
    if told := _WRITTEN.search(properties["driver_info"]):
        return told[0]
    driver, packed = properties["driver_id"], properties["driver_version"]
    if not driver:  # below Vulkan 1.2 drivers have no id
        driver = {0x10DE: _NVIDIA, 0x8086: _INTEL_WINDOWS if windows else 0}.get(properties["vendor_id"], 0)
    if driver == _NVIDIA:  # 10.8.8.6 bits
        return f"{packed >> 22}.{packed >> 14 & 0xFF}.{packed >> 6 & 0xFF}"
    if driver == _INTEL_WINDOWS:  # 18.14 bits, the last two of the four numbers of the file
        return f"{packed >> 14}.{packed & 0x3FFF}"
    if driver == _MOLTENVK:  # decimal digits
        return f"{packed // 10000}.{packed // 100 % 100}.{packed % 100}"
    return f"{packed >> 22}.{packed >> 12 & 0x3FF}.{packed & 0xFFF}"


DRIVERS = Drivers()  # of the process, as devices are


def largest_block(limits: Properties, addresses: bool = False) -> tuple[int, str]:
    """Return the most bytes of a block, which needs no descriptor if buffers have addresses, and the limit's name."""
    largest = {"Vulkan's maxStorageBufferRange": 0 if addresses else limits["max_storage_buffer_range"],
               "Vulkan's maxMemoryAllocationSize": limits["max_allocation_size"],
               "Vulkan's maxBufferSize": limits["max_buffer_size"], "Kompute counts bytes in 32 bits": _COUNTED - 1}
    told = [(nbytes & -_PAGE, name) for name, nbytes in largest.items() if nbytes]  # 0: there is none
    return min(told, key=lambda limit: limit[0])


def spare_bytes(heaps: list[tuple[int, bool]], budget: list[tuple[int, int]], used: list[int]) -> list[int]:
    """Return the free bytes of each used heap, by VK_EXT_memory_budget."""
    return [max(0, min(budget[i][0], heaps[i][0]) - budget[i][1]) for i in used]
