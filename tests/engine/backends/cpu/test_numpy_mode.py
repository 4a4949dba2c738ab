"""Without kernels in C everything works as with them: the quick tests of the engine and its ops, with AG_CPU=numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ag.engine.backends.cpu.library import library

ROOT = Path(__file__).parents[4]
FOLDERS = ("engine", "golden", "table")


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="no kernels in C: what runs is numpy already")
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_quick_tests_pass_in_numpy(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not vulkan and not slow",
         f"tests/{folder}"],
        cwd=ROOT, env={**os.environ, "AG_CPU": "numpy"}, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
