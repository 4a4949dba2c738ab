"""Memory of recorded programs: launches that nobody needs are dropped, buffers that are never needed together share.

A block is private to a program if only the program's own launches know it: no tensor, no optimizer, no caller.  What
is in it before the first and after the last launch that touches it does not matter, so others may use it then.
Launches keep their order; whoever runs them sees from the addresses what may not overlap.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass, field

from ag.arena import Block
from ag.buffer import Buffer, Launch

__all__ = ["private_blocks", "sharing_memory", "without_unread"]


@dataclass
class _Span:
    """A private block: its buffers in the program, and the first and last launch that touches it."""

    buffers: list[Buffer] = field(default_factory=list)
    first: int = 0
    last: int = 0

    @property
    def block(self) -> Block:
        return self.buffers[0].block


def private_blocks(launches: list[Launch]) -> dict[int, _Span]:
    """The private blocks by their address."""
    spans, uses = _all_spans(launches)  # in a function of its own, so that no local variable holds a buffer
    return {address: span for address, span in spans.items() if _only_in(span, uses) and _is_made(span, launches)}


def _all_spans(launches: list[Launch]) -> tuple[dict[int, _Span], dict[int, int]]:
    """All blocks by their address, and how often launches hold each buffer, by its id."""
    spans: dict[int, _Span] = {}
    uses: dict[int, int] = defaultdict(int)
    for i, launch in enumerate(launches):
        for b in launch.buffers:
            span = spans.setdefault(b.block.address, _Span(first=i))
            span.last = i
            uses[id(b)] += 1
            if uses[id(b)] == 1:
                span.buffers.append(b)
    return spans, uses


def _only_in(span: _Span, uses: dict[int, int]) -> bool:
    """Whether launches hold all references to the span's block and buffers."""
    block = span.block
    if sys.getrefcount(block) - 2 != len(span.buffers):  # 1 is here, and 1 is the argument
        return False
    counted = range(len(span.buffers))  # of these, too, 1 is in the span, and 1 is the argument
    return all(sys.getrefcount(span.buffers[i]) - 2 == uses[id(span.buffers[i])] for i in counted)


def _is_made(span: _Span, launches: list[Launch]) -> bool:
    """Whether the launches write everything in the block before they read it."""
    made: list[tuple[int, int]] = []  # stretches from one address to another
    for launch in launches[span.first : span.last + 1]:
        touched = [b for b in launch.buffers if b.block is span.block]
        results = sum(b.block is span.block for b in launch.buffers[: launch.primitive.outputs])
        if not all(any(start <= b.address and b.address + b.nbytes <= end for start, end in made)
                   for b in touched[results:]):
            return False
        for b in touched[:results]:
            made = _with(made, b.address, b.address + b.nbytes)
    return True


def _with(stretches: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Stretches of addresses with another, joined with its neighbours."""
    apart = [s for s in stretches if s[1] < start or end < s[0]]
    near = [s for s in stretches if s not in apart]
    return [*apart, (min([start, *(s[0] for s in near)]), max([end, *(s[1] for s in near)]))]


def without_unread(launches: list[Launch]) -> list[Launch]:
    """Leave out launches whose results are private and read by no launch that stays."""
    private = private_blocks(launches)
    kept: list[Launch] = []
    wanted: set[int] = set()  # private blocks that are read further on
    for launch in reversed(launches):
        if all(b.block.address in private and b.block.address not in wanted for b in launch.written):
            continue
        kept.append(launch)
        wanted.update(b.block.address for b in launch.buffers[launch.primitive.outputs :])
    return kept[::-1]


def sharing_memory(launches: list[Launch], rest: int) -> None:
    """Move private buffers to where others, which are not needed any more or not yet, lie.

    Memory rests for some launches: on a device that runs several at once, whoever gets it earlier waits for its last
    reader.
    """
    private = private_blocks(launches)
    starting, ending = defaultdict(list), defaultdict(list)
    for span in private.values():
        starting[span.first].append(span)
        ending[span.last].append(span)
    room = _Room()
    for i, launch in enumerate(launches):
        for span in starting[i]:
            donor = _in_place(launch, span, ending[i])
            if donor is not None:
                ending[i].remove(donor)
                _move(span, donor.block, _start(donor))
            else:
                _move(span, *room.take(span))
        for span in ending[i - rest]:
            room.give(span)


def _start(span: _Span) -> int:
    return min(b.address for b in span.buffers)


def _size(span: _Span) -> int:
    return max(b.address + b.nbytes for b in span.buffers) - _start(span)


def _in_place(launch: Launch, span: _Span, ending: list[_Span]) -> _Span | None:
    """An operand that ends with the launch and whose memory a result may take."""
    for made, operand in launch.primitive.in_place:
        out, x = launch.buffers[made], launch.buffers[operand]
        if out.block is span.block and x.shape == out.shape and x.dtype is out.dtype:
            for donor in ending:
                if donor.block is x.block and _size(donor) == _size(span) and donor is not span:
                    return donor
    return None


def _move(span: _Span, block: Block, start: int) -> None:
    """Let all buffers of a span lie in another block, from `start` on."""
    distance = start - _start(span)
    if distance == 0:
        return
    for b in span.buffers:
        b.relocate(block, b.address + distance)


class _Room:
    """Free stretches of the blocks that a program keeps."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []  # (size, address), sorted
        self._blocks: dict[int, tuple[int, Block]] = {}  # size and block of free stretches, by address
        self._ends: dict[int, int] = {}  # the address after a free stretch -> its own

    def take(self, span: _Span) -> tuple[Block, int]:
        """The smallest stretch that is large enough, or the span's own place."""
        align = span.buffers[0].backend.arena.align
        size = -(-_size(span) // align) * align
        i = bisect_left(self._free, (size, 0))
        if i == len(self._free):
            return span.block, _start(span)
        length, address = self._free[i]
        block = self._drop(address)
        if length > size:
            self._put(length - size, address + size, block)
        return block, address

    def give(self, span: _Span) -> None:
        """The span's stretch is free from now on."""
        align = span.buffers[0].backend.arena.align
        self._put(-(-_size(span) // align) * align, _start(span), span.block)

    def _put(self, size: int, address: int, block: Block) -> None:
        before, after = self._ends.get(address), address + size
        if before is not None and self._blocks[before][1] is block:
            address, size = before, size + self._blocks[before][0]
            self._drop(before)
        if after in self._blocks and self._blocks[after][1] is block:
            size += self._blocks[after][0]
            self._drop(after)
        insort(self._free, (size, address))
        self._blocks[address] = size, block
        self._ends[address + size] = address

    def _drop(self, address: int) -> Block:
        size, block = self._blocks.pop(address)
        del self._ends[address + size]
        del self._free[bisect_left(self._free, (size, address))]
        return block
