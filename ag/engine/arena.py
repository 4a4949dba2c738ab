"""Hand out one device's memory as blocks of a few large segments.

A block goes back when its last reference dies.  `arena.c` does the quick half where it was compiled.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import count
from math import inf
from typing import Any, NamedTuple, NoReturn
from weakref import ReferenceType, ref

from ag.errors import ArenaError
from ag.native import code as _code

now = count(1).__next__  # one clock for all devices: what came after what

OFFSET_BITS = 48  # address = segment << 48 | byte offset; no segment comes near 2**48 bytes
OFFSET_MASK = (1 << OFFSET_BITS) - 1
_TRIED_AGAIN = 4  # segments of the size that the device granted, after which twice as much is asked for again
_ADVICE = ("Use smaller batches, with accumulate, or ag_checkpoint, or free tensors; ag.memory() tells what uses the "
           "memory.")
_NOWHERE: dict[int, list[int]] = {}  # stands for the bins while they are made anew; always empty
_NAN = 0x7F810101  # of float32, a signalling one; any of its lowest 22 bits may be set, and no byte of it is 0


def guard_words(address: int, nbytes: int) -> bytes:
    """Fill a guard: signalling NaN, another for every address; computing with it makes it quiet."""
    word = _NAN | address * 0x9E3779B1 >> 10 & 0x3FFFFF
    return (word.to_bytes(4, "little") * (nbytes // 4 + 1))[:nbytes]


def after_fork(reset: Callable[[], None]) -> Callable[[], None]:
    """Call `reset` in every forked child, which has none of the other threads: nobody holds their locks there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)
    return reset


class Changes:
    """Writes into a block after it was handed out."""

    __slots__ = ("fixed", "last", "places")

    def __init__(self) -> None:
        self.last = 0  # when that was, for the last time
        # when an array at this address, of this shape and with elements of so many bytes, was overwritten
        self.places: dict[tuple[int, tuple[int, ...], int], int] = {}
        self.fixed = False  # whether nobody may write into the block any more


class Block:
    """A run of bytes in an arena, given back when the object dies."""

    __slots__ = ("__weakref__", "address", "changes", "made", "nbytes", "sharers")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address  # `segment << 48 | byte offset` of the first usable byte
        self.nbytes = nbytes  # usable bytes (the request, rounded up to the alignment)
        # results that share this memory until it is written (`ag.engine.buffer.CopyOnWrite`)
        self.sharers: Sequence[ReferenceType[Any]] = ()
        self.made = now()  # when it was handed out (`now`); 0 while it is filled for the first time, which is no change
        self.changes: Changes | None = None  # when what was overwritten; for `ag.engine.buffer`

    def settle(self) -> None:
        """Do nothing: only blocks of other classes, for which launches ask, have work to do before their use."""

    def inherit(self, other: Block) -> None:
        self.made, distance = other.made, self.address - other.address
        if (was := other.changes) is not None:
            self.changes = changes = Changes()
            changes.last = was.last
            changes.places = {(at + distance, shape, size): time for (at, shape, size), time in was.places.items()}

    @property
    def segment(self) -> int:
        return self.address >> OFFSET_BITS

    @property
    def offset(self) -> int:
        return self.address & OFFSET_MASK


class ArenaStats(NamedTuple):
    """The fill of an arena in bytes: `reserved` of the device, `live` in blocks, and the `peak` of that."""

    segments: int
    reserved: int
    live: int
    peak: int
    largest_free: int


class Arena:
    """Offset allocator over segments that a backend provides."""

    def __init__(self, grow: Callable[[int], Any], *, first_bytes: int = 16 << 20, max_segment_bytes: int = 1 << 32,
                 max_block_bytes: int | None = None, bound: str = "the largest segment",
                 limit_bytes: int | None = None, budget: Callable[[], int] | None = None, name: str = "arena",
                 align: int = 256, guard: int = 0) -> None:
        # `grow(nbytes)` makes the memory of the next segment and returns it; raises `MemoryError` if it cannot
        self._grow = grow
        # size of the first segment; each further one doubles, up to `max_segment_bytes`
        self._first_bytes = self._next_bytes = first_bytes
        self._max_segment_bytes = self._most_bytes = max_segment_bytes  # largest segment for several blocks
        # largest single block, which has a segment to itself if it is larger than that; None: it cannot be
        self._max_block_bytes = max(max_segment_bytes, max_block_bytes or 0)
        self._granted = 0  # segments of _most_bytes since that changed
        self._bound = bound  # what allows no larger block, for messages
        # how many bytes the device has to spare now; a segment is larger only if it has `first_bytes` or a single
        # block
        self._budget = budget
        self._name, self._told = name, False  # of the device, and whether the log says that it has too little memory
        self._limit_bytes = limit_bytes  # never reserve more than this in all
        self.align = align  # alignment of blocks in bytes, a power of two
        # bytes kept unused on either side of every block, for tests to fill and check; a multiple of `align`
        self.guard = guard
        # size of each segment, and what `grow` returned for it; the backend reads it.  Those of another arena that
        # were asked for (`reach`) have size 0 here.
        self.segments: list[tuple[int, Any]] = []
        # while a caller holds `pinning` and has set `pinned`, the memory of blocks that die is not given to anybody
        # else, and `revive` makes blocks in their place
        self.pinning, self.pinned = threading.Lock(), False
        self._loans: dict[ref[Block], tuple[int, int]] = {}  # address and size, with guards, of every block
        self._dead: deque[ref[Block]] = deque()  # loans whose block has died
        self._died = self._dead.append
        self._bins = _NOWHERE  # size -> addresses, last freed last
        self._free: list[tuple[int, int]] = []  # (size, address), sorted: best fit is one bisection
        self._making: object = None  # the latest making of bins and free list
        self._lock = threading.RLock()
        self._live = self._peak = 0
        if _code is not None and not guard:
            quickly = _code.Alloc(self, Block, Arena.alloc, (), now, self._dead, self._died, self._loans, align)
            setattr(self, "alloc", quickly)  # noqa: B010 - in the place of the method

    def alloc(self, nbytes: int) -> Block:
        """A block of at least `nbytes` bytes (at least one alignment unit)."""
        usable = (nbytes + self.align - 1) & -self.align or self.align
        size = usable + 2 * self.guard
        if self._dead:
            self._take_back()
        while True:
            bins = self._bins
            try:
                address = bins[size].pop()
            except LookupError:
                bins, address = self._cut(size)
            block = Block(address + self.guard, usable)
            loan = ref(block, self._died)
            self._loans[loan] = address, size
            if self._bins is bins:
                self._live = live = self._live + size
                if live > self._peak:
                    self._peak = live
                return block
            del self._loans[loan]  # the index was made anew before this loan was known, and may offer the same memory

    @property
    def largest_block(self) -> int:
        most = self._max_block_bytes if self._limit_bytes is None else min(self._max_block_bytes, self._limit_bytes)
        return (most - 2 * self.guard) & -self.align

    def stats(self, restart: bool = False) -> ArenaStats:
        """The current fill; freed blocks are coalesced first, and the peak may restart."""
        with self._lock:
            self.coalesce()
            self._live = sum([size for _, size in list(self._loans.values())])
            peak, self._peak = self._peak, self._live if restart else self._peak
            return ArenaStats(sum([n > 0 for n, _ in self.segments]), self._reserved(), self._live, peak,
                              self._free[-1][0] if self._free else 0)

    def forget_peak(self, peak: int) -> None:
        """Go back to a peak of before: what was more since was only held, and not used."""
        with self._lock:
            self._peak = max(peak, self._live)

    def left(self) -> float:
        """Return how many bytes more blocks may have, here and of the device; infinite if that does not say."""
        stats = self.stats()
        more = inf if self._limit_bytes is None else self._limit_bytes - stats.reserved
        return stats.reserved - stats.live + (more if self._budget is None else min(more, self._budget()))

    def reach(self, memory: object) -> int:
        """The address at which a segment of another arena begins here; nothing of it is handed out."""
        with self._lock:
            known = [id(there) for _, there in self.segments]  # arrays would be compared element by element
            if id(memory) not in known:
                self.segments.append((0, memory))
            return [*known, id(memory)].index(id(memory)) << OFFSET_BITS

    def lent(self) -> list[tuple[int, int]]:
        """Return address and size, with guards, of every block, in order."""
        with self._lock:
            self._take_back()
            return sorted(self._loans.values())

    def release(self) -> dict[int, tuple[int, object]]:
        """Let go of segments in which no block lies; return these by number, which no other segment gets."""
        with self._lock:
            while True:
                self._take_back()
                self._making = mine = object()
                self._bins = _NOWHERE  # before the loans are read, as in `_make_anew`
                used = {address >> OFFSET_BITS for address, _ in list(self._loans.values())}
                gone = {number: it for number, it in enumerate(self.segments) if it[0] and number not in used}
                kept = [(0, None) if number in gone else it for number, it in enumerate(self.segments)]
                # Python runs no signal handler between these two lines.
                if self._making is mine and len(kept) == len(self.segments):
                    self.segments[:], self._next_bytes = kept, self._first_bytes
                    self._make_anew()
                    return gone

    def unreach(self, gone: Collection[int]) -> None:
        """Let go of segments of other arenas, which have these ids."""
        with self._lock:
            for number, (nbytes, there) in enumerate(self.segments):
                if not nbytes and id(there) in gone:
                    self.segments[number] = 0, None

    def coalesce(self) -> None:
        """Join what is free with its neighbours, for requests of other sizes; a lack of room does so, too."""
        with self._lock:
            self._take_back()
            self._make_anew()

    def revive(self, addresses: Sequence[int]) -> list[Block]:
        """New blocks in the place of some that died since the caller has set `pinned`."""
        places = {loan: self._loans.get(loan) for loan in list(self._loans) if loan() is None}  # others change these
        lent = {place[0] + self.guard: loan for loan, place in places.items() if place is not None}
        dead = [lent[address] for address in addresses]
        blocks = [Block(address, self._loans[loan][1] - 2 * self.guard)
                  for address, loan in zip(addresses, dead, strict=True)]
        loans = [ref(block, self._died) for block in blocks]
        self._loans.update(zip(loans, map(self._loans.pop, dead), strict=True))  # one operation
        return blocks

    def close(self, refuse: Callable[[int], NoReturn]) -> None:
        """Let go of all segments, and refuse to grow; blocks keep their addresses, which are nobody's any more."""
        with self._lock:
            self._grow = refuse
            self.segments.clear()
            self._make_anew()

    def forked(self) -> None:
        """Go on in a forked child, in which other threads do not exist: they hold no lock, and pin nothing."""
        self.pinning, self._lock, self.pinned = threading.Lock(), threading.RLock(), False
        self._making = object()

    def _reserved(self) -> int:
        return sum([nbytes for nbytes, _ in self.segments])

    def _take_back(self) -> None:
        """Put the memory of dead blocks into the bins."""
        loans, dead, bins = self._loans, self._dead, self._bins  # bins as of now: later ones know what is free now
        while dead:
            try:
                loan = dead.popleft()
            except IndexError:  # another thread was quicker
                return
            if self.pinned:  # asked now, and not before: it may have died after that
                dead.appendleft(loan)
                return
            try:
                address, size = loans.pop(loan)
            except (KeyError, TypeError):  # it never was in the books, or is out of them
                continue
            self._live -= size
            if bins is not _NOWHERE:
                try:
                    bins[size].append(address)
                except KeyError:
                    bins.setdefault(size, []).append(address)

    def _cut(self, size: int) -> tuple[dict[int, list[int]], int]:
        """Memory from the free list, and the bins that go with the list."""
        with self._lock:
            while True:
                found = self._best_fit(size)
                if found is None:
                    self._make_anew()
                    found = self._best_fit(size)
                if found is not None:
                    return found
                self._add_segment(size)

    def _best_fit(self, size: int) -> tuple[dict[int, list[int]], int] | None:
        bins, free = self._bins, self._free
        while bins is not _NOWHERE and free and free[-1][0] >= size:
            try:
                run, address = free.pop(bisect_left(free, (size, 0)))
            except IndexError:  # a signal's handler has taken it
                continue
            if run > size:
                insort(free, (run - size, address + size))
            if run >= size:
                return bins, address
        return None

    def _make_anew(self) -> None:
        """The index from the loans: what lies between them is free."""
        while True:
            self._making = mine = object()
            self._bins = _NOWHERE  # before the loans are read: who has memory from a bin now will notice
            for loan in list(self._loans):
                if loan() is None and not self.pinned:
                    self._live -= self._loans.pop(loan, (0, 0))[1]
            lent = sorted(self._loans.values())
            free = []
            for number, (nbytes, _) in enumerate(self.segments):
                at, end = number << OFFSET_BITS, (number << OFFSET_BITS) + nbytes
                inside = lent[bisect_left(lent, (at, 0)) : bisect_left(lent, (end, 0))]
                for address, size in [*inside, (end, 0)]:
                    if address > at:
                        free.append((address - at, at))
                    at = address + size
            free.sort()
            if self._making is mine:
                self._free, self._bins = free, {}
                return

    def _add_segment(self, size: int) -> None:
        reserved = self._reserved()
        if size > self._max_block_bytes:
            raise ArenaError(
                f"arena: a block of {size} bytes was asked for and {self._max_block_bytes} bytes are the most that "
                f"one may have on this device ({self._bound}); use smaller batches, or several tensors in its place.")
        room = max(self._max_segment_bytes, size)
        if self._limit_bytes is not None:
            room = min(room, self._limit_bytes - reserved)
        if size > room:
            raise ArenaError(
                f"arena: a block of {size} bytes was asked for and the device may give {max(room, 0)} more bytes "
                f"({reserved} are reserved, {self._live} in use). {_ADVICE}")
        wanted = min(max(self._next_bytes, size), room)
        if self._budget is not None:
            spare = self._budget()
            if size > spare and not self._told:
                from ag.log import log  # which takes time to load

                self._told = True
                log.warning("%s: %.2f GB more are needed and %.2f GB are free; what does not fit is swapped, which is "
                            "slow, or refused. %s", self._name, size / 1e9, spare / 1e9, _ADVICE)
            spare = max(spare & -self.align, self._first_bytes)  # no segment per block where nothing is left
            wanted = max(size, min(wanted, spare))
        nbytes, memory = self._granted_segment(size, wanted)
        if nbytes < wanted:
            self._next_bytes = self._most_bytes = max(nbytes, self._first_bytes)
            self._granted = 0
        else:
            self._granted += nbytes >= self._most_bytes
            if self._granted == _TRIED_AGAIN:  # others may have given memory back
                self._granted, self._most_bytes = 0, min(2 * self._most_bytes, self._max_segment_bytes)
            self._next_bytes = min(2 * self._next_bytes, self._most_bytes)
        self.segments.append((nbytes, memory))
        self._make_anew()

    def _granted_segment(self, size: int, nbytes: int) -> tuple[int, Any]:
        """A segment of `nbytes` bytes, or of a half, a quarter, ... of that, but of `size`: what the device gives."""
        while True:
            try:
                return nbytes, self._grow(nbytes)
            except MemoryError as error:
                if nbytes == size:
                    raise ArenaError(
                        f"arena: the device has no {size} bytes left ({self._reserved()} are reserved, {self._live} in "
                        f"use). {_ADVICE}") from error
            nbytes = max(size, nbytes // 2 & -self.align)
