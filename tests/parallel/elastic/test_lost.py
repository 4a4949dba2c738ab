"""dp_train goes on without ranks and devices that are lost: with the bits of an undisturbed job, and no step twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.dp_classifier import assert_equal
from helpers.errors import expect_error
from helpers.ranks import dealt, outcomes, train
from parallel.elastic.killed import Killed, counted, doomed

import ag
from ag.parallel.comm.comm import Comm

Fail = Callable[[str, int], None]


def run(ranks: int, killed: dict[int, int], replicas: int = 1, **options: Any) -> tuple[list[Any], list[list[int]]]:
    """Run ranks, some killed in a meeting; return what each returns or raises, and the steps that its callback saw."""
    steps: list[list[int]] = [[] for _ in range(ranks)]

    def work(comm: Comm) -> Any:
        rank = comm.rank
        world = doomed(comm, killed[rank]) if rank in killed else comm
        return train(dealt(ranks, replicas)[rank], world, callback=lambda step: steps[rank].append(step.step),
                     **options)

    return outcomes(ranks, work), steps


@cache
def undisturbed(replicas: int) -> ag.DPResult:
    return train(dealt(1, replicas)[0])


@cache
def meetings(ranks: int) -> tuple[int, int]:
    """Return how many meetings a rank has before the first step, and altogether."""
    begun: list[int] = []

    def work(comm: Any) -> int:
        counted(comm)
        train(dealt(ranks, 1)[comm.rank], comm,
                     callback=lambda step: begun.append(comm.meetings) if comm.rank == 0 else None)
        return comm.meetings

    most, *_ = outcomes(ranks, work)
    return begun[0] - (begun[2] - begun[1]), most


def check(ranks: int, killed: dict[int, int], **options: Any) -> None:
    """The survivors end with the bits of one process, and each of them has made every step once."""
    found, steps = run(ranks, killed, **options)
    for rank, result in enumerate(found):
        if rank in killed:
            assert isinstance(result, Killed), result
        else:
            assert isinstance(result, ag.DPResult), (rank, result)
            assert_equal(result, undisturbed(ranks))
            assert steps[rank] == [0, 1, 2, 3]


@pytest.mark.parametrize(("killed", "part"), [(0, 0), (2, 1), (1, 2), (0, 3)])
def test_one_rank_of_three(killed: int, part: int) -> None:
    first, last = meetings(3)
    check(3, {killed: first + 2 + part * (last - first - 4) // 4})


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1, 2])
def test_one_rank_of_three_at_any_moment(killed: int) -> None:
    first, last = meetings(3)
    for moment in range(first + 2, last - 1):
        check(3, {killed: moment})


def test_two_ranks_of_five() -> None:
    first, last = meetings(5)
    check(5, {3: first + 9, 4: first + 9})
    check(5, {0: first + 6, 4: last - 4})


def test_the_last_one_of_two_goes_on_alone() -> None:
    check(2, {1: meetings(2)[0] + 7})


def test_half_of_the_ranks_without_the_first_may_not_go_on() -> None:
    found, _ = run(2, {0: meetings(2)[0] + 7})
    assert isinstance(found[1], ag.CommError)
    with expect_error("dp_train on rank 1 of 2, when rank 0 is lost", ag.CommError, "rank 1 alone may not go on"):
        raise found[1]


def test_a_rank_lost_before_the_first_step() -> None:
    found, _ = run(3, {1: 4})
    for rank in (0, 2):
        with expect_error(f"dp_train on rank {rank}, when rank 1 is lost at once", ag.CommError, "before step 0",
                          "rank 1"):
            raise found[rank]


def test_the_next_first_rank_saves(tmp_path: Path) -> None:
    path = tmp_path / "job"
    found, _ = run(3, {0: meetings(3)[0] + 6}, checkpoint=path, checkpoint_every=3)
    assert isinstance(found[1], ag.DPResult)
    assert_equal(train(["cpu"], micro_batch=6, n_iter=4, checkpoint=path, resume=True), undisturbed(3))
    more = train(["cpu", "cpu:1"], batch=6, micro_batch=1, n_iter=6, checkpoint=path, resume=True)
    assert_equal(more, train(["cpu"], batch=6, micro_batch=1, n_iter=6))


# ---------------------------------------------------------------------------------------------- devices


def failing(fail: Fail, device: str, after: int, at: int = 1) -> Callable[[Any], None]:
    """A callback after which a device soon fails."""
    def callback(step: Any) -> None:
        if step.step == at:
            fail(device, after)

    return callback


@pytest.mark.parametrize(("after", "capture"), [(0, "auto"), (6, "auto"), (9, "auto"), (7, False)])
def test_a_lost_device_is_a_replica_less(after: int, capture: Any, fail: Fail,
                                         caplog: pytest.LogCaptureFixture) -> None:
    wanted = undisturbed(3)  # on the same devices, before one fails
    found = train(["cpu", "cpu:1", "cpu:2"], callback=failing(fail, "cpu:1", after), capture=capture)
    assert_equal(found, wanted)
    assert found.devices == ["cpu", "cpu:2"] and len(found.report) == 2
    assert "dp_train: cpu:1 failed in step" in caplog.text and "2 of 3 replicas go on" in caplog.text


def test_the_first_replica_may_be_the_lost_one(fail: Fail) -> None:
    found = train(["cpu:3", "cpu:1"], batch=6, balance=[2.0, 1.0], callback=failing(fail, "cpu:3", 2))
    assert_equal(found, train(["cpu"], batch=6))
    assert found.devices == ["cpu:1"]


def test_measured_shares_of_those_that_are_left(fail: Fail) -> None:
    wanted = undisturbed(3)
    found = train(["cpu", "cpu:1", "cpu:2"], balance="auto", callback=failing(fail, "cpu:2", 5, at=2))
    assert_equal(found, wanted)


def test_no_device_is_left(fail: Fail) -> None:
    with expect_error("dp_train whose only device fails", ag.DeviceError, "cpu:1: the device was lost"):
        train(["cpu:1"], callback=failing(fail, "cpu:1", 3))


def test_ranks_learn_of_a_lost_device(fail: Fail) -> None:
    def work(comm: Comm) -> Any:
        mine = dealt(2, 2)[comm.rank]
        return train(mine, comm, callback=failing(fail, mine[1], 9) if comm.rank == 1 else None)

    wanted = undisturbed(4)
    for rank, result in enumerate(outcomes(2, work)):
        assert_equal(result, wanted)
        assert len(result.devices) == (1 if rank == 1 else 2)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_without_devices_leaves(lost: int, fail: Fail) -> None:
    def work(comm: Comm) -> Any:
        mine = [["cpu:5"], ["cpu:1", "cpu:2"], ["cpu:3"]][comm.rank]
        return train(mine, comm, batch=8, callback=failing(fail, mine[0], 4) if comm.rank == lost else None)

    found = outcomes(3, work)
    assert isinstance(found[lost], ag.DeviceError)
    for rank, result in enumerate(found):
        if rank != lost:
            assert_equal(result, train(["cpu"], batch=8))
