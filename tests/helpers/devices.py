"""The Vulkan devices of the tests, by name, and processes of their own, as drivers and devices are opened once in one.

conftest.py makes fixtures of the devices.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers import forked
from helpers.errors import expect_error

import ag

DRIVERS = {"lavapipe": "llvmpipe", "swiftshader": "SwiftShader"}  # name in tests -> part of the product's name
ROOT = Path(__file__).parents[2]
LAYERS = {"VK_LAYER_AG_limits": ROOT / "tests" / "limits" / "limits.c",  # which stand between programs and drivers
          "VK_LAYER_AG_queues": ROOT / "tests" / "queues" / "queues.c",
          "VK_LAYER_KP_fault": ROOT / "third_party" / "kp" / "fault" / "fault.c"}
NAMED = os.environ.get("AG_TEST_DEVICE")
EXTENSION = "ag.engine.backends.vulkan._kp"  # the binding to Vulkan
WITHOUT_EXTENSION = f"import sys\nsys.modules[{EXTENSION!r}] = None"  # begins the code of a process that has none
VULKAN = [pytest.param(name, marks=pytest.mark.vulkan) for name in ([NAMED] if NAMED else DRIVERS)]


def vulkan_device(driver: str) -> str:
    """Name of the device of a software driver, or of the one that AG_TEST_DEVICE names."""
    if driver == NAMED:
        return driver
    for info in ag.ag_vulkan_devices():
        if DRIVERS[driver] in info.description:
            return info.name
    promised = os.environ.get("AG_TEST_ICDS", "")
    if {"lavapipe": "lvp", "swiftshader": "swiftshader"}[driver] in promised.lower():
        pytest.fail(f"AG_TEST_ICDS promises {driver}, and no such Vulkan device was found")
    pytest.skip(f"the Vulkan driver {driver} is not installed here")


def built_layers(folder: Path, *names: str) -> dict[str, str]:
    """Compile layers into a folder; the environment that loads them."""
    for name in names:
        (manifest,) = LAYERS[name].parent.glob("VkLayer_*.json")
        text = manifest.read_text("utf-8")
        library = folder / json.loads(text)["layer"]["library_path"]
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, LAYERS[name]], check=True)
        (folder / manifest.name).write_text(text, "utf-8")
    return {"VK_LAYER_PATH": str(folder), "VK_INSTANCE_LAYERS": os.pathsep.join(names)}


_PREAMBLE = """
import json, sys
import numpy as np
import ag

said = {}

def error_of(action):
    try:
        action()
    except ag.AgError as error:
        return [type(error).__name__, str(error)]
"""
_EPILOGUE = """
print("RESULT" + json.dumps(said))
"""


def expect_reported(situation: str, found: list[str] | None, error: type[BaseException], *fragments: str) -> None:
    """`expect_error` for what `error_of` put into `said`."""
    assert found is not None and found[0] == error.__name__, f"{situation}: {found}"
    with expect_error(situation, error, *fragments):
        raise getattr(ag, found[0])(found[1])


def run_code(code: str, **environment: str) -> dict[str, Any]:
    """Run code in a new process; what it put into `said`, and all it printed under "out" and "err"."""
    done = forked.run(_PREAMBLE + code + _EPILOGUE, environment=environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    out, _, result = done.stdout.rpartition("RESULT")
    return {**json.loads(result), "out": out, "err": done.stderr}
