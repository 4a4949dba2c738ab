"""Compiled kernels as files: what is not whole is refused, in a sentence that says what to run.  Needs no device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.errors import expect_error

import ag
from ag.engine.backends.shader import manifest

MANIFEST = "manifest.json"
ENTRY = dict.fromkeys(manifest.Entry.__required_keys__, "")
DEFECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda spv: (spv / MANIFEST).unlink(), "no compiled kernels were found in spv/"),
    "a torn manifest": (lambda spv: (spv / MANIFEST).write_text("{"), "is no manifest of kernels (JSONDecodeError"),
    "another file": (lambda spv: (spv / MANIFEST).write_text("[1]"), "is no manifest of kernels (TypeError"),
    "a manifest without kernels": (lambda spv: (spv / MANIFEST).write_text("{}"), "no manifest of kernels (KeyError"),
    "a manifest of nothing": (lambda spv: (spv / MANIFEST).write_text('{"kernels": {}}'), "lists no kernel"),
    "a manifest of an older version": (
        lambda spv: (spv / MANIFEST).write_text('{"kernels": {"a": {"sha256": ""}}}'), "does not say fixed, grid"),
    "a kernel that is gone": (lambda spv: (spv / "b.spv").unlink(), "lists kernel b and its file is not there"),
    "the other form of a kernel is gone": (lambda spv: (spv / "b.fixed.spv").unlink(), "lists kernel b.fixed and"),
    "a kernel that is text": (lambda spv: (spv / "b.spv").write_text("#version 450"), "b.spv is no SPIR-V"),
    "a kernel that is empty": (lambda spv: (spv / "b.spv").write_bytes(b""), "b.spv is no SPIR-V"),
}


@pytest.fixture
def spv(tmp_path: Path) -> Path:
    folder = tmp_path / "spv"
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps(
        {"kernels": {"a": ENTRY, "b": {**ENTRY, "fixed": True}}, "left_out": [], "compiler": "none"}))
    for name in ("a", "b", "b.fixed"):
        (folder / f"{name}.spv").write_bytes(bytes.fromhex("0302230700000100"))
    return folder


def test_whole_kernels_are_looked_at_once(spv: Path) -> None:
    manifest.check_files(spv)
    (spv / "a.spv").unlink()
    manifest.check_files(spv)


@pytest.mark.parametrize("defect", DEFECTS)
def test_what_is_not_whole_is_refused_each_time(spv: Path, defect: str) -> None:
    change, said = DEFECTS[defect]
    change(spv)
    for _ in range(2):
        with expect_error(f"compiled kernels: {defect}", ag.KernelError, said, "python kernels_build.py"):
            manifest.check_files(spv)


def test_the_note_of_the_build_is_told(spv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note, other = tmp_path / "not_built.txt", spv / "not_built.txt"
    monkeypatch.setattr(manifest, "_HERE", tmp_path)
    assert manifest.not_built() == ""
    note.write_text("kernels: no glslangValidator\n")
    other.write_text("extension: no compiler\n")
    assert manifest.not_built(spv) == "kernels: no glslangValidator; extension: no compiler"
    (spv / MANIFEST).unlink()
    with pytest.raises(ag.KernelError, match=r"found in spv/ \(kernels: no glslangValidator\)"):
        manifest.check_files(spv)
