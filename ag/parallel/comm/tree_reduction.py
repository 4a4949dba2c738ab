"""The reduction tree: sums over samples in one fixed binary tree, wherever the samples were computed.

Knows numbers and how to add two of them; no tensor, no device, no replica.  Communicators, the trainer, its replicas
and ranks, and whoever deals samples out call it.

Its leaves are the samples of a step, or its stacks of samples, numbered 0, 1, 2, ... by their place in the step; an
aligned block of 2**k leaves is a node, and its sum is the sum of its two halves.  A replica adds up the nodes that lie
inside its shard; the host goes on with the nodes of all replicas.  Seven samples, of which replica 0 has 0-2 and
replica 1 has 3-6:

    samples       0   1   2   3   4   5   6
    replica 0     (0 + 1)   2                               nodes 0-1 and 2
    replica 1                 3   (4 + 5)   6               nodes 3, 4-5 and 6
    host          ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)       a last partial block is added from the right

Floating-point addition is not associative, but every node is the same addition wherever it is made: the result is the
same, bit for bit, for every way to deal the samples out.  Who calls what:

    TreeSum        nodes that arrive in order: the trainer's replicas on their device, trainer and ranks on the host
    RowSums        the addition of two rows on the host, in buffers that stay: the trainer, and `Ranks` for other ranks'
    tree_sum       values that are all there: communicators, `DataParallel`, synchronized batch norm
    shard_sizes    how many of n samples each gets: ranks (`ag.parallel.trainer.ranks`), the replicas of a rank
                   (`ag.parallel.trainer.load_balance`), and whoever else cuts something, as `scatter` does
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Generic, TypeVar

import numpy as np

from ag.engine.cpu_threads import cut, makes
from ag.engine.primitive import Array
from ag.errors import CommError

__all__ = ["PART", "RowSums", "TreeSum", "add_rows", "shard_sizes", "tree_sum"]

V = TypeVar("V")

PART = -1  # in the place of a number of samples


class TreeSum(Generic[V]):
    """Adds up consecutive samples, keeping complete nodes.

    Parameters
    ----------
    add : callable
        ``add(left, right)`` gives the sum of two nodes.

    Attributes
    ----------
    nodes : list of (int, int, value)
        First sample, number of samples, and sum, in order; the number is `PART` for a part of a sample, which may be
        shared out as well: its parts are added up before anything else is.
    """

    def __init__(self, add: Callable[[V, V], V]) -> None:
        self._add = add
        self.nodes: list[tuple[int, int, V]] = []

    def push(self, start: int, count: int, value: V) -> None:
        """Add the node of samples ``start .. start + count - 1``, which follow the last ones; or a `PART` of one."""
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
        """The sum of everything; a last partial block is added from the right."""
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
    """How many of `samples` each replica gets, in proportion to `weights`, adding up exactly.

    By largest remainder, ties to the lower index: 7 samples by the weights 1, 1, 2 are exactly 1.75, 1.75 and 3.5; the
    whole parts are 1, 1 and 3, and the two samples that are left go to the first two.
    """
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
    """The sum of values, of which there is at least one, in the order of the tree."""
    tree: TreeSum[V] = TreeSum(add)
    for i, value in enumerate(values):
        tree.push(i, 1, value)
    return tree.total()


def add_rows(left: Array, right: Array, out: Array) -> Array:
    """Write the sum of two flat arrays to `out`, with a thread per core; returns `out`."""
    pieces = cut(out.size)
    makes(pieces)([partial(np.add, left[p], right[p], out=out[p]) for p in pieces])
    return out


class RowSums:
    """Adds rows in buffers that are reused from step to step; the rows themselves are not written to."""

    def __init__(self) -> None:
        self._rows: list[Array] = []
        self._used = 0

    def restart(self) -> None:
        """Reuse the buffers: the sums of the last step are not needed any more."""
        self._used = 0

    def added(self, left: Array, right: Array) -> Array:
        """The sum of two rows, written over `left` if that is a sum itself; all cores take part."""
        if any(left is row for row in self._rows[: self._used]):
            out = left
        else:
            if self._used == len(self._rows):
                self._rows.append(np.empty_like(left))
            out = self._rows[self._used]
            self._used += 1
        with np.errstate(all="ignore"):  # who calls deals with infinities and NaN
            return add_rows(left, right, out)
