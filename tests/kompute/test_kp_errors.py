"""Everything that goes wrong is a Python exception: no crash, no silence, and the process goes on."""

import numpy as np
import pytest

NO_MANAGER = """
for _ in range(3):
    try:
        kp.Manager()
    except RuntimeError as error:
        print(error)
"""


def test_no_loader(python, tmp_path):
    for name in ("libvulkan.so.1", "libvulkan.so"):
        (tmp_path / name).write_text("not a library, but found first")
    out = python(NO_MANAGER, LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    assert len(out) == 3 and all(line.startswith("No Vulkan loader on this machine") for line in out)


def test_no_such_device_or_queue(kp, icd):
    count = len(kp.Manager().list_devices())
    with pytest.raises(RuntimeError, match=f"no Vulkan device {count}: this machine lists {count}"):
        kp.Manager(count)
    with pytest.raises(TypeError):
        kp.Manager(-1)
    with pytest.raises(RuntimeError, match="family 99"):
        kp.Manager(0, [99])
    with pytest.raises(RuntimeError, match="extension"):
        kp.Manager(0, [], ["VK_KHR_no_such_extension"])
    with pytest.raises(IndexError):
        kp.Manager().sequence(7)


def test_bad_sizes(rig):
    with pytest.raises(RuntimeError, match="zero-sized"):
        rig.manager.arena(0)
    with pytest.raises(RuntimeError, match="zero-sized"):
        rig.manager.tensor_t(np.zeros(0, np.uint32))
    with pytest.raises(RuntimeError, match="4 GiB"):
        rig.manager.arena(1 << 30)
    with pytest.raises(TypeError):
        rig.manager.arena(-1)


@pytest.mark.parametrize("size", [0, 12, 15, 17, 20])
def test_wrong_push_size(rig, size):
    sequence = rig.manager.sequence()
    with pytest.raises(RuntimeError, match=f"{size} bytes of push constants given, the algorithm takes 16"):
        sequence.dispatch(rig.algorithm, bytes(size), 1)
    with pytest.raises(RuntimeError, match="takes 16"):
        rig.kp.OpDispatch(rig.algorithm, bytes(size))
    rig.step(sequence, 0, 1024, 10)
    sequence.eval()
    assert rig.read(10, at=1024).all()


@pytest.mark.parametrize("groups", [(0,), (1, 0), (1, 1, 0)])
def test_zero_workgroups(rig, groups):
    with pytest.raises(RuntimeError, match="workgroup count is 0"):
        rig.manager.sequence().dispatch(rig.algorithm, bytes(16), *groups)


def test_bad_algorithms(rig, spirv_file):
    spirv, manager = spirv_file.read_bytes(), rig.manager
    for code in (b"", spirv[:-1], spirv[4:], b"#version 450 is no SPIR-V"[:24]):
        with pytest.raises(RuntimeError, match="SPIR-V"):
            manager.algorithm([rig.arena], code)
    with pytest.raises(RuntimeError, match="0 tensors"):
        manager.algorithm([], spirv)
    with pytest.raises(TypeError, match="not int64"):
        manager.algorithm([rig.arena], spirv, (1, 1, 1), [], np.zeros(4, np.int64))
    gone = manager.algorithm([rig.arena, rig.arena], spirv, (1, 1, 1), [], [0.0] * 4)
    gone.destroy()
    with pytest.raises(RuntimeError, match="no pipeline"):
        manager.sequence().dispatch(gone, bytes(16), 1)


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.float32])
def test_constants_keep_their_type(rig, spirv_file, dtype):
    """Stock kp turns an integer array given without specialization constants into floats."""
    rig.write(np.arange(8))
    push = np.array([0, 1024, 8, 1], np.uint32).view(dtype)
    tensors, spirv = [rig.arena, rig.arena], spirv_file.read_bytes()
    algorithm = rig.manager.algorithm(tensors, spirv, (1, 1, 1), push_consts=push)
    rig.manager.sequence().eval(rig.kp.OpAlgoDispatch(algorithm))
    assert rig.read(8, at=1024).all()
