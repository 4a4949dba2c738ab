"""Kernels on Metal: SPIRV-Cross, which MoltenVK is made of, translates all of them, and no array has a wrong size.

MoltenVK before 1.3 gives an array that is sized by a specialization constant its default size, in silence.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cards.interpreter import instructions
from cards.radv import KERNELS, SPV

from ag.engine.backend import DeviceInfo
from ag.engine.backends.shader.tiles import tiles_of
from ag.engine.backends.vulkan.spirv import with_addresses
from ag.engine.kernels.attention import attention

FILES = sorted(path for path in SPV.glob("*.spv") if "_coop" not in path.stem)  # Metal has none of these
SPECIALIZED = {48, 49, 50, 51, 52}  # OpSpecConstantTrue, ..., OpSpecConstantOp
ARRAY = 28
LARGEST_HEAD = 128  # features, up to which attention has kernels


def sized_by_constants(path: Path) -> bool:
    chosen: set[int] = set()
    for code, x in instructions(path.read_bytes()):
        if code in SPECIALIZED:
            chosen.add(x[1])
        if code == ARRAY and x[2] in chosen:
            return True
    return False


def apple(driver: str) -> DeviceInfo:
    return DeviceInfo("vulkan:0", "Apple M1", "Apple", driver, "integrated", 16 << 30)


def test_arrays_have_the_size_of_the_code() -> None:
    """A kernel whose sizes a pipeline chooses has a form with fixed ones, or the default is the largest."""
    chosen = {path.stem for path in FILES if sized_by_constants(path)}
    others = {name for name in chosen if f"{name}.fixed" in chosen or not (SPV / f"{name}.fixed.spv").is_file()}
    others = {name for name in others if not name.endswith((".fixed", ".halves"))}
    shared = {name for name in others if any(c["name"] == "loads" for c in KERNELS[name]["spec"])}
    others -= shared
    assert shared >= {"softmax", "layer_norm"} and others == {
        "attention", "attention_grad", "masked_attention", "masked_attention_grad", "attention_bias_grad"}
    q = (LARGEST_HEAD, 8, 1)
    most = attention.layout(q, (1, 8, 1), q, q, q, (4,), heads=1, factor=1.0, causal=False, rate=0.0)["blocks"]
    for name in shared:  # whose defaults are the most elements, and the most invocations of such a driver
        given = {c["name"]: c["default"] for c in KERNELS[name]["spec"]}
        assert given["loads"] in (16, 32) and given["THREADS"] == tiles_of(apple("0.2.2017")).threads
    for name in others:
        assert next(c["default"] for c in KERNELS[name]["spec"] if c["name"] == "blocks") == most


@pytest.mark.parametrize(("driver", "suffix"), [
    ("0.2.2017", ".fixed"), ("0.2.2108", ""),  # 1.2.9 and 1.3.0, decoded as Vulkan's versions are
    ("1.3.0", ""), ("", ""),
])
def test_old_ones_get_kernels_of_one_size(driver: str, suffix: str) -> None:
    tiles = tiles_of(apple(driver))
    assert tiles.suffix == suffix
    assert tiles.room == 0  # so that attention makes no array larger than it is by default


@pytest.mark.slow
@pytest.mark.parametrize("addresses", [False, True])
def test_all_are_translated(addresses: bool, tmp_path: Path) -> None:
    if (tool := shutil.which("spirv-cross")) is None:
        pytest.skip("there is no spirv-cross here (Debian's package spirv-cross; make setup-test installs it)")
    for path in FILES:
        operands = range(len(KERNELS[path.name.partition(".")[0]]["operands"]))
        given = tmp_path / "kernel.spv"
        given.write_bytes(with_addresses(path.read_bytes(), operands if addresses else ()))
        done = subprocess.run([tool, "--msl", "--msl-version", "20300", given, "--output", tmp_path / "kernel.metal"],
                              capture_output=True, text=True)
        assert done.returncode == 0, f"{path.name}: {done.stderr}"
        assert "kernel void main0(" in (tmp_path / "kernel.metal").read_text("utf-8")
