"""The Vulkan backend, on Kompute, whose binding `kp` (the extension `_kp`) is loaded when devices are listed or opened.

Nothing outside this folder imports `_kp`, and nothing here knows the compiler or another backend.  The registry imports
this package when a device of its name is first asked for.
"""

from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.driver_files import drivers
from ag.engine.backends.vulkan.faults import no_room
from ag.engine.backends.vulkan.loader import DRIVERS
from ag.engine.backends.vulkan.plans import check_kernels
from ag.engine.backends.vulkan.selection import find, preferred
from ag.engine.registry import register_backend
from ag.errors import ArenaError


def _list_devices() -> list[DeviceInfo]:
    """The devices; none counts if there are no kernels to run."""
    devices = DRIVERS.listed()
    check_kernels()
    return [device.info for device in devices]


def _open(index: int) -> VulkanBackend:
    """The backend of a device; where it cannot be opened, nothing of it stays open."""
    backend = VulkanBackend.__new__(VulkanBackend)
    try:
        VulkanBackend.__init__(backend, index)
    except BaseException as error:
        if not DRIVERS.inherited:
            DRIVERS.release(index)
        vars(backend).clear()  # parts of it refer to it, so it would be freed late
        if isinstance(error, ArenaError):
            raise no_room(f"vulkan:{index}", error) from error
        raise
    return backend


register_backend("vulkan", _list_devices, _open, title="Vulkan", priority=1,
                 preferred=lambda: preferred(DRIVERS.listed()), find=lambda text: find(text, DRIVERS.listed()),
                 drivers=drivers)
