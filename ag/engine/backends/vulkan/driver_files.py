"""Report the driver files that the Vulkan loader finds, their devices, and the loader's complaints.

The loader skips drivers that it cannot load, and does not say where a device comes from.  So it is asked in separate
processes, where a driver may hang or crash: once for all files, and once for each.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from ag.engine.backend import Finding
from ag.engine.backends.vulkan.devices import DRIVERS, driver_version
from ag.engine.backends.vulkan.kp import kompute
from ag.errors import DeviceError

Key = tuple[str, int, str]  # product, VkDriverId and driver version, which differ between two drivers of a card

_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")  # the second is the older name
_ADDED = "VK_ADD_DRIVER_FILES"
_PATIENCE = 60.0  # seconds, for all
_MOST_LINES = 3
_LISTED = "AG"
# Loads the extension without this package, which takes a tenth of a second.
_CODE = f"""
import importlib.util as u, json, sys
spec = u.spec_from_file_location("_kp", sys.argv[1])
kp = u.module_from_spec(spec)
spec.loader.exec_module(kp)
told = "device_name", "driver_id", "driver_info", "vendor_id", "driver_version"
print("{_LISTED}" + json.dumps([dict((name, d[name]) for name in told) for d in kp.list_devices()]))
"""
_FOUND = re.compile(r"Found ICD manifest file (.+?), version|\bDRIVER:\s{8,}(\S.*\.json)$")
_LISTS = re.compile(r"Found the following files:|In following locations:")
_COMPLAINT = re.compile(r"^(?:\[Vulkan Loader\] )?(ERROR|WARN(?:ING)?)\b[^:]*:\s*(.+)$")
_NO_FAULT = re.compile(r"failed to detect any valid GPUs|found no drivers|\blayer\b", re.I)  # not the driver's fault


class DriverFile(NamedTuple):
    """A driver's file, its devices, the loader's complaints, and whether these are errors."""

    path: str
    devices: tuple[Key, ...]
    said: tuple[str, ...]
    fails: bool


class _Answer(NamedTuple):
    """The devices and lines that a process wrote, and why it failed."""

    devices: tuple[Key, ...]
    lines: list[str]
    fault: str


def drivers() -> list[Finding]:
    """Return findings: the environment's choice of drivers, then each file, those with devices first."""
    try:
        listed = DRIVERS.listed()
    except DeviceError:  # the registry reports that
        listed = []
    names = [((device.info.description, device.driver_id, device.info.driver), device.info.name) for device in listed]
    chosen = {name: os.environ[name] for name in (*_VARIABLES, _ADDED) if os.environ.get(name)}
    gone = [entry for text in chosen.values() for entry in text.split(os.pathsep) if entry and not Path(entry).exists()]
    files = sorted(driver_files(), key=lambda file: (file.fails, not file.devices))
    return [*(Finding("chosen by", f"{name}={text}", "drivers that it does not name are not looked for; unset it to "
                      "find all" if name != _ADDED else "") for name, text in chosen.items()),
            *(_finding(file, [name for key, name in names if key in file.devices]) for file in files
              if file.path not in gone),
            *(Finding("driver", f"{path} is not there", f"correct {' and '.join(chosen)}, or unset it", "problem")
              for path in dict.fromkeys(gone))]


def _finding(file: DriverFile, names: list[str]) -> Finding:
    brings = ", ".join(names or [product for product, *_ in file.devices]) or (
        "nothing" if file.fails else "no device, as none of its kind is here or may be used")
    said = f" (the Vulkan loader says: {'; '.join(file.said)})" if file.said else ""
    if file.fails:
        remedy = "install this driver again, or a newer one; or remove the file, if no card needs it"
    else:
        remedy = "if its card is here, install this driver again" if said and not file.devices else ""
    return Finding("driver", f"{file.path}: {brings}{said}", remedy, "problem" if file.fails else "note")


def file_of(key: Key, files: Sequence[DriverFile]) -> Finding:
    """Report the file that a device comes from, if known."""
    those = [file.path for file in files if key in file.devices]
    if len(those) == 1:
        return Finding("driver file", those[0])
    if not those:
        return Finding("driver file", "unknown: the loader does not tell it")
    if all(file.devices == files[0].devices for file in files):  # an elevated process may choose no files
        return Finding("driver file", f"unknown: one of {', '.join(those)}")
    return Finding("driver file", f"one of {', '.join(those)}",
                   f"remove one, or set {_VARIABLES[0]} to the other: the driver is installed twice")


@cache
def driver_files() -> tuple[DriverFile, ...]:
    """Return all files that the loader finds, in its order; none without the extension."""
    try:
        library = str(kompute().__file__)
    except DeviceError:
        return ()
    (all_files,) = _answers(library, [{**os.environ, "VK_LOADER_DEBUG": "error,warn,info,driver"}])
    paths = _paths(all_files.lines)
    base = {name: text for name, text in os.environ.items() if name != _ADDED} | {"VK_LOADER_DEBUG": "error,warn"}
    answers = _answers(library, [base | dict.fromkeys(_VARIABLES, path) for path in paths])
    return tuple(_file(path, answer) for path, answer in zip(paths, answers, strict=True))


def _file(path: str, answer: _Answer) -> DriverFile:
    found = [match for line in answer.lines if (match := _COMPLAINT.match(line)) and not _NO_FAULT.search(match[2])]
    said = list(dict.fromkeys(" ".join(match[2].split()) for match in found))
    errors = any(match[1] == "ERROR" for match in found)
    if answer.fault:
        said.insert(0, answer.fault)
    return DriverFile(path, answer.devices, tuple(said[:_MOST_LINES]), not answer.devices and (
        errors or bool(answer.fault)))


def _paths(lines: list[str]) -> list[str]:
    """Find the drivers' files in the loader's messages; older loaders name them only when reading them."""
    found: dict[str, None] = {}
    files = False
    for line in lines:
        if heading := _LISTS.search(line):
            files = heading[0].startswith("Found")
        elif (match := _FOUND.search(line)) and (match[1] or files):
            found[(match[1] or match[2]).strip()] = None
        elif not match:
            files = False
    return list(found)


def _answers(library: str, environments: list[dict[str, str]]) -> list[_Answer]:
    """Run a process for each environment, all at once."""
    try:
        started = [subprocess.Popen([sys.executable, "-c", _CODE, library], env=environment, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, errors="replace")
                   for environment in environments]
    except OSError:
        return [_Answer((), [], "")] * len(environments)
    until = monotonic() + _PATIENCE
    return [_answer(process, max(until - monotonic(), 0.1)) for process in started]


def _answer(process: subprocess.Popen[str], patience: float) -> _Answer:
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        return _Answer((), process.communicate()[1].splitlines(), f"it does not answer in {_PATIENCE:.0f} s")
    listed = [line.removeprefix(_LISTED) for line in out.splitlines() if line.startswith(_LISTED)]
    devices = tuple((d["device_name"], d["driver_id"], driver_version(d))
                    for d in json.loads(listed[0])) if listed else ()
    crashed = process.returncode < 0 or process.returncode > 1  # Python exits with 1 if no device is found
    return _Answer(devices, err.splitlines(), f"a process that loads it ends with {process.returncode}"
                   if crashed and not listed else "")
