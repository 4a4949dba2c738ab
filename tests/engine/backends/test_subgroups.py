"""Kernels that depend on the size of their subgroups: what they need, what is required of the driver, and when."""

from __future__ import annotations

from typing import Any

import pytest

from ag.engine.backends.shader.manifest import Needs, lacking, required_subgroup
from ag.engine.backends.shader.tiles import TILES
from ag.engine.backends.vulkan.cooperative import CooperativeTile, CooperativeTiles
from ag.engine.backends.vulkan.kp import Properties
from ag.engine.kernels.matmul import matmul

LIMITS: Any = {"max_work_group_invocations": 1024, "max_shared_memory": 32768, "max_storage_buffers": 16,
               "max_work_group_size": (1024, 1024, 64), "driver_id": 0, "required_subgroup_sizes": (8, 32),
               "max_required_subgroups": 8}
NOT_OFFERED: Properties = {**LIMITS, "required_subgroup_sizes": (0, 0), "max_required_subgroups": 0}


@pytest.mark.parametrize(("subgroup", "required"), [(0, 0), (4, 0), (8, 8), (16, 16), (32, 32), (64, 0)])
def test_a_size_is_required_where_it_is_offered(subgroup: int, required: int) -> None:
    needs = Needs(256, 1024, 3, subgroup=subgroup)
    assert required_subgroup(needs, LIMITS) == required
    assert required_subgroup(needs, NOT_OFFERED) == 0


def test_more_subgroups_than_a_workgroup_may_have() -> None:
    few, many = Needs(256, 0, subgroup=32), Needs(512, 0, subgroup=32)
    assert not lacking(few, LIMITS) and not lacking(many, NOT_OFFERED)
    assert lacking(many, LIMITS) == "16 subgroups of 32 invocations where the device has 8"
    assert not lacking(many._replace(subgroup=0), LIMITS)


@pytest.mark.vulkan
def test_only_kernels_on_matrix_units_depend_on_it(swiftshader: str) -> None:
    from ag.engine.backends.vulkan.backend import VulkanBackend

    made = VulkanBackend(int(swiftshader.split(":")[1]))._kernels
    shapes, params = ((40, 20), (40, 30), (30, 20)), {"ta": False, "tb": False}
    tile = CooperativeTile(64, 64, 32, 32, 32, 16, 1, (16, 16, 16))
    plan = made.plan(matmul, shapes, params, [0, 0, 0], CooperativeTiles((tile,), 1))
    assert plan.needs == Needs(64, tile.shared_bytes, 3, subgroup=16)
    assert made.plan(matmul, shapes, params, [0, 0, 0]).needs.subgroup == 0
    assert {tile.needs.subgroup for tile in TILES.values()} == {0}
