"""Which memory of a recorded program is its own, and which launches are not needed for what others see.

A block is private to a program if only the program's own launches know it: no tensor, no optimizer, no caller.  What
is in it before the first and after the last launch that touches it does not matter.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field

from ag.engine.arena import Block
from ag.engine.buffer import Buffer
from ag.engine.program import Launch

__all__ = ["Span", "private_blocks"]


@dataclass
class Span:
    """A private block: its buffers in the program, and the first and last launch that touches it."""

    buffers: list[Buffer] = field(default_factory=list)
    first: int = 0
    last: int = 0

    @property
    def block(self) -> Block:
        """Where the buffers lie."""
        return self.buffers[0].block

    @property
    def start(self) -> int:
        """Address of the first buffer."""
        return min(b.address for b in self.buffers)

    @property
    def nbytes(self) -> int:
        """Bytes from the first buffer's begin to the last one's end."""
        return max(b.address + b.nbytes for b in self.buffers) - self.start


def private_blocks(launches: list[Launch]) -> dict[int, Span]:
    """The private blocks by their address."""
    spans, uses = _all_spans(launches)  # in a function of its own, so that no local variable holds a buffer
    return {address: span for address, span in spans.items() if _only_in(span, uses) and _is_made(span, launches)}


def _all_spans(launches: list[Launch]) -> tuple[dict[int, Span], dict[int, int]]:
    """All blocks by their address, and how often launches hold each buffer, by its id."""
    spans: dict[int, Span] = {}
    uses: dict[int, int] = defaultdict(int)
    for i, launch in enumerate(launches):
        for b in launch.buffers:
            span = spans.setdefault(b.block.address, Span(first=i))
            span.last = i
            uses[id(b)] += 1
            if uses[id(b)] == 1:
                span.buffers.append(b)
    return spans, uses


def _only_in(span: Span, uses: dict[int, int]) -> bool:
    """Whether launches hold all references to the span's block and buffers."""
    block = span.block
    if sys.getrefcount(block) - 2 != len(span.buffers):  # 1 is here, and 1 is the argument
        return False
    counted = range(len(span.buffers))  # of these, too, 1 is in the span, and 1 is the argument
    return all(sys.getrefcount(span.buffers[i]) - 2 == uses[id(span.buffers[i])] for i in counted)


def _is_made(span: Span, launches: list[Launch]) -> bool:
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
