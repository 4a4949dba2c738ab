"""Scaling folded into the optimizer: its launch multiplies gradients with the clip factor as it reads them."""

from __future__ import annotations

from dataclasses import replace

from ag.engine.buffer import Buffer
from ag.engine.compile.copy_elimination import _can_move, _move, _users
from ag.engine.program import Launch

__all__ = ["with_factors"]

_PADDING = 32  # bytes: what lies between the parts of a flat buffer is less, and zeros


def with_factors(launches: list[Launch]) -> list[Launch]:
    """Let a launch that can begin with a product make the products that were made in place before.

    Gradients that are clipped one by one and then gathered are computed where the optimizer reads them, and its launch
    gets the factor: instead of a product and a copy per parameter there is nothing left to do.
    """
    for update in [x for x in launches if x.primitive.scaling and x.primitive.scaling[1] in x.primitive.updates]:
        launches = _with_factor(launches, update)
    return launches


def _with_factor(launches: list[Launch], update: Launch) -> list[Launch]:
    until = next(i for i, launch in enumerate(launches) if launch is update)
    flat = _scaled_operand(update)
    if flat is None:
        return launches
    touching = [i for i in range(until) if any(b.overlaps(flat) for b in launches[i].buffers)]
    copies = [i for i in touching if launches[i].copies and launches[i].buffers[0].overlaps(flat)]
    readers = [i for i in touching if i not in copies]
    products = [i for copy in copies if (i := _product_before(launches, copy, until, update)) is not None]
    if not products or len(products) < len(copies) or not _cover(flat, [launches[i].buffers[0] for i in copies]):
        return launches
    factor = launches[products[0]].buffers[2]
    same = all(launches[i].buffers[2].address == factor.address for i in products)
    written = any(b.overlaps(factor) for launch in launches[min(products) : until] for b in launch.written)
    if not same or written or any(i < max(copies) or _scaled_operand(launches[i]) is None for i in readers):
        return launches
    changed = {id(update), *(id(launches[i]) for i in readers)}
    rest = [launch for i, launch in enumerate(launches) if i not in products]
    copies = [i - sum(p < i for p in products) for i in copies]
    users = _users(rest)
    if not all(_can_move(rest, i, users, update) for i in copies):
        return launches
    for i in copies:
        _move(rest, i, users)
    return [_multiplied(launch, factor) if id(launch) in changed else launch
            for i, launch in enumerate(rest) if i not in copies]


def _scaled_operand(launch: Launch) -> Buffer | None:
    """The operand that a launch can multiply with a factor, if it has none yet."""
    scaling = launch.primitive.scaling
    return launch.buffers[scaling[1]] if scaling and launch.buffers[scaling[2]].constant == 1.0 else None


def _multiplied(launch: Launch, factor: Buffer) -> Launch:
    """The launch with a factor for its operand."""
    assert launch.primitive.scaling
    position = launch.primitive.scaling[2]
    return replace(launch, buffers=(*launch.buffers[:position], factor, *launch.buffers[position + 1 :]))


def _product_before(launches: list[Launch], copy: int, until: int, update: Launch) -> int | None:
    """The product in place, as `update` can make it, after which only launch `copy` touches the copied memory."""
    source = launches[copy].buffers[1]
    i, *others = [i for i in range(until) if any(b.block is source.block for b in launches[i].buffers)][-2:]
    found, scaling = launches[i], update.primitive.scaling
    if others != [copy] or scaling is None or found.primitive is not scaling[0] or found.buffers[2].size != 1:
        return None
    whole = all((b.address, b.nbytes) == (source.address, source.nbytes) for b in found.buffers[:2])
    return i if whole else None


def _cover(flat: Buffer, parts: list[Buffer]) -> bool:
    """Whether the parts are all of a buffer but for padding."""
    end = flat.address
    for part in sorted(parts, key=lambda b: b.address):
        if not end <= part.address < end + _PADDING:
            return False
        end = part.address + part.nbytes
    return end <= flat.address + flat.nbytes < end + _PADDING
