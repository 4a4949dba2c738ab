"""The C of this library under the compiler's sanitizers: memory outside of arrays, undefined behaviour, races."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import cpu_kernels
import pytest

from ag.engine.backends.cpu.library import library

TESTS = Path(__file__).parents[3]
DEADLINE_S = 900
KINDS = {"address": "address,undefined,float-cast-overflow", "thread": "thread"}
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}


def flags_of(kind: str) -> list[str]:
    return [f"-fsanitize={KINDS[kind]}", "-fno-sanitize-recover=all", "-O1", "-g"]


def compiler_with(kind: str) -> tuple[list[str], str]:
    """The C compiler, and the file of the sanitizer's library, or the test is skipped."""
    command = cpu_kernels.compiler()
    if not command:
        pytest.skip("no C compiler")
    asked = [*command, f"-print-file-name={LIBRARIES[kind]}"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"{command[0]} has no {LIBRARIES[kind]}")
    return command, path


def run_with(library: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    environment = {**os.environ, "LD_PRELOAD": library, "PYTHONPATH": path, "ASAN_OPTIONS": "detect_leaks=0",
                   "TSAN_OPTIONS": "halt_on_error=1", **variables}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False,
                          timeout=DEADLINE_S)


LEVELS = cpu_kernels.LEVELS.get(platform.machine(), {"": []})
BEST = "" if (there := library()) is None else there.level  # of this processor


def sanitized(kind: str, folder: Path, shapes: int, level: str = "") -> subprocess.CompletedProcess[str]:
    command, path = compiler_with(kind)
    cpu_kernels.build(command, folder, {"": LEVELS[level]}, flags_of(kind))
    return run_with(path, str(Path(__file__).with_name("sanitized.py")), str(folder), str(shapes))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("kind", "level"), [(kind, level) for kind in KINDS for level in dict.fromkeys(("", BEST))])
def test_nothing_is_found(kind: str, level: str, tmp_path: Path) -> None:
    run = sanitized(kind, tmp_path, 20, level)
    assert run.returncode == 0, run.stdout + run.stderr


DEFECTS = [  # in the text of `clamp`
    ("address", "i < s.end; i++) {\n        const", "i <= s.end; i++) {\n        const", "overflow"),
    ("address", "const float y = x[i] <", "const float y = (float)(int32_t)x[i] <", "outside the range of"),
    ("thread", "share(a->n, BLOCK, part, parts)", "share(a->n, BLOCK, 0, 1)", "data race")]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("kind", "text", "defect", "message"), DEFECTS, ids=[row[3] for row in DEFECTS])
def test_a_defect_is_found(kind: str, text: str, defect: str, message: str, tmp_path: Path,
                           monkeypatch: pytest.MonkeyPatch) -> None:
    sources = shutil.copytree(cpu_kernels.SOURCES, tmp_path / "kernels")
    whole = (sources / "pointwise.c").read_text("utf-8")
    assert text in whole
    (sources / "pointwise.c").write_text(whole.replace(text, defect, 1), "utf-8")
    monkeypatch.setattr(cpu_kernels, "SOURCES", sources)
    monkeypatch.setattr(cpu_kernels, "hashes", dict)  # of what lies in the repository
    run = sanitized(kind, tmp_path / "built", 3)
    assert run.returncode != 0 and message in run.stderr and "pointwise.c" in run.stderr, run.stdout + run.stderr


NATIVE = TESTS.parent / "ag" / "native"
TESTED_BY = ("engine/test_arena.py", "engine/test_alloc.py", "engine/backends/test_launch_cache.py",
             "engine/backends/cpu/test_launch.py", "capture/test_unchanged.py",
             "capture/test_replay.py", "parallel/comm/test_add_up.py",
             "ops/test_operands_in_c.py")


def helpers(folder: Path, sources: Path) -> subprocess.CompletedProcess[str]:
    command, library = compiler_with("address")
    subprocess.run([*command, *flags_of("address"), "-fPIC", "-shared", f"-I{sysconfig.get_path('include')}",
                    *map(str, sources.glob("*.c")), "-o", str(folder / "_code.so")], check=True, timeout=DEADLINE_S)
    return run_with(library, "-m", "pytest", "-qsx", "-m", "not slow", "-k", "not swiftshader",
                    "-p", "engine.backends.cpu.preloaded", "-p", "no:cacheprovider",
                    *[str(TESTS / path) for path in TESTED_BY], AG_TEST_HELPERS=str(folder), PYTHONMALLOC="malloc")


@pytest.mark.slow
@pytest.mark.long
def test_nothing_is_found_in_the_helpers(tmp_path: Path) -> None:
    run = helpers(tmp_path, NATIVE)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_defect_of_a_helper_is_found(tmp_path: Path) -> None:
    for source in NATIVE.iterdir():
        if source.suffix in (".c", ".h"):
            text = source.read_text("utf-8")
            (tmp_path / source.name).write_text(text.replace("*starts[OPERANDS + 1]", "*starts[2]"), "utf-8")
    run = helpers(tmp_path, tmp_path)
    assert run.returncode != 0 and "launch.c" in run.stderr, run.stdout + run.stderr
