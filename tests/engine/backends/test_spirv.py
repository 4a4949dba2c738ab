"""SPIR-V that is changed as it is loaded stays valid, computes what it did, and keeps NaN."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.engine.backends.shader.manifest import read_manifest
from ag.engine.backends.vulkan import backend as vulkan_backend
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.spirv import (
    Instruction,
    Mode,
    code_of,
    instruction,
    modes_of,
    read,
    with_addresses,
    with_functions,
    with_modes,
    written,
)
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import _code, mul
from ag.engine.primitive import PRIMITIVES

PRESERVES, ROUNDS, DENORMALS = Mode(4466, 4461), Mode(4467, 4462), Mode(4464, 4459)
SPV = Path(ag.__file__).parent / "engine" / "backends" / "shader" / "spv"
FILES = sorted(path for path in SPV.glob("*.spv") if "_coop" not in path.name)  # older validators know none of these
needs_kernels = pytest.mark.skipif(not FILES, reason="the kernels are not compiled")
LOAD, STORE, CHAIN, VARIABLE, LENGTH, ALIGNED = 61, 62, 65, 59, 68, 2
ARITHMETIC = set(range(124, 192)) | {12}  # conversions, sums, comparisons, and functions that are not of the core
CONSTANT, EQUAL, BRANCH_IF, DECORATE, NO_CONTRACTION, FADD, FMUL, FDIV = 43, 170, 250, 71, 42, 129, 133, 136
FEW = {"relu.spv", "matmul_chain.spv", "attention_grad.fixed.spv"}


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
    assert [len(found) for found in (accesses(before), accesses(after))] == [0, 4]
    assert set(accesses(after)) == {(ALIGNED, 4)}
    assert max(word for x in after if code_of(x) in (CHAIN, VARIABLE) for word in x[2:3]) < header[3]


@needs_kernels
def test_only_the_bindings_that_are_named() -> None:
    assert len(accesses(read(with_addresses(relu(), (1,)))[1])) == 2


@needs_kernels
def test_quads_are_aligned_as_such() -> None:
    assert set(accesses(read(with_addresses((SPV / "matmul.halves.spv").read_bytes(), (0, 1, 2)))[1])) == {
        (ALIGNED, 4), (ALIGNED, 8), (ALIGNED, 16)}


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
@pytest.mark.parametrize("files", [FEW, pytest.param({path.name for path in FILES}, marks=pytest.mark.slow)],
                         ids=["few", "all"])
def test_every_kernel_stays_valid(files: set[str], tmp_path: Path) -> None:
    kernels, changed = read_manifest(SPV)["kernels"], tmp_path / "changed.spv"
    for path in (SPV / name for name in sorted(files)):
        count = len(kernels[path.name.partition(".")[0]]["operands"])
        changed.write_bytes(with_addresses(with_modes(path.read_bytes(), (PRESERVES, ROUNDS, DENORMALS)), range(count)))
        done = subprocess.run(["spirv-val", "--target-env", "vulkan1.2", changed], capture_output=True, text=True)
        assert done.returncode == 0, f"{path.name}: {done.stdout}{done.stderr}"


CHAINS = [path for path in FILES if path.name.startswith("fused") or "_chain" in path.name]
NUMBERS = {p.name: _code(p.name, 0, 0) >> 16 for p in PRIMITIVES.values() if p.fusable}


@needs_kernels
@pytest.mark.skipif(shutil.which("spirv-val") is None, reason="no SPIRV-Tools")
@pytest.mark.parametrize("path", [pytest.param(x, marks=() if x.name.startswith("fused") else
                                               (pytest.mark.slow, pytest.mark.long))
                                  for x in CHAINS], ids=lambda path: path.name)
def test_a_chain_has_the_functions_that_it_applies(path: Path, tmp_path: Path) -> None:
    """And no other: what stays is what was compiled, with its `precise`, and is valid."""
    spirv, made, rng = path.read_bytes(), tmp_path / "chain.spv", np.random.default_rng(0)
    everything = with_functions(spirv, NUMBERS.values())
    assert len(everything) == len(spirv) and everything != spirv  # `apply` may be inlined now
    sizes = {}
    for names in [*([name] for name in NUMBERS), *(rng.choice([*NUMBERS], 6) for _ in range(20))]:
        found = with_functions(spirv, {NUMBERS[name] for name in names})
        assert asked(found) & set(NUMBERS.values()) == {NUMBERS[name] for name in names}
        kept = [x for x in read(found)[1] if code_of(x) in (FADD, FMUL, FDIV)]
        assert {x[2] for x in kept} & precise(spirv) == {x[2] for x in kept} & precise(found)
        made.write_bytes(found)
        done = subprocess.run(["spirv-val", "--target-env", "vulkan1.0", made], capture_output=True, text=True)
        assert done.returncode == 0, f"{names}: {done.stdout}{done.stderr}"
        sizes[tuple(names)] = len(found)
    assert sizes["add",] < sizes["gelu_grad",] < len(spirv) - 4000


def asked(spirv: bytes) -> set[int]:
    """Return the numbers on which branches depend."""
    instructions = read(spirv)[1]
    conditions = {x[1] for x in instructions if code_of(x) == BRANCH_IF}
    compared = {word for x in instructions if code_of(x) == EQUAL and x[2] in conditions for word in x[3:]}
    return {x[3] for x in instructions if code_of(x) == CONSTANT and x[2] in compared}


def precise(spirv: bytes) -> set[int]:
    return {x[1] for x in read(spirv)[1] if code_of(x) == DECORATE and x[2] == NO_CONTRACTION}


@pytest.mark.vulkan
def test_each_set_of_operands_by_address_has_a_pipeline(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan_backend, "_FIRST_BYTES", 1 << 16)
    largest = vulkan_backend.largest_block
    monkeypatch.setattr(vulkan_backend, "largest_block", lambda limits, addresses=False: largest(limits, True)
                        if addresses else (1 << 18, "a test"))
    backend: Any = VulkanBackend(int(lavapipe.split(":")[1]))
    backend._kernels.covered = 1 << 18
    x = np.random.default_rng(0).standard_normal((1 << 17, 1)).astype(np.float32)
    near, far = backend.alloc((1, 1), F32), backend.alloc(x.shape, F32)
    backend.upload(np.full((1, 1), 3.0, np.float32), near)
    backend.upload(x, far)
    for a, b, exact in ((near, near, [[9]]), (far, near, 3 * x), (near, far, 3 * x), (far, far, x * x)):
        assert np.array_equal(backend.download(backend.launch(mul, a, b)), np.float32(exact))
    assert {far for _, far in backend._kernels._pipelines} == {(), (0, 1), (0, 2), (0, 1, 2)}


def test_a_device_gets_what_it_offers() -> None:
    for nan, nearest, small in itertools.product((False, True), repeat=3):
        offered: Any = {"preserves_nan": nan, "rounds_to_nearest": nearest, "keeps_denormals": small}
        wanted = (PRESERVES,) * nan + (ROUNDS,) * nearest
        assert modes_of(offered, multiplies=True) == wanted
        assert modes_of(offered, multiplies=False) == wanted + (DENORMALS,) * small


@needs_kernels
def test_four_instructions_are_added_and_none_is_changed() -> None:
    spirv = (SPV / "relu.spv").read_bytes()
    assert with_modes(spirv, ()) == spirv
    (_, before), (_, after) = read(spirv), read(with_modes(spirv, (PRESERVES, ROUNDS)))
    added = [words for words in after if words not in before]
    assert [words[0] & 0xFFFF for words in added] == [17, 17, 10, 16, 16]
    assert [words for words in after if words in before] == before
    (entry,) = (words[2] for words in before if words[0] & 0xFFFF == 15)
    assert [words[1:] for words in added if words[0] & 0xFFFF == 16] == [(entry, 4461, 32), (entry, 4462, 32)]


@needs_kernels
def test_kernels_that_compare_are_strict() -> None:
    """Sums and products carry NaN by themselves, in any arithmetic; comparisons do not."""
    kernels = read_manifest(SPV)["kernels"]
    relaxed = {name for name, entry in kernels.items() if not entry["strict"]}
    assert {"matmul", "conv2d", "norm_sums", "sum"} <= relaxed
    assert not {"relu", "clamp", "max", "max_pool2d", "softmax", "fused", "matmul_chain", "attention"} & relaxed


@needs_kernels
def test_kernels_that_only_compare_and_add_keep_small_numbers() -> None:
    kernels = read_manifest(SPV)["kernels"]
    multiply = {name for name, entry in kernels.items() if entry["multiplies"]}
    assert {"matmul", "conv2d_direct", "attention_grad"} <= multiply
    others = {name for name, entry in kernels.items() if entry["work"]} - multiply
    pools = {"avg_pool2d", "avg_pool2d_grad", "max_pool2d", "max_pool2d_grad"}
    assert others == pools | {"softmax", "log_softmax", "softmax_cross_entropy", "softmax_cross_entropy_ids"}


@pytest.mark.vulkan
@pytest.mark.parametrize("op", [ag.ag_relu, ag.ag_leaky_relu, ag.ag_abs, lambda x: ag.ag_clamp(x, -1.0, 1.0),
                                lambda x: ag.ag_max(x, axis=0), ag.ag_softmax,
                                lambda x: ag.ag_relu(ag.ag_scale(x, 2.0)), lambda x: ag.ag_relu(ag.ag_matmul(x, x))],
                         ids=["relu", "leaky_relu", "abs", "clamp", "max", "softmax", "chain", "epilogue"])
def test_nan_is_not_lost(op: object, vulkan: str) -> None:
    assert callable(op)
    run = ag.ag_capture(lambda x: op(x))  # as a chain, and behind a product
    x = np.linspace(-3, 3, 64, dtype=np.float32).reshape(8, 8)
    run(x)
    x[3, 5] = np.nan
    assert np.isnan(run(x).numpy()).any() and np.isnan(op(ag.ag_tensor(x)).numpy()).any()


@pytest.mark.vulkan
def test_small_numbers_are_kept_where_the_driver_says_so(vulkan: str) -> None:
    manager: Any = getattr(backend_of(vulkan), "_manager", None)
    small = np.full((4, 4), 2.0**-130, np.float32)
    x = ag.ag_tensor(small, device=vulkan)
    found = [(x + x).numpy(), (x * 2.0).numpy(), ag.ag_capture(lambda x: ag.ag_relu(x + x))(x).numpy()]
    if manager.get_device_properties()["keeps_denormals"]:
        assert all(np.array_equal(y, 2 * small) for y in found)
    assert all(np.isin(y, (0, 2 * small[0, 0])).all() for y in found)
