"""Let the optimizer's kernel apply the clip factor, instead of a product per gradient.

    mul g1 g1 f; mul g2 g2 f; copy flat[0:6] g1; copy flat[6:8] g2; adam(flat, one)   ->   adam(flat, f)
"""

from __future__ import annotations

from ag.engine.buffer import Buffer
from ag.engine.compile.copy_elimination import can_move
from ag.engine.compile.graph import Graph
from ag.engine.program import Launch
from ag.engine.target import Target

_PADDING = 32  # bytes: what lies between the parts of a flat buffer is less, and zeros


def fold_scaling(graph: Graph, target: Target) -> None:
    """Let launches that can multiply an operand with a number do so, instead of launches before them."""
    for i, launch in graph:  # may change meanwhile; what `_fold` removes, products and copies, scales nothing itself
        _, scaled, _ = launch.primitive.scaling or (None, -1, -1)
        if scaled in launch.primitive.updates:  # stores the product, as the launches do that go; others only read it
            _fold(graph, i)


def _fold(graph: Graph, update: int) -> None:
    flat = _scaled_operand(graph[update])
    if flat is None:
        return
    before = [i for i in graph.touching(flat) if i < update]
    copies = [i for i in before if graph[i].copies and graph[i].buffers[0].overlaps(flat)]
    readers = [i for i in before if i not in copies]
    products = [i for copy in copies if (i := _product_before(graph, copy, update)) is not None]
    if not products or len(products) < len(copies) or not _cover(flat, [graph[i].buffers[0] for i in copies]):
        return
    factor = graph[products[0]].buffers[2]
    if any(graph[i].buffers[2].address != factor.address for i in products) or (
            graph.is_written(factor, min(products), update)):
        return
    if any(i < max(copies) or _scaled_operand(graph[i]) is None for i in readers):
        return
    gone, last = {*products}, graph[update]
    if not all(can_move(graph, i, without=gone, update=last) for i in copies):
        return
    for i in products:
        graph.remove(i)
    for i in copies:
        graph.move(graph[i].buffers[1], graph[i].buffers[0])
        graph.remove(i)
    for i in (*readers, update):
        graph.replace(i, _multiplied(graph[i], factor))


def _scaled_operand(launch: Launch) -> Buffer | None:
    """The operand that a launch can multiply with a factor, if it has none yet."""
    _, scaled, factor = launch.primitive.scaling or (None, -1, -1)
    return launch.buffers[scaled] if scaled >= 0 and launch.buffers[factor].constant == 1.0 else None


def _multiplied(launch: Launch, factor: Buffer) -> Launch:
    assert launch.primitive.scaling
    _, _, position = launch.primitive.scaling
    return launch._replace(buffers=(*launch.buffers[:position], factor, *launch.buffers[position + 1 :]))


def _product_before(graph: Graph, copy: int, update: int) -> int | None:
    """The product in place, as launch `update` can make it, after which only launch `copy` touches what it copies."""
    source, scaling = graph[copy].buffers[1], graph[update].primitive.scaling
    position, *later = [i for i in graph.users(source.block.address) if i < update][-2:]
    product = graph[position]
    if later != [copy] or scaling is None or product.primitive is not scaling[0] or product.buffers[2].size != 1:
        return None
    whole = all((b.address, b.nbytes) == (source.address, source.nbytes) for b in product.buffers[:2])
    return position if whole else None


def _cover(flat: Buffer, parts: list[Buffer]) -> bool:
    end = flat.address
    for part in sorted(parts, key=lambda b: b.address):
        if not end <= part.address < end + _PADDING:
            return False
        end = part.address + part.nbytes
    return end <= flat.address + flat.nbytes < end + _PADDING
