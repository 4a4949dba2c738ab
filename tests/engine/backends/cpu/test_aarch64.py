"""The kernels in C compiled for aarch64: the tests of kernels again, in which qemu runs every launch."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cpu_kernels
import pytest
from engine.backends.cpu.emulated import EMULATOR, FOLDER

HERE, TESTS = Path(__file__).parent, Path(__file__).parents[3]
COMPILER, SYSTEM, QEMU = "aarch64-linux-gnu-gcc", Path("/usr/aarch64-linux-gnu"), "qemu-aarch64"
FILES = (*(HERE / f"test_{name}.py" for name in ("native", "dense", "threads_in_c")), TESTS / "engine" / "kernels")
HERE_ONLY = ("fork", "callers_at_once", "without_memory", "kernels_build")  # of this process, or nothing of kernels
DEADLINE_S = 600


def lacking() -> str:
    if platform.machine() == "aarch64":
        return "this is such a processor"
    for there, package in ((shutil.which(COMPILER), "gcc-aarch64-linux-gnu"),
                           ((SYSTEM / "include" / "stdio.h").is_file(), "libc6-dev-arm64-cross"),
                           (shutil.which(QEMU), "qemu-user")):
        if not there:
            return f"no {package}; install with: apt install {package}"
    return ""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(bool(lacking()), reason=lacking())
def test_kernels_for_aarch64(tmp_path: Path) -> None:
    cpu_kernels.build([COMPILER], tmp_path, {"": []})
    subprocess.run([COMPILER, "-O1", "-Wall", "-Wextra", "-Werror", str(HERE / "emulated.c"), "-o",
                    str(tmp_path / "emulated")], check=True)
    environment = {**os.environ, FOLDER: str(tmp_path), EMULATOR: f"{QEMU} -L {SYSTEM}",
                   "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]), "AG_CPU": "", "AG_EVERY": "0/2"}
    chosen = ["-m", "not slow and not vulkan", "-k", " and ".join(f"not {name}" for name in HERE_ONLY)]
    plugins = ["-p", "no:cacheprovider", "-p", "cards.plugin", "-p", "engine.backends.cpu.emulated"]
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", *plugins, *chosen, *map(str, FILES)], cwd=TESTS.parent,
                         env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"^(\d+) calls were emulated", run.stdout, re.M)
    assert found and int(found[1]) > 5000, run.stdout
    assert "skipped" not in run.stdout, run.stdout  # as all of it would be, were there no kernels
