"""The Vulkan devices of the tests, by name; conftest.py makes fixtures of them."""

from __future__ import annotations

import os
from time import thread_time

import pytest

import ag

DRIVERS = {"lavapipe": "llvmpipe", "swiftshader": "SwiftShader"}  # name in tests -> part of the product's name
NAMED = os.environ.get("AG_TEST_DEVICE")
EXTENSION = "ag.engine.backends.vulkan._kp"  # the binding to Vulkan
WITHOUT_EXTENSION = f"import sys\nsys.modules[{EXTENSION!r}] = None"  # begins the code of a process that has none
VULKAN = [pytest.param(name, marks=pytest.mark.vulkan) for name in ([NAMED] if NAMED else DRIVERS)]


def vulkan_device(driver: str) -> str:
    """Name of the device of a software driver, or of the one that AG_TEST_DEVICE names."""
    if driver == NAMED:
        return driver
    for info in ag.ag_vulkan_devices():
        if DRIVERS[driver] in info.description:
            return info.name
    promised = os.environ.get("AG_TEST_ICDS", "")
    if {"lavapipe": "lvp", "swiftshader": "swiftshader"}[driver] in promised.lower():
        pytest.fail(f"AG_TEST_ICDS promises {driver}, and no such Vulkan device was found")
    pytest.skip(f"the Vulkan driver {driver} is not installed here")


ADDITIONS_S = 0.05  # a million of them in Python, where limits of times were set


def slowness() -> float:
    """How many times slower Python is now, and here, than where the limit was set; 1 where it is quicker."""
    started, total = thread_time(), 0
    for i in range(1_000_000):
        total += i
    return max(1.0, (thread_time() - started) / ADDITIONS_S)
