"""What shaders ask of float32 arithmetic: the SPIR-V stays valid, and NaN comes through a comparison."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ag
from ag.engine.backends.vulkan.kernel_files import read_manifest
from ag.engine.backends.vulkan.spirv import Mode, modes_of, read, with_modes
from ag.engine.device import backend_of

PRESERVES, ROUNDS, DENORMALS = Mode(4466, 4461), Mode(4467, 4462), Mode(4464, 4459)
SPV = Path(ag.__file__).parent / "engine" / "backends" / "vulkan" / "spv"
FILES = sorted(SPV.glob("*.spv"))


def test_a_device_gets_what_it_offers() -> None:
    for nan, nearest, small in itertools.product((False, True), repeat=3):
        offered: Any = {"preserves_nan": nan, "rounds_to_nearest": nearest, "keeps_denormals": small}
        wanted = (PRESERVES,) * nan + (ROUNDS,) * nearest
        assert modes_of(offered, multiplies=True) == wanted
        assert modes_of(offered, multiplies=False) == wanted + (DENORMALS,) * small


@pytest.mark.skipif(not FILES, reason="the kernels are not compiled")
def test_four_instructions_are_added_and_none_is_changed() -> None:
    spirv = (SPV / "relu.spv").read_bytes()
    assert with_modes(spirv, ()) == spirv
    (_, before), (_, after) = read(spirv), read(with_modes(spirv, (PRESERVES, ROUNDS)))
    added = [words for words in after if words not in before]
    assert [words[0] & 0xFFFF for words in added] == [17, 17, 10, 16, 16]
    assert [words for words in after if words in before] == before
    (entry,) = (words[2] for words in before if words[0] & 0xFFFF == 15)
    assert [words[1:] for words in added if words[0] & 0xFFFF == 16] == [(entry, 4461, 32), (entry, 4462, 32)]


@pytest.mark.skipif(shutil.which("spirv-val") is None or not FILES, reason="no SPIRV-Tools, or no compiled kernels")
def test_every_kernel_stays_valid(tmp_path: Path) -> None:
    changed = tmp_path / "changed.spv"
    for path in FILES:
        if "_coop" not in path.name:
            changed.write_bytes(with_modes(path.read_bytes(), (PRESERVES, ROUNDS, DENORMALS)))
            done = subprocess.run(["spirv-val", "--target-env", "vulkan1.2", changed], capture_output=True, text=True)
            assert done.returncode == 0, f"{path.name}: {done.stdout}{done.stderr}"


@pytest.mark.skipif(not FILES, reason="the kernels are not compiled")
def test_kernels_that_compare_are_strict() -> None:
    """Sums and products carry NaN by themselves, in any arithmetic; comparisons do not."""
    kernels = read_manifest(SPV)["kernels"]
    relaxed = {name for name, entry in kernels.items() if not entry["strict"]}
    assert {"matmul", "conv2d", "norm_sums", "sum"} <= relaxed
    assert not {"relu", "clamp", "max", "max_pool2d", "softmax", "fused", "matmul_chain", "attention"} & relaxed


@pytest.mark.skipif(not FILES, reason="the kernels are not compiled")
def test_kernels_that_only_compare_and_add_keep_small_numbers() -> None:
    """Whatever else they say of their work."""
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
    """Through a sum, a product of elements, and a chain; a device that promises nothing may make them zero."""
    manager: Any = getattr(backend_of(vulkan), "_manager", None)
    small = np.full((4, 4), 2.0**-130, np.float32)
    x = ag.ag_tensor(small, device=vulkan)
    found = [(x + x).numpy(), (x * 2.0).numpy(), ag.ag_capture(lambda x: ag.ag_relu(x + x))(x).numpy()]
    if manager.get_device_properties()["keeps_denormals"]:
        assert all(np.array_equal(y, 2 * small) for y in found)
    assert all(np.isin(y, (0, 2 * small[0, 0])).all() for y in found)
