"""Finding Kompute, the Vulkan loader, drivers and devices, and saying what is missing in one sentence.

One `kp.Manager` per device for the life of the process: making a second one on the same device would double its
memory bookkeeping, and drivers dislike being torn down.  Devices are listed without opening any: that may take seconds
and wakes cards.  A forked child inherits handles it cannot use, so it is refused; what stands for the parts of a closed
device says that it was closed.  Knows no buffer and no kernel.  The registry lists devices through it, and the backend
opens its own.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from types import ModuleType
from typing import NoReturn
from weakref import WeakSet

from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.faults import Faults, guarded, no_room
from ag.engine.backends.vulkan.kernel_files import not_built
from ag.engine.backends.vulkan.kp_types import Manager, Properties
from ag.engine.backends.vulkan.selection import Listed
from ag.errors import DeviceError
from ag.version import install_line

__all__ = ["DRIVERS", "Drivers", "LetGo", "driver_version", "kompute"]

_VENDORS = {
    0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel", 0x106B: "Apple", 0x13B5: "Arm", 0x5143: "Qualcomm",
    0x1AE0: "Google", 0x10005: "Mesa",
}
_NVIDIA, _INTEL_WINDOWS, _MOLTENVK = 4, 5, 14  # VkDriverIds; the last gives the two dies of a card one UUID
_WRITTEN = re.compile(r"(?<![\w.])\d+\.[\w.-]*\w")  # as in "Mesa 24.0.2-devel (git-1f5e)" and "2023.Q3.3 (LLPC)"
_KINDS = {1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}
_EXTENSION = f"{__package__}._kp"
_INSTALL_DRIVER = "install libvulkan1 and your card's driver, or mesa-vulkan-drivers for a software device"


def kompute() -> ModuleType:
    """The extension module `_kp`: Kompute's Python binding with the changes of third_party/kp.

    Raises
    ------
    DeviceError
        If it was not built; the message has the reason that the build left.
    """
    try:
        return importlib.import_module(_EXTENSION)
    except ImportError as error:
        raise DeviceError(f"Vulkan: this installation of ag has no Vulkan extension ({not_built() or error}); a wheel "
                          f"has it (`{install_line()}`), and `pip install .` in a clone builds it.") from error


class Drivers:
    """What this process knows of Vulkan devices: all that there are, and the `kp.Manager` of each that was opened."""

    def __init__(self) -> None:
        self._managers: dict[int, Manager] = {}
        self._open: WeakSet[Manager] = WeakSet()  # those above, and what others still hold of closed devices
        self._listed: list[Listed] = []
        self._parent: int | None = None  # the process that opened the devices, if this one was forked from it
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forked)

    def forked(self) -> None:
        """Go on in a forked child: what is open is the parent's."""
        if self._open:
            self._parent = os.getppid()

    @property
    def inherited(self) -> bool:
        """Whether devices were opened before this process was forked, and so are its parent's."""
        return self._parent is not None

    def check_not_inherited(self, name: str) -> None:
        """Refuse to use a device that was opened before this process was forked."""
        if self._parent is not None:
            raise DeviceError(self.inheritance(name))

    def inheritance(self, name: str) -> str:
        """What is said to who uses a device that was opened before this process was forked."""
        return (f"{name}: the device was opened in process {self._parent} and this is a forked child, where drivers "
                f"hang; start workers with multiprocessing's 'spawn' method.")

    def manager(self, index: int) -> Manager:
        """The `kp.Manager` of a device, whose calls end in errors of ag.

        Raises
        ------
        ArenaError
            If the device has no memory to be opened.
        DeviceError
            If there is no loader, no driver, or no device of that number.
        """
        self.check_not_inherited(f"vulkan:{index}")
        if index not in self._managers:
            if index >= (count := len(self.listed())):
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
            self._managers[index] = guarded(manager, Faults(kp, f"vulkan:{index}"))
        return self._managers[index]

    def release(self, index: int) -> None:
        """Forget a device's manager."""
        self._managers.pop(index, None)

    def listed(self) -> list[Listed]:
        """All Vulkan devices, in the order of their numbers; opens none, and asks the drivers once.

        Raises
        ------
        DeviceError
            If Kompute, the loader or every driver is missing.
        """
        self.check_not_inherited("vulkan:0")
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

    def device_info(self, index: int) -> DeviceInfo:
        """What the driver tells about a device."""
        return self.listed()[index].info


DRIVERS = Drivers()  # of the process, as devices are


def _info(index: int, properties: Properties) -> DeviceInfo:
    vendor_id = properties["vendor_id"]
    return DeviceInfo(
        f"vulkan:{index}",
        properties["device_name"],
        _VENDORS.get(vendor_id, f"vendor {vendor_id:#x}"),
        driver_version(properties),
        _KINDS.get(properties["device_type"], "other"),
        sum(properties["memory_heaps"][i][0] for i in properties["arena_heaps"]),
        tuple(sorted(name for name, on in properties["features"].items() if on)),
        properties["uuid"].hex() if any(properties["uuid"]) and properties["driver_id"] != _MOLTENVK else "",
        properties["compute_units"],
    )


def driver_version(properties: Properties, windows: bool = sys.platform == "win32") -> str:
    """The version of a driver as its vendor writes it: in the driver's own words, or out of the packed number."""
    if told := _WRITTEN.search(properties["driver_info"]):
        return told[0]
    driver, packed = properties["driver_id"], properties["driver_version"]
    if not driver:  # which drivers tell from Vulkan 1.2 on
        driver = {0x10DE: _NVIDIA, 0x8086: _INTEL_WINDOWS if windows else 0}.get(properties["vendor_id"], 0)
    if driver == _NVIDIA:  # 10.8.8.6 bits
        return f"{packed >> 22}.{packed >> 14 & 0xFF}.{packed >> 6 & 0xFF}"
    if driver == _INTEL_WINDOWS:  # 18.14 bits, the last two of the four numbers of the file
        return f"{packed >> 14}.{packed & 0x3FFF}"
    if driver == _MOLTENVK:  # decimal digits
        return f"{packed // 10000}.{packed // 100 % 100}.{packed % 100}"
    return f"{packed >> 22}.{packed >> 12 & 0x3FF}.{packed & 0xFFF}"


class LetGo:
    """Stands for the parts of a device that was closed."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise DeviceError(self._why)
