"""Devices for the tests: the CPU and two software Vulkan drivers, which stand for two vendors.

`device` runs a test on each of them, `vulkan` on the Vulkan ones; `lavapipe` and `swiftshader` give one by name.  A
driver that `AG_TEST_ICDS` promises must be there; without that variable a missing driver skips its tests, with the
reason.  The variable `AG_TEST_DEVICE=vulkan:0` puts another device, such as a card, in the place of the two in `device`
and `vulkan`.  Words go straight to lavapipe's memory, and by way of staging memory to SwiftShader's.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from helpers import forked
from helpers.devices import VULKAN, vulkan_device

import ag
from ag.engine.backends.vulkan.kp import Words
from ag.engine.backends.vulkan.transfers import Transfers

TESTS = Path(__file__).parent
if not (TESTS.parent / "ag" / "engine" / "backends" / "cpu" / "built" / "manifest.json").is_file():
    os.environ.setdefault("AG_CPU", "numpy")  # where no compiler is: a line in the log would say so in every process
# The quick leg tries both drivers where ops and backends are tested.  Everything else runs on lavapipe there, and on
# SwiftShader in the slow leg, unless its mark is `not_on`: long repetitions of code that knows no drivers.
BOTH_DRIVERS = ("engine/backends", "ops", "table")  # folders whose tests are quick on either
LONG = ("cards", "docs", "tools")  # folders with tests of half a minute
BEGIN = pytest.StashKey[float]()


def processor_s() -> float:
    """Seconds of processor time of this process, of the children that it waited for, and of programs of the server."""
    return sum(os.times()[:4]) + forked.spent_s[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note the processor time at which a test begins."""
    item.stash[BEGIN] = processor_s()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Give the junit file the test's processor time: the wall's says little on a machine that others share."""
    if call.when == "teardown":
        item.user_properties.append(("processor_s", f"{processor_s() - item.stash[BEGIN]:.3f}"))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape half characters, which a worker cannot send: one in a message would end the whole run."""
    return sendable((yield))


def sendable(x: Any) -> Any:
    """Return a report's data with every text as UTF-8 can have it."""
    if isinstance(x, str):
        return x.encode("utf-8", "backslashreplace").decode()
    if isinstance(x, dict):
        return {key: sendable(value) for key, value in x.items()}
    return type(x)(map(sendable, x)) if type(x) in (list, tuple) else x


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what there is; of thousands of tests, one `gc.collect()` takes 0.3 s."""
    gc.collect()
    gc.freeze()


def names(item: pytest.Item, mark: str) -> set[str]:
    """Return which parameters of a test are drivers that such a mark names."""
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {name for found in item.iter_markers(mark) for name in found.args}
    return named & {x for x in params if isinstance(x, str)}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is `not_on` its driver; begin with long tests, as a leg ends when its last worker does."""
    if left_out := {item for item in items if names(item, "not_on")}:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] not in LONG)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test `vulkan` if it takes such a device, and slow on devices that its mark `slow_on` or folder names."""
    if {"vulkan", "lavapipe", "swiftshader"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.vulkan)
    if not item.path.relative_to(TESTS).as_posix().startswith(BOTH_DRIVERS):
        item.add_marker(pytest.mark.slow_on("swiftshader"))
    if names(item, "slow_on"):
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


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder in memory, if there can be one: files by the thousand need not go to a disk."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def is_slow(request: pytest.FixtureRequest) -> bool:
    """Tell whether the test is in the slow leg, where it tries more of the same."""
    return request.node.get_closest_marker("slow") is not None


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
