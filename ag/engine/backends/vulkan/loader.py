"""Find Kompute, the Vulkan loader, drivers and devices; name what is missing, and translate Kompute's errors.

There is one `kp.Manager` per device for the life of the process: a second one would double its memory bookkeeping.
Devices are listed without opening any, as opening takes seconds and wakes cards.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from types import ModuleType
from typing import Any, NoReturn, cast
from weakref import WeakSet

from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.kernel_files import not_built
from ag.engine.backends.vulkan.kp_types import Manager, Properties
from ag.engine.backends.vulkan.selection import Listed
from ag.errors import AgError, ArenaError, DeviceError
from ag.version import install_line

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
    """Import `_kp`, Kompute's binding with the changes of third_party/kp; DeviceError with the reason if not built."""
    try:
        return importlib.import_module(_EXTENSION)
    except ImportError as error:
        raise DeviceError(f"Vulkan: this installation of ag has no Vulkan extension ({not_built() or error}); a wheel "
                          f"has it (`{install_line()}`), and `pip install .` in a clone builds it.") from error


class Faults:
    """Translate the errors of `kp` on one device.

    `kp` has exception classes of its own, so exceptions of signal handlers pass through.  Calls of a manager are
    translated by `guarded`; calls of sequences, a hot path, by the recorder.
    """

    def __init__(self, kp: ModuleType, device: str) -> None:
        self._lost: type[Exception] = kp.DeviceLostError
        self.errors: tuple[type[Exception], ...] = (kp.OutOfMemoryError, kp.Error)  # to catch
        self._device = device

    def of_a_lost_device(self, error: BaseException | None) -> bool:
        return isinstance(error, self._lost)

    def told(self, error: Exception, launch: str = "", seconds: float = 0.0) -> AgError:
        """Return the error to raise for one of `kp`.

        If the device was lost in a submission, `launch` is its costliest, and `seconds` the most that one may cost.
        """
        if self.of_a_lost_device(error):
            where = (f" in a submission whose costliest launch is {launch}; if the driver's watchdog ended it, as it "
                     f"does after some seconds, smaller batches or AG_SUBMIT_MS={max(1, round(250 * seconds))} help")
            return DeviceError(f"{self._device}: the device was lost ({error}){where if launch else ''}. Its tensors "
                               f"are gone: go on from the last checkpoint, after ag_shutdown() or in a new process.")
        if isinstance(error, MemoryError):
            return ArenaError(f"{self._device}: the driver has no memory for a call ({error}); free tensors, take "
                              f"smaller batches, or close what else uses the device.")
        return DeviceError(f"{self._device}: the driver refuses a call ({error}); update it, or use another device, "
                           f"such as 'cpu'.")


class _Guarded:
    def __init__(self, manager: Manager, faults: Faults) -> None:
        self._manager, self._faults = manager, faults

    def __getattr__(self, name: str) -> Any:
        call, faults = getattr(self._manager, name), self._faults

        def guarded(*args: object, **options: object) -> object:
            try:
                return call(*args, **options)
            except faults.errors as error:
                raise faults.told(error) from error

        setattr(self, name, guarded)  # found by the next lookup
        return guarded


def guarded(manager: Manager, faults: Faults) -> Manager:
    """Return a manager whose calls raise errors of ag instead of those of `kp`."""
    return cast(Manager, _Guarded(manager, faults))


def no_room(device: str, error: BaseException) -> ArenaError:
    """Return the error for a device without the memory that opening it needs."""
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
        self._parent: int | None = None  # the process that opened the devices, if this one was forked from it
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forked)

    def forked(self) -> None:
        """Mark open devices as the parent's, in a forked child."""
        if self._open:
            self._parent = os.getppid()

    @property
    def inherited(self) -> bool:
        return self._parent is not None

    def check_not_inherited(self, name: str) -> None:
        """Refuse to use a device that was opened before this process was forked."""
        if self._parent is not None:
            raise DeviceError(self.inheritance(name))

    def inheritance(self, name: str) -> str:
        return (f"{name}: the device was opened in process {self._parent} and this is a forked child, where drivers "
                f"hang; start workers with multiprocessing's 'spawn' method.")

    def manager(self, index: int) -> Manager:
        """Open a device once; ArenaError if it has no memory for that, DeviceError if it does not exist."""
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
        self._managers.pop(index, None)

    def listed(self) -> list[Listed]:
        """List all devices by number; DeviceError if Kompute, the loader or every driver is missing."""
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


class LetGo:
    """Replace a part of a closed device: every use raises DeviceError."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise DeviceError(self._why)
