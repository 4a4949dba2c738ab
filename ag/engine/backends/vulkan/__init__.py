"""The Vulkan backend, on Kompute (`kp`), which is loaded when devices are listed or opened.

Nothing outside this folder imports `kp`.
"""

from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.loader import DRIVERS
from ag.engine.registry import register_backend

register_backend("vulkan", DRIVERS.list_devices, VulkanBackend, title="Vulkan", priority=1)
