"""Groups of workers: one suite over every kind of group, then what goes wrong between several."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ag
from ag.parallel.comm.comm import Comm, SoloComm
from ag.parallel.comm.threads import thread_comms

Work = Callable[[Comm], Any]


def everybody(comms: list[Comm], work: Work) -> list[Any]:
    """What `work` returns on each rank, all running at once."""
    with ThreadPoolExecutor(len(comms)) as pool:
        return list(pool.map(work, comms))


@pytest.fixture(params=["solo", "threads-1", "threads-2", "threads-3", "threads-5", "threads-8"])
def group(request: pytest.FixtureRequest) -> list[Comm]:
    kind, _, size = request.param.partition("-")
    return [SoloComm()] if kind == "solo" else [*thread_comms(int(size), timeout=20)]


def of_rank(rank: int, *shape: int) -> Any:
    return np.random.default_rng(rank).standard_normal(shape).astype(np.float32)


# ---------------------------------------------------------------------------------------------- every group


def test_ranks(group: list[Comm]) -> None:
    assert [c.rank for c in group] == list(range(len(group))) and {c.size for c in group} == {len(group)}


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (1 << 17, 3)])
def test_all_reduce(group: list[Comm], shape: tuple[int, ...]) -> None:
    def work(comm: Comm) -> Any:
        x = of_rank(comm.rank, *shape)
        comm.all_reduce(x)
        return x

    found = everybody(group, work)
    expected = np.sum([of_rank(i, *shape) for i in range(len(group))], axis=0, dtype=np.float64)
    assert all((x == found[0]).all() for x in found)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [0, 1, 7, 64])
def test_reduce_scatter_and_all_gather_make_an_all_reduce(group: list[Comm], length: int) -> None:
    def work(comm: Comm) -> Any:
        x, whole = of_rank(comm.rank, length), of_rank(comm.rank, length)
        comm.all_reduce(whole)
        part = comm.reduce_scatter(x)
        assert part.shape == (len(range(length)[comm.shares_of(length)[comm.rank]]),)
        assert (x == of_rank(comm.rank, length)).all()
        return comm.all_gather(part), whole

    for gathered, whole in everybody(group, work):
        assert (gathered == whole).all()


def test_all_gather_of_other_lengths(group: list[Comm]) -> None:
    found = everybody(group, lambda c: c.all_gather(np.full(c.rank, c.rank)))
    expected = np.repeat(np.arange(len(group)), np.arange(len(group)))
    assert all((x == expected).all() for x in found)


def test_broadcast(group: list[Comm]) -> None:
    root = len(group) - 1

    def work(comm: Comm) -> Any:
        x = of_rank(comm.rank, 4, 3)
        comm.broadcast(x, root)
        return x

    assert all((x == of_rank(root, 4, 3)).all() for x in everybody(group, work))


def test_send_and_receive_in_a_ring(group: list[Comm]) -> None:
    def work(comm: Comm) -> Any:
        x = of_rank(comm.rank, 3)
        comm.send(x, (comm.rank + 1) % comm.size)
        comm.send(x + 1, (comm.rank + 1) % comm.size)
        x.fill(0)  # it was a copy
        before = (comm.rank - 1) % comm.size
        return comm.recv(before), comm.recv(before), before

    for first, second, sender in everybody(group, work):
        assert (first == of_rank(sender, 3)).all() and (second == of_rank(sender, 3) + 1).all()


def test_nobody_passes_a_barrier_early(group: list[Comm]) -> None:
    here: list[int] = []

    def work(comm: Comm) -> int:
        time.sleep(0.01 * comm.rank)
        here.append(comm.rank)
        comm.barrier()
        return len(here)

    assert everybody(group, work) == [len(group)] * len(group)


def test_split(group: list[Comm]) -> None:
    def work(comm: Comm) -> Any:
        part = comm.split(comm.rank % 2)
        x = np.array([float(comm.rank)])
        part.all_reduce(x)
        comm.barrier()
        return part.rank, part.size, x[0]

    for rank, found in enumerate(everybody(group, work)):
        same = range(rank % 2, len(group), 2)
        assert found == (same.index(rank), len(same), sum(same))


def test_calls_after_an_abort(group: list[Comm]) -> None:
    group[0].abort("enough")
    for comm in group:
        for call in (comm.barrier, lambda comm=comm: comm.all_reduce(np.ones(2)), lambda comm=comm: comm.recv(0)):
            with pytest.raises(ag.CommError, match="enough"):
                call()


def test_a_rank_that_is_not_there(group: list[Comm]) -> None:
    for call in (lambda: group[0].send(np.ones(1), 99), lambda: group[0].recv(-1),
                 lambda: group[0].broadcast(np.ones(1), 99)):
        with pytest.raises(ag.CommError, match=r"there is no rank -?\d+; the group has ranks"):
            call()


@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_sums_do_not_depend_on_who_comes_first(size: int, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, delays = rng.standard_normal((size, length)).astype(np.float32), rng.permutation(size)

    def once(order: Any) -> Any:
        def work(comm: Comm) -> Any:
            time.sleep(0.0005 * order[comm.rank])
            x = values[comm.rank].copy()
            comm.all_reduce(x)
            return x

        return everybody(thread_comms(size, 20), work)

    first, second = once(delays), once(delays[::-1])
    assert all((x == first[0]).all() for x in [*first, *second])


# ---------------------------------------------------------------------------------------------- what goes wrong


def test_a_rank_that_does_not_come_is_named_in_time() -> None:
    comms = thread_comms(3, timeout=0.2)
    begin = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(comms[i].barrier) for i in (0, 2)]:
            with pytest.raises(ag.CommError, match=r"barrier: rank 1 did not come within 0\.2 s"):
                future.result()
    assert time.monotonic() - begin < 5
    with pytest.raises(ag.CommError, match="rank 1 did not come"):
        comms[1].barrier()  # it came too late


def test_an_array_that_is_not_sent() -> None:
    comms = thread_comms(2, timeout=0.1)
    with pytest.raises(ag.CommError, match=r"recv: rank 1 sent nothing to rank 0 within 0\.1 s"):
        comms[0].recv(1)


def test_an_abort_wakes_who_waits() -> None:
    comms = thread_comms(3)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(comms[i].barrier) for i in (0, 1)]
        time.sleep(0.05)
        comms[2].abort("the device is lost")
        for future in waiting:
            with pytest.raises(ag.CommError, match="ended by rank 2: the device is lost"):
                future.result(5)


def test_what_all_have_done_is_done_whoever_ends_the_group_next() -> None:
    def work(comm: Comm) -> float:
        x = np.ones(1)
        comm.all_reduce(x)
        if comm.rank == 1:
            comm.abort("enough")
        return float(x[0])

    for _ in range(200):
        assert everybody(thread_comms(3), work) == [3.0] * 3


def errors_of(work: list[Callable[[], Any]]) -> list[str]:
    found: list[str] = []

    def call(part: Callable[[], Any]) -> None:
        try:
            part()
        except ag.CommError as error:
            found.append(str(error))

    threads = [threading.Thread(target=call, args=(part,)) for part in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


@pytest.mark.parametrize(("calls", "message"), [
    ([lambda c: c.barrier(), lambda c: c.all_reduce(np.ones(2))], "same calls in the same order"),
    ([lambda c: c.all_reduce(np.ones(2)), lambda c: c.all_reduce(np.ones(3))], "shapes and types must be equal"),
    ([lambda c: c.all_reduce(np.ones(2)), lambda c: c.all_reduce(np.ones(2, "f4"))], "float32"),
    ([lambda c: c.broadcast(np.ones(2)), lambda c: c.broadcast(np.ones(2), 1)], "the roots must be equal"),
    ([lambda c: c.broadcast(np.ones(2)), lambda c: c.broadcast(np.ones(3))], "shapes or types must be equal"),
    ([lambda c: c.all_gather(np.ones(2)), lambda c: c.all_gather(np.ones(3, int))], "types must be equal"),
])
def test_calls_that_do_not_fit_together(calls: list[Work], message: str) -> None:
    comms = thread_comms(2, 5)
    found = errors_of([lambda c=c, call=call: call(c) for c, call in zip(comms, calls, strict=True)])
    assert len(found) == 2 and all(message in error for error in found)


def test_an_array_with_gaps() -> None:
    with pytest.raises(ag.CommError, match=r"shape \(2, 3\) is not contiguous"):
        thread_comms(1)[0].all_reduce(np.ones((3, 2)).T)


@pytest.mark.parametrize(("size", "timeout"), [(0, 1.0), (2, 0.0)])
def test_a_group_of_nobody(size: int, timeout: float) -> None:
    with pytest.raises(ValueError, match="at least one rank and a positive time"):
        thread_comms(size, timeout)


def test_many_calls_of_many_threads() -> None:
    def work(comm: Comm) -> float:
        x = np.full(3, float(comm.rank))
        for i in range(300):
            comm.all_reduce(x)
            x /= comm.size
            if i % 7 == 0:
                comm.barrier()
        return float(x[0])

    assert everybody(thread_comms(6), work) == [2.5] * 6
