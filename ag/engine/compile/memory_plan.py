"""Packing: buffers of a recorded program that are never needed together get the same memory.

All private blocks (`ag.engine.compile.liveness`) are laid out anew: the largest first, each into the smallest gap that
is free while it is needed.  Gaps are in blocks that outlast the program, too, before it writes them: a step that
computes its gradients anew has their memory for the forward pass.  What is left goes to a heap of the program's own.
Launches keep their order; whoever runs them sees from the addresses what may not overlap.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from ag.engine.arena import Arena, Block
from ag.engine.compile.liveness import Span, private_blocks
from ag.engine.program import Launch

__all__ = ["share_memory"]


def share_memory(launches: list[Launch], rest: int) -> None:
    """Move private buffers to where they need as little memory as possible together.

    Memory rests for some launches: on a device that runs several at once, whoever gets it earlier waits for its last
    reader.
    """
    spans = private_blocks(launches)
    if not spans:
        return
    arena = launches[0].buffers[0].backend.arena
    items = _items(launches, spans)
    rooms = _lasting(launches, spans)
    nowhere = arena.alloc(1)
    for span in spans.values():
        for b in span.buffers:
            b.block = nowhere  # their own blocks are free, and the arena has room for a heap
    enough = sum(item.nbytes + arena.align for item in items)
    for item in sorted(items, key=lambda x: (-x.nbytes, x.first)):
        if not any(room.place(item, rest, arena.align) for room in rooms):
            rooms.append(_Room(arena.alloc(max(min(arena.stats().largest_free, enough), item.nbytes)), lasting=False))
            rooms[-1].place(item, rest, arena.align)
    for room in rooms:
        room.settle(arena)


@dataclass
class _Item:
    """Private blocks that follow each other in place, and the launches from the first to the last that touches one."""

    spans: list[tuple[Span, int]]  # and where they begin
    nbytes: int
    first: int
    last: int


class _Room:
    """Memory to put items into: a block that outlasts the program, or else a heap, which may still grow."""

    def __init__(self, block: Block, lasting: bool) -> None:
        self._nbytes = block.nbytes
        self._lasting = lasting
        self._block = block
        self._taken: list[tuple[float, float, int, int]] = []  # from which launch to which, from which byte to which
        self._items: list[tuple[_Item, int]] = []

    def take(self, first: float, last: float, start: int, end: int) -> None:
        """The bytes from `start` to `end` are needed from launch `first` to launch `last`."""
        self._taken.append((first, last, start, end))

    def place(self, item: _Item, rest: int, align: int) -> bool:
        """Put an item into the smallest gap that is large enough, if there is one."""
        until = item.last + rest
        busy = sorted((start, end) for first, last, start, end in self._taken if first <= until and item.first <= last)
        gaps: list[tuple[float, int]] = []
        at = 0
        for start, end in [*busy, (self._nbytes, self._nbytes)]:
            if start - at >= item.nbytes:
                gaps.append((start - at if start < self._nbytes else inf, at))
            at = max(at, -(-end // align) * align)
        if not gaps:
            return False
        at = min(gaps)[1]
        self.take(item.first, until, at, at + item.nbytes)
        self._items.append((item, at))
        return True

    def settle(self, arena: Arena) -> None:
        """Move the items in; a heap becomes as small as they allow."""
        if not self._lasting:
            del self._block  # so that the smaller one may lie there
            self._block = arena.alloc(max(at + item.nbytes for item, at in self._items))
        for item, at in self._items:
            for span, start in item.spans:
                for b in span.buffers:
                    b.relocate(self._block, self._block.address + at + b.address - start)


def _items(launches: list[Launch], spans: dict[int, Span]) -> list[_Item]:
    starting = defaultdict(list)
    for span in spans.values():
        starting[span.first].append(span)
    items: dict[int, _Item] = {}  # by the address of a block in it
    for i, launch in enumerate(launches):
        for span in starting[i]:
            item = _ending(launch, span, items, i)
            if item is None:
                item = _Item([], span.nbytes, i, span.last)
            item.spans.append((span, span.start))
            item.last = span.last
            items[span.block.address] = item
    return list({id(item): item for item in items.values()}.values())


def _ending(launch: Launch, span: Span, items: dict[int, _Item], i: int) -> _Item | None:
    """What ends with launch `i` and gives its memory to a result of the launch."""
    for made, operand in launch.primitive.in_place:
        out, x = launch.buffers[made], launch.buffers[operand]
        if out.block is span.block and x.shape == out.shape and x.dtype is out.dtype:
            item = items.get(x.block.address)
            if item is not None and item.first < item.last == i and item.nbytes == span.nbytes:
                return item
    return None


def _lasting(launches: list[Launch], spans: dict[int, Span]) -> list[_Room]:
    """Blocks of others, free until the launch that writes them."""
    pieces: dict[int, list[tuple[float, int, int]]] = defaultdict(list)  # since which launch, from where, to where
    blocks: dict[int, Block] = {}
    for i, launch in enumerate(launches):
        for k, b in reversed(list(enumerate(launch.buffers))):  # what it reads comes first
            if b.block.address not in spans:
                blocks[b.block.address] = b.block
                known = pieces[b.block.address]
                known += _outside(b.address, b.address + b.nbytes, known, i if k < launch.primitive.outputs else -inf)
    rooms = []
    for address, known in pieces.items():
        if any(since > 0 for since, _, _ in known):
            room = _Room(blocks[address], lasting=True)
            for since, start, end in known + _outside(address, address + blocks[address].nbytes, known, -inf):
                room.take(since, inf, start - address, end - address)
            rooms.append(room)
    return rooms


def _outside(start: int, end: int, known: list[tuple[float, int, int]], since: float) -> list[tuple[float, int, int]]:
    """What of a stretch is not in known ones."""
    found = []
    for _, a, b in sorted((x for x in known if x[1] < end and start < x[2]), key=lambda x: x[1]):
        if start < a:
            found.append((since, start, a))
        start = max(start, b)
    return [*found, (since, start, end)] if start < end else found
