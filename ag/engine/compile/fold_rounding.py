"""Round where results are made: a launch stores 16 bits instead of another launch behind it.

    t = matmul(W, x); y = narrow(t)   ->   y = matmul(W, x)      y in 16 bits, and no t
"""

from __future__ import annotations

from ag.engine.buffer import Buffer
from ag.engine.compile.graph import Graph
from ag.engine.kernels.convert import narrow
from ag.engine.target import Target


def fold_rounding(graph: Graph, target: Target) -> None:
    """Let launches whose kernels can write 16 bits do so."""
    for j, launch in graph:
        if launch.primitive is narrow:
            out, x = launch.buffers
            writers = graph.writers[x.block.address]
            if len(writers) == 1 and graph.readers[x.block.address] == [j] and graph.is_private(x.block.address):
                _fold(graph, target, writers[0], j, out, x)


def _fold(graph: Graph, target: Target, i: int, j: int, out: Buffer, x: Buffer) -> None:
    """Let launch `i`, which makes `x`, write `out` in its place, as launch `j` would."""
    maker = graph[i]
    takes = target.halves.get(maker.primitive.name, ())[: maker.primitive.outputs]
    places = [k for k, half in enumerate(takes) if half and maker.buffers[k].block is x.block]
    if not maker.fresh or len(places) != 1 or (maker.buffers[places[0]].address, x.size) != (
            x.address, maker.buffers[places[0]].size) or any(i <= k < j for k in graph.touching(out)):
        return
    sizes = maker.primitive.layout(*[b.shape for b in maker.buffers], **maker.params)
    if "piece" in sizes and sizes["pieces"] != 1:  # each piece adds to the result, and would round it
        return
    k = places[0]
    graph.remove(j)
    stored = out.view(maker.buffers[k].shape)
    graph.replace(i, maker._replace(buffers=(*maker.buffers[:k], stored, *maker.buffers[k + 1 :])))
    if not graph.is_private(out.block.address):  # it has a place that nobody may move
        graph.replace(i, graph[i]._replace(fresh=False))
