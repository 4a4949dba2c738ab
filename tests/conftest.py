"""Devices for the tests: the CPU and two software Vulkan drivers, which stand for two vendors.

`device` runs a test on each of them, `vulkan` on the Vulkan ones; `lavapipe` and `swiftshader` give one of them by
name.  A driver that `AG_TEST_ICDS` promises must be there; without that variable a missing driver skips its tests, with
the reason.  `AG_TEST_DEVICE=vulkan:0` puts another device, such as a graphics card, in the place of the two in `device`
and `vulkan`.  Words go straight to lavapipe's memory, and by way of staging memory to SwiftShader's.

The quick leg tries both drivers where kernels, ops and backends are tested; what is built on them does not know
drivers, and runs on lavapipe there, on SwiftShader in the slow leg.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from helpers.devices import VULKAN, slowness, vulkan_device

import ag
from ag.engine.backends.vulkan.kp_types import Words
from ag.engine.backends.vulkan.transfers import Transfers

TESTS = Path(__file__).parent
if not (TESTS.parent / "ag" / "engine" / "backends" / "cpu" / "built" / "manifest.json").is_file():
    os.environ.setdefault("AG_CPU", "numpy")  # where no compiler is: a line in the log would say so in every process
LONGEST_S = 5.0  # of a test that is not marked slow; the summary of a leg names its longest
TOO_LONG = "ag/too_long"  # where the names of such tests are kept: tools/test.sh runs all of them again
LIMIT_S = float(os.environ.get("AG_TEST_LIMIT_S", "inf"))  # at which one fails: the quick leg sets it
BOTH_DRIVERS = ("engine/backends", "engine/kernels", "ops", "table")  # folders whose tests are quick on either


def processor_s() -> float:
    """Seconds of processor time of this process, and of the children that it waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that is too long for the quick leg.

    It is too long only if both clocks say so: on a busy machine the wall's runs on while others work, and the
    processor's counts the threads of a driver one by one.  Where twice as much runs as there are cores, threads that
    wait for each other take time, too, and nothing is said.  The leg's limit is twice the longest that a test should
    take, for the same test takes 4 s in one minute and 6 s in the next on a machine that others share, and on a slower
    machine it may take longer by as much as Python does.  A driver that compiles its kernels for the first time takes
    half a minute for a test of a second, so the leg runs again what was too long.  Other legs set no limit.
    """
    wall, processor = perf_counter(), processor_s()
    result = yield
    took = min(perf_counter() - wall, processor_s() - processor)
    judged = took > LIMIT_S and not item.get_closest_marker("slow") and os.getloadavg()[0] < 2 * (os.cpu_count() or 1)
    if judged and took > LIMIT_S * slowness():
        if item.config.cache is not None:
            item.config.cache.set(TOO_LONG, [*item.config.cache.get(TOO_LONG, []), item.nodeid])
        pytest.fail(f"took {took:.1f} s; a test of more than {LONGEST_S:g} s is to be made smaller, or marked slow")
    return result


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what there is; of thousands of tests, one `gc.collect()` takes 0.3 s."""
    gc.collect()
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test `vulkan` if it takes such a device, and slow on devices that its mark `slow_on` or folder names."""
    if {"vulkan", "lavapipe", "swiftshader"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.vulkan)
    slow = {name for mark in item.iter_markers("slow_on") for name in mark.args}
    if not item.path.relative_to(TESTS).as_posix().startswith(BOTH_DRIVERS):
        slow.add("swiftshader")
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if slow & {x for x in params if isinstance(x, str)}:
        item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def seen() -> Iterator[Callable[..., Any]]:
    """The host does not see SwiftShader's memory, as that of many cards, so that tests transfer in either way.

    Gives what `Transfers` has instead for itself.
    """
    sees = Transfers._sees

    def on_cards(self: Transfers, address: int) -> tuple[Words | None, bool]:
        if "apart" not in vars(self):
            vars(self)["apart"] = "SwiftShader" in self._manager.get_device_properties()["device_name"]
        return (None, False) if vars(self)["apart"] else sees(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transfers, "_sees", on_cards)
        yield sees


@pytest.fixture(scope="module")
def little_to_collect() -> None:
    """For tests that collect garbage again and again, which would go through all that other tests have left."""
    pytest_collection_finish()


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
