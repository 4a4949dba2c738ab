"""The kernels in C under the compiler's sanitizers: memory outside operands, undefined behaviour, races of threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cpu_kernels
import pytest

TESTS = Path(__file__).parents[3]
DEADLINE_S = 900
KINDS = {"address": "address,undefined,float-cast-overflow", "thread": "thread"}
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}


def sanitized(kind: str, folder: Path, shapes: int) -> subprocess.CompletedProcess[str]:
    """What a run of every kernel says that was compiled with this sanitizer."""
    command = cpu_kernels.compiler()
    if not command:
        pytest.skip("no C compiler")
    asked = [*command, f"-print-file-name={LIBRARIES[kind]}"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"{command[0]} has no {LIBRARIES[kind]}")
    flags = [f"-fsanitize={KINDS[kind]}", "-fno-sanitize-recover=all", "-O1", "-g"]
    cpu_kernels.build(command, folder, {"": []}, flags)
    environment = {**os.environ, "LD_PRELOAD": path, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
                   "ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run([sys.executable, str(Path(__file__).with_name("sanitized.py")), str(folder), str(shapes)],
                          env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_found(kind: str, tmp_path: Path) -> None:
    run = sanitized(kind, tmp_path, 20)
    assert run.returncode == 0, run.stdout + run.stderr


DEFECTS = [  # in the text of `clamp`
    ("address", "i < s.end; i++) {\n        const", "i <= s.end; i++) {\n        const", "overflow"),
    ("address", "const float y = x[i] <", "const float y = (float)(int32_t)x[i] <", "outside the range of"),
    ("thread", "share(a->n, BLOCK, part, parts)", "share(a->n, BLOCK, 0, 1)", "data race")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text", "defect", "message"), DEFECTS, ids=[row[3] for row in DEFECTS])
def test_a_defect_is_found(kind: str, text: str, defect: str, message: str, tmp_path: Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    """An element too much, an integer made of NaN, parts that all threads do."""
    sources = shutil.copytree(cpu_kernels.SOURCES, tmp_path / "kernels")
    whole = (sources / "pointwise.c").read_text("utf-8")
    assert text in whole
    (sources / "pointwise.c").write_text(whole.replace(text, defect, 1), "utf-8")
    monkeypatch.setattr(cpu_kernels, "SOURCES", sources)
    monkeypatch.setattr(cpu_kernels, "hashes", dict)  # of what lies in the repository
    run = sanitized(kind, tmp_path / "built", 3)
    assert run.returncode != 0 and message in run.stderr and "pointwise.c" in run.stderr, run.stdout + run.stderr
