"""Backends whose blocks lie between guard words."""

from __future__ import annotations

from functools import cache

from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend


@cache
def guarded(device: str) -> Backend:
    """A second backend on the device whose blocks have guard words."""
    if device == "cpu":
        return NumpyBackend(guard=64)
    from ag.engine.backends.vulkan.backend import VulkanBackend

    return VulkanBackend(int(device.split(":")[1]), guard=256)
