"""The layer that gives a software driver a second queue, which only copies: see queues.c."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.devices import built_layers, run_code

Queued = Callable[..., dict[str, Any]]

GIB = 1 << 30
CARD = {"AG_LIMITS_TYPE": "2", "AG_LIMITS_MEMORY": f"{8 * GIB}:1,{16 * GIB}:6:14"}  # of which the host sees nothing


@pytest.fixture(scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment that loads the layer, and the one that makes a card of the driver, compiled here."""
    return built_layers(tmp_path_factory.mktemp("queues"), "VK_LAYER_AG_limits", "VK_LAYER_AG_queues")


@pytest.fixture(params=["launches", "copies"])
def queued(layers: dict[str, str], lavapipe: str, tmp_path: Path, request: pytest.FixtureRequest) -> Queued:
    """Run code in a new process, in which DEVICE is a card with two queues, of which one is ahead where it may be.

    In `said` are, too, a letter for every submission, in the order in which they started, and how buffers are shared.
    """

    def run(code: str, **environment: str) -> dict[str, Any]:
        log, shared = tmp_path / "log", tmp_path / "shared"
        log.write_text("")
        said = run_code(f"DEVICE = {lavapipe!r}\n" + code, **{**layers, **CARD, **environment},
                        AG_QUEUES_FIRST=request.param, AG_QUEUES_LOG=str(log), AG_QUEUES_SHARED=str(shared))
        return {**said, "log": log.read_text(), "shared": shared.read_text().splitlines()}

    return run
