"""`python -m ag`: help, the table of devices, and what is said where something is missing."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys

import pytest
from helpers import forked
from helpers.devices import EXTENSION, WITHOUT_EXTENSION

import ag
from ag.__main__ import main
from ag.engine.backend import DeviceInfo
from ag.tools.device_table import device_table, show


def test_help_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "devices" in capsys.readouterr().out


def test_devices_lists_and_tries_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["device", "kind", "product", "vendor", "driver", "memory", "features"]
    listed = [line.split()[0] for line in lines[1:] if line.startswith(("cpu ", "vulkan:"))]
    assert listed == ["cpu", *(info.name for info in ag.ag_vulkan_devices())]
    assert "Used where no device is named: cpu." in lines or os.environ.get("AG_TEST_DEVICE")  # no card is here
    assert lines[-1] == "Every device computed a test product correctly."


@pytest.mark.vulkan
def test_a_choice_that_is_not_there_is_named(lavapipe: str) -> None:
    text = devices_in_a_process("", 1, AG_VULKAN_DEVICES="Voodoo")
    assert "\nAG_VULKAN_DEVICES: vulkan:Voodoo: no device" in text


@pytest.mark.parametrize("setting", ["AG_CPU=x", "AG_NATIVE=x"])
def test_a_setting_that_no_device_can_have_is_named(setting: str) -> None:
    variable, _, value = setting.partition("=")
    text = devices_in_a_process("", 1, VK_ICD_FILENAMES="/no", VK_DRIVER_FILES="/no", **{variable: value})
    assert f"\n{variable} is 'x'; it m" in text and "correctly" not in text
    code = "from importlib import reload\nimport ag.native\nreload(ag.native)\nprint('imported')\nag.ag_tensor([1.0])"
    done = forked.run(code, environment={variable: value})
    assert done.stdout == "imported\n" and f"Error: {variable} is 'x'" in done.stderr


@pytest.mark.vulkan
def test_what_is_used_is_what_is_said(lavapipe: str, swiftshader: str) -> None:
    """Software drivers stand for two cards."""
    text = devices_in_a_process("", AG_SOFTWARE="1")
    assert "\nUsed where no device is named: vulkan:0.\ndp_train uses vulkan:0, vulkan:1.\n" in text
    done = subprocess.run([sys.executable, "-m", "ag", "devices"], capture_output=True, text=True, check=True,
                          env={**os.environ, "AG_SOFTWARE": "1", "AG_DEVICE": "cpu:1"})
    assert "\nUsed where no device is named: cpu:1.\n" in done.stdout and "dp_train" not in done.stdout


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["devices"]] == ["cpu", *(info.name for info in ag.ag_vulkan_devices())]
    assert found["chosen"] == {"default": "cpu", "dp_train": ["cpu"]}
    assert all(each["fault"] == "" for each in found["devices"])


def test_a_device_that_computes_nonsense_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ag.tools.doctor.ag_matmul", lambda a, b: ag.ag_tensor([[0.0]]))
    assert main(["devices"]) == 1
    assert "cpu does not work: a matrix product is [[0.0]], not [[20.0, " in capsys.readouterr().out


def test_a_device_without_kernels_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(a: ag.Tensor, b: ag.Tensor) -> ag.Tensor:
        raise ag.KernelError("Vulkan: no compiled kernels were found in spv/; run `python kernels_build.py`.")

    monkeypatch.setattr("ag.tools.doctor.ag_matmul", refuse)
    assert main(["devices"]) == 1
    assert "cpu does not work: Vulkan: no compiled kernels were found" in capsys.readouterr().out


def devices_in_a_process(before: str, status: int = 0, **environment: str) -> str:
    """Output of `devices` in a fresh process, in which `before` runs first."""
    script = f"import sys\n{before}\nfrom ag.__main__ import main\nsys.exit(main(['devices']))"
    done = forked.run(script, environment=environment)
    assert (done.returncode, done.stderr) == (status, "")
    return done.stdout


def test_without_the_extension_it_says_how_to_get_it() -> None:
    text = devices_in_a_process(WITHOUT_EXTENSION)
    assert "Only the CPU can be used:\nVulkan: this installation of ag has no Vulkan extension" in text
    assert "pip install ag-autograd" in text
    assert text.endswith("Every device computed a test product correctly.\n")


def test_without_a_driver_it_says_how_to_get_it() -> None:
    pytest.importorskip(EXTENSION, reason="without it that is what is reported; see the test above")
    text = devices_in_a_process("", VK_ICD_FILENAMES="/nonexistent.json", VK_DRIVER_FILES="/nonexistent.json")
    assert "Only the CPU can be used:\nvulkan:0: the drivers list no devices" in text
    assert "mesa-vulkan-drivers" in text


def test_table_fits_120_columns_with_long_names_and_all_features() -> None:
    features = ("atomic_float32_add", "cooperative_matrix", "float16", "float64", "int16", "int64", "int8", "storage16",
                "storage8", "subgroup_extended_types", "subgroup_size_control", "vulkan_memory_model")
    info = DeviceInfo("vulkan:10", "NVIDIA GeForce RTX 4090 Laptop GPU (Max-Q Design)", "Qualcomm", "535.183.1",
                      "integrated", 141 << 30, features)
    line = device_table([info]).splitlines()[1]
    assert len(line) <= 120
    assert "NVIDIA GeForce RTX 4090 L..." in line
    assert line.endswith("141.0 GiB  f16 f64 i8 i16 i64 atomic matrix")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "utf-8"])
def test_what_an_encoding_lacks_is_replaced(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
    info = DeviceInfo("vulkan:0", "Radeon\u2122 \u4e2d \udc80", "AMD", "1", "discrete", 1, ())
    show(device_table([info]))
    assert b"Radeon" in sys.stdout.buffer.getvalue()


class Unwritable(io.StringIO):
    """A stream whose reader has gone, or whose disk is full."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


class Bare:
    """A stream that can only write, as programs put in the place of stdout."""

    def write(self, text: str) -> None:
        """Take it."""

    def flush(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("stream, status", [(None, 0), (closed(), 0), (Bare(), 0), (Unwritable(errno.EPIPE), 141),
                                            (Unwritable(errno.ENOSPC), 1)])
def test_no_stream_ends_the_command_line_with_a_traceback(stream: object, status: int, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    assert main([]) == status
    said = f"ag: the output cannot be written: {os.strerror(errno.ENOSPC)}.\n"
    assert capsys.readouterr().err == (said if status == 1 else "")
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(["launch", "-n", "0", __file__]) == 2
