"""The layer that gives a software driver the limits and the identity of devices that are not there: see limits.c."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.devices import built_layers, run_code

Limited = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def limits_layer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment that loads the layer, compiled here."""
    return built_layers(tmp_path_factory.mktemp("limits"), "VK_LAYER_AG_limits")


@pytest.fixture
def limited(limits_layer: dict[str, str], lavapipe: str) -> Limited:
    """Run code in a new process, in which DEVICE is lavapipe's; SHARED="16384" sets AG_LIMITS_SHARED, and so on."""

    def run(code: str, environment: dict[str, str] | None = None, **limits: object) -> dict[str, Any]:
        names = {f"AG_LIMITS_{name}": str(value) for name, value in limits.items()}
        return run_code(f"DEVICE = {lavapipe!r}\n" + code, **limits_layer, **names, **(environment or {}))

    return run
