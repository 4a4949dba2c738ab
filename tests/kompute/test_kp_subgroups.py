"""Manager.algorithm(subgroup_size=...): subgroups of that size, all of whose invocations run, or a named error."""

import subprocess

import numpy as np
import pytest

SHADER = """
#version 450
#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = 128) in;
layout(std430, binding = 0) buffer A { uint a[]; };
layout(push_constant) uniform Launch { uint at; };
void main() {
    if (gl_SubgroupInvocationID + 1 == gl_SubgroupSize) atomicAdd(a[at], 1);  // full ones have a last invocation
    a[at + 1] = gl_SubgroupSize;
    a[at + 2] = gl_NumSubgroups;
}
"""


@pytest.fixture(scope="module")
def spirv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("subgroups")
    (folder / "size.comp").write_text(SHADER)
    command = ["glslangValidator", "-V", "--target-env", "vulkan1.1", "size.comp", "-o", "size.spv"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / "size.spv").read_bytes()


def sizes_of(rig):
    """The sizes that the device offers; it is one of the software drivers, which both do."""
    least, most = rig.manager.get_device_properties()["required_subgroup_sizes"]
    assert 0 < least <= most and rig.manager.features()["subgroup_size_control"]
    assert rig.manager.features()["full_subgroups"]
    return [1 << n for n in range(8) if least <= 1 << n <= most]


def test_subgroups_have_the_size_that_is_required(rig, spirv):
    none, push = np.zeros(0, np.uint32), np.zeros(1, np.uint32)
    for size in sizes_of(rig):
        rig.write(np.zeros(8))
        algorithm = rig.manager.algorithm([rig.arena], spirv, (1, 1, 1), none, push, subgroup_size=size)
        sequence = rig.manager.sequence()
        sequence.dispatch(algorithm, push.tobytes(), 1)
        sequence.eval()
        assert list(rig.read(3)) == [128 // size, size, 128 // size]
    assert sizes_of(rig)


@pytest.mark.parametrize("wrong", ["twice the largest", "half the smallest"])
def test_other_sizes_are_refused(rig, spirv, wrong):
    least, most = rig.manager.get_device_properties()["required_subgroup_sizes"]
    size = 2 * most if wrong == "twice the largest" else least // 2
    push = np.zeros(1, np.uint32)
    made = rig.manager.pipelines()
    with pytest.raises(RuntimeError, match=f"subgroups of {least} to {most} invocations.*, not of {size}$"):
        rig.manager.algorithm([rig.arena], spirv, (1, 1, 1), push[:0], push, subgroup_size=size)
    assert rig.manager.pipelines() == made
