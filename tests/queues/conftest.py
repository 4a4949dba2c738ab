"""The layer that gives a software driver a second queue, which only copies: see queues.c."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.devices import built_layers, run_code

Queued = Callable[..., dict[str, Any]]

GIB = 1 << 30
QUICK = {  # one for each way in which the two queues could get out of order; the others are in the full leg
    "test_words_that_launches_read_are_not_overtaken[copies]", "test_an_upload_onto_an_upload[copies]",
    "test_memory_that_the_host_writes_and_an_upload_is_on_its_way_to[launches]",
    "test_an_upload_goes_beside_launches_and_arrives_before_those_after_it[launches-9]",
    "test_a_profile_and_an_idle_device_have_one_queue[launches]",
    "test_a_handler_in_the_middle_of_an_upload[copies-17]"}
CARD = {"AG_LIMITS_TYPE": "2", "AG_LIMITS_MEMORY": f"{8 * GIB}:1,{16 * GIB}:6:14"}  # of which the host sees nothing


def pytest_itemcollected(item: pytest.Item) -> None:
    if {"queued", "layers"} & set(getattr(item, "fixturenames", ())) and item.name not in QUICK:
        item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def layers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return built_layers(tmp_path_factory.mktemp("queues"), "VK_LAYER_AG_limits", "VK_LAYER_AG_queues")


@pytest.fixture(params=["launches", "copies"])
def queued(layers: dict[str, str], lavapipe: str, tmp_path: Path, request: pytest.FixtureRequest) -> Queued:
    """Run code in a new process, in which DEVICE is a card with two queues, of which one is ahead where it may be."""

    def run(code: str, **environment: str) -> dict[str, Any]:
        log, shared = tmp_path / "log", tmp_path / "shared"
        log.write_text("")
        said = run_code(f"DEVICE = {lavapipe!r}\n" + code, **{**layers, **CARD, **environment},
                        AG_QUEUES_FIRST=request.param, AG_QUEUES_LOG=str(log), AG_QUEUES_SHARED=str(shared))
        return {**said, "log": log.read_text(), "shared": shared.read_text().splitlines()}

    return run
