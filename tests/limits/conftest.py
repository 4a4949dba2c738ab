"""The layer that gives a software driver the limits and the identity of devices that are not there: see limits.c."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.devices import built_layers, run_code

Limited = Callable[..., dict[str, Any]]
QUICK = {  # of the tests with the layer, which make processes and compile kernels anew: the others are in the full leg
    "test_listing_opens_no_device", "test_a_kind_of_tiles_that_is_forced_and_does_not_fit",
    "test_a_tensor_above_a_limit_is_refused_by_its_name[limit0-maxStorageBufferRange]",
    "test_what_is_used_is_enabled_and_nothing_else", "test_words_go_the_quickest_way[resizable BAR]",
    "test_what_the_driver_is_told[offered]"}


def pytest_itemcollected(item: pytest.Item) -> None:
    if {"limited", "limits_layer"} & set(getattr(item, "fixturenames", ())) and item.name not in QUICK:
        item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def limits_layer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return built_layers(tmp_path_factory.mktemp("limits"), "VK_LAYER_AG_limits")


@pytest.fixture
def limited(limits_layer: dict[str, str], lavapipe: str) -> Limited:
    """Run code in a new process, in which DEVICE is lavapipe's; SHARED="16384" sets AG_LIMITS_SHARED, and so on."""

    def run(code: str, environment: dict[str, str] | None = None, **limits: object) -> dict[str, Any]:
        names = {f"AG_LIMITS_{name}": str(value) for name, value in limits.items()}
        return run_code(f"DEVICE = {lavapipe!r}\n" + code, **limits_layer, **names, **(environment or {}))

    return run
