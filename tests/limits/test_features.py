"""Enable the features of a device that a kernel or kp uses, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits.conftest import Limited

import ag
from ag.engine.backends.shader.manifest import read_manifest
from ag.engine.backends.vulkan.spirv import code_of, modes_of, read, with_addresses, with_modes

FILES = sorted((Path(ag.__file__).parent / "engine/backends/shader/spv").glob("*.spv"))
# Numbers of SPIR-V's capabilities: the feature that each needs, as Manager.features() calls it; "" for none, or for a
# property that is asked for.
CAPABILITIES = {
    1: "", 61: "", 4464: "", 4466: "", 4467: "",  # all shaders; subgroups; denormals, NaN, rounding
    9: "float16", 5116: "bfloat16", 5118: "bfloat16_cooperative_matrix", 5345: "vulkan_memory_model",
    5346: "device_scope", 5347: "buffer_device_address", 6022: "cooperative_matrix",
}
# Instructions, and which word names the scope of memory: barriers, atomic ones.  With Vulkan's memory model enabled,
# the scope of a device is a feature, whether a module declares it or not.
SCOPES = {224: 2, 225: 1, 228: 2, 227: 4, **dict.fromkeys(range(229, 243), 4)}
OF_KP = {"timeline_semaphore", "subgroup_size_control", "full_subgroups"}
# Of Vulkan's structs, by their VkStructureType, and where in them: the same names.
PLACES = {
    "1000082000:0": "float16", "1000211000:0": "vulkan_memory_model", "1000211000:1": "device_scope",
    "1000257000:0": "buffer_device_address",
    "1000207000:0": "timeline_semaphore", "1000225002:0": "subgroup_size_control", "1000225002:1": "full_subgroups",
    "1000506000:0": "cooperative_matrix", "1000141000:0": "bfloat16", "1000141000:2": "bfloat16_cooperative_matrix",
}
EXTENSIONS = {"VK_EXT_subgroup_size_control", "VK_KHR_cooperative_matrix", "VK_KHR_shader_bfloat16"}
OPENED = """
from ag.engine.backends.vulkan.kp import kompute
manager = kompute().Manager(int(DEVICE.removeprefix("vulkan:")))
said["features"], said["enabled"] = manager.features(), sorted(manager.enabled())
"""

pytestmark = pytest.mark.skipif(not FILES, reason="the kernels are not compiled")


def capabilities(spirv: bytes) -> set[int]:
    instructions = read(spirv)[1]
    device = {x[2] for x in instructions if code_of(x) == 43 and x[3] == 1}  # constants of 1, which stands for it
    found = {5346 for x in instructions if code_of(x) in SCOPES and x[SCOPES[code_of(x)]] in device}
    return found | {int(x[1]) for x in instructions if code_of(x) == 17}


@pytest.fixture(scope="module")
def needed() -> set[str]:
    """Return the features that kernels use, as loaded on devices that offer all."""
    if left_out := read_manifest(FILES[0].parent)["left_out"]:
        pytest.skip(f"there are no {', '.join(left_out)} here, as the compiler of the kernels is too old for them")
    modes = modes_of({"preserves_nan": True, "rounds_to_nearest": True, "keeps_denormals": True}, multiplies=False)
    found = set().union(*(capabilities(path.read_bytes()) for path in FILES))
    relu = next(path.read_bytes() for path in FILES if path.name == "relu.spv")
    found |= capabilities(with_modes(with_addresses(relu, [0, 1]), modes))
    return {CAPABILITIES[number] for number in found} - {""} | OF_KP


def test_what_is_used_is_enabled_and_nothing_else(limited: Limited, tmp_path: Path, needed: set[str]) -> None:
    said = limited(OPENED, EVERY=1, FEATURES=tmp_path / "features")
    words = (tmp_path / "features").read_text("utf-8").split()
    assert set(said["enabled"]) == {PLACES.get(word, word) for word in words} - EXTENSIONS == needed
    assert set(words) >= EXTENSIONS and all(said["features"].values())


def test_what_is_not_there_is_not_enabled(limited: Limited, tmp_path: Path, needed: set[str]) -> None:
    said = limited(OPENED, ADDRESSES=0, WITHOUT="VK_EXT_subgroup_size_control", FEATURES=tmp_path / "features")
    there = {name for name, found in said["features"].items() if found}
    assert not there & {"buffer_device_address", "subgroup_size_control"} and "float64" in there
    words = (tmp_path / "features").read_text("utf-8").split()
    assert set(said["enabled"]) == {PLACES.get(word, word) for word in words} == there & needed
