"""Memory planning: buffers of a program that are never needed together get the same memory.

Private blocks go, the largest first, into the smallest gap that is free while they are needed: Pisarchyk, Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020 (greedy by size).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from math import inf

import numpy as np

from ag.engine.arena import Arena, Block
from ag.engine.compile.graph import Graph, Span
from ag.engine.primitive import Array
from ag.engine.program import Launch
from ag.engine.target import Target


def plan_memory(graph: Graph, target: Target) -> None:
    """Move private buffers to where they need least memory; it rests for `target.rest` launches between two."""
    graph.compact()  # so that positions count launches
    spans = graph.spans()
    if not spans:
        return
    arena = next(iter(spans.values())).buffers[0].backend.arena
    items = _items(graph, spans)
    lasting = _Lasting(graph, spans)
    nowhere = arena.alloc(1)
    for span in spans.values():
        for b in span.buffers:
            b.block = nowhere  # their own blocks are free, and the arena has room for a heap
    enough, peak = sum(item.nbytes + arena.align for item in items), arena.stats().peak
    heaps: list[_Room] = []
    for item in sorted(items, key=lambda x: (-x.nbytes, x.first)):
        rooms = [*lasting.rooms_for(item, target.rest), *heaps]
        if not any(room.place(item, target.rest, arena.align) for room in rooms):
            size = max(min(arena.stats().largest_free, enough), item.nbytes)
            heaps.append(_Room(arena.alloc(size), lasting=False))
            heaps[-1].place(item, target.rest, arena.align)
    for room in (*lasting.rooms, *heaps):
        room.settle(arena)
    arena.forget_peak(peak)  # heaps were larger than is needed


@dataclass
class _Item:
    """Private blocks that follow each other in place, and the launches from the first to the last that touches one."""

    spans: list[tuple[Span, int]]  # and where they begin
    nbytes: int
    first: int
    last: int


class _Room:
    """Memory for items: a lasting block, or a heap; rows of `_taken`: first and last launch, begin and end."""

    def __init__(self, block: Block, lasting: bool) -> None:
        self._nbytes = block.nbytes
        self._lasting = lasting
        self._block = block
        self._taken: Array = np.empty((4, 64))
        self._count = 0
        self._items: list[tuple[_Item, int]] = []

    def take(self, first: float, last: float, start: int, end: int) -> None:
        if self._count == self._taken.shape[1]:
            self._taken = np.concatenate([self._taken, np.empty_like(self._taken)], axis=1)
        self._taken[:, self._count] = first, last, start, end
        self._count += 1

    def place(self, item: _Item, rest: int, align: int) -> bool:
        """Put an item into the smallest gap that is large enough, if there is one."""
        if item.nbytes > self._nbytes:
            return False
        until = item.last + rest
        first, last, start, end = self._taken[:, : self._count]
        busy = np.flatnonzero((first <= until) & (last >= item.first))
        busy = busy[np.argsort(start[busy], kind="stable")]
        begins = np.append(start[busy], self._nbytes)
        ends = np.maximum.accumulate(np.append(0, np.ceil(end[busy] / align) * align))  # where each gap begins
        gaps = begins - ends
        fits = np.flatnonzero(gaps >= item.nbytes)
        if not fits.size:
            return False
        gaps[-1] = inf  # behind everything, where a heap may still become smaller
        at = int(ends[fits[np.argmin(gaps[fits])]])
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


class _Lasting:
    """Rooms in blocks that outlast the program, free until the launch that writes them."""

    def __init__(self, graph: Graph, spans: dict[int, Span]) -> None:
        pieces: dict[int, _Pieces] = defaultdict(_Pieces)
        blocks: dict[int, Block] = {}
        for i, launch in graph:
            for k, b in reversed([*enumerate(launch.buffers)]):  # what it reads comes first
                place = b.block.address
                if place not in spans:
                    blocks[place] = b.block
                    pieces[place].add(i if k < launch.primitive.outputs else -inf, b.address, b.address + b.nbytes)
        self.rooms: list[_Room] = []
        free_until: list[float] = []
        for place, known in pieces.items():
            latest = max((since for since, _, _ in known.all()), default=0)
            if latest > 0:
                known.add(-inf, place, place + blocks[place].nbytes)
                self.rooms.append(_Room(blocks[place], lasting=True))
                free_until.append(latest)
                for since, start, end in known.all():
                    self.rooms[-1].take(since, inf, start - place, end - place)
        self._free_until, self._nbytes = np.array(free_until), np.array([r._nbytes for r in self.rooms])

    def rooms_for(self, item: _Item, rest: int) -> list[_Room]:
        if not self.rooms:
            return []
        return [self.rooms[k] for k in np.flatnonzero((self._nbytes >= item.nbytes)
                                                      & (self._free_until > item.last + rest))]


class _Pieces:
    """Parts of a block, none of which overlap: since which launch each is needed."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rest: list[tuple[float, int]] = []  # since when, and where it ends

    def add(self, since: float, start: int, end: int) -> None:
        """Make parts of what of a stretch is in no part yet."""
        k = bisect_left(self._starts, start)
        if k and self._rest[k - 1][1] > start:
            start = self._rest[k - 1][1]
        while start < end:
            until = min(end, self._starts[k]) if k < len(self._starts) else end
            if start < until:
                self._starts.insert(k, start)
                self._rest.insert(k, (since, until))
                k += 1
            if k == len(self._starts):
                break
            start = self._rest[k][1]
            k += 1

    def all(self) -> list[tuple[float, int, int]]:
        return [(since, start, end) for start, (since, end) in zip(self._starts, self._rest, strict=True)]


def _items(graph: Graph, spans: dict[int, Span]) -> list[_Item]:
    starting = defaultdict(list)
    for span in spans.values():
        starting[span.first].append(span)
    items: dict[int, _Item] = {}  # by the address of a block in it
    for i, launch in graph:
        for span in starting[i]:
            item = _ending(launch, span, items, i)
            if item is None:
                item = _Item([], span.nbytes, i, span.last)
            item.spans.append((span, span.start))
            item.last = span.last
            items[span.block.address] = item
    return list({id(item): item for item in items.values()}.values())


def _ending(launch: Launch, span: Span, items: dict[int, _Item], i: int) -> _Item | None:
    """Find the stretch that ends with launch `i` and gives its memory to a result of the launch."""
    for result, operand in launch.primitive.in_place:
        out, x = launch.buffers[result], launch.buffers[operand]
        if out.block is span.block and x.shape == out.shape and x.dtype is out.dtype:
            item = items.get(x.block.address)
            if item is not None and item.first < item.last == i and item.nbytes == span.nbytes:
                return item
    return None
