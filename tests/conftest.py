"""Devices for the tests: the CPU and two software Vulkan drivers, which stand for two vendors.

`device` runs a test on each of them, `vulkan` on the Vulkan ones; `lavapipe` and `swiftshader` give one of them by
name.  A driver that `AG_TEST_ICDS` promises must be there; without that variable a missing driver skips its tests, with
the reason.  `AG_TEST_DEVICE=vulkan:0` puts another device, such as a graphics card, in the place of the two in `device`
and `vulkan`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.devices import VULKAN, vulkan_device

import ag


@pytest.fixture(params=["cpu", *VULKAN])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each device in turn, as the default device."""
    name = "cpu" if request.param == "cpu" else vulkan_device(request.param)
    with ag.ag_device(name):
        yield name


@pytest.fixture(params=VULKAN)
def vulkan(request: pytest.FixtureRequest) -> str:
    """Each Vulkan device in turn."""
    return vulkan_device(request.param)


@pytest.fixture
def lavapipe() -> str:
    """The device of the lavapipe driver."""
    return vulkan_device("lavapipe")


@pytest.fixture
def swiftshader() -> str:
    """The device of the SwiftShader driver."""
    return vulkan_device("swiftshader")


@pytest.fixture(params=["f16", "bf16"])
def dtype(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each 16-bit type in turn, as the default type."""
    previous = ag.ag_dtype(request.param)
    yield request.param
    ag.ag_dtype(previous)


@pytest.fixture
def f16() -> Iterator[None]:
    """f16 as the default type."""
    previous = ag.ag_dtype("f16")
    yield
    ag.ag_dtype(previous)


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    """Every test starts with the same defaults and leaves them so."""
    ag.ag_seed(0)
    with ag.ag_device("cpu"):
        yield
    assert ag.ag_default_dtype() == "f32"
