"""Everything that goes wrong is a Python exception: no crash, no silence, and the process goes on."""

import numpy as np
import pytest

DEVICE_LOST = """
m = kp.Manager()
s = m.sequence()
s.eval()
s.eval_async().eval_await()
s.eval_async()
try:
    s.{wait}()
except kp.DeviceLostError as error:
    print("lost", isinstance(error, RuntimeError), s.is_running(), error)
try:
    s.eval_async()
except kp.DeviceLostError:
    print("still lost")
"""

OUT_OF_MEMORY = """
import numpy as np
m = kp.Manager()
got = []
try:
    while len(got) < 100:
        got.append(m.arena(1 << 18))
except MemoryError as error:
    print(len(got), error)
for make in (lambda: m.tensor(np.zeros(1 << 18)), lambda: m.tensor_t(np.zeros(1 << 18, np.uint32))):
    try:
        make()
    except MemoryError:
        print("again")
host = m.tensor_t(np.arange(8, dtype=np.uint32), kp.TensorTypes.host)
back = m.tensor_t(np.zeros(8, np.uint32), kp.TensorTypes.host)
s = m.sequence()
s.record(kp.OpCopy(host, got[0], [(0, 64, 32)])).record(kp.OpCopy(got[0], back, [(64, 0, 32)]))
s.record(kp.OpBarrier(host=True)).eval()
print(back.data().tolist())
"""

NO_MANAGER = """
for _ in range(3):
    try:
        kp.Manager()
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize("wait", ["eval_await", "wait"])
def test_device_lost(python, fault_layer, wait):
    out = python(DEVICE_LOST.format(wait=wait), KPFAULT_LOST_AFTER="2", **fault_layer)
    assert out == "lost True False vkWaitForFences: ErrorDeviceLost\nstill lost\n"


def test_only_the_chosen_device_is_lost(python, fault_layer):
    code = """
managers = [kp.Manager() for _ in range(3)]
for m in managers:
    try:
        m.sequence().eval()
        print("fine")
    except kp.DeviceLostError:
        print("lost")
"""
    out = python(code, KPFAULT_LOST_AFTER="0", KPFAULT_DEVICE="1", **fault_layer)
    assert out == "fine\nlost\nfine\n"


def test_out_of_memory(python, fault_layer):
    out = python(OUT_OF_MEMORY, KPFAULT_ALLOC_LIMIT=str(11 << 19), **fault_layer).splitlines()
    assert out[0].startswith("5 vkAllocateMemory of 1048576 bytes")
    assert out[1:] == ["again", "again", "[0, 1, 2, 3, 4, 5, 6, 7]"]


REFUSED = """
import os

def refused(calls, result, action):
    os.environ.update(KPFAULT_REFUSE=calls, KPFAULT_RESULT=result)
    try:
        action()
        print("nothing")
    except Exception as error:
        print(type(error).__name__, isinstance(error, kp.Error), isinstance(error, MemoryError), error)
    del os.environ["KPFAULT_REFUSE"]

for result in ("-1", "-2", "-4", "-10", "-13"):
    refused("vkCreateDevice", result, kp.Manager)
m = kp.Manager()
a, b = (m.tensor_t(np.arange(8, dtype=np.uint32) + k, kp.TensorTypes.host) for k in (0, 8))
for call in ("vkCreateCommandPool", "vkAllocateCommandBuffers"):
    refused(call, "-2", m.sequence)
s = m.sequence()
copy = lambda: s.copy(a, b, 0, 0, 32, True, True)
refused("vkBeginCommandBuffer", "-2", copy)
copy()
refused("vkEndCommandBuffer", "-2", s.end)
s.end()  # there is nothing to end
s.eval()
print(b.data().tolist())
s = m.sequence()
copy()
for call in ("vkCreateFence", "vkQueueSubmit"):
    refused(call, "-2", s.eval_async)
    print(s.is_running(), b.data().tolist())
s.eval_async()
refused("vkWaitForFences", "-2", s.eval_await)
print(s.is_running())
refused("vkWaitForFences", "-2", s.clear)
s.eval_await()
print(s.is_running(), b.data().tolist())
"""


def test_what_is_refused_has_classes_of_its_own_and_leaves_no_ruins(python, fault_layer):
    lines = python("import numpy as np\n" + REFUSED, **fault_layer).splitlines()
    memory, other = "OutOfMemoryError False True ", "Error True False "
    device = [memory, memory, "DeviceLostError True False ", memory, other]
    assert [line.startswith(kind + "vkCreateDevice: Error") for line, kind in zip(lines[:5], device, strict=True)
            ] == [True] * 5
    assert [line.startswith(memory + call) for line, call in zip(lines[5:9], [
        "vkCreateCommandPool", "vkAllocateCommandBuffers", "vk::CommandBuffer::begin", "vk::CommandBuffer::end",
    ], strict=True)] == [True] * 4
    unchanged, copied = str([*range(8, 16)]), str([*range(8)])
    assert lines[9] == unchanged  # what could not be ended was not run
    assert lines[10].startswith(memory + "vk::Device::createFence") and lines[12].startswith(memory + "vkQueueSubmit")
    assert lines[11] == lines[13] == f"False {unchanged}"
    assert lines[14].startswith(memory + "vkWaitForFences") and lines[15] == "True"
    assert lines[16] == other + "Kompute Sequence clear called when sequence still running"
    assert lines[17:] == [f"False {copied}"]


def test_no_loader(python, tmp_path):
    for name in ("libvulkan.so.1", "libvulkan.so"):
        (tmp_path / name).write_text("not a library, but found first")
    out = python(NO_MANAGER, LD_LIBRARY_PATH=str(tmp_path)).splitlines()
    assert len(out) == 3 and all(line.startswith("No Vulkan loader on this machine") for line in out)


def test_no_driver(python):
    out = python(NO_MANAGER, VK_ICD_FILENAMES="/nonexistent.json").splitlines()
    assert len(out) == 3 and all(line.startswith("No usable Vulkan driver") for line in out)


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


def test_storage_that_the_host_sees(rig, expected):
    assert rig.arena.is_init() and rig.manager.host_sees() and rig.manager.host_access(rig.arena) == (True, True)
    values = np.arange(1000, dtype=np.uint32)
    rig.arena.data()[:1000] = values
    sequence = rig.manager.sequence()
    rig.step(sequence, 0, 1024, 1000)
    sequence.to_host()
    sequence.eval()
    assert np.array_equal(rig.arena.data()[1024:2024], expected(values, 1))
    rig.arena.destroy()
    assert not rig.arena.is_init() and rig.manager.host_access(rig.arena) == (False, False)
    with pytest.raises(IndexError):
        rig.kp.OpCopy(rig.arena, rig.arena, [(0, 0, 4)])


def test_storage_that_the_host_does_not_see(python, fault_layer):
    out = python("""
m = kp.Manager()
arena = m.arena(1 << 12)
print(arena.is_init(), m.host_access(arena))
try:
    arena.data()
except RuntimeError as error:
    print(error)
arena.destroy()
""", **fault_layer, KPFAULT_MAP_LIMIT="4096")
    assert out.splitlines() == ["True (False, False)", "Kompute Tensor has no data the host can see"]


def test_device_description(rig):
    properties = rig.manager.get_device_properties()
    assert properties == rig.manager.list_devices()[0]
    assert len(properties["uuid"]) == 16
    assert properties["max_push_constants_size"] >= 128
    assert properties["vendor_id"] and properties["max_storage_buffer_range"] >= 1 << 27
    features = rig.manager.features()
    assert {"float16", "storage16", "int64", "atomic_float32_add"} <= set(features)
    assert set(features.values()) <= {True, False}
    assert any(size > 0 and local for size, local in rig.manager.memory_heaps())
