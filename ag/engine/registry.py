"""The registry of backends: which families of devices there are, and the devices of each.

A family's package is imported when a device of its name is first asked for, so `import ag` loads no driver.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from ag.engine.backend import Backend, DeviceInfo, Finding
from ag.errors import DeviceError, KernelError

_PACKAGE = "ag.engine.backends"


class Family(NamedTuple):
    """Devices that one backend runs."""

    name: str  # what the names of its devices begin with
    title: str  # what messages call it
    # those that this machine has, in the order of their numbers; raises `DeviceError` with what is missing and how to
    # get it where there is none, and `KernelError` where they have no kernels to run
    list_devices: Callable[[], list[DeviceInfo]]
    # by the number; raises `DeviceError` if there is no such device, and `ArenaError` if it has no memory for that
    open: Callable[[int], Backend]
    priority: int = 0  # above 0, accelerators: training takes them by default, those of the greatest first
    bare: bool = False  # whether device 0 is named without its number, as `"cpu"` is
    # those that are used where nobody names any, best first; raises `DeviceError` if settings ask for others
    preferred: Callable[[], list[DeviceInfo]] | None = None
    # the number of the device that a text behind the colon means, if not only numbers may stand there
    find: Callable[[str], int] | None = None
    # a second backend of the device of a number, whose blocks lie between guard words
    guarded: Callable[[int], Backend] | None = None
    # findings about the drivers that are there, also those that cannot be used; may take seconds
    drivers: Callable[[], list[Finding]] | None = None

    @property
    def is_accelerator(self) -> bool:
        return self.priority > 0

    def device_name(self, index: int) -> str:
        return self.name if self.bare and index == 0 else f"{self.name}:{index}"

    @property
    def examples(self) -> list[str]:
        """Names to show in messages."""
        return [self.device_name(index) for index in range(2 if self.bare else 1)]


_families: dict[str, Family] = {}  # process-wide, like the devices; by name, as far as they are imported


def register_backend(family: Family) -> None:
    _families[family.name] = family


def _folders() -> list[str]:
    import pkgutil  # which takes time to load, and so does logging below

    return [module.name for module in pkgutil.iter_modules(importlib.import_module(_PACKAGE).__path__)]


def family_named(name: str) -> Family | None:
    """The family of that name, imported if it is a folder; None if there is none."""
    if name not in _families and name in _folders():
        importlib.import_module(f"{_PACKAGE}.{name}")
    return _families.get(name)


def families() -> list[Family]:
    """All families, accelerators last, those of the greatest priority before the others."""
    found = [family for name in {*_folders(), *_families} if (family := family_named(name)) is not None]
    return sorted(found, key=lambda family: (family.is_accelerator, -family.priority, family.name))


def list_devices(accelerators_only: bool = False) -> list[DeviceInfo]:
    wanted = [family for family in families() if family.is_accelerator or not accelerators_only]
    return [info for family in wanted for info in devices_of(family.name)[0]]


def preferred_devices() -> list[DeviceInfo]:
    """The accelerators that are used where nobody names any, best first: the one list for all who choose devices."""
    there = [family for family in families() if family.is_accelerator and devices_of(family.name)[0]]
    return [info for family in there for info in (family.preferred or family.list_devices)()]


def missing_devices() -> list[str]:
    """For every family without a device on this machine: what is missing, and how to get it."""
    return [why for family in families() if (why := devices_of(family.name)[1])]


def drivers() -> list[Finding]:
    """Report on the drivers of all families, used or not."""
    return [found for family in families() if family.drivers is not None for found in family.drivers()]


def devices_of(name: str) -> tuple[list[DeviceInfo], str]:
    """The devices of a family; if there are none, what is missing and how to get it."""
    family = family_named(name)
    if family is None:
        return [], f"No backend is called {name!r}."
    found, error = _listed(family)
    return found, str(error or "")


def _listed(family: Family) -> tuple[list[DeviceInfo], Exception | None]:
    try:
        return family.list_devices(), None
    except (DeviceError, KernelError) as error:
        return [], error


def unusable_devices() -> list[str]:
    """Why devices that are there do not count, a sentence for each family of such: they have no kernels."""
    return [str(error) for family in families() if isinstance(error := _listed(family)[1], KernelError)]


@lru_cache(maxsize=32)
def say_once(text: str) -> None:
    """Log a warning, the first time that it is given."""
    from ag.log import log  # which takes time to load

    log.warning("%s", text)


def example_names() -> list[str]:
    return [name for family in families() for name in family.examples]


def accelerator_titles() -> str:
    return " or ".join(family.title for family in families() if family.is_accelerator)
