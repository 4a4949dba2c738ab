"""The reduction tree: one fixed order of additions, however the samples are dealt out, in compiled code and numpy."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

from ag.engine import cpu_threads
from ag.engine.backends.cpu.library import library
from ag.engine.cpu_threads import BLOCK, WIDE, pool_at, share_cores
from ag.errors import CommError
from ag.parallel.comm import tree_reduction
from ag.parallel.comm.tree_reduction import PART, Node, RowSums, TreeSum, add_up, shard_sizes, sum_at


def tree_of(samples: int) -> str:
    """The additions of one tree that gets all samples one by one, written out."""
    tree: TreeSum[str] = TreeSum(lambda a, b: f"({a}+{b})")
    for k in range(samples):
        tree.push(k, 1, str(k))
    return tree.total()


def dealt(samples: int, sizes: list[int]) -> str:
    """The same when shards of these sizes are added up apart, and their nodes after that."""
    total: TreeSum[str] = TreeSum(lambda a, b: f"({a}+{b})")
    start = 0
    for size in sizes:
        shard: TreeSum[str] = TreeSum(lambda a, b: f"({a}+{b})")
        for k in range(start, start + size):
            shard.push(k, 1, str(k))
        for node in shard.nodes:
            total.push(*node)
        start += size
    assert start == samples
    return total.total()


def test_the_tree_is_balanced() -> None:
    assert tree_of(1) == "0"
    assert tree_of(4) == "((0+1)+(2+3))"
    assert tree_of(7) == "(((0+1)+(2+3))+((4+5)+6))"


def test_any_shards_make_the_same_additions() -> None:
    rng = random.Random(0)
    for _ in range(50):
        samples = rng.randrange(1, 100)
        cuts = sorted(rng.randrange(samples + 1) for _ in range(rng.randrange(8)))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, samples], strict=True)]  # some shards are empty
        assert dealt(samples, sizes) == tree_of(samples), sizes


def test_what_is_no_node_is_refused() -> None:
    tree: TreeSum[float] = TreeSum(lambda a, b: a + b)
    for start, count in ((0, 3), (1, 2), (2, 4), (0, 0)):
        with expect_error("samples that are no node of the reduction tree", CommError, f"{start}..{start + count - 1}"):
            tree.push(start, count, 1.0)
    tree.push(0, 1, 1.0)
    with expect_error("a sample missing in the reduction", CommError, "from 2 on", "after sample 0"):
        tree.push(2, 1, 1.0)
    with expect_error("a reduction of nothing", CommError, "at least one sample"):
        TreeSum(lambda a, b: a + b).total()


def test_parts_of_a_sample_are_added_up_first() -> None:
    """Three shares, of which the first ends, the second lies and the third begins in sample 1."""
    nodes = [[(0, 1, "a"), (1, PART, "b")], [(1, PART, "c")], [(1, PART, "d"), (2, 1, "e"), (3, 1, "f")]]
    whole: TreeSum[str] = TreeSum(lambda left, right: f"({left}{right})")
    for share in nodes:
        mine: TreeSum[str] = TreeSum(lambda left, right: f"({left}{right})")
        for node in share:
            mine.push(*node)
        for node in mine.nodes:
            whole.push(*node)
    assert whole.total() == "((a((bc)d))(ef))"


# ---------------------------------------------------------------------------------------------- shares


@pytest.mark.parametrize(("samples", "weights", "expected"), [
    (24, [1, 1, 1], [8, 8, 8]), (10, [1, 1, 1], [4, 3, 3]), (2, [1, 1, 1], [1, 1, 0]), (7, [3, 1], [5, 2]),
    (10, [1, 0, 1], [5, 0, 5]), (1, [0.1, 0.9], [0, 1]), (0, [1, 1], [0, 0]), (100, [0.5, 0.25, 0.25], [50, 25, 25]),
])
def test_shard_sizes(samples: int, weights: list[float], expected: list[int]) -> None:
    assert shard_sizes(samples, weights) == expected


def test_shard_sizes_add_up_and_are_fair() -> None:
    rng = random.Random(0)
    for _ in range(20):
        samples, weights = rng.randrange(1000), [rng.random() for _ in range(rng.randrange(1, 12))]
        sizes = shard_sizes(samples, weights)
        assert sum(sizes) == samples
        assert all(abs(size - samples * w / sum(weights)) < 1 for size, w in zip(sizes, weights, strict=True))


# ---------------------------------------------------------------------------------------------- rows of nodes


CODE: Any = tree_reduction._code
compiled = pytest.mark.skipif(CODE is None, reason="there was no compiler")


@pytest.fixture(params=[pytest.param("compiled", marks=compiled), "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With compiled code, and as where there was no compiler."""
    monkeypatch.setattr(tree_reduction, "_code", CODE if request.param == "compiled" else None)


def nodes_of(rng: random.Random, size: int) -> list[Node]:
    """Nodes of some shares of some samples, a few of which are in parts, and rows of as many numbers."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    nodes: list[Node] = []
    for sizes in ([rng.randrange(9) for _ in range(rng.randrange(1, 6))],):
        start = 0
        for samples in sizes:
            share: TreeSum[int] = TreeSum(lambda left, right: left)
            for k in range(start, start + samples):
                share.push(k, 1, k)
            nodes += [(first, n, numbers.standard_normal(size).astype(np.float32)) for first, n, _ in share.nodes]
            start += samples
            if rng.random() < 0.4:
                parts = rng.randrange(1, 4)
                nodes += [(start, PART, numbers.standard_normal(size).astype(np.float32)) for _ in range(parts)]
                start += 1
    return nodes or [(0, 1, numbers.standard_normal(size).astype(np.float32))]


def total_of(nodes: list[Node]) -> np.ndarray:
    tree: TreeSum[np.ndarray] = TreeSum(np.add)
    for node in nodes:
        tree.push(*node)
    return tree.total()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", [0, 3, BLOCK + 7, 2 * WIDE + 9])
@pytest.mark.usefixtures("way")
def test_rows_are_added_up_as_in_the_tree(threads: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, whatever the shares, in whatever pieces; the rows are as before."""
    monkeypatch.setattr(cpu_threads, "threads", lambda: threads)
    rng = random.Random(size + threads)
    sums = RowSums()
    for _ in range(60 if size < BLOCK else 3):
        nodes = nodes_of(rng, size)
        before, count = [row.copy() for *_, row in nodes], rng.choice([1.0, 3.0, 0.7])
        expected, out = total_of(nodes) / np.float32(count), np.full(size, np.nan, np.float32)
        assert add_up(nodes, out, count)
        assert np.array_equal(out, expected)
        assert size == 0 or sum_at(nodes, size - 1) == total_of(nodes)[-1]
        joined = sums.joined(nodes)
        tree: TreeSum[int] = TreeSum(lambda left, right: left)
        for first, n, _ in nodes:
            tree.push(first, n, 0)
        assert [node[:2] for node in joined] == [node[:2] for node in tree.nodes]
        assert np.array_equal(total_of(joined), total_of(nodes))
        assert all(np.array_equal(row, was) for (*_, row), was in zip(nodes, before, strict=True))


@pytest.mark.usefixtures("way")
def test_a_row_may_be_its_own_sum() -> None:
    row = np.array([1, 2, 3], np.float32)
    assert add_up([(0, 1, row)], row) and row.tolist() == [1, 2, 3]
    assert add_up([(0, 1, row)], row, 2.0) and row.tolist() == [0.5, 1, 1.5]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_noticed(bad: float) -> None:
    for place in (0, WIDE, 2 * WIDE + 8):
        rows = [np.zeros(2 * WIDE + 9, np.float32) for _ in range(3)]
        rows[1][place] = bad
        out = np.empty_like(rows[0])
        assert not add_up([(k, 1, row) for k, row in enumerate(rows)], out)
        assert not add_up([(0, 1, out)], out)
    large = np.full(3, 3e38, np.float32)
    assert add_up([(0, 1, large)], large) and not add_up([(0, 1, large)], np.empty(3, np.float32), 0.5)
    assert not add_up([(0, 1, large), (1, 1, large)], np.empty(3, np.float32), 2.0)  # on the way to a finite mean


def test_an_element_may_overflow() -> None:
    assert sum_at([(k, 1, np.full(2, 3e38, np.float32)) for k in range(2)], 1) == np.inf


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_what_is_finite_may_have_a_sum_that_is_not(dtype: type) -> None:
    large = np.full(1000, np.finfo(dtype).max, dtype)
    out = np.empty_like(large)
    assert add_up([(0, 1, large)], out) and (out == large).all()
    assert add_up([(0, 1, large), (1, 1, -large)], out) and not out.any()
    for bad in (np.inf, -np.inf, np.nan):
        large[7] = bad
        assert not add_up([(0, 1, large)], out)
    large[8] = -large[7]
    assert not add_up([(0, 1, large)], out)


@pytest.mark.usefixtures("way")
def test_no_rows() -> None:
    with expect_error("a sum of no rows", CommError, "at least one sample"):
        add_up([], np.empty(3, np.float32))
    with expect_error("an element of a sum of no rows", CommError, "at least one sample"):
        sum_at([], 0)


# ---------------------------------------------------------------------------------------------- compiled code itself

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3e38, -3e38]
COUNTS = [1.0, 3.0, 0.7, 1e-30, 2.0, 0.125, 96.0, 2.0**-30, 2.0**99, 2.0**-99, 2.0**110]  # powers of two are inverted
GUARD = 777.0


def random_launch(rng: np.random.Generator) -> tuple[list[np.ndarray], tuple[tuple[int, int, int], ...], int, float]:
    """Rows of any length, some with special values; additions of the tree's or of any other order; a count."""
    dtype = rng.choice([np.float32, np.float64])
    size = int(rng.choice([0, 1, 7, 100, 8191, 8192, 8193, 3 * 8192 + 5]))
    rows = [rng.standard_normal(size).astype(dtype) for _ in range(rng.integers(1, 40))]
    for row in rows:
        if size and rng.random() < 0.1:
            row[rng.integers(size)] = rng.choice(SPECIAL)
    known, partial_sums = len(rows), int(rng.integers(0, 5))
    steps = [(0, 1, known)] if known > 1 else []
    for i in range(2, known):
        into = known + int(rng.integers(0, partial_sums + 1))
        steps += [(known, i, into)] + ([(into, known, known)] if into != known else [])
    return rows, tuple(steps), partial_sums, float(rng.choice(COUNTS))


def by_numpy(rows: list[np.ndarray], steps: tuple[tuple[int, int, int], ...], partial_sums: int,
             count: float) -> np.ndarray:
    all_rows = [*rows, *[np.empty_like(rows[0]) for _ in range(1 + partial_sums)]]
    with np.errstate(all="ignore"):
        for left, right, into in steps:
            np.add(all_rows[left], all_rows[right], out=all_rows[into])
        return (all_rows[len(rows)] if steps else rows[0]) / rows[0].dtype.type(count)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """But for NaN, whose sign and payload depend on which summand the processor takes them from."""
    return bool(((a == b) & (np.signbit(a) == np.signbit(b)) | (np.isnan(a) & np.isnan(b))).all())


@compiled
@pytest.mark.parametrize("launches", [20, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_random_launches(threads: int, launches: int) -> None:
    """By so many threads; nothing beside the sum is written, no row is."""
    rng, kernels = np.random.default_rng(threads), library()
    pool = 0 if kernels is None else kernels.pool_at
    for _ in range(launches):
        rows, steps, partial_sums, count = random_launch(rng)
        before, size = [row.copy() for row in rows], rows[0].size
        expected = by_numpy(rows, steps, partial_sums, count)
        whole = np.full(size + 8, GUARD, rows[0].dtype)
        out = whole[4 : size + 4]
        said = CODE.add_up(rows, out, steps, partial_sums, count, pool, threads, 1)
        assert same_bits(out, expected)
        assert said is bool(np.isfinite(expected).all())
        assert (whole[:4] == GUARD).all() and (whole[size + 4 :] == GUARD).all()
        assert all(np.array_equal(row, was, equal_nan=True) for row, was in zip(rows, before, strict=True))


@compiled
@pytest.mark.skipif(library() is None, reason="no kernels in C were built")
def test_many_rows_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the threads that the kernels have, unless there is little to do; callers who share the cores have fewer."""
    given: list[tuple[int, ...]] = []

    def noted(*of: Any) -> Any:
        given.append(of[-3:])
        return CODE.add_up(*of)

    monkeypatch.setattr(tree_reduction, "_code", SimpleNamespace(add_up=noted))
    monkeypatch.setattr(cpu_threads, "threads", lambda: 4)
    large, small = (np.ones(size, np.float32) for size in (1 << 17, 1 << 10))
    for row in (large, small):
        assert add_up([(0, 1, row), (1, 1, row)], np.empty_like(row), 2.0)
    share_cores(2)
    try:
        assert add_up([(0, 1, large), (1, 1, large)], np.empty_like(large), 2.0)
    finally:
        share_cores(1)
    assert given == [(pool_at(), 4, 1), (0, 1, 1), (pool_at(), 2, 2)] and pool_at() != 0


@compiled
@pytest.mark.parametrize("row", [np.ones(4, np.float16), np.ones(4), np.ones(4, np.int32), np.ones(3, np.float32),
                                 np.ones((2, 2), np.float32), np.ones(8, np.float32)[::2], [1.0] * 4],
                         ids=["f16", "f64", "i32", "short", "matrix", "strided", "list"])
def test_what_it_does_not_know_is_left_to_numpy(row: Any) -> None:
    out = np.full(4, GUARD, np.float32)
    assert CODE.add_up([np.ones(4, np.float32), row], out, ((0, 1, 2),), 0, 1.0, 0, 1, 1) is None
    assert (out == GUARD).all()


@compiled
def test_an_array_that_must_not_be_written_is_left_to_numpy() -> None:
    out = np.zeros(4, np.float32)
    out.flags.writeable = False
    assert CODE.add_up([np.ones(4, np.float32)], out, (), 0, 1.0, 0, 1, 1) is None


@compiled
@pytest.mark.parametrize(("steps", "partial_sums", "error"), [
    (((0, 2, 3),), 0, IndexError), (((0, -1, 2),), 0, IndexError), (((0, 1, 4),), 1, IndexError), ((), 0, ValueError),
    (((0, 1),), 0, TypeError), (((0, 1, 2),), -1, ValueError)])
def test_additions_of_what_is_not_there_are_refused(steps: Any, partial_sums: int, error: type[Exception]) -> None:
    out = np.full(4, GUARD, np.float32)
    with pytest.raises(error, match="add_up"):
        CODE.add_up([np.ones(4, np.float32)] * 2, out, steps, partial_sums, 1.0, 0, 1, 1)
    assert (out == GUARD).all()
