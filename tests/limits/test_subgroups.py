"""The size of subgroups that a kernel was planned for is required of the driver where it can be, as Vulkan is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from limits.conftest import Limited

FULL = 2  # VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
MADE = """
from ag.engine.backends.shader.manifest import Needs
from ag.engine.backends.shader.tiles import Tile, Tiles
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.matmul import matmul

device = backend_of(DEVICE)
limits = device._manager.get_device_properties()
said["size"] = limits["subgroup_size"]

class Planned(Tile):
    needs = property(lambda self: Needs(self.threads, self.shared_bytes, subgroup=limits["subgroup_size"]))

class Rule(Tiles):
    def choose(self, rows, cols, count):
        return Planned(32, 8, 64, 4, 4, 8)

rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((40, 30), (30, 20)))
said["right"] = []
for rule in (device._kernels.tiles, Rule(1, ())):
    x, y, out = (device.alloc(shape, F32) for shape in (a.shape, b.shape, (40, 20)))
    device.upload(a, x)
    device.upload(b, y)
    device.recorder.record(device.command(matmul, (out, x, y), {"ta": False, "tb": False}, rule))
    said["right"].append(bool(np.allclose(device.download(out), a @ b, atol=1e-4)))
"""


@pytest.mark.parametrize("without", ["", "VK_EXT_subgroup_size_control"], ids=["offered", "not offered"])
def test_what_the_driver_is_told(limited: Limited, tmp_path: Path, without: str) -> None:
    stages = tmp_path / "stages"
    said = limited(MADE, STAGES=stages, **({"WITHOUT": without} if without else {}))
    assert said["right"] == [True, True]
    *others, planned = [tuple(map(int, line.split())) for line in stages.read_text().splitlines()]
    assert len(others) > 0 and set(others) == {(0, 0)}
    assert planned == ((0, 0) if without else (said["size"], FULL))


REFUSED = """
from ag.engine.backends.shader.manifest import spirv_of
from ag.engine.device import backend_of

manager = backend_of(DEVICE)._manager
said["sizes"] = manager.get_device_properties()["required_subgroup_sizes"]
spirv = spirv_of("copy")
none = np.zeros(0, np.uint32)
try:
    manager.algorithm([manager.arena(4)], spirv, (1, 1, 1), none, none, 12)
except RuntimeError as error:
    said["error"] = str(error)
"""


def test_a_size_that_is_no_power_of_two_is_refused(limited: Limited) -> None:
    said = limited(REFUSED, SUBGROUP=32)
    assert said["sizes"] == [8, 32]
    assert "subgroups of 8 to 32 invocations, a power of two, not of 12)" in said["error"]
