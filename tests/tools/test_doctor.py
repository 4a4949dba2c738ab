"""`ag.doctor()` and `python -m ag doctor`: what is there, how exactly it computes, what to install, transport."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import forked
from helpers.devices import EXTENSION, WITHOUT_EXTENSION

import ag
from ag.__main__ import main
from ag.engine.backend import Finding
from ag.engine.backends.vulkan import examination
from ag.engine.device import backend_of
from ag.tools.doctor import mpi_report, transport_selftest

DOCTOR = import_module("ag.tools.doctor")


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor looks at two devices of the CPU alone, and for no driver and no MPI."""
    infos = [backend_of(name).info for name in ("cpu", "cpu:1")]
    monkeypatch.setattr(DOCTOR, "list_devices", lambda accelerators_only=False: [] if accelerators_only else infos)
    monkeypatch.setattr(DOCTOR, "transport_selftest", lambda names: transport_selftest(names, 1000))
    for name, found in (("drivers", []), ("missing_devices", []), ("mpi_report", ("", []))):
        monkeypatch.setattr(DOCTOR, name, lambda found=found: found)


@pytest.mark.usefixtures("brief")
def test_two_devices_and_both_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    assert [device["info"]["name"] for device in found["devices"]] == ["cpu", "cpu:1"]
    assert [(link["source"], link["target"]) for link in found["transport"]] == [("cpu", "cpu:1"), ("cpu:1", "cpu")]
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("Healthy: every device works.\n") and "cpu: division exact, square root exact" in text


def test_precision_of_every_device(device: str) -> None:
    found = DOCTOR.accuracy_of(device)
    assert 0 <= found.div_ulp <= 3 and 0 <= found.sqrt_ulp <= 3  # Vulkan allows division 2.5


def test_the_distance_is_counted_in_units_in_the_last_place() -> None:
    one = np.float32(1.0)
    after = np.nextafter(np.nextafter(one, np.float32(2)), np.float32(2))
    assert DOCTOR._distance(np.array([after]), np.array([one])) == 2
    assert DOCTOR._distance(np.array([one]), np.array([after])) == 2


@pytest.mark.usefixtures("brief")
def test_a_loose_division_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DOCTOR.ag_div
    monkeypatch.setattr(DOCTOR, "ag_div", lambda a, b: right(a, b) * np.float32(1 + 2.0**-22))
    assert DOCTOR.accuracy_of("cpu").div_ulp >= 1
    assert "cpu: division within " in str(ag.doctor())


@pytest.mark.usefixtures("brief")
def test_a_broken_device_is_named_and_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DOCTOR, "fault_of", lambda name: "" if name != "cpu" else "it burns")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "cpu: DOES NOT WORK: it burns" in text and text.endswith("NOT HEALTHY: see the faults above.\n")
    assert "cpu to " not in text and "cpu:1 to " not in text


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("variable", ["AG_SOFTWARE", "AG_SUBMIT_MS", "AG_NATIVE", "AG_VULKAN_DEVICES"])
def test_a_variable_that_is_wrong_is_a_fault(variable: str, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(variable, "voodoo")
    monkeypatch.setattr("ag.tools.device_table.devices_of", lambda name: ([], "there is no driver"))
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert f"\n{variable} is 'voodoo'" in text and text.endswith("NOT HEALTHY: see the faults above.\n")


@pytest.mark.usefixtures("brief")
def test_a_default_device_without_kernels_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise ag.KernelError("AG_CPU is 'x'")

    monkeypatch.setattr("ag.tools.device_table.ag_default_device", refuse)
    monkeypatch.setattr(DOCTOR, "missing_devices", lambda: ["AG_CPU is 'x'"])
    found = ag.doctor()
    assert not found.healthy and str(found).count("AG_CPU is 'x'") == 1


def doctor_in_a_process(before: str, **environment: str) -> str:
    script = f"import sys\n{before}\nfrom ag.__main__ import main\nsys.exit(main(['doctor']))"
    done = forked.run(script, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_machine_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("ag.tools.doctor.version", none)
    report, (missing,) = mpi_report()
    assert report == "" and "to get it: pip install 'ag-autograd[mpi]'" in missing


def test_a_machine_with_open_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector", "0")
    monkeypatch.setenv("OMPI_MCA_mpi_ft_detector_timeout", "3")
    report, missing = mpi_report()
    if not report.startswith("Open MPI"):
        pytest.skip(f"another MPI: {report or missing}")
    assert "mpi4py" in report and "tcp" in report
    (wrong,) = missing
    assert wrong.startswith("OMPI_MCA_mpi_ft_detector is '0' in the environment, and without '1'")


@pytest.mark.slow
def test_an_installation_without_the_extension() -> None:
    text = doctor_in_a_process(WITHOUT_EXTENSION)
    assert "this installation of ag has no Vulkan extension" in text and "pip install ag-autograd" in text
    assert "One device: there is nothing to move values between." in text
    assert text.endswith("Healthy: every device works.\n")


@pytest.mark.slow
def test_a_machine_without_a_driver() -> None:
    pytest.importorskip(EXTENSION, reason="without it that is what is reported; see the test above")
    text = doctor_in_a_process("", VK_ICD_FILENAMES="/nonexistent.json", VK_DRIVER_FILES="/nonexistent.json")
    assert "mesa-vulkan-drivers" in text and text.endswith("Healthy: every device works.\n")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the examination of a device measure little."""
    for name, value in (("_SIDES", (64,)), ("_COPIED", (1 << 12,)), ("_SENT", 1 << 16), ("_TIMES", 1)):
        monkeypatch.setattr(examination, name, value)


def findings_of(device: str) -> dict[str, Finding]:
    return {found.subject: found for found in backend_of(device).examine()}


@pytest.mark.usefixtures("small")
def test_what_is_said_of_a_driver(vulkan: str) -> None:
    found = findings_of(vulkan)
    assert {"driver", "driver file", "kind", "memory", "host sees", "largest tensor", "kernels", "tiles",
            "NaN and infinity", "subgroups, clock", "queue", "cache", "bus", "speed"} == found.keys()
    assert ", Vulkan 1." in found["driver"].found and found["kernels"].found.endswith(" fit")
    assert found["tiles"].found == "of one size, for software drivers: products are right"
    assert found["host sees"].found == "memory that both share" and found["kind"].found.startswith("software")
    assert {x.subject for x in found.values() if x.verdict != "ok"} == {"kind"} and found["kind"].verdict == "note"
    assert len(speeds(found)) == 4


def speeds(found: dict[str, Finding]) -> list[float]:
    numbers = re.findall(r"([\d.]+) (?:GB/s|GFLOP/s)", found["speed"].found + found["bus"].found)
    return [float(number) for number in numbers]


@pytest.mark.slow
def test_the_report_has_it(vulkan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"\nok       {vulkan}: division .*\n  ok       driver            ", text)
    assert f"\nok       cpu to {vulkan}: correct" in text
    assert re.search(r"\n  note     kind              software.*\n {29}-> the device 'cpu' is faster", text)
    assert main(["doctor", "--json"]) == 0
    device = next(d for d in json.loads(capsys.readouterr().out)["devices"] if d["info"]["name"] == vulkan)
    assert set(device["findings"][0]) == {"subject", "found", "remedy", "verdict"}
    assert min(speeds({x["subject"]: Finding(x["subject"], x["found"]) for x in device["findings"]})) > 0
    assert backend_of("cpu").examine() == []


@pytest.mark.usefixtures("small")
def test_a_cache_that_cannot_be_written(lavapipe: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = findings_of(lavapipe)["cache"]
    assert f"{tmp_path}/file cannot be written" in found.remedy and "XDG_CACHE_HOME" in found.remedy


def test_a_verdict_goes_with_a_remedy() -> None:
    assert Finding("x", "y").verdict == Finding("x", "y", "", "problem").verdict == "ok"
    assert Finding("x", "y", "do it").verdict == "note" and Finding("x", "y", "do it", "problem").verdict == "problem"


def test_how_many_verdicts_are_not_ok() -> None:
    bad = [Finding("a", "b", "do it", "problem"), *[Finding("a", "b", "do it")] * 2, Finding("a", "b")]
    found = DOCTOR.Diagnosis({}, [], bad, [], {}, "", [])
    assert "\n\n1 problem and 2 notes above, each with a remedy behind the arrow.\n\nHealthy" in str(found)
    assert "\nDrivers:\n  problem  a                 b\n" + 29 * " " + "-> do it\n  note " in str(found)
    assert "above" not in str(replace(found, drivers=bad[3:]))


@pytest.mark.parametrize(("verdict", "healthy"), [("note", True), ("problem", False)])
def test_a_problem_of_a_device_is_a_fault_and_a_note_is_none(verdict: str, healthy: bool) -> None:
    info = ag.ag_vulkan_devices()[0] if ag.ag_vulkan_devices() else backend_of("cpu").info
    checked = DOCTOR.Checked(info, "", None, 0, [Finding("a", "b", "do it", verdict)])
    found = DOCTOR.Diagnosis({}, [checked], [Finding("a", "b", "do it", "problem")], [], {}, "", [])
    assert found.healthy is healthy and found.as_dict()["healthy"] is healthy


def test_what_is_not_measured(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of(lavapipe)
    alloc = backend.alloc

    def little(shape: tuple[int, ...], dtype: Any) -> Any:
        if prod(shape) > most:
            raise ag.ArenaError("there is no memory")
        return alloc(shape, dtype)

    monkeypatch.setattr(backend, "alloc", little)
    monkeypatch.setattr(examination, "_QUICK", 1e3)
    most = 256 * 256
    speed = findings_of(lavapipe)["speed"]
    assert speed.found == "not measured (there is no memory)" and speed.verdict == "note" and speed.remedy
    most = 1 << 22
    monkeypatch.setattr(examination, "_SIDES", (64, 128, 4096))
    speed = findings_of(lavapipe)["speed"]
    assert "of 128 x 128" in speed.found and speed.verdict == "ok"


@pytest.mark.usefixtures("small")
def test_the_watchdog_of_a_device(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Software has none; tests/tools/test_machine.py has those of cards."""
    backend = backend_of(lavapipe)
    assert "watchdog" not in findings_of(lavapipe)
    monkeypatch.setattr(backend, "info", backend.info._replace(vendor="AMD", kind="discrete"))
    monkeypatch.setattr(backend.recorder.budget, "long", 0.2)
    assert findings_of(lavapipe)["watchdog"].found.endswith("submissions are kept below 200 ms")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("lanes", "verdict"), [(None, "ok"), ((16, 16), "ok"), ((8, 16), "ok"), ((4, 16), "note")])
def test_lanes_of_the_bus(lavapipe: str, monkeypatch: pytest.MonkeyPatch, lanes: tuple[int, int] | None,
                          verdict: str) -> None:
    backend = backend_of(lavapipe)
    monkeypatch.setattr(backend, "info", backend.info._replace(kind="discrete"))
    monkeypatch.setattr(examination, "lanes", lambda vendor, device: lanes)
    monkeypatch.setattr(examination, "_SLOW", 0.0)
    bus = findings_of(lavapipe)["bus"]
    assert bus.verdict == verdict and bus.found.endswith(f", {lanes[0]} of {lanes[1]} lanes" if lanes else " GB/s")
    monkeypatch.setattr(examination, "_SLOW", 1e6)
    assert "a slot with more lanes" in findings_of(lavapipe)["bus"].remedy


# ---------------------------------------------------------------------------------------------- transport




def test_every_pair_both_ways() -> None:
    found = ag.transport_selftest(["cpu", "cpu:1", "cpu:2", "cpu"], elements=1000)
    names = ["cpu", "cpu:1", "cpu:2"]
    assert [(t.source, t.target) for t in found] == [(a, b) for a in names for b in names if a != b]
    assert all(t.correct and t.gb_per_s > 0 and not t.fault for t in found)


@pytest.mark.vulkan
def test_two_vendors_and_the_cpu(lavapipe: str, swiftshader: str) -> None:
    found = ag.transport_selftest(elements=4099)
    pairs = {(t.source, t.target) for t in found}
    assert pairs >= {(lavapipe, swiftshader), (swiftshader, lavapipe), ("cpu", lavapipe)}
    assert all(t.correct for t in found)


def test_zeros_that_arrive_without_an_error_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # what a copy between two cards by a shared file descriptor is known to deliver
    monkeypatch.setattr(DOCTOR, "ag_to_device", lambda t, device: ag.ag_tensor([0.0] * t.size, device=device))
    found = ag.transport_selftest(["cpu", "cpu:1"], elements=100)
    assert [(t.correct, t.gb_per_s, t.fault) for t in found] == [(False, 0.0, "100 of 100 numbers arrived wrong")] * 2


def test_a_transfer_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(t: ag.Tensor, device: str) -> ag.Tensor:
        raise ag.DeviceError(f"{device}: lost")

    monkeypatch.setattr(DOCTOR, "ag_to_device", lost)
    assert [t.fault for t in ag.transport_selftest(["cpu", "cpu:1"], 10)] == ["cpu:1: lost", "cpu: lost"]


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="elements is 0"):
        ag.transport_selftest(["cpu"], elements=0)
    with pytest.raises(ag.DeviceError, match="unknown device 'cuda:0'"):
        ag.transport_selftest(["cpu", "cuda:0"])
    assert ag.transport_selftest(["cpu"]) == []
