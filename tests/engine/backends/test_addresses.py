"""Kernels that find buffers by their address: the SPIR-V stays valid, and computes what it did.

Whether results are the same is seen where descriptors cover little (tests/limits/test_memory.py), or nothing
(tests/cards/test_conditions.py).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.errors import expect_error

import ag
from ag.engine.backends.vulkan.kernel_files import read_manifest
from ag.engine.backends.vulkan.spirv import Instruction, code_of, instruction, read, with_addresses, written

SPV = Path(ag.__file__).parent / "engine" / "backends" / "vulkan" / "spv"
FILES = sorted(path for path in SPV.glob("*.spv") if "_coop" not in path.name)  # which older validators do not know
needs_kernels = pytest.mark.skipif(not FILES, reason="the kernels are not compiled")
LOAD, STORE, CHAIN, VARIABLE, LENGTH, ALIGNED = 61, 62, 65, 59, 68, 2
ARITHMETIC = set(range(124, 192)) | {12}  # conversions, sums, comparisons, and functions that are not of the core


def relu() -> bytes:
    return (SPV / "relu.spv").read_bytes()


def accesses(instructions: list[Instruction]) -> list[tuple[int, ...]]:
    """The memory operands of every load and store that has some."""
    first = {LOAD: 4, STORE: 3}
    return [x[first[code_of(x)]:] for x in instructions if code_of(x) in first and len(x) > first[code_of(x)]]


@needs_kernels
def test_nothing_is_changed_where_descriptors_cover_all() -> None:
    assert with_addresses(relu(), ()) == relu()
    header, instructions = read(relu())
    assert written(header, instructions) == relu()


@needs_kernels
def test_the_arithmetic_stays_and_what_is_reached_is_aligned() -> None:
    (_, before), (header, after) = read(relu()), read(with_addresses(relu(), (0, 1)))
    assert [x for x in after if code_of(x) in ARITHMETIC] == [x for x in before if code_of(x) in ARITHMETIC]
    assert [len(found) for found in (accesses(before), accesses(after))] == [0, 2]
    assert set(accesses(after)) == {(ALIGNED, 4)}
    assert max(word for x in after if code_of(x) in (CHAIN, VARIABLE) for word in x[2:3]) < header[3]


@needs_kernels
def test_only_the_bindings_that_are_named() -> None:
    assert len(accesses(read(with_addresses(relu(), (1,)))[1])) == 1


@needs_kernels
def test_quads_are_aligned_as_such() -> None:
    assert set(accesses(read(with_addresses((SPV / "matmul.spv").read_bytes(), (0, 1, 2)))[1])) == {
        (ALIGNED, 4), (ALIGNED, 16)}


@needs_kernels
def test_what_is_not_known_is_refused() -> None:
    header, instructions = read(relu())
    buffer = next(x[3] for x in instructions if code_of(x) == CHAIN and len(x) == 6)
    integer = next(x[1] for x in instructions if code_of(x) == 21)
    at = next(i for i, x in enumerate(instructions) if code_of(x) == STORE)
    instructions.insert(at, instruction(LENGTH, integer, header[3], buffer, 0))
    changed = written((*header[:3], header[3] + 1, header[4]), instructions)
    with expect_error("a kernel that asks for the length of a buffer", ValueError, "instruction 68"):
        with_addresses(changed, (0, 1))


@needs_kernels
@pytest.mark.skipif(shutil.which("spirv-val") is None, reason="no SPIRV-Tools")
def test_every_kernel_stays_valid(tmp_path: Path) -> None:
    kernels = read_manifest(SPV)["kernels"]
    changed = tmp_path / "changed.spv"
    for path in FILES:
        count = len(kernels[path.name.partition(".")[0]]["operands"])
        changed.write_bytes(with_addresses(path.read_bytes(), range(count)))
        done = subprocess.run(["spirv-val", "--target-env", "vulkan1.2", changed], capture_output=True, text=True)
        assert done.returncode == 0, f"{path.name}: {done.stdout}{done.stderr}"
