"""Find out who holds the memory of a recording: the program alone, or others, too.

A block has *escaped* if anything outside holds it: a tensor, an optimizer, a caller.  `take_over` drops everything the
recording holds, while the arena pins the memory.  Weak references then show what is still alive; nothing is counted.
In ``y = exp(x); z = y * 2``, returned as z, x and z escaped; y dies, and comes back in its place.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from weakref import ref

from ag.engine.buffer import Buffer
from ag.engine.primitive import Params, Primitive
from ag.engine.program import Launch, Recording, Unallocated
from ag.engine.shape import Shape
from ag.errors import CaptureError


@dataclass(frozen=True)
class Holders:
    """Blocks of a recording's memory that others hold, by address."""

    escaped: frozenset[int] = frozenset()  # blocks that somebody else holds
    # those of them that somebody else holds through a view that is in no launch: it would stay behind if the buffers
    # of the launches moved
    viewed: frozenset[int] = frozenset()


def settle(recording: Recording) -> Holders:
    """`take_over`, for a recording whose `results` are all that may outlast it."""
    holders = take_over(recording)
    if recording.results is None:
        return holders
    if _kept(recording, holders) is not None:
        gc.collect()  # a circle of references may be all that holds it
        holders = take_over(recording)
    kept = _kept(recording, holders)
    if kept is not None:
        raise CaptureError(f"ag_capture: the step keeps a tensor of shape {kept} that it computed, where a replay "
                           f"could not put a new one; return it, and keep it outside the step.")
    recording.outputs = [recording.launches[i].buffers[k] for i, k in recording.results]
    places = {b.block.address for b in recording.outputs}
    recording.settle_in([b for launch in recording.launches for b in launch.buffers if b.block.address in places])
    return replace(holders, escaped=holders.escaped | {b.block.address for b in recording.outputs})


def _kept(recording: Recording, holders: Holders) -> Shape | None:
    """The shape of the first output of a launch that somebody holds."""
    return next((b.shape for launch in recording.launches if launch.fresh
                 for b in launch.buffers[: launch.primitive.outputs] if b.block.address in holders.escaped), None)


def take_over(recording: Recording) -> Holders:
    """Make the recording the only holder of what nobody else holds, and say what others hold.

    Its launches afterwards are equal to those before; buffers that others hold are the same objects.
    """
    launches = recording.launches
    if not launches:
        return Holders()
    backend = launches[0].buffers[0].backend
    notes, numbers = _notes(launches)
    arena = backend.arena
    with arena.pinning:
        arena.pinned = True
        try:
            launches.clear()  # here die the buffers that nobody else holds
            held = [note.buffer() for note in notes]
            blocks = {note.place: note.block() for note in notes}
            dead = {note.place: note for note in notes if blocks[note.place] is None}
            real = [place for place, note in dead.items() if note.unallocated is None]
            revived = dict(zip(real, arena.revive(real), strict=True))
        finally:
            arena.pinned = False
    unallocated = {place: Unallocated(recording, *note.unallocated)
                   for place, note in dead.items() if note.unallocated is not None}
    alive = {place: block or revived.get(place) or unallocated[place] for place, block in blocks.items()}
    buffers = []
    for note, same in zip(notes, held, strict=True):
        buffers.append(same or Buffer(backend, alive[note.place], note.address, note.shape, note.dtype, note.constant))
    launches += [Launch(primitive, tuple([buffers[k] for k in operands]), params, fresh)
                 for primitive, operands, params, fresh in numbers]
    escaped = [b for b in buffers if blocks[b.block.address] is not None]
    views = _views(recording, held)
    recording.settle_in([*escaped, *views])
    return Holders(frozenset(b.block.address for b in escaped), frozenset(b.block.address for b in views))


class _Note:
    """All there is to know of a buffer, without holding it; `place` is the address of its block."""

    __slots__ = ("address", "block", "buffer", "constant", "dtype", "place", "shape", "unallocated")

    def __init__(self, b: Buffer) -> None:
        self.buffer, self.block = ref(b), ref(b.block)
        self.place, self.address = b.block.address, b.address
        self.shape, self.dtype, self.constant = b.shape, b.dtype, b.constant
        self.unallocated = (self.place, b.block.nbytes, b.block.shape) if isinstance(b.block, Unallocated) else None


_Numbered = tuple[Primitive, list[int], Params, bool]  # a launch with the numbers of its buffers


def _notes(launches: list[Launch]) -> tuple[list[_Note], list[_Numbered]]:
    """Notes on all buffers, and the launches by their numbers; a function of its own, so that no variable holds one."""
    notes: list[_Note] = []
    number: dict[int, int] = {}  # by the id of a buffer; none dies here, so ids are unique
    for launch in launches:
        for b in launch.buffers:
            if id(b) not in number:
                number[id(b)] = len(notes)
                notes.append(_Note(b))
    return notes, [(x.primitive, [number[id(b)] for b in x.buffers], x.params, x.fresh) for x in launches]


def _views(recording: Recording, held: list[Buffer | None]) -> list[Buffer]:
    """Views that were made while recording, are alive, and are in no launch."""
    known = {id(b) for b in held if b is not None}
    return [b for view in recording.views if (b := view()) is not None and id(b) not in known]
