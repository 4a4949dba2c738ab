"""The reduction tree: one fixed order of additions, however the samples are dealt out."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.errors import expect_error

from ag.errors import CommError
from ag.parallel.comm.tree_reduction import PART, TreeSum, shard_sizes


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


@pytest.mark.parametrize("seed", range(50))
def test_any_shards_make_the_same_additions(seed: int) -> None:
    rng = random.Random(seed)
    samples = rng.randrange(1, 100)
    cuts = sorted(rng.randrange(samples + 1) for _ in range(rng.randrange(8)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, samples], strict=True)]  # some shards are empty
    assert dealt(samples, sizes) == tree_of(samples)


def test_sums_of_floats_are_equal_to_the_bit() -> None:
    values = np.random.default_rng(0).standard_normal((37, 1000)) * 10.0 ** np.arange(-18, 19)[:, None]
    values = values.astype(np.float32)
    totals = []
    for n in (1, 2, 3, 4, 8, 37):
        total: TreeSum[np.ndarray] = TreeSum(np.add)
        start = 0
        for size in shard_sizes(37, [1.0] * n):
            shard: TreeSum[np.ndarray] = TreeSum(np.add)
            for k in range(start, start + size):
                shard.push(k, 1, values[k])
            for node in shard.nodes:
                total.push(*node)
            start += size
        totals.append(total.total().tobytes())
    assert len(set(totals)) == 1
    assert totals[0] != np.add.reduce(values).tobytes()  # another order gives other bits, so equality says something


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


@pytest.mark.parametrize("seed", range(20))
def test_shard_sizes_add_up_and_are_fair(seed: int) -> None:
    rng = random.Random(seed)
    samples, weights = rng.randrange(1000), [rng.random() for _ in range(rng.randrange(1, 12))]
    sizes = shard_sizes(samples, weights)
    assert sum(sizes) == samples
    assert all(abs(size - samples * w / sum(weights)) < 1 for size, w in zip(sizes, weights, strict=True))
