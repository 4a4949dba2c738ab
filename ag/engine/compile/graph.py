"""The compiler's intermediate representation: launches in order, and who reads and writes which memory.

Passes change a `Graph` by `remove`, `replace` and `move`.  Launches are named by position, blocks by address: ``0:
exp(y, x)   1: mul(z, y, y)`` has ``readers[y] = [1]``.  A block that nobody else holds is *private*.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge
from math import inf
from weakref import ref

from ag.engine.arena import Block
from ag.engine.buffer import Buffer
from ag.engine.primitive import Params, Primitive
from ag.engine.program import Launch, Recording, Unallocated
from ag.engine.shape import Shape
from ag.errors import CaptureError

_MANY = 32  # users of a block from which on its bytes are looked up in buckets
_BUCKETS = 1024  # of such a block

Stretch = tuple[int, int]  # bytes from one address to another


@dataclass
class Span:
    """A private block: its buffers in the program, and the first and last launch that touches it."""

    first: int
    last: int = 0
    buffers: list[Buffer] = field(default_factory=list)

    @property
    def block(self) -> Block:
        return self.buffers[0].block

    @property
    def start(self) -> int:
        return min(b.address for b in self.buffers)

    @property
    def nbytes(self) -> int:
        return max(b.address + b.nbytes for b in self.buffers) - self.start


@dataclass(frozen=True)
class Holders:
    """Blocks of a recording's memory that others hold, by address."""

    escaped: frozenset[int] = frozenset()  # blocks that somebody else holds
    # those of them that somebody else holds through a view that is in no launch: it would stay behind if the buffers
    # of the launches moved
    viewed: frozenset[int] = frozenset()


class Graph:
    def __init__(self, launches: Iterable[Launch], holders: Holders | None = None) -> None:
        holders = holders or Holders()
        self._escaped, self._viewed = set(holders.escaped), set(holders.viewed)
        self._index(launches)

    def _index(self, launches: Iterable[Launch]) -> None:
        self._launches = dict(enumerate(launches))
        self._private: dict[int, bool] = {}  # answers of `is_private`
        self._buckets: dict[int, _Buckets] = {}
        # `readers` and `writers`: positions of the launches that read from, or write to, a block, in order
        self.readers: defaultdict[int, list[int]] = defaultdict(list)
        self.writers: defaultdict[int, list[int]] = defaultdict(list)
        for i in self._launches:
            self._enter(i)

    def __getitem__(self, position: int) -> Launch:
        return self._launches[position]

    def __iter__(self) -> Iterator[tuple[int, Launch]]:
        """All launches with their positions, in order; the graph may change meanwhile."""
        return iter([*self._launches.items()])

    def launches(self) -> list[Launch]:
        return [*self._launches.values()]

    # -------------------------------------------------------------------------------------- questions

    def users(self, place: int) -> list[int]:
        return [*dict.fromkeys(merge(self.readers[place], self.writers[place]))]

    def touching(self, buffer: Buffer) -> list[int]:
        """Positions of the launches that touch any byte of a buffer, in order."""
        place = buffer.block.address
        near: Collection[int] = self.users(place) if place not in self._buckets else ()
        if len(near) > _MANY:
            self._buckets[place] = buckets = _Buckets(buffer.block)
            for i in near:
                buckets.enter(i, self._launches[i])
        if place in self._buckets:
            near = self._buckets[place].near(buffer)
        return [i for i in near if i in self._launches and any(b.overlaps(buffer) for b in self._launches[i].buffers)]

    def is_written(self, buffer: Buffer, since: int, until: int) -> bool:
        """Return whether a launch from position `since` to before `until` writes any byte of a buffer."""
        writers = self.writers[buffer.block.address]
        return any(b.overlaps(buffer) for i in writers[bisect_left(writers, since) : bisect_left(writers, until)]
                   for b in self._launches[i].written)

    def is_private(self, place: int) -> bool:
        """Return whether nobody else holds a block, and the launches write everything in it before they read it."""
        if place not in self._private:
            self._private[place] = place not in self._escaped and self._is_made(place)
        return self._private[place]

    def is_viewed(self, place: int) -> bool:
        return place in self._viewed

    def spans(self) -> dict[int, Span]:
        spans: dict[int, Span] = {}
        known: set[int] = set()
        for i, launch in self._launches.items():
            for b in launch.buffers:
                place = b.block.address
                if not self.is_private(place):
                    continue
                span = spans.setdefault(place, Span(first=i))
                span.last = i
                if id(b) not in known:
                    known.add(id(b))
                    span.buffers.append(b)
        return spans

    def _is_made(self, place: int) -> bool:
        stretches: list[Stretch] = []  # what was written, in order, with gaps between
        for i in self.users(place):
            launch = self._launches[i]
            if not all(_covered(b, stretches) for b in launch.operands if b.block.address == place):
                return False
            for b in launch.buffers[: launch.primitive.outputs]:
                if b.block.address == place:
                    _cover(stretches, b.address, b.address + b.nbytes)
        return True

    # -------------------------------------------------------------------------------------- changes

    def remove(self, position: int) -> None:
        self._leave(position)
        del self._launches[position]

    def replace(self, position: int, launch: Launch) -> None:
        self._leave(position)
        self._launches[position] = launch
        self._enter(position)

    def insert(self, launches: Mapping[int, list[Launch]]) -> None:
        """Put launches before those at the given positions; all get new positions, without gaps."""
        self._index([launch for i, here in self._launches.items() for launch in (*launches.get(i, ()), here)])

    def compact(self) -> None:
        self.insert({})

    def move(self, source: Buffer, target: Buffer) -> None:
        """Let what lies in the block of `source` lie in that of `target` instead, `source` in the place of `target`."""
        old, new, start = source.block.address, target.block.address, source.address
        positions = self.users(old)
        moving = {id(b): b for i in positions for b in self._launches[i].buffers if b.block.address == old}
        for i in positions:
            self._leave(i)
        for b in moving.values():
            b.relocate(target.block, target.address + b.address - start)
        for i in positions:
            self._enter(i)
        for places in (self._escaped, self._viewed):
            if old in places:
                places.remove(old)  # the block dies, and another may get its address
                places.add(new)

    def _leave(self, position: int) -> None:
        for index, place in self._indexed(position):
            positions = index[place]
            del positions[bisect_left(positions, position)]
            self._private.pop(place, None)

    def _enter(self, position: int) -> None:
        launch = self._launches[position]
        for index, place in self._indexed(position):
            _enter(index[place], position)
            self._private.pop(place, None)
            if place in self._buckets:
                self._buckets[place].enter(position, launch)

    def _indexed(self, position: int) -> Iterator[tuple[defaultdict[int, list[int]], int]]:
        """The lists of `readers` and `writers`, by their block, in which a launch stands."""
        launch = self._launches[position]
        for index, buffers in ((self.readers, launch.operands), (self.writers, launch.written)):
            for place in {b.block.address for b in buffers}:
                yield index, place


def _enter(positions: list[int], position: int) -> None:
    k = bisect_left(positions, position)
    if k == len(positions) or positions[k] != position:
        positions.insert(k, position)


class _Buckets:
    """The launches that touch a block of many users, by the part of the block, some of which may have gone since."""

    def __init__(self, block: Block) -> None:
        self._place, self._width = block.address, -(-block.nbytes // _BUCKETS)
        self._positions: defaultdict[int, list[int]] = defaultdict(list)

    def enter(self, position: int, launch: Launch) -> None:
        for b in launch.buffers:
            if b.block.address == self._place:
                for bucket in self._of(b):
                    _enter(self._positions[bucket], position)

    def near(self, buffer: Buffer) -> list[int]:
        """Positions of launches that may touch a byte of the buffer, in order."""
        return sorted({i for bucket in self._of(buffer) for i in self._positions[bucket]})

    def _of(self, b: Buffer) -> range:
        start, end = b.address - self._place, b.address - self._place + b.nbytes
        return range(start // self._width, -(-end // self._width))


def _covered(b: Buffer, stretches: list[Stretch]) -> bool:
    k = bisect_right(stretches, (b.address, inf)) - 1
    return k >= 0 and b.address + b.nbytes <= stretches[k][1]


def _cover(stretches: list[Stretch], start: int, end: int) -> None:
    """Add a stretch to others in order, joined with its neighbours."""
    first = bisect_left(stretches, start, key=lambda s: s[1])
    last = bisect_right(stretches, end, lo=first, key=lambda s: s[0])
    near = stretches[first:last]
    stretches[first:last] = [(min([start, *(s[0] for s in near)]), max([end, *(s[1] for s in near)]))]


# ------------------------------------------------------------------------------------------ holders

# A block has *escaped* if anything outside holds it: a tensor, an optimizer, a caller.  `take_over` drops everything
# that the recording holds, while the arena pins the memory.  Weak references then show what is still alive; nothing is
# counted.  In ``y = exp(x); z = y * 2``, returned as z, x and z escaped; y dies, and comes back in its place.


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
    return next((b.shape for launch in recording.launches if launch.fresh
                 for b in launch.buffers[: launch.primitive.outputs] if b.block.address in holders.escaped), None)


def take_over(recording: Recording) -> Holders:
    """Make the recording, of equal launches, the only holder of what nobody else holds; say what others do."""
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
    known = {id(b) for b in held if b is not None}
    return [b for view in recording.views if (b := view()) is not None and id(b) not in known]
