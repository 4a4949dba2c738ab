"""Leave out launches without a use: dead code, and copies whose source can be computed at their target.

    g = matmul(..); copy(flat[0:6], g)   ->   flat[0:6] = matmul(..)
"""

from __future__ import annotations

from collections.abc import Collection

from ag.engine.compile.graph import Graph
from ag.engine.program import Launch, Unallocated
from ag.engine.target import Target


def eliminate_copies(graph: Graph, target: Target) -> None:
    """Let producers write where their only consumer would copy their output to."""
    for j, launch in graph:
        if launch.copies and can_move(graph, j):
            into, source = launch.buffers[:2]
            graph.move(source, into)
            graph.remove(j)


def can_move(graph: Graph, j: int, without: Collection[int] = (), update: Launch | None = None) -> bool:
    """Return whether copy `j` may go, its source lying in its target; so do `without`, and `update` may write there."""
    target, source = graph[j].buffers[:2]
    block = source.block
    users = [i for i in graph.users(block.address) if i not in without]
    first, last = users[0], users[-1]
    producer = graph[first]
    results = [b for b in producer.buffers[: producer.primitive.outputs]
               if b.block is block and b.address == source.address and b.nbytes == source.nbytes]
    if last != j or first == j or not producer.fresh or len(results) != 1:
        return False
    if source.nbytes != target.nbytes or target.block is block:
        return False
    if isinstance(target.block, Unallocated) and not graph.is_private(block.address):
        return False  # a result has memory, and private unallocated ones get theirs later
    if any(i != first and i not in without for i in graph.writers[block.address]):
        return False
    for i in graph.touching(target):
        if i in without or i == j:
            continue
        if first <= i < j:
            return False  # the target still holds, or already needs, something else
        if i > j and graph[i] is not update and any(b.overlaps(target) for b in graph[i].written):
            return False  # who holds the source would see what is written there later
    return not graph.is_viewed(block.address)


def eliminate_dead_launches(graph: Graph, target: Target) -> None:
    """Leave out launches that write only private memory which no launch that stays reads."""
    wanted: set[int] = set()  # blocks that are read further on
    dead = []
    for i, launch in reversed([*graph]):
        if all(b.block.address not in wanted and graph.is_private(b.block.address) for b in launch.written):
            dead.append(i)
        else:
            wanted.update(b.block.address for b in launch.operands)
    for i in dead:
        graph.remove(i)
