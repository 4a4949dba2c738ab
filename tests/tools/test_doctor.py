"""`ag.doctor()` and `python -m ag doctor`: what is there, how exactly it computes, and what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest
from helpers.devices import EXTENSION, WITHOUT_EXTENSION

import ag
from ag.__main__ import main
from ag.tools import probe
from ag.tools.mpi_probe import mpi_report

DOCTOR = import_module("ag.tools.doctor")


def test_all_devices_and_all_pairs() -> None:
    found = ag.doctor()
    names = [d.info.name for d in found.devices]
    assert names == ["cpu", *(info.name for info in ag.ag_vulkan_devices())]
    assert found.healthy and all(d.precision is not None for d in found.devices)
    assert len(found.transport) == len(names) * (len(names) - 1)
    text = str(found)
    assert text.endswith("Healthy: every device works.") and "cpu: division exact, square root exact" in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    assert found["devices"][0]["info"]["name"] == "cpu"
    assert set(found["devices"][0]["precision"]) == {"div_ulp", "sqrt_ulp", "fma", "denormals"}
    assert {"system", "transport", "packages", "missing"} < set(found)
    assert all(link["correct"] for link in found["transport"])


def test_precision_of_the_cpu_is_that_of_ieee() -> None:
    found = probe.accuracy_of("cpu")
    assert (found.div_ulp, found.sqrt_ulp, found.denormals) == (0, 0, True)


def test_precision_of_every_device(device: str) -> None:
    found = probe.accuracy_of(device)
    assert 0 <= found.div_ulp <= 3 and 0 <= found.sqrt_ulp <= 3  # Vulkan allows division 2.5


def test_the_distance_is_counted_in_units_in_the_last_place() -> None:
    one = np.float32(1.0)
    after = np.nextafter(np.nextafter(one, np.float32(2)), np.float32(2))
    assert probe._distance(np.array([after]), np.array([one])) == 2
    assert probe._distance(np.array([one]), np.array([after])) == 2


def test_a_loose_division_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = probe.ag_div
    monkeypatch.setattr(probe, "ag_div", lambda a, b: right(a, b) * np.float32(1 + 2.0**-22))
    assert probe.accuracy_of("cpu").div_ulp >= 1
    assert "cpu: division within " in str(ag.doctor())


def test_a_broken_device_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DOCTOR, "fault_of", lambda name: "" if name != "cpu" else "it burns")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "cpu: DOES NOT WORK: it burns" in text and text.endswith("NOT HEALTHY: see the faults above.\n")
    assert "cpu to " not in text


def doctor_in_a_process(before: str, **environment: str) -> str:
    script = f"import sys\n{before}\nfrom ag.__main__ import main\nsys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True,
                          env={**os.environ, **environment}, timeout=120)
    assert done.stderr == ""
    return done.stdout


def test_a_machine_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("ag.tools.mpi_probe.version", none)
    text = str(ag.doctor())
    assert "MPI: none" in text and "to get it: pip install 'ag-autograd[mpi]'" in text


def test_a_machine_with_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that ranks may be lost, and which setting of the environment is in the way."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector", "0")
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector_timeout", "3")
    report, missing = mpi_report()
    if not report.startswith("Open MPI"):
        pytest.skip(f"another MPI: {report or missing}")
    assert "mpi4py" in report and "tcp" in report
    (wrong,) = missing
    assert wrong.startswith("OMPI_MCA_mpi_ft_detector is '0' in the environment, and without '1'")


def test_an_installation_without_the_extension() -> None:
    text = doctor_in_a_process(WITHOUT_EXTENSION)
    assert "this installation of ag has no Vulkan extension" in text and "pip install ag-autograd" in text
    assert "One device: there is nothing to move values between." in text
    assert text.endswith("Healthy: every device works.\n")


def test_a_machine_without_a_driver() -> None:
    pytest.importorskip(EXTENSION, reason="without it that is what is reported; see the test above")
    text = doctor_in_a_process("", VK_ICD_FILENAMES="/nonexistent.json", VK_DRIVER_FILES="/nonexistent.json")
    assert "mesa-vulkan-drivers" in text and text.endswith("Healthy: every device works.\n")
