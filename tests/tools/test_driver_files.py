"""The files of Vulkan drivers: which the loader finds, what it says of each, and which device comes from which."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.devices import WITHOUT_EXTENSION, run_code

import ag
from ag.engine.backend import Finding
from ag.engine.backends.vulkan import examination as module
from ag.engine.backends.vulkan.examination import DriverFile, Key, driver_files, file_of
from ag.engine.device import backend_of

pytestmark = pytest.mark.slow  # also because layers, as in the leg for synchronization, say things of their own

ICDS = os.environ.get("VK_ICD_FILENAMES", "")
NONE = '{"ICD": {"api_version": "1.3.0", "library_path": "/nowhere/libnone.so"}, "file_format_version": "1.0.0"}'
DRIVERS = """
from ag.engine.registry import drivers, list_devices
said["devices"] = [info.name for info in list_devices(accelerators_only=True)]
said["drivers"] = [tuple(x) for x in drivers()]
"""


@pytest.fixture
def asked_anew() -> Iterator[None]:
    driver_files.cache_clear()
    yield
    driver_files.cache_clear()


def found_with(*paths: object, **more: str) -> tuple[list[str], dict[str, list[str]]]:
    """Names of the devices, and what is said of each driver by its file's name, where these files are chosen."""
    icds = os.pathsep.join(map(str, paths))
    said = run_code(DRIVERS, VK_ICD_FILENAMES=icds, VK_DRIVER_FILES=icds, **more)
    by_name = {Path(found.split(":")[0].split(" is ")[0]).name: [verdict, found, remedy]
               for subject, found, remedy, verdict in said["drivers"] if subject == "driver"}
    return said["devices"], by_name


def test_a_device_comes_from_a_file(vulkan: str) -> None:
    found = {x.subject: x for x in backend_of(vulkan).examine()}["driver file"]
    assert found.verdict == "ok" and found.found in ICDS.split(os.pathsep)
    part = "lvp" if "llvmpipe" in backend_of(vulkan).info.description else "swiftshader"
    assert part in Path(found.found).name


def test_drivers_that_work(lavapipe: str, swiftshader: str) -> None:
    devices, found = found_with(*ICDS.split(os.pathsep))
    assert len(found) == len(devices) == 2 and {verdict for verdict, _, _ in found.values()} == {"ok"}
    assert sorted(said.rpartition(": ")[2] for _, said, _ in found.values()) == devices


def test_one_that_cannot_be_loaded_beside_one_that_can(lavapipe: str, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text(NONE)
    devices, found = found_with(tmp_path / "broken.json", *ICDS.split(os.pathsep))
    assert devices and [name for name, (verdict, *_) in found.items() if verdict != "ok"] == ["broken.json"]
    verdict, said, remedy = found["broken.json"]
    assert verdict == "problem" and "the Vulkan loader says: " in said and "/nowhere/libnone.so: cannot open" in said
    assert said.count("libnone.so") == 2 and "install this driver again" in remedy


def test_one_that_keeps_all_from_being_loaded(lavapipe: str, tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"ICD": ')
    (tmp_path / "none.json").write_text(NONE)
    _, found = found_with(tmp_path / "half.json", *ICDS.split(os.pathsep), tmp_path / "gone.json")
    assert found["half.json"][0] == found["gone.json"][0] == "problem" and "half.json" in found["half.json"][1]
    assert found["gone.json"][1].endswith("gone.json is not there") and "VK_ICD_FILENAMES" in found["gone.json"][2]
    (lavapipes,) = [said for name, said in found.items() if "lvp" in name]
    assert lavapipes[0] == "ok" and (lavapipes[1].endswith(": vulkan:0") or "llvmpipe" in lavapipes[1])


def test_what_the_environment_chooses(lavapipe: str) -> None:
    (chosen,) = [x for x in run_code(DRIVERS, VK_DRIVER_FILES="")["drivers"] if x[0] == "chosen by"]
    assert chosen[1] == f"VK_ICD_FILENAMES={ICDS}" and chosen[3] == "note" and "unset it" in chosen[2]


def test_a_driver_that_finds_no_card(lavapipe: str) -> None:
    others = list(Path("/usr/share/vulkan/icd.d").glob("radeon_icd*.json"))
    if not others or list(Path("/dev").glob("dri/renderD*")):
        pytest.skip("there is no driver of other cards, or there may be a card")
    _, found = found_with(others[0], *ICDS.split(os.pathsep))
    verdict, said, remedy = found[others[0].name]
    assert verdict == "ok" and said.endswith("no device, as none of its kind is here or may be used") and not remedy


def test_without_the_extension() -> None:
    said = run_code("from ag.engine.registry import drivers\nsaid['drivers'] = [x.found for x in drivers()]\n"
                    f"sys.modules[{WITHOUT_EXTENSION.rpartition('[')[2].partition(']')[0]}] = None\n"
                    "from ag.engine.backends.vulkan.examination import driver_files\ndriver_files.cache_clear()\n"
                    "said['without'] = driver_files()")
    assert said["without"] == []


@pytest.mark.parametrize(("code", "fault"), [
    ("import os\nos.abort()", "a process that loads it ends with -"),
    ("import time\ntime.sleep(60)", "it does not answer in 4 s"),
])
def test_a_driver_that_crashes_or_hangs(lavapipe: str, asked_anew: None, monkeypatch: pytest.MonkeyPatch, code: str,
                                        fault: str) -> None:
    monkeypatch.setattr(module, "_CODE", "import os\nif os.environ['VK_LOADER_DEBUG'] == 'error,warn':\n"
                        + "".join(f"    {line}\n" for line in code.splitlines()) + module._CODE)
    monkeypatch.setattr(module, "_PATIENCE", 4.0)
    found = driver_files()
    assert len(found) == len(ICDS.split(os.pathsep)) and all(file.fails and not file.devices for file in found)
    assert all(file.said[0].startswith(fault) for file in found)
    assert {x.found for x in backend_of(lavapipe).examine() if x.subject == "driver file"} == {
        "unknown: the loader does not tell it"}


def test_no_process_can_be_started(lavapipe: str, asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert driver_files() == ()


WORDS = {
    "1.2": """\
INFO: Found manifest file /usr/share/vulkan/implicit_layer.d/device_select.json, version "1.0.0"
INFO: Found ICD manifest file /usr/share/vulkan/icd.d/intel icd.json, version "1.0.0"
INFO: Found ICD manifest file /usr/share/vulkan/icd.d/lvp.json, version "1.0.0"
INFO: Found ICD manifest file /usr/share/vulkan/icd.d/intel icd.json, version "1.0.0"
""",
    "1.3.239": """\
INFO:             Vulkan Loader Version 1.3.239
DRIVER:           Searching for driver manifest files
DRIVER:              In following locations:
DRIVER:                 /etc/not.json
DRIVER:              Found the following files:
DRIVER:                 /usr/share/vulkan/icd.d/intel icd.json
DRIVER:                 /usr/share/vulkan/icd.d/lvp.json
ERROR:            loader_get_json: Failed to parse JSON file /usr/share/vulkan/icd.d/intel icd.json
DRIVER:           Found ICD manifest file /usr/share/vulkan/icd.d/lvp.json, version "1.0.0"
""",
    "1.4": """\
[Vulkan Loader] DRIVER:           Searching for driver manifest files
[Vulkan Loader] DRIVER:              In following locations:
[Vulkan Loader] DRIVER:                 /etc/not.json
[Vulkan Loader] DRIVER:              Found the following files:
[Vulkan Loader] DRIVER:                 /usr/share/vulkan/icd.d/intel icd.json
[Vulkan Loader] DRIVER:                 /usr/share/vulkan/icd.d/lvp.json
[Vulkan Loader] DRIVER:           Found ICD manifest file /usr/share/vulkan/icd.d/intel icd.json, version 1.0.0
""",
}


@pytest.mark.parametrize("version", WORDS)
def test_the_words_of_loaders(version: str) -> None:
    assert module._paths(WORDS[version].splitlines()) == ["/usr/share/vulkan/icd.d/intel icd.json",
                                                          "/usr/share/vulkan/icd.d/lvp.json"]


def answer(*lines: str, devices: tuple[Key, ...] = ()) -> Finding:
    return module._finding(module._file("/a.json", module._Answer(devices, list(lines), "")), [])


def test_what_the_loader_says_of_a_driver() -> None:
    warned = answer("[Vulkan Loader] WARNING | DRIVER: terminator_CreateInstance: Received return code -9 from call to "
                    "vkCreateInstance in ICD /a.so. Skipping this driver.")
    assert warned.verdict == "note" and "return code -9" in warned.found and "if its card is here" in warned.remedy
    assert answer("ERROR: libnone.so: cannot open").verdict == "problem"
    nothing = answer('WARNING: Layer "VK_LAYER_x" forced disabled', "INFO: Found manifest file b.json",
                     "ERROR:   setup_loader_term_phys_devs:  Failed to detect any valid GPUs in the current config")
    assert nothing.verdict == "ok" and "says" not in nothing.found
    works = answer("ERROR: something", devices=(("a card", 3, "1.2.3"),))
    assert works.verdict == "ok" and works.found == "/a.json: a card (the Vulkan loader says: something)"


A, B = ("a card", 3, "1.2.3"), ("a card", 2, "1.2.3")


def a_file(path: str, *devices: Key) -> DriverFile:
    return DriverFile(path, devices, (), False)


def test_the_file_of_a_device() -> None:
    files = [a_file("a", A), a_file("b", B), a_file("c"), a_file("d", B)]
    assert file_of(A, files) == Finding("driver file", "a")
    twice = file_of(B, files)
    assert twice.found == "one of b, d" and twice.verdict == "note" and "installed twice" in twice.remedy
    assert file_of(("another", 0, ""), files).found == "unknown: the loader does not tell it"
    assert file_of(A, [a_file("a", A, B), a_file("b", A, B)]) == Finding("driver file", "unknown: one of a, b")
    assert file_of(A, [a_file("a", A, B)]) == Finding("driver file", "a") and file_of(A, []).verdict == "ok"


def test_the_report(lavapipe: str) -> None:
    text = str(ag.doctor())
    assert f"\n\nDrivers:\n  note     chosen by         VK_ICD_FILENAMES={ICDS}\n" in text
    assert any(f"\n  ok       driver            {path}: {lavapipe}\n" in text for path in ICDS.split(os.pathsep))
