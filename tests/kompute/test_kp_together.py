"""Several sequences in one submission: their order, their one fence, and what is refused while they run."""

from __future__ import annotations

import numpy as np
import pytest

VALUES = np.arange(1000, dtype=np.uint32)


@pytest.fixture
def three(rig):
    """Three sequences that depend on each other: 0 -> 1024 -> 2048 -> 3072."""
    rig.write(VALUES)
    found = [rig.manager.sequence(0, 1) for _ in range(3)]
    for k, sequence in enumerate(found):
        rig.step(sequence, 1024 * k, 1024 * (k + 1), 1000)
    return found


def test_they_run_in_order_and_again(rig, expected, three):
    first, second, last = three
    for _ in range(3):
        assert last.eval_async_after([first, second]) is last
        last.eval_await()
        assert np.array_equal(rig.read(1000, at=3072), expected(VALUES, 3))
    second.eval_async_after([first])  # another one is the last
    second.eval_await()
    last.eval_async_after([])
    last.eval_await()


def test_who_waits_for_one_waits_for_all(rig, three):
    for waiter in (0, 1, 2):
        rig.long_work(three[1])
        three[2].eval_async_after(three[:2])
        assert all(sequence.is_running() for sequence in three)
        assert not three[waiter].wait(1)
        assert three[waiter].wait()
        assert not any(sequence.is_running() for sequence in three)
        three[1].clear()
        rig.step(three[1], 1024, 2048, 1000)


def test_each_has_its_timestamps(three):
    three[2].eval_async_after(three[:2])
    with pytest.raises(RuntimeError):
        three[0].get_timestamps()
    three[2].eval_await()
    times = [time for sequence in three for time in sequence.get_timestamps()]
    assert len(times) == 6 and times == sorted(times)


def test_what_runs_is_left_alone(rig, three):
    first, second, last = three
    rig.long_work(last)
    last.eval_async_after([first, second])
    for sequence in three:
        with pytest.raises(RuntimeError, match="still running"):
            sequence.clear()
        with pytest.raises(RuntimeError, match="without successful wait"):
            sequence.eval_async()
    other = rig.manager.sequence()
    with pytest.raises(RuntimeError, match="without successful wait"):
        other.eval_async_after([first])
    assert not other.is_running()
    last.eval_await()


@pytest.mark.parametrize("destroyed", [0, 1, 2])
def test_one_that_runs_is_destroyed(rig, three, destroyed):
    rig.long_work(three[2])
    three[2].eval_async_after(three[:2])
    three[destroyed].destroy()  # waits
    for k, sequence in enumerate(three):
        if k != destroyed:
            assert sequence.wait()
            sequence.eval_async()
            sequence.eval_await()


def test_the_last_is_dropped_while_it_runs(rig, three):
    first, second, last = three
    rig.long_work(last)
    last.eval_async_after([first, second])
    del last
    three.clear()
    assert first.wait() and second.wait()
    rig.manager.destroy()
    assert not first.is_init() and not second.is_init()
