"""Groups of workers: one suite over every kind of group, and sums that do not depend on who is quick.

The suite runs alone and in threads; under ``mpiexec -n 3 python -m pytest tests/parallel/comm/test_comm.py`` every
process runs it, as its rank of the group.  tests/parallel/comm/test_mpi.py does that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ranks import UNDER_MPI, everybody
from hypothesis import given, settings
from hypothesis import strategies as st

import ag
from ag.parallel.comm.comm import Comm, SoloComm, everyone
from ag.parallel.comm.threads import thread_comms
from ag.parallel.comm.tree_reduction import tree_sum

Work = Callable[[Comm], Any]
KINDS = ["solo", "threads-1", "threads-3", "threads-8"]


@pytest.fixture(params=["mpi"] if UNDER_MPI else KINDS)
def group(request: pytest.FixtureRequest) -> list[Comm]:
    """The places of this process's ranks: all of them, but under MPI one."""
    kind, _, size = request.param.partition("-")
    if kind == "mpi":
        from ag.parallel.comm.mpi import mpi_comm

        return [mpi_comm(60)]
    return [SoloComm()] if kind == "solo" else [*thread_comms(int(size), timeout=20)]


@pytest.fixture
def several(group: list[Comm]) -> list[Comm]:
    """A group of at least two."""
    if group[0].size < 2:
        pytest.skip("a group of one")
    return group


def of_rank(rank: int, *shape: int, dtype: str = "f4") -> Any:
    values = np.asarray(np.random.default_rng(rank).standard_normal(shape) * 50)
    return np.asarray(values > 0 if dtype == "?" else values).astype(dtype)


def total(size: int, *shape: int, dtype: str = "f4") -> Any:
    """The sum over the ranks, in the order of the tree."""
    with np.errstate(all="ignore"):
        return np.asarray(tree_sum([of_rank(i, *shape, dtype=dtype) for i in range(size)], np.add))


def same(a: Any, b: Any) -> bool:
    """Equal to the bit; a long double has bytes that mean nothing."""
    equal = (a == b).all() if a.dtype == "g" else a.tobytes() == b.tobytes()
    return bool(a.shape == b.shape and a.dtype == b.dtype and equal)


# ---------------------------------------------------------------------------------------------- every group


def test_ranks(group: list[Comm]) -> None:
    size = group[0].size
    found = everybody(group, lambda comm: (comm.rank, comm.size, len(comm.hosts)))
    assert found == [(rank, size, size) for rank in range(size)] and all(group[0].hosts)


@pytest.mark.parametrize("dtype", ["?", "i1", "i8", "u2", "f2", "f4", "f8", "g", "F", ">f4"])
def test_sums_of_every_type_have_the_bits_of_the_tree(group: list[Comm], dtype: str) -> None:
    shapes: list[tuple[int, ...]] = [(), (0,), (1,), (3, 5), (2, 0, 3)]

    def work(comm: Comm) -> bool:
        good = True
        for shape in shapes:
            x = of_rank(comm.rank, *shape, dtype=dtype)
            comm.all_reduce(x)
            good &= same(x, total(comm.size, *shape, dtype=dtype).astype(dtype))
        return good

    assert all(everybody(group, work))


@pytest.mark.parametrize("size", [1 << 15, pytest.param(3 * (1 << 17) + 1, marks=pytest.mark.slow)])
def test_large_sums(group: list[Comm], size: int) -> None:
    def work(comm: Comm) -> bool:
        x = of_rank(comm.rank, size)
        for _ in range(3):
            y = x.copy()
            comm.all_reduce(y)
        return same(y, total(comm.size, size))

    assert all(everybody(group, work))


@pytest.mark.parametrize("length", [0, 1, 7, 64, 10_003])
def test_reduce_scatter_and_all_gather_make_an_all_reduce(group: list[Comm], length: int) -> None:
    def work(comm: Comm) -> Any:
        x, whole = of_rank(comm.rank, length), of_rank(comm.rank, length)
        comm.all_reduce(whole)
        part = comm.reduce_scatter(x)
        assert part.shape == (len(range(length)[comm.shares_of(length)[comm.rank]]),)
        assert same(x, of_rank(comm.rank, length))
        part += 0  # it is the caller's own
        return same(comm.all_gather(part), whole)

    assert all(everybody(group, work))


@pytest.mark.parametrize("length", [0, 1, 9, 5_001])
def test_parts_of_the_rows_of_all(group: list[Comm], length: int) -> None:
    """Rank 0 has no rows, rank 1 one, and so on."""

    def work(comm: Comm) -> bool:
        mine = comm.shares_of(length)[comm.rank]
        parts = comm.all_to_all([of_rank(10 * comm.rank + i, length) for i in range(comm.rank)])
        assert [len(rows) for rows in parts] == [*range(comm.size)]
        return all(same(part, of_rank(10 * rank + i, length)[mine])
                   for rank, rows in enumerate(parts) for i, part in enumerate(rows))

    assert all(everybody(group, work))


def test_all_gather_of_other_lengths(group: list[Comm]) -> None:
    size = group[0].size
    expected = np.repeat(np.arange(size), np.arange(size))
    assert all(same(x, expected) for x in everybody(group, lambda c: c.all_gather(np.full(c.rank, c.rank))))


@pytest.mark.parametrize("shape", [(4, 3), (), (0,), (30_000,)])
def test_broadcast(group: list[Comm], shape: tuple[int, ...]) -> None:
    def work(comm: Comm) -> bool:
        found = []
        for root in {0, comm.size - 1}:
            x = of_rank(comm.rank, *shape)
            comm.broadcast(x, root)
            found.append(same(x, of_rank(root, *shape)))
        return all(found)

    assert all(everybody(group, work))


@pytest.mark.parametrize(("shape", "dtype"), [((3,), "f4"), ((), "f8"), ((0, 2), "i4"), ((5, 7), "f2"), ((9,), "?"),
                                              ((20_000,), "f8"), ((2,), "M8[s]"), ((2,), "U3")])
def test_send_and_receive_in_a_ring(group: list[Comm], shape: tuple[int, ...], dtype: str) -> None:
    def work(comm: Comm) -> Any:
        def made(rank: int) -> Any:
            return of_rank(rank, *shape, dtype="i8").astype(dtype)

        x = made(comm.rank)
        comm.send(x, (comm.rank + 1) % comm.size)
        comm.send(np.array([x.size]), (comm.rank + 1) % comm.size)
        x[...] = made(99)  # it was a copy
        before = (comm.rank - 1) % comm.size
        first, second = comm.recv(before), comm.recv(before)
        return same(first, made(before)) and same(second, np.array([x.size]))

    assert all(everybody(group, work))


def test_everybody_tells_something(group: list[Comm]) -> None:
    def work(comm: Comm) -> Any:
        long = "é\n" * (1000 * (comm.rank % 2))
        return everyone(comm, {"rank": comm.rank, "text": long, "list": [None, 1.5]})

    size = group[0].size
    for found in everybody(group, work):
        assert [x["rank"] for x in found] == [*range(size)]
        assert [x["text"] for x in found] == ["é\n" * (1000 * (i % 2)) for i in range(size)]


def test_nobody_passes_a_barrier_early(group: list[Comm]) -> None:
    def work(comm: Comm) -> tuple[float, float]:
        time.sleep(0.02 * comm.rank)
        here = time.monotonic()  # of the machine, so processes can be compared
        comm.barrier()
        return here, time.monotonic()

    found = everybody(group, work)
    assert max(here for here, _ in found) <= min(there for _, there in found)


def test_split(group: list[Comm]) -> None:
    def work(comm: Comm) -> Any:
        part = comm.split(-(comm.rank % 2))
        x = np.array([float(comm.rank)])
        part.all_reduce(x)
        comm.barrier()
        return part.rank, part.size, len(part.hosts), x[0]

    for rank, found in enumerate(everybody(group, work)):
        same = range(rank % 2, group[0].size, 2)
        assert found == (same.index(rank), len(same), len(same), sum(same))


def test_a_commit_needs_all(group: list[Comm]) -> None:
    last = group[0].size - 1
    for found in everybody(group, lambda c: [c.commit(True), c.commit(c.rank != last), c.commit(True), c.barrier()]):
        assert found == [True, False, True, None]


def test_an_error_ends_what_it_must_and_no_more(group: list[Comm]) -> None:
    """A group that was ended says so for ever; another one of the same ranks works."""

    def work(comm: Comm) -> int:
        part = comm.split(0)
        if comm.rank == comm.size - 1:
            part.abort("enough")
        for call in (part.barrier, lambda: part.all_reduce(np.ones(2)), lambda: part.recv(0), lambda: part.commit(True),
                     part.survivors, lambda: part.split(0)):
            with pytest.raises(ag.CommError, match="enough"):
                call()
        comm.barrier()
        return comm.size

    assert everybody(group, work) == [group[0].size] * group[0].size


def test_what_all_have_done_is_done_whoever_ends_the_group_next(group: list[Comm]) -> None:
    def work(comm: Comm) -> bool:
        good = True
        for i in range(20):
            part = comm.split(0)
            x = np.ones(1)
            part.all_reduce(x)
            if comm.rank == i % comm.size:
                part.abort("enough")
            good &= bool(x[0] == comm.size)
        return good

    assert all(everybody(group, work))


def test_a_rank_that_is_not_there(group: list[Comm]) -> None:
    for call in (lambda: group[0].send(np.ones(1), 99), lambda: group[0].recv(-1),
                 lambda: group[0].broadcast(np.ones(1), 99)):
        with pytest.raises(ag.CommError, match=r"there is no rank -?\d+; the group has ranks"):
            call()


@pytest.mark.parametrize(("array", "message"), [
    (np.ones((3, 2)).T, r"shape \(2, 3\) is not contiguous"), ([1.0], r"\[1.0\] is a list; a numpy array is required"),
    (np.array(["a"]), "elements of type <U1; numbers are required"),
    (np.array([None]), "elements of type object; numbers or text are required"),
    (np.broadcast_to(np.ones(1), 1), "is read-only"),
])
def test_what_cannot_be_added_up(group: list[Comm], array: Any, message: str) -> None:
    with pytest.raises(ag.CommError, match=message):
        group[0].all_reduce(array)


# ---------------------------------------------------------------------------------------------- several ranks


@pytest.mark.parametrize(("calls", "message"), [
    ([lambda c: c.barrier(), lambda c: c.all_reduce(np.ones(2))], "same calls in the same order"),
    ([lambda c: c.all_reduce(np.ones(2)), lambda c: c.all_reduce(np.ones(3))], "shapes and types must be equal"),
    ([lambda c: c.all_reduce(np.ones(2)), lambda c: c.all_reduce(np.ones(2, "f4"))], "float32"),
    ([lambda c: c.reduce_scatter(np.ones(2)), lambda c: c.reduce_scatter(np.ones(3))], "shapes and types must be"),
    ([lambda c: c.broadcast(np.ones(2)), lambda c: c.broadcast(np.ones(2), 1)], "the roots must be equal"),
    ([lambda c: c.broadcast(np.ones(2)), lambda c: c.broadcast(np.ones(3))], "shapes or types must be equal"),
    ([lambda c: c.all_gather(np.ones(2)), lambda c: c.all_gather(np.ones(3, int))], "types must be equal"),
    ([lambda c: c.all_to_all([np.ones(2)]), lambda c: c.all_to_all([np.ones(3)])], "rank 0 has a row of 2 float64 and"),
])
def test_calls_that_do_not_fit_together(several: list[Comm], calls: list[Work], message: str) -> None:
    def work(comm: Comm) -> tuple[str, str]:
        part = comm.split(0)
        with pytest.raises(ag.CommError) as first:
            calls[min(comm.rank, 1)](part)
        with pytest.raises(ag.CommError) as second:
            part.barrier()
        return str(first.value), str(second.value)

    found = everybody(several, work)
    assert all(message in error for both in found for error in both)


def test_all_may_go_on_in_the_same_group(several: list[Comm]) -> None:
    """Nobody is lost, but the last rank asks for a new group."""

    def work(comm: Comm) -> Any:
        if comm.rank < comm.size - 1:
            with pytest.raises(ag.RankLostError, match=r"survivors\(\) is the group of those who are left"):
                comm.barrier()
        again, old = comm.survivors()
        x = np.array([1.0 + again.rank])
        again.all_reduce(x)
        return again.rank, old, x[0], again.commit(True)

    size = several[0].size
    assert everybody(several, work) == [(i, [*range(size)], size * (size + 1) / 2, True) for i in range(size)]


@pytest.mark.skipif(UNDER_MPI, reason="is about threads")
@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
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
