"""Passes over recorded launches: what a program need not do because of what it does anyway.

A pass gets the launches of a recording and returns fewer that leave the same values behind.  It knows no primitive by
name and no device, only which operands a launch reads and writes, and what its primitive declares.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from ag.engine.program import Launch

__all__ = ["without_copies"]

Users = dict[int, list[int]]  # launches by the address of a block: a reference to the block would count as a holder


def without_copies(launches: list[Launch]) -> list[Launch]:
    """Let producers write where their only consumer would copy their output to.

    A gradient that is computed and then gathered into an optimizer's flat buffer is computed there at once; so is one
    that is multiplied with the 1 a backward pass begins with.  Buffers of the dropped block, which the user may hold
    (a parameter's ``.grad``), become views of the copy's target.
    """
    users = _users(launches)
    dropped = set()
    for j, launch in enumerate(launches):
        if launch.copies and _can_move(launches, j, users):
            _move(launches, j, users)
            dropped.add(j)
    return [launch for j, launch in enumerate(launches) if j not in dropped]


def _users(launches: list[Launch]) -> Users:
    users: Users = defaultdict(list)
    for i, launch in enumerate(launches):
        for address in {b.block.address for b in launch.buffers}:
            users[address].append(i)
    return users


def _move(launches: list[Launch], j: int, users: Users) -> None:
    """Let what launch `j` copies be computed in the copy's target."""
    target, source = launches[j].buffers[:2]
    start, old = source.address, source.block.address
    moving = {id(b): b for i in users[old] for b in launches[i].buffers if b.block.address == old}
    for buffer in moving.values():
        buffer.relocate(target.block, target.address + buffer.address - start)
    users[target.block.address] = sorted({*users[target.block.address], *users[old]} - {j})


def _can_move(launches: list[Launch], j: int, users: Users, update: Launch | None = None) -> bool:
    """Whether the source of launch `j`, a copy, may be computed in its target, which `update` may write to later."""
    target, source = launches[j].buffers[:2]
    block = source.block
    first, last = users[block.address][0], users[block.address][-1]
    producer = launches[first]
    outputs = producer.buffers[: producer.primitive.outputs]
    whole = [b for b in outputs if b.block is block and b.address == source.address and b.nbytes == source.nbytes]
    if last != j or first == j or not producer.fresh or len(whole) != 1 or source.nbytes != target.nbytes or (
            target.block is block):
        return False
    for launch in launches[first:j]:
        if any(b.overlaps(target) for b in launch.buffers):
            return False  # the target still holds, or already needs, something else
        if launch is not producer and any(b.block is block for b in launch.written):
            return False
    if any(b.overlaps(target) for x in launches[j + 1 :] if x is not update for b in x.written):
        return False  # who holds the source would see what is written there later
    holders = {id(b) for launch in launches[first : j + 1] for b in launch.buffers if b.block is block}
    return sys.getrefcount(block) - 2 == len(holders)  # nobody else has a view: `block` and the argument are the 2
