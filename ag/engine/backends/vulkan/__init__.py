"""The Vulkan backend, on Kompute, whose binding `_kp` is loaded when devices are listed or opened."""

from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.devices import DRIVERS, find, no_room, preferred
from ag.engine.backends.vulkan.examination import drivers
from ag.engine.backends.vulkan.kp import check_kernels
from ag.engine.registry import Family, register_backend
from ag.errors import ArenaError


def _list_devices() -> list[DeviceInfo]:
    """List the devices; KernelError if there are no kernels to run."""
    devices = DRIVERS.listed()
    check_kernels()
    return [device.info for device in devices]


def _open(index: int) -> VulkanBackend:
    """Open a device; if that fails, nothing stays open."""
    backend = VulkanBackend.__new__(VulkanBackend)
    try:
        VulkanBackend.__init__(backend, index)
    except BaseException as error:
        if not DRIVERS.parent:
            DRIVERS.release(index)
        vars(backend).clear()  # parts refer to the whole: a cycle would be freed late
        if isinstance(error, ArenaError):
            raise no_room(f"vulkan:{index}", error) from error
        raise
    return backend


register_backend(Family("vulkan", "Vulkan", _list_devices, _open, priority=1,
                        preferred=lambda: preferred(DRIVERS.listed()), find=lambda text: find(text, DRIVERS.listed()),
                        guarded=lambda index: VulkanBackend(index, guard=256), drivers=drivers))
