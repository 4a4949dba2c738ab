"""Leave out what has no use: dead code, copies, repeated numbers, and the clip factor's products per gradient.

    g = matmul(..); copy(flat[0:6], g)                          ->   flat[0:6] = matmul(..)
    mul g1 g1 f; mul g2 g2 f; copy flat g1 g2; adam(flat, one)  ->   adam(flat, f)
"""

from __future__ import annotations

from collections.abc import Collection

from ag.engine.buffer import Buffer
from ag.engine.compile.graph import Graph
from ag.engine.kernels.reduce import expand
from ag.engine.program import Launch, Unallocated
from ag.engine.shape import broadcast_layout
from ag.engine.target import Target

_PADDING = 32  # bytes: what lies between the parts of a flat buffer is less, and zeros


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


def keep_numbers(graph: Graph, target: Target) -> None:
    """Let elementwise launches read one number instead of an array that is filled with it."""
    for i, launch in graph:
        if launch.primitive is expand and launch.buffers[1].size == 1 and _only_its_numbers_count(graph, i):
            filled = launch.buffers[0]
            for j in (i, *graph.readers[filled.block.address].copy()):
                buffers = [filled.view(()) if b.block is filled.block else b for b in graph[j].buffers]
                graph.replace(j, graph[j]._replace(buffers=tuple(buffers)))
            numbers = graph[i].buffers[0], launch.buffers[1].view(())
            graph.replace(i, graph[i]._replace(buffers=numbers, params={**launch.params, "shape": ()}))


def _only_its_numbers_count(graph: Graph, i: int) -> bool:
    block, place = graph[i].buffers[0].block, graph[i].buffers[0].block.address
    return graph.writers[place] == [i] and graph.is_private(place) and all(
        x.primitive.layout is broadcast_layout and any(
            b.block is not block and b.shape == x.buffers[0].shape for b in x.operands)
        for x in map(graph.__getitem__, graph.readers[place]))


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
