"""Test what ggmlR gets wrong, and no other test of `ag` is about: one small test for each defect, named after it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import ag
from ag.parallel.trainer.replica import Replica


class TwoCalledAlike(ag.Layer):
    """A layer's parameter and one of the model's own come out under the same name."""

    def __init__(self) -> None:
        self.a = ag.ag_linear(2, 2, bias=False)
        self.a_W = ag.ag_param(np.ones((2, 2)))


def test_two_parameters_of_a_model_with_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="a_W"):
        ag.optimizer_sgd(TwoCalledAlike())


class Foreign:
    """A model of its own kind, inside a layer."""

    def __init__(self) -> None:
        self.W = ag.ag_param(np.ones((2, 2)))

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return ag.ag_matmul(self.W, x)

    def parameters(self) -> dict[str, ag.Tensor]:
        return {"W": self.W}


class HoldsForeign(ag.Layer):
    def __init__(self) -> None:
        self.inner = Foreign()


def test_a_model_inside_a_layer_that_would_not_be_trained_is_refused() -> None:
    with pytest.raises(TypeError, match="'inner' is a Foreign"):
        ag.optimizer_sgd(HoldsForeign())


@pytest.mark.slow  # compiles kernels on two drivers
@pytest.mark.vulkan
def test_replicas_on_vulkan_work_at_the_same_time(lavapipe: str, swiftshader: str,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    start, meeting, met = Replica.start, threading.Barrier(2), []

    def together(self: Replica, *args: Any) -> None:
        meeting.wait(60)
        met.append(self.device)
        start(self, *args)

    monkeypatch.setattr(Replica, "start", together)
    ag.dp_train(lambda: ag.ag_linear(2, 1), [np.ones((2, 1), np.float32)] * 4, lambda y, _: ag.ag_sum(y * y),
                lambda model, x: model(x), devices=[lavapipe, swiftshader], n_iter=3, verbose=False)
    assert sorted(met) == sorted([lavapipe, swiftshader] * 3)


AT_EXIT = """
import sys
import numpy as np, ag
devices = [info.name for info in ag.ag_vulkan_devices()][:1] + ["cpu", "cpu:1"]
sample = (np.ones((2, 1), np.float32), np.ones((1, 1), np.float32))
result = ag.dp_train(lambda: ag.ag_linear(2, 1), [sample] * 8, ag.ag_mse_loss, lambda model, s: model(s[0]),
                     lambda s: s[1], devices=devices, n_iter=2, verbose=False)
assert result.devices == devices
sys.exit(3)
"""


def test_a_program_that_trained_on_devices_of_both_kinds_ends_well() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", AT_EXIT], capture_output=True, text=True, timeout=300,
                          check=False)
    assert (done.returncode, done.stderr) == (3, "")
