"""Run tools/cpu_kernels.py with compilers that cannot do all, and after an earlier build that left files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import cpu_kernels
import pytest
from helpers.errors import expect_error

LEVELS = {"": [], ".v3": ["-march=x86-64-v3"], ".v4": ["-march=x86-64-v4"]}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the compilers of these tests are shell scripts")


@pytest.fixture(autouse=True)
def _levels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(cpu_kernels.LEVELS, cpu_kernels.platform.machine(), LEVELS)
    monkeypatch.setattr(cpu_kernels, "OUT", tmp_path / "built")


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: str = "nothing") -> Path:
    """A compiler that makes files with its arguments in them, and refuses arguments in which a text is."""
    path = tmp_path / "compiler"
    path.write_text(f"""#!/bin/sh
case "$*" in *{refuses}*) echo "error: bad value for {refuses}" >&2; exit 1; esac
while [ "$1" != -o ]; do shift; done
echo "$*" > "$2"
""")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    return path


def is_built() -> bool:
    return bool(cpu_kernels.is_built(cpu_kernels.OUT))


def manifest() -> dict[str, object]:
    found: dict[str, object] = json.loads((cpu_kernels.OUT / "manifest.json").read_text("utf-8"))
    return found


def test_a_level_that_the_compiler_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path, monkeypatch)
    assert cpu_kernels.update() == "" and manifest()["left_out"] == {} and is_built()
    (cpu_kernels.OUT / "manifest.json").unlink()
    compiler(tmp_path, monkeypatch, refuses="-march=x86-64-v4")
    assert cpu_kernels.update() == ""
    assert manifest()["levels"] == ["", ".v3"]
    assert manifest()["left_out"] == {".v4": "error: bad value for -march=x86-64-v4"}
    assert {path.name for path in cpu_kernels.OUT.iterdir()} == {"kernels.so", "kernels.v3.so", "manifest.json"}
    compiler(tmp_path, monkeypatch)
    assert cpu_kernels.update() == "" and manifest()["levels"] == ["", ".v3", ".v4"]


def test_a_library_that_does_not_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path, monkeypatch, refuses="kernels.v3.so")
    assert cpu_kernels.update() == "" and manifest()["levels"] == ["", ".v4"]


def test_kernels_that_no_processor_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path, monkeypatch, refuses="-ffp-contract")
    why = "the kernels in C do not compile (error: bad value for -ffp-contract)"
    assert cpu_kernels.update() == why and not is_built()
    with expect_error("a compiler that refuses all", cpu_kernels.KernelError, "bad value"):
        cpu_kernels.build([os.environ["CC"]], cpu_kernels.OUT)


def test_a_compiler_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(tmp_path, monkeypatch).write_text("#!/nowhere/sh\n")
    assert cpu_kernels.update().startswith("the kernels in C do not compile ([Errno ")


@pytest.mark.parametrize("damage", ["{", "[]", "cut off", "no library"])
def test_what_is_damaged_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    compiler(tmp_path, monkeypatch)
    assert cpu_kernels.update() == "" and is_built()
    whole = manifest()
    if damage == "cut off":
        (cpu_kernels.OUT / "kernels.v3.so").write_text("")
    elif damage == "no library":
        (cpu_kernels.OUT / "kernels.v4.so").unlink()
    else:
        (cpu_kernels.OUT / "manifest.json").write_text(damage)
    assert not is_built()
    assert cpu_kernels.update() == "" and is_built() and manifest() == whole


@pytest.mark.parametrize("flags, levels", [("avx2 bmi2 fma movbe sse2", ["", ".v3"]), ("sse2 fma", [""]), (
    "avx2 bmi2 fma movbe avx512f avx512bw avx512cd avx512dq avx512vl", ["", ".v4"])])
def test_for_this_processor_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str,
                                  levels: list[str]) -> None:
    compiler(tmp_path, monkeypatch)
    listed = tmp_path / "cpuinfo"
    listed.write_text(f"processor : 0\nflags\t\t: fpu {flags} ht\nbugs : none\n")
    monkeypatch.setattr(cpu_kernels, "CPUINFO", listed)
    monkeypatch.setenv("AG_CPU_LEVELS", "native")
    assert cpu_kernels.update() == "" and is_built() and manifest()["levels"] == levels
    monkeypatch.delenv("AG_CPU_LEVELS")
    assert not is_built() and cpu_kernels.update() == "" and manifest()["levels"] == ["", ".v3", ".v4"]
    monkeypatch.setenv("AG_CPU_LEVELS", "native")
    assert is_built()  # what others need stays
