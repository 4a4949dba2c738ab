"""The kernels in C under the compiler's sanitizers: memory outside operands, undefined behaviour, races of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cpu_kernels
import pytest

TESTS = Path(__file__).parents[3]
DEADLINE_S = 900


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "library"), [("address,undefined", "libasan.so"), ("thread", "libtsan.so")])
def test_nothing_is_found(kinds: str, library: str, tmp_path: Path) -> None:
    command = cpu_kernels.compiler()
    if not command:
        pytest.skip("no C compiler")
    runtime = subprocess.run([*command, f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    path = runtime.stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"{command[0]} has no {library}")
    flags = [f"-fsanitize={kinds}", "-fno-sanitize-recover=all", "-O1", "-g"]
    cpu_kernels.build(command, tmp_path, {"": []}, flags)
    environment = {**os.environ, "LD_PRELOAD": path, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
                   "ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
    run = subprocess.run([sys.executable, str(Path(__file__).with_name("sanitized.py")), str(tmp_path), "20"],
                         env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert run.returncode == 0, run.stdout + run.stderr
