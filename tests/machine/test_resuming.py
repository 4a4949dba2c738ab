"""A training that was saved and resumed goes on as if it had never stopped; `resuming.py` runs more histories."""

from __future__ import annotations

import pytest
from machine.resuming import resumed


@pytest.mark.parametrize("seed", [
    pytest.param(seed, marks=pytest.mark.slow_on("lavapipe") if seed > 1 else ()) for seed in range(6)])
def test_a_resumed_training_goes_on(device: str, seed: int) -> None:
    assert resumed(seed, device) == ""


@pytest.mark.slow
@pytest.mark.not_on("swiftshader")
@pytest.mark.parametrize("seed", range(6, 20))
def test_more_resumed_trainings(device: str, seed: int) -> None:
    assert resumed(seed, device) == ""
