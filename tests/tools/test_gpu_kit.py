"""The kit for a bare machine with a graphics card: unpacked on one that is emulated, all three calls of its check pass.
The emulated machine has a dozen commands, another home, no network, and lavapipe as a discrete card."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from helpers.devices import built_layers

ROOT = Path(__file__).parents[2]
COMMANDS = ("bash", "cat", "date", "dirname", "env", "mkdir", "rm", "sed", "tee", "timeout")
ROWS = {"kernels": "kernels", "operations": "ops", "steps": "step", "judge": "ops"}

LAVAPIPE = [icd for icd in os.environ.get("AG_TEST_ICDS", "").split(os.pathsep) if "lvp" in icd]
VERSIONS = "3.13", "3.12", "3.11", "3.10"  # that the kit is made for
USABLE = "import os, sysconfig, sys; sys.exit(not os.path.isfile(sysconfig.get_path('include') + '/Python.h'))"

pytestmark = [pytest.mark.slow, pytest.mark.long,
              pytest.mark.skipif(not LAVAPIPE, reason="lavapipe is not installed here")]


def python_of_the_machine() -> str:
    """A Python of another version, on the path or where pyenv has its own, with its headers; or this one."""
    this = "{}.{}".format(*sys.version_info)
    for version in (v for v in VERSIONS if v != this):
        of_pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        for found in map(str, filter(None, (shutil.which(f"python{version}"), *of_pyenv))):
            if subprocess.run([found, "-c", USABLE], capture_output=True, check=False).returncode == 0:
                return str(Path(found).resolve())
    return getattr(sys, "_base_executable", sys.executable)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The emulated machine's disk: the commands, the layer, and the kit as it is unpacked."""
    disk = tmp_path_factory.mktemp("machine")
    for name in ("bin", "home", "layer"):
        (disk / name).mkdir()
    for command in COMMANDS:
        (disk / "bin" / command).symlink_to(shutil.which(command) or command)
    python = python_of_the_machine()
    (disk / "bin" / "python3").symlink_to(python)
    built_layers(disk / "layer", "VK_LAYER_AG_limits")
    done = subprocess.run([sys.executable, ROOT / "tools" / "gpu_kit" / "build.py", "--to", disk / "packed" / "gpu-kit",
                           python], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run(["tar", "xf", disk / "packed" / "gpu-kit.tar"], cwd=disk, check=True)
    shutil.rmtree(disk / "packed")
    yield disk
    shutil.rmtree(disk)


def start(machine: Path, *arguments: str, card: bool = True, icd: str = "".join(LAVAPIPE[:1])) -> subprocess.Popen[str]:
    """A call of the check, in a session of its own."""
    environment = {"PATH": str(machine / "bin"), "HOME": str(machine / "home"), "QUICK": "1", "VK_ICD_FILENAMES": icd}
    if card:
        environment |= {"VK_LAYER_PATH": str(machine / "layer"), "VK_INSTANCE_LAYERS": "VK_LAYER_AG_limits",
                        "AG_LIMITS_TYPE": "2"}
    without = ["unshare", "-n"] if subprocess.run(["unshare", "-n", "true"], check=False).returncode == 0 else []
    given = [f"{name}={value}" for name, value in environment.items()]
    return subprocess.Popen([*without, "env", "-i", *given, "bash", str(machine / "gpu-kit" / "check.sh"), *arguments],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def check(machine: Path, *arguments: str, **settings: Any) -> tuple[int, str]:
    """Status and output of a call."""
    running = start(machine, *arguments, **settings)
    output, _ = running.communicate(timeout=300)
    return running.returncode, output


def rows(machine: Path, call: str) -> list[str]:
    """The lines that a call has written."""
    path = machine / "gpu-kit" / "results" / "vulkan0" / f"{ROWS[call]}.jsonl"
    return path.read_text("utf-8").splitlines(keepends=True) if path.is_file() else []


def test_without_a_card_it_ends_at_once(machine: Path) -> None:
    status, output = check(machine, "kernels", card=False)
    assert status == 3, output
    assert "no Vulkan device was found that is a card" in output and "Found ICD manifest file" in output, output
    assert "Traceback" not in output
    status, output = check(machine, "kernels", card=False, icd="/nowhere.json")
    assert status == 3 and "the loader says" in output and "/nowhere.json" in output, output


def test_calls_that_are_killed_leave_their_rows_and_the_next_ones_end_well(machine: Path) -> None:
    rng, left = random.Random(0), 0
    for call in ROWS:
        running = start(machine, call)
        sleep(rng.uniform(1, 4))
        while not left and not rows(machine, call) and running.poll() is None:  # one has begun to write at least
            sleep(0.05)
        os.killpg(running.pid, signal.SIGKILL)
        subprocess.run(["pkill", "-KILL", "-f", str(machine / "gpu-kit")], check=False)  # groups that timeout made
        running.communicate()
        lines = rows(machine, call)
        left += len(lines)
        assert all(line.endswith("\n") and json.loads(line) for line in lines[:-1])
        status, output = check(machine, call)
        assert status == 0, output
        assert f"gpu_check: {call} on vulkan:0" in output and "| verdict | goal |" in output, output
        assert len(rows(machine, call)) >= 9, output
    assert left > 0
    assert output.count("not run") == 0 and "| W1, captured | 200 us | " in output
    first, *tests = map(json.loads, rows(machine, "kernels"))
    outcomes = {row["outcome"] for row in tests}
    assert first["tests"] == len(tests) and "passed" in outcomes and "failed" not in outcomes
    for name in ("ops", "step"):
        content = json.loads((machine / "gpu-kit" / "results" / "vulkan0" / f"{name}.json").read_text())
        assert "discrete" in content["machine"]["device"] and content["machine"]["commit"]
        version = subprocess.run([python_of_the_machine(), "--version"], capture_output=True, text=True, check=True)
        assert version.stdout.split()[1] == content["machine"]["python"]


def test_another_python_is_named(machine: Path) -> None:
    pythons = machine / "gpu-kit" / "pythons"
    known = pythons.read_text("utf-8")
    pythons.write_text("cp399\n", "utf-8")
    try:
        status, output = check(machine, "kernels")
    finally:
        pythons.write_text(known, "utf-8")
    assert status == 1 and "and the kit is for cp399; name another with PYTHON=." in output


def test_usage(machine: Path) -> None:
    status, output = check(machine, "everything")
    assert status == 2 and "kernels|operations|steps|judge" in output
