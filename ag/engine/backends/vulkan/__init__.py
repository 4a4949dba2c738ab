"""The Vulkan backend, on Kompute (the extension `_kp`), which is loaded when devices are listed or opened.

Nothing outside this folder imports `_kp`.
"""

from ag.engine.backend import DeviceInfo
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.loader import DRIVERS
from ag.engine.backends.vulkan.pipelines import check_kernels
from ag.engine.registry import register_backend


def _list_devices() -> list[DeviceInfo]:
    """The devices; none counts if there are no kernels to run."""
    devices = DRIVERS.list_devices()
    check_kernels()
    return devices


register_backend("vulkan", _list_devices, VulkanBackend, title="Vulkan", priority=1)
