"""The kit for a bare machine with a graphics card: unpacked on one that is emulated, all three calls of its check pass.

The emulated machine has a dozen commands, another home, no network (where this may take it away) and lavapipe, which a
layer makes a discrete card.  Its Python is of another version than this one, where one is here that the kit can be
built for; else this one, without what is installed for it.  What is measured has the smallest sizes, as a processor
takes longer for the others than the check allows.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import pytest
from helpers.devices import built_layers

ROOT = Path(__file__).parents[2]
COMMANDS = ("bash", "cat", "date", "dirname", "env", "mkdir", "rm", "sed", "tee", "timeout")
ROWS = {"kernels": "kernels", "operations": "ops", "steps": "step"}

LAVAPIPE = [icd for icd in os.environ.get("AG_TEST_ICDS", "").split(os.pathsep) if "lvp" in icd]
HAS_HEADERS = """
import pip, sys, sysconfig
from pathlib import Path
sys.exit(not Path(sysconfig.get_path("include"), "Python.h").is_file())
"""


def python_of_the_machine() -> str:
    """An interpreter of another version that wheels can be built for, or the one that this one's environment is of."""
    own = getattr(sys, "_base_executable", sys.executable)
    try:
        known = runpy.run_path(str(ROOT / "tools" / "gpu_kit" / "build.py"))["pythons"]([])
    except SystemExit:  # there is none
        return own
    others = [python for version, python in known.items() if version != "{}.{}".format(*sys.version_info)]
    return next((python for python in others[::-1] if subprocess.run(
        [python, "-c", HAS_HEADERS], check=False, capture_output=True).returncode == 0), own)


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LAVAPIPE, reason="lavapipe is not installed here")]


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
                           python], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    subprocess.run(["tar", "xf", disk / "packed" / "gpu-kit.tar"], cwd=disk, check=True)
    shutil.rmtree(disk / "packed")
    yield disk
    shutil.rmtree(disk)


def start(machine: Path, *arguments: str, card: bool = True, quick: bool = True,
          icd: str = "".join(LAVAPIPE[:1])) -> subprocess.Popen[str]:
    """A call of the check, in a session of its own."""
    environment = {"PATH": str(machine / "bin"), "HOME": str(machine / "home"), "VK_ICD_FILENAMES": icd}
    if quick:
        environment["QUICK"] = "1"
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
    try:
        text = (machine / "gpu-kit" / "results" / "vulkan0" / f"{ROWS[call]}.jsonl").read_text("utf-8")
    except FileNotFoundError:
        return []
    return text.splitlines(keepends=True)


def kill(machine: Path, running: subprocess.Popen[str]) -> None:
    """End a call, and what it has started, as a machine that is switched off does."""
    os.killpg(running.pid, signal.SIGKILL)
    subprocess.run(["pkill", "-KILL", "-f", str(machine / "gpu-kit")], check=False)  # groups that timeout made
    running.communicate()


def are_whole(lines: list[str]) -> bool:
    """Whether all rows but perhaps the last are."""
    return all(line.endswith("\n") and json.loads(line) for line in lines[:-1])


class Call(NamedTuple):
    """What came of a call that nobody has disturbed: also its rows, as they were after every tenth of a second."""

    status: int
    output: str
    seconds: float
    seen: list[list[str]]


@pytest.fixture(scope="module")
def calls(machine: Path) -> dict[str, Call]:
    """All calls, one after the other."""
    found = {}
    for call in ROWS:
        began, running, seen, output = monotonic(), start(machine, call), list[list[str]](), None
        while output is None:
            try:
                output, _ = running.communicate(timeout=0.1)
            except subprocess.TimeoutExpired:
                seen.append(rows(machine, call))
                assert monotonic() - began < 300
        found[call] = Call(running.returncode, output, monotonic() - began, [*seen, rows(machine, call)])
    return found


def test_the_python_of_the_machine_is_another_one(machine: Path) -> None:
    done = subprocess.run([machine / "bin" / "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                          capture_output=True, text=True, check=True)
    if done.stdout.split() == ["{}.{}".format(*sys.version_info)]:
        pytest.skip("no other Python is here, of 3.10 to 3.13 and with pip and headers: the emulated machine has this")


def test_without_a_card_it_ends_at_once(machine: Path) -> None:
    status, output = check(machine, "kernels", card=False)
    assert status == 3, output
    assert "no Vulkan device was found that is a card" in output and "Found ICD manifest file" in output, output
    assert "Traceback" not in output
    status, output = check(machine, "kernels", card=False, icd="/nowhere.json")
    assert status == 3 and "the loader says" in output and "/nowhere.json" in output, output


def test_all_calls_end_well_and_with_a_verdict(machine: Path, calls: dict[str, Call]) -> None:
    for call, (status, output, _, seen) in calls.items():
        assert status == 0, output
        assert f"gpu_check: {call} on vulkan:0" in output and "| verdict | goal |" in output, output
        assert len(seen[-1]) >= 9, output
    assert output.count("not run") == 0 and "| W1, captured | 200 us | " in output
    first, *tests = map(json.loads, rows(machine, "kernels"))
    outcomes = {row["outcome"] for row in tests}
    assert first["tests"] == len(tests) and "passed" in outcomes and "failed" not in outcomes
    for name in ("ops", "step"):
        content = json.loads((machine / "gpu-kit" / "results" / "vulkan0" / f"{name}.json").read_text())
        assert "discrete" in content["machine"]["device"] and content["machine"]["commit"]


def test_rows_are_there_as_soon_as_they_are_known(calls: dict[str, Call]) -> None:
    """Whenever a call is killed, its files have what had been written: rows come one by one, and none goes again."""
    for call, (_, output, _, seen) in calls.items():
        assert all(map(are_whole, seen)), call
        assert all("".join(later).startswith("".join(earlier)) for earlier, later in pairwise(seen)), call
        assert len({len(lines) for lines in seen}) > 4, output


def test_a_call_that_is_killed_leaves_its_rows(machine: Path, calls: dict[str, Call]) -> None:
    """In the first half of its time and in the second."""
    rng, left = random.Random(0), 0
    for call, (_, _, seconds, _) in calls.items():
        for half in (0, 0.5):
            running = start(machine, call)
            sleep(rng.uniform(half, half + 0.5) * seconds)
            kill(machine, running)
            lines = rows(machine, call)
            left += len(lines)
            assert are_whole(lines)
        status, output = check(machine, call)  # and the next call works
        assert status == 0, output
    assert left > 0


def test_all_files_of_kernels_begin(machine: Path) -> None:
    """Those that only the call without QUICK=1 has, too: as soon as their tests run, it is killed."""
    running, began = start(machine, "kernels", quick=False), monotonic()
    while len(rows(machine, "kernels")) < 20:
        assert running.poll() is None and monotonic() - began < 300, running.communicate()
        sleep(0.5)
    kill(machine, running)
    first, *tests = map(json.loads, rows(machine, "kernels")[:20])
    assert first["tests"] > 2000 and {row["outcome"] for row in tests} <= {"passed", "skipped"}


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
    assert status == 2 and "kernels|operations|steps" in output
