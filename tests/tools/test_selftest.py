"""`python -m ag selftest` passes on every device, and says which kernel is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from helpers.devices import run_code

import ag
from ag.__main__ import main
from ag.engine.backend import Backend
from ag.engine.backends.cpu.library import library
from ag.engine.backends.shader import manifest
from ag.engine.device import ag_default_dtype, backend_of
from ag.tools import selftest as module
from ag.tools.selftest import CHECKS, selftest

WITH_C = pytest.mark.skipif(library() is None, reason="no kernels in C are built, so none can be wrong")


def faults(name: str, monkeypatch: pytest.MonkeyPatch, *checks: str) -> dict[str, str]:
    """Return the faults of some checks on a device; of training where none is named."""
    if checks:
        monkeypatch.setattr(module, "_trains", lambda name: "")
    monkeypatch.setattr(module, "CHECKS", {check: CHECKS[check] for check in checks})
    return {x.check: x.fault for x in selftest([name]) if x.fault}


def test_the_processor_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("ok")] == [["ok", "cpu"]] * (len(CHECKS) + 2)
    assert lines[-1] == f"0 of {len(CHECKS) + 2} checks failed."


@pytest.mark.vulkan
@pytest.mark.slow
def test_a_driver_passes(vulkan: str) -> None:
    assert [x for x in selftest([vulkan]) if x.fault] == []


@pytest.mark.vulkan
def test_some_checks_on_a_driver(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults(lavapipe, monkeypatch, "pooling", "indexing") == {}


@pytest.mark.parametrize("infos, setting", [([], "0"), (["cpu"], "yes")])
def test_no_device_and_a_wrong_variable_are_no_pass(infos: list[str], setting: str, monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AG_SOFTWARE", setting)
    monkeypatch.setattr("ag.__main__.list_devices", lambda: [backend_of(name).info for name in infos])
    monkeypatch.setattr(module, "CHECKS", {})
    monkeypatch.setattr(module, "_trains", lambda name: "")
    assert main(["selftest"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "No device was tested." if not infos else lines[-2].startswith("AG_SOFTWARE is 'yes'")
    assert main(["selftest", "--json"]) == 1 and not json.loads(capsys.readouterr().out)["passed"]


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--device", "voodoo:1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (check,) = found["checks"]
    assert not found["passed"] and check["check"] == "opening" and "voodoo" in check["fault"]


@WITH_C
@pytest.mark.parametrize("right, wrong, check", [("relu", "sigmoid", "activations"), ("tanh_grad", "sigmoid_grad",
                                                                                     "functions")])
def test_a_wrong_kernel_in_c(right: str, wrong: str, check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Any = library()
    monkeypatch.setitem(kernels.kernels, right, kernels.kernels[wrong])
    found = faults("cpu", monkeypatch, check, "indexing")
    assert list(found) == [check] and " in float64" in found[check]


@pytest.mark.vulkan
def test_a_wrong_kernel_in_spir_v(lavapipe: str, tmp_path: Path) -> None:
    folder = copytree(manifest._SPV, tmp_path / "spv")
    (folder / "softmax.spv").write_bytes((folder / "log_softmax.spv").read_bytes())
    said = run_code(f"""
from pathlib import Path
from ag.engine.backends.shader import manifest
manifest._SPV = Path({str(folder)!r})
from ag.tools import selftest as module
module.CHECKS = {{"softmax": module.CHECKS["softmax"]}}
module._trains = lambda name: ""
said["faults"] = {{x.check: x.fault for x in module.selftest([{lavapipe!r}]) if x.fault}}
""", XDG_CACHE_HOME=str(tmp_path))
    assert " in float64" in said["faults"]["softmax"]


def test_a_kernel_that_writes_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Backend.launch

    def launch(self: Backend, primitive: Any, *operands: Any, **options: Any) -> Any:
        out = usual(self, primitive, *operands, **options)
        if self.arena.guard and primitive.name == "max_pool2d":
            self._write_bytes(operands[0].address - 4, np.float32(1.0).tobytes())
        return out

    monkeypatch.setattr(Backend, "launch", launch)
    found = faults("cpu", monkeypatch, "pooling", "indexing")
    assert list(found) == ["pooling"] and "was overwritten" in found["pooling"]


def test_a_capture_with_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(step: Any) -> Any:
        calls = []

        def call(*arguments: Any) -> Any:
            calls.append(step(*arguments))
            return [ag.ops.scale(t, 1.0 + 2.0**-23) for t in calls[-1]] if len(calls) == 3 else calls[-1]

        return call

    monkeypatch.setattr(module, "ag_capture", capture)
    found = faults("cpu", monkeypatch, "pooling")
    assert found == {"pooling": "call 3 of the captured step has other bits than the uncaptured step"}


def test_a_training_that_goes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(lr: float, **options: Any) -> Any:
        return ag.dp_train(lr=lr * (1.01 if ag_default_dtype() == "f32" else 1.0), **options)

    monkeypatch.setattr(module, "dp_train", train)
    assert list(faults("cpu", monkeypatch)) == ["dp_train"]


def test_a_number_that_is_none() -> None:
    right = [np.array([1.0, 2.0])]
    assert module._difference([np.array([1.0, np.nan])], right, 1e-4).startswith("output 0[1] of shape (2,) is nan")
    assert module._difference([np.array([1.0, 2.0001])], right, 1e-4) == ""
    assert module._difference([np.empty((0, 3))], [np.empty((0, 3))], 1e-4) == ""
