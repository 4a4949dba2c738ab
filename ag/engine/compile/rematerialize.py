"""Rematerialization: compute cheap results twice rather than keep them in memory.

    y = gelu(a); z = matmul(V, y); ... peak ...; dV = matmul(dz, y)   ->   ... peak, without y ...; y2 = gelu(a); ...

Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ag.engine.buffer import Buffer
from ag.engine.compile.graph import Graph, Span
from ag.engine.program import Launch
from ag.engine.target import Target

_LEAST = 0.01  # of the peak: what second launches have to save
_DEEP = 2  # how many launches in a row may be made again for one result

Spans = dict[int, Span]


@dataclass(frozen=True)
class _Plan:
    """Launches to make again, in this order, before launch `until`, and the bytes that they save at the peak."""

    again: tuple[int, ...]
    until: int
    saved: int


def rematerialize(graph: Graph, target: Target) -> None:
    """Make cheap launches a second time, as long as that lowers the most memory that all need at once."""
    second: set[int] = set()  # blocks that second launches made
    graph.compact()
    while plans := _best_plans(graph, second):
        added: dict[int, list[Launch]] = {}  # by the position before which they come
        for plan in sorted(plans, key=lambda p: p.until, reverse=True):
            second |= _carry_out(plan, graph, added)
        graph.insert(added)


def _best_plans(graph: Graph, second: set[int]) -> list[_Plan]:
    """The plans that save most at the peak: often one per layer of a model."""
    spans = graph.spans()
    live = _live(graph, spans)
    peak = max(range(len(live)), key=live.__getitem__, default=0)
    plans = [plan for place, span in spans.items() if span.first < peak < span.last and place not in second
             and (plan := _plan(graph, spans, span, live, peak)) is not None]
    most = max((plan.saved for plan in plans), default=0)
    best = [plan for plan in plans if plan.saved == most >= _LEAST * live[peak]]
    read = {b.block.address for plan in best for i in plan.again for b in graph[i].operands}
    return [plan for plan in best if graph[plan.again[-1]].buffers[0].block.address not in read]  # others go first


def _live(graph: Graph, spans: Spans) -> list[int]:
    """Bytes of private memory that each launch finds or makes; what is made in place of an operand needs none."""
    launches = graph.launches()
    change = [0] * (len(launches) + 1)
    for span in spans.values():
        change[span.first] += span.nbytes
        change[span.last + 1] -= span.nbytes
    live, total = [], 0
    for i, launch in enumerate(launches):
        total += change[i]
        live.append(total - _taken_over(launch, i, spans))
    return live


def _taken_over(launch: Launch, i: int, spans: Spans) -> int:
    """Bytes of an operand that ends where a result of the same size begins."""
    for result, operand in launch.primitive.in_place:
        out, x = (spans.get(launch.buffers[k].block.address) for k in (result, operand))
        if out is not None and x is not None and out.first == i == x.last and out.nbytes == x.nbytes:
            return out.nbytes
    return 0


def _plan(graph: Graph, spans: Spans, span: Span, live: list[int], peak: int) -> _Plan | None:
    uses = graph.users(span.block.address)
    if peak in uses:
        return None
    until = next(b for a, b in pairwise(uses) if a < peak < b)
    again = _again(graph, spans, span, until, _DEEP)
    if again is None:
        return None
    results = {graph[i].buffers[0].block.address for i in again}
    longer = {x.block.address: source for i in again for x in graph[i].operands
              if (source := spans.get(x.block.address)) is not None and x.block.address not in results
              and source.last < until}
    extra = sum(source.nbytes for source in longer.values())
    between = sum(spans[graph[i].buffers[0].block.address].nbytes for i in again[:-1])
    if live[until] + extra + between >= live[peak]:
        return None
    return _Plan(again, until, span.nbytes - sum(source.nbytes for source in longer.values() if source.last < peak))


def _again(graph: Graph, spans: Spans, span: Span, until: int, deep: int) -> tuple[int, ...] | None:
    """The launches that make a block's contents again before launch `until`; operands that are gone come first."""
    if deep == 0 or not _can_be_made_again(graph, span, until):
        return None
    order: tuple[int, ...] = ()
    for x in graph[span.first].operands:
        source = spans.get(x.block.address)
        if source is not None and source.last < until:
            order += tuple(i for i in _again(graph, spans, source, until, deep - 1) or () if i not in order)
    return (*order, span.first)


def _can_be_made_again(graph: Graph, span: Span, until: int) -> bool:
    """Return whether a cheap launch writes the whole block, nobody else does, and its operands stay what they are."""
    maker = graph[span.first]
    if not (maker.primitive.cheap and maker.fresh and maker.buffers[0].block is span.block):
        return False
    return graph.writers[span.block.address] == [span.first] and not any(
        graph.is_written(x, span.first + 1, until) for x in maker.operands)


def _carry_out(plan: _Plan, graph: Graph, added: dict[int, list[Launch]]) -> set[int]:
    """Add the plan's launches, and let those after them read what they make; returns the blocks of their results."""
    moved: dict[int, tuple[Buffer, Buffer]] = {}  # by a block: a result and the one that stands for it
    second = []
    for i in plan.again:
        maker = graph[i]
        results = maker.buffers[: maker.primitive.outputs]
        anew = [b.backend.alloc(b.shape, b.dtype) for b in results]
        second.append(maker._replace(buffers=(*anew, *_moved(maker.operands, moved))))
        moved[results[0].block.address] = results[0], anew[0]
    for place in moved:
        for i in graph.users(place):
            if i >= plan.until:
                graph.replace(i, graph[i]._replace(buffers=_moved(graph[i].buffers, moved)))
    for position, launches in added.items():  # of plans that come later
        added[position] = [x._replace(buffers=_moved(x.buffers, moved)) for x in launches]
    added[plan.until] = [*second, *added.get(plan.until, ())]
    return {b.block.address for launch in second for b in launch.buffers[: launch.primitive.outputs]}


def _moved(buffers: tuple[Buffer, ...], moved: dict[int, tuple[Buffer, Buffer]]) -> tuple[Buffer, ...]:
    """Buffers with those of moved blocks replaced by the same part of the block that stands for it."""
    if not any(b.block.address in moved for b in buffers):
        return buffers
    renamed = []
    for b in buffers:
        old, new = moved.get(b.block.address, (b, b))
        renamed.append(new if b is old else new.view(b.shape, (b.address - old.address) // b.dtype.itemsize))
    return tuple(renamed)
