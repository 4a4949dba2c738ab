"""Show which library of kernels is used, and which launches it takes."""

from __future__ import annotations

import json
import os
import threading
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from helpers import forked
from helpers.errors import expect_error
from helpers.interrupts import in_threads

import ag
from ag.engine.arena import OFFSET_BITS, Arena
from ag.engine.backends import cpu
from ag.engine.backends.cpu import native
from ag.engine.backends.cpu.backend import _memory
from ag.engine.backends.cpu.library import Library, library, load
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, F64, I32
from ag.engine.primitive import PRIMITIVES

BUILT = Path(cpu.__file__).parent / "built"
built = pytest.mark.skipif(library() is None, reason="no kernels in C: not built, or AG_CPU is numpy")


def test_what_was_built_is_used() -> None:
    """Or the tests of kernels would be skipped where the library does not load."""
    assert (library() is not None) is ((BUILT / "manifest.json").exists() and os.environ.get("AG_CPU") != "numpy")


def answer(program: str, **env: str) -> str:
    done = forked.run(program, environment=env)
    return done.stdout + done.stderr.splitlines()[-1] if done.stderr else done.stdout


def test_the_environment_may_ask_for_numpy() -> None:
    program = "import ag; print(type(ag.ag_tensor([1.0]).buffer.backend).__name__)"
    assert answer(program, AG_CPU="numpy") == "NumpyBackend\n"
    assert "AG_CPU is 'c'; it may be 'numpy'" in answer(program, AG_CPU="c")


@pytest.mark.slow
@built
def test_the_environment_may_ask_for_a_level() -> None:
    program = "from ag.engine.backends.cpu.library import library; print(library().level)"
    assert answer(program, AG_CPU="plain") == "\n"
    best = {"": 2, ".v3": 3, ".v4": 4}[load(BUILT).library.level]
    for level in 3, 4:
        said = answer(program, AG_CPU=f"v{level}")
        assert said == f".v{level}\n" if level <= best else f"AG_CPU is 'v{level}'; this processor" in said


@pytest.mark.slow
def test_a_level_that_was_not_built(tmp_path: Path) -> None:
    program = without(tmp_path) + "import ag; ag.ag_tensor([1.0])"
    assert f"AG_CPU is 'plain', and {WHY}" in answer(program, AG_CPU="plain")


def without(tmp_path: Path) -> str:
    """A program's first lines, by which it has no kernels in C, as the build could not compile them."""
    note = "quick paths: no Python.h\nkernels: no C compiler; install with: apt install g\n"
    (tmp_path / "not_built.txt").write_text(note)
    return (f"from importlib import import_module; from pathlib import Path\n"
            f"import_module('ag.engine.backends.cpu.library')._BUILT = Path({str(tmp_path / 'built')!r})\n")


WHY = "no kernels in C are there (no C compiler; install with: apt install g), so the CPU computes with numpy"


def test_no_library(tmp_path: Path) -> None:
    assert load(tmp_path / "built").library is None
    assert load(tmp_path / "built").lacks.startswith("no kernels in C are there (they were not compiled), so")
    without(tmp_path)
    found = load(tmp_path / "built")
    assert found.lacks.startswith(WHY) and found.line.startswith(f"cpu: {WHY}") and "`" in found.remedy


@pytest.mark.slow
def test_a_line_says_that_there_are_none(tmp_path: Path) -> None:
    program = without(tmp_path) + "import ag, sys; from ag.engine.registry import list_devices\nlist_devices()\n"
    opened = program + "print('listed', file=sys.stderr)\nfor d in 'cpu', 'cpu', 'cpu:1': ag.ag_tensor([1.0], device=d)"
    first, line = forked.run(opened, environment={"AG_CPU": ""}).stderr.splitlines()
    assert first == "listed" and line.startswith(f"cpu: {WHY}")
    assert answer(opened, AG_CPU="numpy") == "listed"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["devices", "doctor"])
def test_reports_say_that_there_are_none(tmp_path: Path, command: str) -> None:
    program = without(tmp_path) + f"from ag.__main__ import main; main([{command!r}])"
    done = forked.run(program, environment={"AG_CPU": "", "VK_ICD_FILENAMES": "/none", "VK_DRIVER_FILES": "/none"})
    assert done.stdout.count(WHY) == 1 and done.stderr == "" and done.returncode == 0
    assert "no kernels in C" not in answer(program, AG_CPU="numpy")


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", '{"sources": {}}', "\udcff"])
def test_a_damaged_manifest(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest, "utf-8", "surrogateescape")
    found = load(tmp_path)
    assert found.library is None
    assert "the compiled kernels cannot be loaded (" in found.line and "so the CPU computes with numpy" in found.line


def copy_of(tmp_path: Path, **changes: object) -> Path:
    manifest = json.loads((BUILT / "manifest.json").read_text("utf-8"))
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | changes))
    for path in BUILT.glob("*.so"):
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


@built
@pytest.mark.parametrize("damage", ["no library", "empty", "cut off"])
def test_a_library_that_does_not_load(tmp_path: Path, damage: str) -> None:
    whole = (BUILT / "kernels.so").read_bytes()
    path = copy_of(tmp_path) / "kernels.so"
    path.unlink()
    path.write_bytes({"no library": b"none", "empty": b"", "cut off": whole[: len(whole) // 2]}[damage])
    found = load(tmp_path)
    assert found.library is None
    assert "kernels cannot be loaded (OSError: " in found.lacks and "so the CPU computes with numpy" in found.line


@built
def test_a_kernel_that_no_library_has(tmp_path: Path) -> None:
    entry = {"none": {"operands": [], "numbers": [], "work": []}}
    found = load(copy_of(tmp_path, kernels=entry))
    assert found.library is None and "AttributeError" in found.lacks and "ag_none" in found.lacks


def level() -> str:
    kernels = library()
    assert kernels is not None
    if not kernels.level:
        pytest.skip("this processor uses the plain kernels anyway")
    return kernels.level


@built
@pytest.mark.parametrize("damage", ["missing", "cut off", "no kernel in it"])
def test_the_next_best_library_is_used(tmp_path: Path, damage: str) -> None:
    best = level()
    path = copy_of(tmp_path) / f"kernels{best}.so"
    path.unlink()
    if damage == "cut off":
        path.write_bytes((BUILT / path.name).read_bytes()[:9999])
    elif damage == "no kernel in it":
        path.symlink_to(import_module("_ctypes").__file__ or "")
    found = load(tmp_path)
    lower = {".v4": ".v3", ".v3": ""}[best]
    assert found.library is not None and found.library.level == lower and "exp" in found.library.kernels
    assert found.lacks.startswith(f"kernels{best}.so cannot be loaded (")
    assert found.lacks.endswith(f"so the CPU computes with kernels{lower}.so, more slowly")


@built
def test_a_library_that_was_left_out(tmp_path: Path) -> None:
    best, whole = level(), json.loads((BUILT / "manifest.json").read_text("utf-8"))["levels"]
    found = load(copy_of(tmp_path, levels=[x for x in whole if x != best], left_out={best: "bad -march"}))
    lower = {".v4": ".v3", ".v3": ""}[best]
    assert found.library is not None and found.library.level == lower
    said = f"cpu: kernels{best}.so was left out (bad -march), so the CPU computes with kernels{lower}.so, more slowly; "
    assert found.line.startswith(said)


@built
def test_kernels_of_other_sources(tmp_path: Path) -> None:
    manifest = json.loads((BUILT / "manifest.json").read_text())
    manifest["sources"]["ag/engine/backends/cpu/kernels/run.c"] = "0" * 64
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert load(tmp_path).library is None
    assert "run.c changed after the kernels were built" in load(tmp_path).lacks


class Counting(NativeBackend):
    def __init__(self) -> None:
        kernels = library()
        assert isinstance(kernels, Library)
        super().__init__(kernels)

    def of(self, values: np.ndarray) -> Buffer:
        buffer = self.alloc(values.shape, F64 if values.dtype == np.float64 else F32)
        self.upload(values, buffer)
        return buffer

    def has(self, name: str, *operands: Buffer, **params: object) -> bool:
        primitive = PRIMITIVES[name]
        return self.words(primitive, self.operands_of(primitive, operands, None, params)[1], params) is not None


@built
def test_what_has_a_kernel() -> None:
    device = Counting()
    x, wide = device.of(np.ones((2, 3), np.float32)), device.of(np.ones((2, 3)))
    chain = (("relu", 0, 0, 0.0), ("exp", 4, 4, 0.0))
    assert device.has("exp", x) and not device.has("exp", wide)
    assert device.has("fused", x, x, x, x, chain=chain)
    unknown = (("relu", 0, 0, 0.0), ("rectify", 4, 4, 0.0))
    kernel = device._kernels["fused"]
    assert kernel.plan([*(x.shape, x.dtype) * 5], PRIMITIVES["fused"], {"chain": unknown}) is None


@built
def test_a_kernel_that_is_not_declared_as_its_primitive() -> None:
    device = Counting()
    x = device.of(np.ones(3, np.float32))
    device._kernels = {**device._kernels, "relu": device._kernels["relu_grad"]}
    with expect_error("other operands", ag.KernelError, "kernel relu takes ('out', 'y', 'g')", "must be equal"):
        device.launch(PRIMITIVES["relu"], x)


@built
def test_more_axes_than_a_layout_has() -> None:
    device, shape = Counting(), (2, 1) * 9 + (2,)
    x, y = device.of(np.ones(shape, np.float32)), device.of(np.ones(shape[::-1], np.float32))
    assert not device.has("permute", x, axes=tuple(reversed(range(len(shape)))))
    column = device.of(np.ones((1, 2) * 9 + (1,), np.float32))
    np.testing.assert_array_equal(device.launch(PRIMITIVES["add"], y, column).native, y.native + column.native)


def wrong_in_threads(device: Counting) -> list[int]:
    blocks = [device.of(np.full(12_000, k, np.float32)) for k in range(8)]
    outs = [device.alloc((12_000,), F32) for _ in blocks]
    assert len(device.arena.segments) >= 8
    ready, wrong = threading.Barrier(8), list[int]()

    def work(k: int) -> None:
        ready.wait()
        device.launch(PRIMITIVES["scale"], blocks[k], into=outs[k], factor=2.0)
        if not (outs[k].native == 2 * k).all():
            wrong.append(k)

    in_threads(work, range(8))
    return wrong


@built
def test_threads_that_are_the_first_to_use_new_memory() -> None:
    for _ in range(20):
        device = Counting()
        device.arena = Arena(_memory, align=64, first_bytes=1 << 16, max_segment_bytes=1 << 16)
        assert not wrong_in_threads(device)
        assert device.starts == [memory.ctypes.data - (number << OFFSET_BITS)
                                 for number, (_, memory) in enumerate(device.arena.segments)]


@built
def test_a_launch_is_told_from_those_like_it() -> None:
    device, x = Counting(), np.ones((2, 3), np.float32)
    whole = device.alloc((2, 3), I32)
    device.upload(x, whole)
    copies = [device.launch(PRIMITIVES["copy"], b) for b in (device.of(x), whole, device.of(x.astype(np.float64)))]
    assert [c.dtype for c in copies] == [F32, I32, F64] and all((c.native == 1).all() for c in copies)
    sums = [device.launch(PRIMITIVES["sum"], device.of(x), axis=axis, chunk=3, scale=1.0) for axis in (0, 1)]
    assert [s.native.tolist() for s in sums] == [[[2.0] * 3], [[3.0], [3.0]]]


@built
def test_plans_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "PLANS_KEPT", 3)
    device = Counting()
    ready = device._kernels["exp"].ready
    ready.clear()
    for n in (1, 2, 3, 4, 5, 1, 2, 5):
        x = np.full(n, n, np.float32)
        np.testing.assert_allclose(device.launch(PRIMITIVES["exp"], device.of(x)).native, np.exp(x), rtol=1e-5)
        assert len(ready) <= 3
