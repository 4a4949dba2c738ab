"""Run tools/setup.sh with a pip and builders that only note how they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILDER = """import os, pathlib
with open("calls", "a") as calls:
    calls.write(f"{pathlib.Path(__file__).name} {os.environ.get('AG_CPU_LEVELS', 'all')}\\n")
"""
TOOLS = ("g++", "glslangValidator", "spirv-opt", "spirv-val")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="it prepares Linux"),
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason="without these tools it would install them"),
]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the script and what it looks at, whose .venv has a Python that writes down its arguments."""
    for name in ("pyproject.toml", "setup.py", "native_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tools").mkdir()
    for path in (ROOT / "tools").glob("*.sh"):
        shutil.copy(path, tmp_path / "tools")
    for name in ("ag/native", "third_party/kp", "shaders"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ag" / "native" / "native.h").touch()
    (tmp_path / "ag" / "native" / "code.c").touch()
    spv = tmp_path / "ag" / "engine" / "backends" / "shader" / "spv"
    spv.mkdir(parents=True)
    (tmp_path / "kernels_build.py").write_text(f"{BUILDER}open('{spv}/manifest.json', 'w').close()\n")
    (tmp_path / "tools" / "cpu_kernels.py").write_text(BUILDER)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\ncase $2 in pip) shift 6; echo pip \"$@\" >>calls;; esac\n")
    apt = tmp_path / "bin" / "apt-get"
    apt.parent.mkdir()
    apt.write_text("#!/bin/sh\nexit 1\n")
    for path in (python, apt):
        path.chmod(0o755)
    base = getattr(sys, "_base_executable", sys.executable)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    (tmp_path / ".venv" / "made-by").write_text(f"{tmp_path} {base} {version}\n")
    return tmp_path


def calls(clone: Path, level: str) -> list[str]:
    """Return how pip and the builders were called."""
    (clone / "calls").write_text("")
    done = subprocess.run(["bash", "tools/setup.sh", level], cwd=clone, capture_output=True, text=True, check=False,
                          timeout=100, env={**os.environ, "PYTHON": sys.executable,
                                            "PATH": f"{clone / 'bin'}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted((clone / "calls").read_text("utf-8").splitlines())


def test_a_demo_grows_and_never_shrinks(clone: Path) -> None:
    assert calls(clone, "demo") == ["cpu_kernels.py native", "kernels_build.py all", "pip -e ."]
    assert calls(clone, "demo") == ["cpu_kernels.py native"]  # which asks whether they are built
    assert calls(clone, "dev") == ["cpu_kernels.py all", "pip -e .[dev]"]
    assert calls(clone, "demo") == ["cpu_kernels.py native"] and calls(clone, "dev") == ["cpu_kernels.py all"]
    os.utime(clone / ".venv" / "ag-installed", (1, 1))  # as after a change of pyproject.toml
    assert calls(clone, "demo") == ["cpu_kernels.py native", "pip -e ."]
