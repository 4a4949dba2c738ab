"""The registry of backends: which families of devices there are, and the devices of each.

A family is a folder `ag/engine/backends/<family>` whose package calls `register_backend` when it is imported, and it is
imported when a device of that name is first asked for, so `import ag` loads no backend and no driver.  A package
elsewhere, or a test, calls `register_backend("toy", list_devices, open)` itself, with a function that lists its devices
and one that opens number i.  Its user imports it before asking for ``toy:0``, as only `ag/engine/backends` is looked
through.  The registry knows names and descriptions of devices; `ag.engine.device` opens
them.  It must not know what any family is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from ag.engine.backend import Backend, DeviceInfo, Finding
from ag.errors import DeviceError, KernelError

__all__ = ["Family", "accelerator_titles", "devices_of", "drivers", "example_names", "families", "family_named",
           "list_devices", "missing_devices", "preferred_devices", "register_backend", "say_once",
           "unregister_backend", "unusable_devices"]

_PACKAGE = "ag.engine.backends"


class Family(NamedTuple):
    """Devices that one backend runs.

    Attributes
    ----------
    name : str
        What the names of its devices begin with.
    title : str
        What messages call it.
    list_devices : callable
        Descriptions of the devices that this machine has, in the order of their numbers; raises `DeviceError` with what
        is missing and how to get it where there is none, and `KernelError` where they have no kernels to run.
    open : callable
        The backend of the device of a number; raises `DeviceError` if there is no such device, and `ArenaError` if it
        has no memory to be opened.
    priority : int
        Devices of a family above 0 are accelerators: training takes them by default, those of the greatest priority
        first.
    bare : bool
        Whether device 0 is named without its number, as ``"cpu"`` is.
    preferred : callable, optional
        Descriptions of the devices that are used where nobody names any, best first; raises `DeviceError` if the user's
        settings ask for others.  Default: all.
    find : callable, optional
        The number of the device that a text behind the colon means; raises `DeviceError` if there is none.  Default:
        only numbers may stand there.
    drivers : callable, optional
        Findings about the drivers that are there, also those that cannot be used; may take seconds.  Default: none.
    """

    name: str
    title: str
    list_devices: Callable[[], list[DeviceInfo]]
    open: Callable[[int], Backend]
    priority: int = 0
    bare: bool = False
    preferred: Callable[[], list[DeviceInfo]] | None = None
    find: Callable[[str], int] | None = None
    drivers: Callable[[], list[Finding]] | None = None

    @property
    def is_accelerator(self) -> bool:
        """Whether training prefers its devices to the processor."""
        return self.priority > 0

    def device_name(self, index: int) -> str:
        """The one spelling of a device's name."""
        return self.name if self.bare and index == 0 else f"{self.name}:{index}"

    @property
    def examples(self) -> list[str]:
        """Names to show in messages."""
        return [self.device_name(index) for index in range(2 if self.bare else 1)]


_families: dict[str, Family] = {}  # process-wide, like the devices; by name, as far as they are imported


def register_backend(family: str, list_devices: Callable[[], list[DeviceInfo]], open: Callable[[int], Backend], *,
                     title: str = "", priority: int = 0, bare: bool = False,
                     preferred: Callable[[], list[DeviceInfo]] | None = None,
                     find: Callable[[str], int] | None = None,
                     drivers: Callable[[], list[Finding]] | None = None) -> None:
    """Add a family of devices; the parameters are the attributes of `Family`."""
    _families[family] = Family(family, title or family, list_devices, open, priority, bare, preferred, find, drivers)


def unregister_backend(family: str) -> None:
    """Take a family out again; devices of it that are open stay open."""
    del _families[family]


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
    """The devices of this machine, of all families.

    Parameters
    ----------
    accelerators_only : bool, optional
        Leave out the families of priority 0, such as the CPU.

    Returns
    -------
    list of DeviceInfo
        In the order of `families`, and of the devices' numbers.
    """
    wanted = [family for family in families() if family.is_accelerator or not accelerators_only]
    return [info for family in wanted for info in devices_of(family.name)[0]]


def preferred_devices() -> list[DeviceInfo]:
    """The accelerators that are used where nobody names any, best first: the one list for all who choose devices.

    Raises
    ------
    DeviceError
        If the user's settings name a device that is not there.
    """
    there = [family for family in families() if family.is_accelerator and devices_of(family.name)[0]]
    return [info for family in there for info in (family.preferred or family.list_devices)()]


def missing_devices() -> list[str]:
    """For every family without a device on this machine: what is missing, and how to get it."""
    return [why for family in families() if (why := devices_of(family.name)[1])]


def drivers() -> list[Finding]:
    """What is to be said of the drivers that are there, used or not, of all families."""
    return [found for family in families() if family.drivers is not None for found in family.drivers()]


def devices_of(name: str) -> tuple[list[DeviceInfo], str]:
    """The devices of a family; if there are none, what is missing and how to get it."""
    family = family_named(name)
    if family is None:
        return [], f"No backend is called {name!r}."
    try:
        return family.list_devices(), ""
    except (DeviceError, KernelError) as error:
        return [], str(error)


def unusable_devices() -> list[str]:
    """Why devices that are there do not count, a sentence for each family of such: they have no kernels."""
    why = []
    for family in families():
        try:
            family.list_devices()
        except KernelError as error:
            why.append(str(error))
        except DeviceError:
            pass  # there is none
    return why


@lru_cache(maxsize=32)
def say_once(text: str) -> None:
    """Log a warning, the first time that it is given."""
    from ag.log import log  # which takes time to load

    log.warning("%s", text)


# ---------------------------------------------------------------------------------------------- in messages


def example_names() -> list[str]:
    """Names of devices to show in messages, of every family."""
    return [name for family in families() for name in family.examples]


def accelerator_titles() -> str:
    """What messages call the accelerators that there could be."""
    return " or ".join(family.title for family in families() if family.is_accelerator)
