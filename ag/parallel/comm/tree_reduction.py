"""Reduction tree: add up samples in one fixed binary tree, with equal bits wherever the samples were computed.
An aligned block of 2**k samples (or stacks) is a node; its sum is that of its halves.  Samples 0 to 6 make these nodes:

    replica 0     (0 + 1)   2                               nodes 0-1 and 2
    replica 1                 3   (4 + 5)   6               nodes 3, 4-5 and 6
    host          ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)       a last partial block is added from the right
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from math import isfinite
from typing import Any, Generic, TypeVar

import numpy as np

from ag.engine.cpu_threads import BLOCK, available, callers, cut, makes, pool_at, scratch
from ag.engine.primitive import Array
from ag.errors import CommError
from ag.native import code as _code

V = TypeVar("V")
Node = tuple[int, int, Array]  # first sample, number of samples, their summed row
Additions = tuple[tuple[int, int, int], ...]
_SHARED_FROM = 1 << 18  # numbers; compiled code has added up fewer before another thread wakes
_ONE_ROW: tuple[Additions, int] = (), 0  # what is to be added, and how many partial sums there are

PART = -1  # in the place of a number of samples


class TreeSum(Generic[V]):
    """Adds up consecutive samples, keeping complete nodes; parts of a sample are added up before anything else."""

    def __init__(self, add: Callable[[V, V], V]) -> None:
        self._add = add
        self.nodes: list[tuple[int, int, V]] = []  # first sample, number of samples or PART, sum

    def push(self, start: int, count: int, value: V) -> None:
        """Add the node of samples ``start .. start + count - 1``, which follow the last ones, or a `PART` of one."""
        if count == PART:
            if self.nodes and self.nodes[-1][:2] == (start, PART):
                value = self._add(self.nodes.pop()[2], value)
            self.nodes.append((start, PART, value))
            return
        if count < 1 or count & (count - 1) or start % count:
            raise CommError(f"TreeSum: samples {start}..{start + count - 1} are not a node of the tree; "
                            f"a node has 2**k samples and starts at a multiple of that.")
        if self.nodes and self.nodes[-1][0] + max(1, self.nodes[-1][1]) != start:
            raise CommError(f"TreeSum: samples from {start} on were given after sample "
                            f"{self.nodes[-1][0] + max(1, self.nodes[-1][1]) - 1}; none may be missing.")
        while self.nodes and self.nodes[-1][1] == count and self.nodes[-1][0] % (2 * count) == 0:
            start, _, left = self.nodes.pop()
            value = self._add(left, value)
            count *= 2
        self.nodes.append((start, count, value))

    def total(self) -> V:
        """Return the sum of everything; a last partial block is added from the right."""
        if not self.nodes:
            raise CommError("TreeSum: nothing was added; a step needs at least one sample.")
        if PART in [count for _, count, _ in self.nodes]:  # all parts are there now
            parts, self.nodes = self.nodes, []
            for start, count, value in parts:
                self.push(start, max(1, count), value)
        value = self.nodes[-1][2]
        for _, _, left in reversed(self.nodes[:-1]):
            value = self._add(left, value)
        return value


def shard_sizes(samples: int, weights: Sequence[float]) -> list[int]:
    """Share samples out in proportion to `weights`, by largest remainder, ties to the lower index."""
    return list(_shard_sizes(samples, tuple(weights)))


@lru_cache(maxsize=16)
def _shard_sizes(samples: int, weights: tuple[float, ...]) -> tuple[int, ...]:
    total = sum(weights)
    exact = [samples * w / total for w in weights]
    sizes = [int(x) for x in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda i: (sizes[i] - exact[i], i))
    for i in by_remainder[: samples - sum(sizes)]:
        sizes[i] += 1
    return tuple(sizes)


def tree_sum(values: Iterable[V], add: Callable[[V, V], V]) -> V:
    """Return the sum of at least one value in the order of the tree."""
    tree: TreeSum[V] = TreeSum(add)
    for i, value in enumerate(values):
        tree.push(i, 1, value)
    return tree.total()


def add_rows(left: Array, right: Array, out: Array) -> Array:
    """Write the sum of two flat arrays to `out`, with a thread per core; returns `out`."""
    pieces = cut(out.size)
    makes(pieces)([partial(_add, left[p], right[p], out[p]) for p in pieces])
    return out


def _add(left: Array, right: Array, out: Array) -> None:
    with np.errstate(all="ignore"):  # callers deal with infinities and NaN
        np.add(left, right, out=out)


def add_up(nodes: Sequence[Node], out: Array, count: float = 1.0) -> bool:
    """Write the sum of the rows of all nodes, divided by `count`, to `out`; return whether it is finite."""
    rows = [row for _, _, row in nodes]
    additions, partial_sums = _ONE_ROW if len(rows) == 1 else _additions(
        tuple([(start, samples) for start, samples, _ in nodes]))
    size = out.size
    if _code is not None:
        pool = (pool_at(), available(), callers()) if size * len(rows) >= _SHARED_FROM else (0, 1, 1)
        known: bool | None = _code.add_up(rows, out, additions, partial_sums, count, *pool)
        if known is not None:  # the compiled code takes such rows
            return known
    add = partial(_added_up, rows, out, additions, partial_sums, count)
    if size <= BLOCK:
        return add(slice(0, size))
    pieces, finite = cut(size), list[bool]()
    makes(pieces)([partial(_noted, finite, add, piece) for piece in pieces])
    return all(finite)


def _noted(finite: list[bool], add: Callable[[slice], bool], piece: slice) -> None:
    finite.append(add(piece))


def _added_up(rows: list[Array], out: Array, additions: Additions, partial_sums: int, count: float,
              piece: slice) -> bool:
    """`add_up` for some elements, by numpy: without ``rows.c``, or for rows it does not take."""
    total, parts = out[piece], [row[piece] for row in rows]
    parts += total, *(scratch(out.dtype, [total.shape] * partial_sums) if partial_sums else ())
    with np.errstate(all="ignore"):  # callers deal with infinities and NaN
        for left, right, into in additions:
            np.add(parts[left], parts[right], out=parts[into])
        if additions or count != 1.0 or not np.may_share_memory(rows[0], out):
            np.divide(total if additions else parts[0], count, out=total)
        # A finite sum has finite summands, and takes half the time of testing each; it may overflow, though.
        return isfinite(np.add.reduce(total)) or bool(np.isfinite(total).all())


@lru_cache(maxsize=64)
def _additions(places: tuple[tuple[int, int], ...]) -> tuple[Additions, int]:
    """Return the additions (left, right, sum) of rows, total and partial sums, by index, and how many of the last."""
    total = len(places)
    additions: list[tuple[int, int, int]] = []
    free, known = list[int](), total

    def added(left: int, right: int) -> int:
        nonlocal known
        free.extend(x for x in (right, left) if x >= total)
        if not free:
            free.append(known)
            known += 1
        into = free.pop()
        additions.append((left, right, into))
        return into

    tree: TreeSum[int] = TreeSum(added)
    for i, (start, samples) in enumerate(places):
        tree.push(start, samples, i)
    tree.total()
    if additions:
        additions[-1] = *additions[-1][:2], total  # wherever partial sums are, this is the last time
    return tuple(additions), max(0, known - total - 1)


def sum_at(nodes: Sequence[Node], i: int) -> float:
    """Return element `i` of the sum of the rows of all nodes."""
    if len(nodes) == 1:
        return float(nodes[0][2][i])
    tree: TreeSum[Any] = TreeSum(operator.add)
    with np.errstate(all="ignore"):  # it may be infinite
        for start, samples, row in nodes:
            tree.push(start, samples, row[i])
        return float(tree.total())


class RowSums:
    """Sums of rows in arrays that are reused in every step; the rows are not written to."""

    def __init__(self) -> None:
        self._rows: list[Array] = []

    def joined(self, nodes: Sequence[Node]) -> list[Node]:
        """Join these nodes to as few as possible; their sums are valid until the next call."""
        tree: TreeSum[list[Node]] = TreeSum(list.__add__)
        for node in nodes:
            tree.push(node[0], node[1], [node])
        return [(start, samples, self._sum(i, parts)) for i, (start, samples, parts) in enumerate(tree.nodes)]

    def total(self, nodes: Sequence[Node]) -> Array:
        """Return the sum of all nodes, valid until the next call."""
        return self._sum(0, nodes)

    def _sum(self, i: int, nodes: Sequence[Node]) -> Array:
        if len(nodes) == 1:
            return nodes[0][2]
        while len(self._rows) <= i:
            self._rows.append(np.empty_like(nodes[0][2]))
        add_up(nodes, self._rows[i])
        return self._rows[i]
