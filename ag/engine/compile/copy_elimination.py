"""Copy elimination: a result that is only copied on is computed at the copy's target.

Gradients that are gathered into an optimizer's flat buffer are computed there at once; so is one that is multiplied
with the 1 a backward pass begins with, as that is a copy, too:

    g1 = matmul(..); g2 = sum(..); copy(flat[0:6], g1); copy(flat[6:8], g2); adam(flat, ..)
    ->  flat[0:6] = matmul(..); flat[6:8] = sum(..); adam(flat, ..)

A tensor that holds g1 (a parameter's ``.grad``) finds it at its new place, as its buffer moves.  `can_move` says
whether what launch j copies may be computed at the copy's target without anybody reading another value.
`ag.engine.compile.pipeline` runs the pass, and `ag.engine.compile.fold_scaling` asks `can_move`, too; knows no
primitive by name, only what each declares to be a copy.
"""

from __future__ import annotations

from collections.abc import Collection

from ag.engine.compile.graph import Graph
from ag.engine.program import Launch
from ag.engine.target import Target

__all__ = ["can_move", "eliminate_copies"]


def eliminate_copies(graph: Graph, target: Target) -> None:
    """Let producers write where their only consumer would copy their output to."""
    for j, launch in graph:
        if launch.copies and can_move(graph, j):
            into, source = launch.buffers[:2]
            graph.move(source, into)
            graph.remove(j)


def can_move(graph: Graph, j: int, without: Collection[int] = (), update: Launch | None = None) -> bool:
    """Whether the source of launch `j`, a copy, may be computed in its target.

    Launches `without` are taken to be gone, and `update` may write to the target later.
    """
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
