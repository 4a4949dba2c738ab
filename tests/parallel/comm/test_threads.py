"""Ranks that are threads: those that get lost, while the others agree and go on, and those that are late."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers.probe import patience

import ag
from ag.parallel.comm.comm import Comm
from ag.parallel.comm.threads import ThreadComm, thread_comms

Work = Callable[[ThreadComm], Any]


def each_in_a_thread(comms: list[ThreadComm], work: Work) -> list[Any]:
    """Return what `work` returns on each rank, or its error; each thread ends with its work."""
    found: list[Any] = [None] * len(comms)

    def call(i: int) -> None:
        try:
            found[i] = work(comms[i])
        except ag.AgError as error:
            found[i] = error

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(comms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


class Lost(ag.AgError):
    """Ends a thread."""


def summed(comm: Comm, mine: Any) -> tuple[Comm, Any]:
    """The sum over the ranks that are left, in whichever group that is."""
    while True:
        try:
            total = mine.copy()
            comm.all_reduce(total)
            if comm.commit(True):
                return comm, total
        except ag.RankLostError:
            pass
        comm, _ = comm.survivors()


def test_a_lost_rank_is_named_and_the_others_go_on() -> None:
    def work(comm: ThreadComm) -> Any:
        comm.barrier()
        if comm.rank == 1:
            comm.lose()
        with pytest.raises(ag.CommError) as told:
            comm.barrier()
        if comm.rank == 1:
            assert not isinstance(told.value, ag.RankLostError) and "out of the group" in str(told.value)
            raise Lost
        assert isinstance(told.value, ag.RankLostError) and told.value.ranks == (1,)
        assert str(told.value) == ("barrier: rank 1 was declared lost; survivors() is the group of those who are left.")
        smaller, old = comm.survivors()
        x = np.array([float(comm.rank)])
        smaller.all_reduce(x)
        return smaller.rank, smaller.size, old, x[0], len(smaller.hosts)

    first, lost, second = each_in_a_thread(thread_comms(3, 20), work)
    assert isinstance(lost, Lost)
    assert first == (0, 2, [0, 2], 2.0, 2) and second == (1, 2, [0, 2], 2.0, 2)


@pytest.mark.parametrize("waits", ["barrier", "recv", "commit", "survivors"])
def test_a_thread_that_ends_is_lost(waits: str) -> None:
    def work(comm: ThreadComm) -> Any:
        comm.barrier()
        if comm.rank == 0:
            return None
        if waits == "commit":
            assert not comm.commit(True)
        elif waits != "survivors":
            with pytest.raises(ag.RankLostError, match="rank 0 ended: its thread is not alive any more"):
                comm.recv(0) if waits == "recv" else comm.barrier()
        return comm.survivors()[1]

    begin = time.monotonic()
    assert each_in_a_thread(thread_comms(3, 60), work) == [None, [1, 2], [1, 2]]
    assert time.monotonic() - begin < patience(10)


def test_threads_of_the_work_before_may_have_ended() -> None:
    comms = thread_comms(2, 20)

    def late(comm: ThreadComm) -> None:
        time.sleep(0.8 * comm.rank)
        comm.barrier()

    assert each_in_a_thread(comms, lambda comm: comm.barrier()) == [None, None]
    assert each_in_a_thread(comms, late) == [None, None]


def test_a_commit_is_made_by_all_or_by_none() -> None:
    def work(comm: ThreadComm) -> Any:
        first, second, third = comm.commit(True), comm.commit(comm.rank != 2), comm.commit(True)
        comm.barrier()  # a commit that was refused ends nothing
        if comm.rank == 1:
            comm.lose()
            raise Lost
        fourth = comm.commit(True)
        with pytest.raises(ag.RankLostError):
            comm.barrier()
        return first, second, third, fourth, comm.survivors()[1]

    found = each_in_a_thread(thread_comms(3, 20), work)
    assert found[0] == found[2] == (True, False, True, False, [0, 2])


@pytest.mark.parametrize("seed", range(8))
def test_ranks_are_lost_at_any_time(seed: int) -> None:
    """Two of five, one after the other or at once, also while the others agree; all have the sums of the same steps."""
    rng = random.Random(seed)
    plan = {rank: rng.uniform(0, 0.03) for rank in rng.sample(range(5), 2)}
    comms = thread_comms(5, 20)
    timers = [threading.Timer(delay, comms[rank].lose) for rank, delay in plan.items()]
    for timer in timers:
        timer.start()

    def work(comm: Comm) -> Any:
        mine, sizes = np.full(7, float(comm.rank)), []
        while len(sizes) < 40 or comm.size > 3:
            comm, total = summed(comm, mine)
            sizes.append((comm.size, total.tolist()))
            time.sleep(0.001)
        return sizes

    found = each_in_a_thread(comms, work)
    for timer in timers:
        timer.join()
    left = [i for i in range(5) if i not in plan]
    assert all(found[i] == found[left[0]] for i in left)
    assert found[left[0]][-1] == (3, [float(sum(left))] * 7)
    assert all("out of the group" in str(found[i]) for i in plan)


def test_an_abort_ends_agreements_too() -> None:
    comms = thread_comms(2, 20)
    threading.Timer(0.05, lambda: comms[1].abort("enough")).start()
    for call in (lambda: comms[0].commit(True), comms[0].survivors):
        with pytest.raises(ag.CommError, match="enough"):
            call()


def test_a_rank_that_does_not_agree_is_named() -> None:
    with pytest.raises(ag.CommError, match=r"commit: rank 0, 2 did not come within 0\.1 s"):
        thread_comms(3, 0.1)[1].commit(True)


# ---------------------------------------------------------------------------------------------- time is up


def test_a_rank_that_does_not_come_is_named_in_time() -> None:
    comms = thread_comms(3, timeout=1)
    begin = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(comms[i].barrier) for i in (0, 2)]:
            with pytest.raises(ag.CommError, match=r"barrier: rank 1 did not come within 1 s"):
                future.result()
    assert time.monotonic() - begin < patience(5)
    with pytest.raises(ag.CommError, match="rank 1 did not come"):
        comms[1].barrier()  # it came too late


def test_an_array_that_is_not_sent() -> None:
    comms = thread_comms(2, timeout=0.1)
    with pytest.raises(ag.CommError, match=r"recv: rank 1 sent nothing to rank 0 within 0\.1 s"):
        comms[0].recv(1)


@pytest.mark.parametrize(("size", "timeout"), [(0, 1.0), (2, 0.0)])
def test_a_group_of_nobody(size: int, timeout: float) -> None:
    with pytest.raises(ValueError, match="at least one rank and a positive time"):
        thread_comms(size, timeout)
