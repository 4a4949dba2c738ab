"""Fusion: neighbouring elementwise launches of a recording become one launch over a chain of functions.

A launch is taken into the launch that reads its result if nobody else reads it, or, for one result per chain, if all
others read it later: then the chain stores it as well.  What a chain computes, and in which order, does not change.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from ag.engine.buffer import Buffer
from ag.engine.compile.liveness import private_blocks
from ag.engine.kernels.fused import MOST_STEPS, OPERANDS, Instruction, fused, fused_pair
from ag.engine.program import Launch
from ag.engine.shape import Shape, chain_axes

__all__ = ["with_chains"]


@dataclass
class _Chain:
    """Launches that compute one result, newest last."""

    shape: Shape
    operands: list[Buffer]
    steps: list[Instruction]
    out: Buffer
    members: list[int]  # which launches
    kept: tuple[Buffer, int] | None = None  # a result that is stored too, and its register

    def flat(self) -> bool:
        """Whether all operands have as many elements as the result, or 1, so that its shape does not matter."""
        return all(x.size in (1, prod(self.shape)) for x in self.operands)


def with_chains(launches: list[Launch], least: int) -> list[Launch]:
    """The launches with chains of elementwise ones, of at least `least` elements, made one."""
    if not any(launch.primitive.fusable for launch in launches):
        return launches
    private = private_blocks(launches)
    reads: dict[int, list[int]] = defaultdict(list)
    writes: dict[int, int] = defaultdict(int)
    changes: list[tuple[int, int, int]] = []  # when memory that existed before is written: launch, begin, end
    for i, launch in enumerate(launches):
        for b in launch.operands:
            reads[b.block.address].append(i)
        for b in launch.written:
            writes[b.block.address] += 1
            if b.block.address not in private:
                changes.append((i, b.address, b.address + b.nbytes))
    result: dict[int, Launch] = dict(enumerate(launches))
    chains: dict[int, _Chain] = {}  # by the address of the block of their result
    for i, launch in enumerate(launches):
        chain = _single(i, launch, least)
        if chain is None:
            continue
        for source in list(dict.fromkeys(launch.buffers[1:])):
            place = source.block.address
            earlier = chains.get(place)
            if earlier is None or place not in private or writes[place] > 1 or source.size != launch.buffers[0].size:
                continue
            readers = sorted(set(reads[place]))
            if readers[0] == i and _unchanged(earlier, i, changes):
                joined = _joined(earlier, chain, stored=len(readers) > 1)
                if joined is not None and not _read_too_early(joined, i, reads):
                    del chains[place]
                    chain = joined
                    if chain.kept and set(reads[chain.kept[0].block.address]) <= set(chain.members):
                        chain.kept = None  # all who read it are in the chain by now
        chains[launch.buffers[0].block.address] = chain
        if len(chain.members) > 1:
            for k in chain.members[:-1]:
                result.pop(k, None)
            result[i] = _launch(chain)
    return [result[i] for i in sorted(result)]


def _single(i: int, launch: Launch, least: int) -> _Chain | None:
    """A launch as a chain of one step."""
    primitive, out = launch.primitive, launch.buffers[0]
    if not primitive.fusable or not launch.fresh or out.size < least:
        return None
    operands = list(dict.fromkeys(launch.buffers[1:]))
    x, y = (operands.index(launch.buffers[k]) for k in (1, len(launch.buffers) - 1))
    value = float(launch.params[primitive.params[0]]) if primitive.params else 0.0
    return _Chain(out.shape, operands, [(primitive.name, x, y, value)], out, [i])


def _unchanged(chain: _Chain, until: int, changes: list[tuple[int, int, int]]) -> bool:
    """Whether the chain's operands are at a later launch what they were."""
    since = chain.members[0]
    return not any(since <= i < until and any(x.address < end and begin < x.address + x.nbytes for x in chain.operands)
                   for i, begin, end in changes)


def _read_too_early(chain: _Chain, i: int, reads: dict[int, list[int]]) -> bool:
    """Whether another launch reads the result that the chain stores too before launch `i`, where the chain runs."""
    readers = reads[chain.kept[0].block.address] if chain.kept else []
    return any(k < i and k not in chain.members for k in readers)


def _joined(first: _Chain, then: _Chain, stored: bool) -> _Chain | None:
    """Both chains as one, `then` reading the results of `first` from their registers; None if it does not fit."""
    if (stored and (first.kept or then.kept)) or (first.kept and then.kept):
        return None
    computed = [(first.out, OPERANDS + len(first.steps) - 1), *([first.kept] if first.kept else [])]
    found = [next((result for result in computed if x.block is result[0].block), None) for x in then.operands]
    others = [x for x, result in zip(then.operands, found, strict=True) if result is None]
    if then.kept and any(x.block is then.kept[0].block for x in first.operands):
        return None  # it would be read from memory before it is there
    if any(r and (x.address, x.size) != (r[0].address, r[0].size) for x, r in zip(then.operands, found, strict=True)):
        return None  # a part of a result, which is in no register
    if first.shape == then.shape or first.flat():
        shape = then.shape
    elif all(x.size in (1, prod(then.shape)) for x in others):
        shape = first.shape
    else:
        return None
    operands = _distinct([_shaped(x, first.shape, shape) for x in first.operands]
                         + [_shaped(x, then.shape, shape) for x in others])
    steps = len(first.steps) + len(then.steps)
    if len(operands) > OPERANDS or steps > MOST_STEPS or chain_axes(shape, [x.shape for x in operands]) is None:
        return None

    def register(chain: _Chain, k: int) -> int:
        """The number, in both together, of a register of one."""
        if k >= OPERANDS:
            return k if chain is first else k + len(first.steps)
        x = chain.operands[k]
        result = found[k] if chain is then else None
        if result is not None:
            return result[1]
        return _place(operands, _shaped(x, chain.shape, shape))

    code = [(name, register(chain, x), register(chain, y), value)
            for chain in (first, then) for name, x, y, value in chain.steps]
    kept = (first.out, OPERANDS + len(first.steps) - 1) if stored else None
    for chain in (first, then):
        if chain.kept is not None:
            kept = chain.kept[0], register(chain, chain.kept[1])
    return _Chain(shape, operands, code, then.out, sorted(first.members + then.members), kept)


def _shaped(x: Buffer, old: Shape, new: Shape) -> Buffer:
    """An operand of a chain over `old` as one of a chain over `new`."""
    if old == new or x.shape == new:
        return x
    return x.view(() if x.size == 1 else new)


def _same(x: Buffer, y: Buffer) -> bool:
    return x is y or (x.address, x.shape) == (y.address, y.shape)


def _distinct(buffers: list[Buffer]) -> list[Buffer]:
    found: list[Buffer] = []
    for x in buffers:
        if not any(_same(x, y) for y in found):
            found.append(x)
    return found


def _place(operands: list[Buffer], x: Buffer) -> int:
    return next(i for i, y in enumerate(operands) if _same(x, y))


def _launch(chain: _Chain) -> Launch:
    operands = tuple(chain.operands) + (chain.operands[0],) * (OPERANDS - len(chain.operands))
    out = _shaped(chain.out, chain.out.shape, chain.shape)
    if chain.kept is None:
        return Launch(fused, (out, *operands), {"chain": tuple(chain.steps)}, True)
    kept, register = chain.kept
    return Launch(fused_pair, (out, kept if kept.shape == chain.shape else kept.view(chain.shape), *operands),
                  {"chain": tuple(chain.steps), "kept": register}, True)
