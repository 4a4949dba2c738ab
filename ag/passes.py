"""Passes over recorded launches: what a program need not do because of what it does anyway.

A pass gets the launches of a recording and returns fewer that leave the same values behind.  It knows no primitive by
name and no device, only which operands a launch reads and writes.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from ag.buffer import Buffer, Launch

__all__ = ["without_copies"]


def without_copies(launches: list[Launch]) -> list[Launch]:
    """Let producers write where their only consumer would copy their output to.

    A gradient that is computed and then gathered into an optimizer's flat buffer is computed there at once; so is one
    that is multiplied with the 1 a backward pass begins with.  Buffers of the dropped block, which the user may hold
    (a parameter's ``.grad``), become views of the copy's target.
    """
    users: dict[int, list[int]] = defaultdict(list)  # by the block's address: a reference would count as a holder
    for i, launch in enumerate(launches):
        for address in {b.block.address for b in launch.buffers}:
            users[address].append(i)
    dropped = set()
    for j, launch in enumerate(launches):
        if launch.copies:
            target, source = launch.buffers[:2]
            *readers, last = users[source.block.address]
            if last == j and readers and _can_move(launches, readers[0], j, source, target):
                start, old = source.address, source.block.address
                moving = {id(b): b for i in (*readers, j) for b in launches[i].buffers if b.block.address == old}
                for buffer in moving.values():
                    buffer.relocate(target.block, target.address + buffer.address - start)
                users[target.block.address] = sorted({*users[target.block.address], *readers})
                dropped.add(j)
    return [launch for j, launch in enumerate(launches) if j not in dropped]


def _can_move(launches: list[Launch], i: int, j: int, source: Buffer, target: Buffer) -> bool:
    """Whether launch `i`, which first touches `source`, may write to `target`, where launch `j` copies it."""
    producer, block = launches[i], source.block
    outputs = producer.buffers[: producer.primitive.outputs]
    whole = [b for b in outputs if b.block is block and b.address == source.address and b.nbytes == source.nbytes]
    if not producer.fresh or len(whole) != 1 or source.nbytes != target.nbytes or target.block is block:
        return False
    end = target.address + target.nbytes
    for launch in launches[i:j]:
        if any(b.address < end and target.address < b.address + b.nbytes for b in launch.buffers):
            return False  # the target still holds, or already needs, something else
        if launch is not producer and any(b.block is block for b in launch.written):
            return False
    if any(b.address < end and target.address < b.address + b.nbytes for x in launches[j + 1 :] for b in x.written):
        return False  # who holds the source would see what is written there later
    holders = {id(b) for launch in launches[i : j + 1] for b in launch.buffers if b.block is block}
    return sys.getrefcount(block) - 2 == len(holders)  # nobody else has a view: `block` and the argument are the 2
