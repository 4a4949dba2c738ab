"""Rematerialization: a recorded program computes cheap results twice rather than keep them in memory.

What the forward pass computes and the backward pass reads lies idle in between.  Where a result is cheap to compute,
and its operands are there when it is read again, a second launch just before that reading saves its memory at the
program's peak.  The values are the same, to the bit.

References: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ag.engine.buffer import Buffer
from ag.engine.compile.liveness import Span, private_blocks
from ag.engine.program import Launch

__all__ = ["rematerialize"]

_LEAST = 0.01  # of the peak: what second launches have to save
_DEEP = 2  # how many launches in a row may be made again for one result

Spans = dict[int, Span]


@dataclass(frozen=True)
class _Plan:
    """Launches to make again, in this order, before launch `until`, and the bytes that they save at the peak."""

    again: tuple[int, ...]
    until: int
    saved: int


def rematerialize(launches: list[Launch]) -> None:
    """Make cheap launches a second time, as long as that lowers the most memory that all need at once."""
    second: set[int] = set()  # what second launches made, by the address of its block
    while plans := _best_plans(launches, second):
        for plan in sorted(plans, key=lambda p: p.until, reverse=True):  # those before keep their numbers
            second |= _carry_out(plan, launches)


def _best_plans(launches: list[Launch], second: set[int]) -> list[_Plan]:
    """The plans that save most at the peak: often one per layer of a model."""
    spans = private_blocks(launches)
    live = _live(launches, spans)
    peak = max(range(len(live)), key=live.__getitem__, default=0)
    plans = [plan for address, span in spans.items() if span.first < peak < span.last and address not in second
             and (plan := _plan(launches, spans, span, live, peak)) is not None]
    most = max((plan.saved for plan in plans), default=0)
    best = [plan for plan in plans if plan.saved == most >= _LEAST * live[peak]]
    read = {b.block.address for plan in best for i in plan.again for b in launches[i].operands}
    return [plan for plan in best if launches[plan.again[-1]].buffers[0].block.address not in read]  # others go first


def _live(launches: list[Launch], spans: Spans) -> list[int]:
    """Bytes of private memory that each launch finds or makes; what is made in place of an operand needs none."""
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
    for made, operand in launch.primitive.in_place:
        out, x = (spans.get(launch.buffers[k].block.address) for k in (made, operand))
        if out is not None and x is not None and out.first == i == x.last and out.nbytes == x.nbytes:
            return out.nbytes
    return 0


def _plan(launches: list[Launch], spans: Spans, span: Span, live: list[int], peak: int) -> _Plan | None:
    """How to do without a block at the peak; None if nothing cheap would do."""
    uses = [i for i in range(span.first, span.last + 1) if any(b.block is span.block for b in launches[i].buffers)]
    if peak in uses:
        return None
    until = next(b for a, b in pairwise(uses) if a < peak < b)
    again = _again(launches, spans, span, until, _DEEP)
    if again is None:
        return None
    made = {launches[i].buffers[0].block.address for i in again}
    kept = {x.block.address: source for i in again for x in launches[i].operands
            if (source := spans.get(x.block.address)) is not None and x.block.address not in made
            and source.last < until}
    extra = sum(source.nbytes for source in kept.values())
    between = sum(spans[launches[i].buffers[0].block.address].nbytes for i in again[:-1])
    if live[until] + extra + between >= live[peak]:
        return None
    return _Plan(again, until, span.nbytes - sum(source.nbytes for source in kept.values() if source.last < peak))


def _again(launches: list[Launch], spans: Spans, span: Span, until: int, deep: int) -> tuple[int, ...] | None:
    """The launches that make a block's contents again before launch `until`; operands that are gone come first."""
    maker = launches[span.first]
    if deep == 0 or not _can_be_made_again(launches, span, until):
        return None
    order: tuple[int, ...] = ()
    for x in maker.operands:
        source = spans.get(x.block.address)
        if source is not None and source.last < until:
            order += tuple(i for i in _again(launches, spans, source, until, deep - 1) or () if i not in order)
    return (*order, span.first)


def _can_be_made_again(launches: list[Launch], span: Span, until: int) -> bool:
    """Whether a cheap launch writes the whole block, nobody else does, and its operands stay what they are."""
    maker = launches[span.first]
    if not (maker.primitive.cheap and maker.fresh and maker.buffers[0].block is span.block):
        return False
    operands = maker.operands
    return not any(b.overlaps(x) for launch in launches[span.first + 1 : until]
                   for b in launch.written for x in operands) and not any(
        b.block is span.block for launch in launches[span.first + 1 :] for b in launch.written)


def _carry_out(plan: _Plan, launches: list[Launch]) -> set[int]:
    """Add the plan's launches, and let those after them read what they make."""
    moved: dict[int, tuple[Buffer, Buffer]] = {}  # by the address of a block: a result and the one that stands for it
    second = []
    for i in plan.again:
        maker = launches[i]
        results = maker.buffers[: maker.primitive.outputs]
        made = [b.backend.alloc(b.shape, b.dtype) for b in results]
        second.append(replace(maker, buffers=(*made, *_moved(maker.operands, moved))))
        moved[results[0].block.address] = results[0], made[0]
    for i in range(plan.until, len(launches)):
        launches[i] = replace(launches[i], buffers=_moved(launches[i].buffers, moved))
    launches[plan.until : plan.until] = second
    return {b.block.address for launch in second for b in launch.buffers[: launch.primitive.outputs]}


def _moved(buffers: tuple[Buffer, ...], moved: dict[int, tuple[Buffer, Buffer]]) -> tuple[Buffer, ...]:
    if not any(b.block.address in moved for b in buffers):
        return buffers
    found = []
    for b in buffers:
        old, new = moved.get(b.block.address, (b, b))
        found.append(new if b is old else new.view(b.shape, (b.address - old.address) // b.dtype.itemsize))
    return tuple(found)
