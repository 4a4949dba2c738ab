"""Zeros of either sign are equal and give other results: a captured step tells them apart wherever it finds them."""

from __future__ import annotations

from os import environ
from typing import Any

import numpy as np
import pytest

import ag

X = np.array([[-2.0, -1.0, 1.0, 2.0]], np.float32)


class Settings:
    """Has an attribute that a step reads."""

    slope = 0.0


OPS: dict[str, Any] = {
    "a parameter": ag.ag_leaky_relu, "a number": lambda x, zero: x * zero,
    "a number of a chain": lambda x, zero: ag.ag_relu(x * zero) + x * zero,
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_step_that_reads_another_zero_is_recorded_anew(device: str, op: Any) -> None:
    settings = Settings()
    with ag.ag_device(device):
        x = ag.ag_tensor(X)
        step = ag.ag_capture(lambda x: op(x, settings.slope))
        for zero in (0.0, 0.0, 0.0, -0.0, -0.0, 0.0, -0.0):
            settings.slope = zero
            assert step(x).numpy().tobytes() == op(x, zero).numpy().tobytes()


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_zero_that_nobody_sees_change_shows_in_the_second_call(
        device: str, op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with ag.ag_device(device):
        x = ag.ag_tensor(X)
        step = ag.ag_capture(lambda x: op(x, float(environ["AG_A_ZERO"])))
        monkeypatch.setenv("AG_A_ZERO", "0.0")
        step(x)
        monkeypatch.setenv("AG_A_ZERO", "-0.0")
        with pytest.raises(ag.CaptureError, match=r"0\.0 and (has|works on)"):
            step(x)
