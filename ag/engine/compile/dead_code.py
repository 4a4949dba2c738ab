"""Dead-code elimination: launches whose results nobody reads are left out.

    y = exp(x); z = tanh(x); return y   ->   y = exp(x); return y

Going backwards, a launch stays if it writes memory that somebody else holds, or that a launch which stays reads.
`ag.engine.compile.pipeline` runs the pass; it knows no primitive.
"""

from __future__ import annotations

from ag.engine.compile.graph import Graph
from ag.engine.target import Target

__all__ = ["eliminate_dead_launches"]


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
