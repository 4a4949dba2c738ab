"""Recording: barriers, launches, region copies, replays, timestamps."""

import numpy as np
import pytest

VALUES = np.arange(1000, dtype=np.uint32)


def test_chain_of_dependent_launches(rig, expected):
    rig.write(VALUES)
    sequence = rig.manager.sequence()
    for k in range(20):
        src, dst = (0, 1024) if k % 2 == 0 else (1024, 0)
        rig.step(sequence, src, dst, 1000)
    sequence.eval()
    assert np.array_equal(rig.read(1000), expected(VALUES, 20))


def test_copy_of_regions(rig):
    host = rig.host(VALUES)
    regions = [(0, 400, 40), (2000, 0, 4), (3996, 1000, 4)]
    rig.manager.sequence().eval(rig.kp.OpCopy(host, rig.arena, regions))
    got = rig.read(300)
    want = np.zeros(300, np.uint32)
    want[100:110], want[0], want[250] = VALUES[:10], VALUES[500], VALUES[999]
    assert np.array_equal(got, want)


def test_a_copy_that_is_no_object(rig):
    host, back = rig.host(VALUES), rig.host(np.zeros(1000, np.uint32))
    sequence = rig.manager.sequence()
    sequence.copy(host, rig.arena, 2000, 400, 2000)
    sequence.copy(rig.arena, back, 400, 40, 2000, barrier=True, host=True)
    sequence.eval()
    want = np.zeros(1000, np.uint32)
    want[10:510] = VALUES[500:]
    assert np.array_equal(back.data(), want)


BAD_REGIONS = [(0, 0, 4001), (4000, 0, 4), (0, 4 * 65536, 4), (2**63, 0, 2**63), (0, 0, 0)]


@pytest.mark.parametrize("region", BAD_REGIONS)
def test_copy_out_of_range_is_refused(rig, region):
    with pytest.raises(IndexError, match="does not fit tensors of 4000 and 262144 bytes"):
        rig.kp.OpCopy(rig.host(VALUES), rig.arena, [region])
    with pytest.raises(IndexError, match="does not fit tensors of 4000 and 262144 bytes"):
        rig.manager.sequence().copy(rig.host(VALUES), rig.arena, *region)


def test_copy_of_nothing_is_refused(rig):
    with pytest.raises(IndexError, match="no region"):
        rig.kp.OpCopy(rig.arena, rig.arena, [])


def test_clear_and_record_again(rig, expected):
    sequence = rig.manager.sequence()
    for n in range(1, 300):
        sequence.clear()
        rig.step(sequence, 0, 1024, n)
        sequence.eval()
    rig.write(VALUES)
    sequence.eval()  # a replay of the last one
    assert np.array_equal(rig.read(299, at=1024), expected(VALUES[:299], 1))
    assert not rig.read(1, at=1024 + 299).any()


def test_empty_sequence_runs(rig):
    sequence = rig.manager.sequence()
    sequence.eval()
    rig.step(sequence, 0, 1024, 10)
    sequence.clear()
    sequence.eval()
    assert not rig.read(10, at=1024).any()


def test_timestamps_around_every_launch(rig):
    sequence = rig.manager.sequence(total_timestamps=3)
    with pytest.raises(RuntimeError, match="before it was awaited"):
        sequence.get_timestamps()
    for _ in range(3):
        rig.step(sequence, 0, 1024, 1000, rounds=1000)
    first = sequence.eval().get_timestamps()
    assert len(first) == 4
    assert first == sorted(first)
    assert first[3] > first[0]
    second = sequence.eval().get_timestamps()
    assert second[0] >= first[3]
    assert second[3] > second[0]


def test_one_timestamp_closes_a_long_sequence(rig):
    sequence = rig.manager.sequence(total_timestamps=1)
    for _ in range(10):
        rig.step(sequence, 0, 1024, 1000, rounds=1000)
    times = sequence.eval().get_timestamps()
    assert len(times) == 2
    assert times[1] > times[0]
    sequence.clear()
    with pytest.raises(RuntimeError, match="before it was awaited"):
        sequence.get_timestamps()
    assert len(sequence.eval().get_timestamps()) == 1


def test_timestamps_are_described(rig):
    properties = rig.manager.get_device_properties()
    assert properties["timestamps_supported"]
    assert 36 <= properties["timestamp_valid_bits"] <= 64
    assert properties["timestamp_period"] > 0
    with pytest.raises(RuntimeError, match="not enabled"):
        rig.manager.sequence().eval().get_timestamps()


def test_devices_are_listed_without_opening_one(rig):
    opened, listed = rig.manager.list_devices(), rig.kp.list_devices()
    others = "features", "memory_heaps", "arena_heaps"
    assert [{k: v for k, v in d.items() if k not in others} for d in listed] == opened
    assert listed[0]["features"] == rig.manager.features()
    assert listed[0]["memory_heaps"] == rig.manager.memory_heaps()
    assert listed[0]["arena_heaps"] == rig.manager.arena_heaps() == [0]
    assert opened[0]["max_allocation_size"] >= 1 << 30 and opened[0]["max_buffer_size"] >= 1 << 30
    assert len(rig.manager.memory_budget()) in (0, len(rig.manager.memory_heaps()))


def test_a_launch_in_parts(rig, expected):
    rig.write(VALUES)
    sequence = rig.manager.sequence()
    push = np.array([0, 1024, 1000, 1], np.uint32).tobytes()
    sequence.dispatch(rig.algorithm, push, 9, barrier=False, first_x=7)
    sequence.eval()
    assert not rig.read(7 * 64, at=1024).any()
    sequence = rig.manager.sequence()
    sequence.dispatch(rig.algorithm, push, 7, 1, 1, False, 0, 0)
    sequence.dispatch(rig.algorithm, push, 9, 1, 1, True, 7, 0)
    for _ in range(2):
        sequence.eval()
        assert np.array_equal(rig.read(1000, at=1024), expected(VALUES, 1))


def test_one_pipeline_for_several_tensors(rig, expected, spirv_file):
    rig.write(VALUES)
    other, made = rig.manager.arena(4096), rig.manager.pipelines()
    bound = rig.manager.bound(rig.algorithm, [rig.arena, other])
    third = rig.manager.bound(bound, [other, rig.arena])
    assert rig.manager.pipelines() == made == 1
    for tensors in ([rig.arena], [rig.arena] * 3, []):
        with pytest.raises(RuntimeError, match=f"takes 2 tensors, not {len(tensors)}"):
            rig.manager.bound(rig.algorithm, tensors)
    rig.algorithm = None
    sequence = rig.manager.sequence()
    sequence.dispatch(bound, np.array([0, 1024, 1000, 1], np.uint32).tobytes(), 16)
    sequence.dispatch(third, np.array([1024, 2048, 1000, 1], np.uint32).tobytes(), 16)
    sequence.eval()
    assert np.array_equal(rig.read(1000, at=2048), expected(VALUES, 2))
    assert not rig.read(1000, at=1024).any()  # which went to the other arena
    first = rig.manager.algorithm([rig.arena] * 2, spirv_file.read_bytes(), (1, 1, 1), [], [0.0] * 4)
    bound = rig.manager.bound(first, [other, other])
    first.destroy()
    assert not bound.is_init()
    with pytest.raises(RuntimeError, match="has no pipeline"):
        rig.manager.bound(first, [other, other])


def test_a_cache_of_pipelines_goes_from_one_manager_to_another(rig, kp, spirv_file):
    data = rig.manager.pipeline_cache()
    assert isinstance(data, bytes) and len(data) >= 16
    other = kp.Manager()
    other.add_pipeline_cache(data)
    assert len(other.pipeline_cache()) >= 16 and other.pipelines() == 0
    other.destroy()
    with pytest.raises(RuntimeError, match="after destroy"):
        other.pipeline_cache()
