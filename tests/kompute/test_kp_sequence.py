"""Recording: barriers, launches, region copies, replays, timestamps."""

import numpy as np
import pytest

VALUES = np.arange(1000, dtype=np.uint32)


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
