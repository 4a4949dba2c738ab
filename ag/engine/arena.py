"""The arena: one device's memory, handed out as blocks of a few large segments.

A pure offset allocator, the same for every backend, so that an offset or lifetime bug shows up without a GPU.  It
knows neither arrays nor devices: a backend passes `grow`, which makes the memory behind a new segment.  A block is
an address (segment number and byte offset in one integer) and goes back to the arena when its last reference dies.

Freed blocks first go to a bin of their exact size, where the next request of that size finds them at once (a
training step asks for the same sizes again and again).  When no bin fits, the block is cut from a best-fit free list;
when that has no room, all bins are emptied into it and neighbours coalesce; and if that does not help, the arena
grows by another segment.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from ag.errors import ArenaError

__all__ = ["Arena", "ArenaStats", "Block", "Changes", "OFFSET_BITS", "now"]

now = count(1).__next__  # one clock for all devices: what came after what

OFFSET_BITS = 48  # address = segment << 48 | byte offset; no segment comes near 2**48 bytes
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class Changes:
    """What was written into a block after it was handed out.

    Attributes
    ----------
    last : int
        When that was, for the last time.
    places : dict of (int, tuple of int, int) to int
        When an array at this address, of this shape and with elements of so many bytes, was overwritten.
    fixed : bool
        Whether nobody may write into the block any more.
    """

    __slots__ = ("fixed", "last", "places")

    def __init__(self) -> None:
        self.last = 0
        self.places: dict[tuple[int, tuple[int, ...], int], int] = {}
        self.fixed = False


class Block:
    """A run of bytes in an arena, given back when the object dies.

    Attributes
    ----------
    address : int
        ``segment << 48 | byte offset`` of the first usable byte.
    nbytes : int
        Usable bytes (the request, rounded up to the alignment).
    made : int
        When it was handed out (`now`); 0 while it is filled for the first time, which is no change.
    changes : Changes or None
        When what was overwritten; for `ag.engine.buffer`.
    """

    __slots__ = ("__weakref__", "_arena", "address", "changes", "made", "nbytes")

    def __init__(self, arena: Arena, address: int, nbytes: int) -> None:
        self._arena = arena
        self.address = address
        self.nbytes = nbytes
        self.made = now()
        self.changes: Changes | None = None

    @property
    def segment(self) -> int:
        """Number of the segment the block lies in."""
        return self.address >> OFFSET_BITS

    @property
    def offset(self) -> int:
        """Byte offset of the block in its segment."""
        return self.address & _OFFSET_MASK

    def __del__(self) -> None:
        self._arena._release(self.address, self.nbytes)


@dataclass(frozen=True)
class ArenaStats:
    """How full an arena is, in bytes: `reserved` of the device, `live` in blocks, `peak` of `live`, and the blocks."""

    segments: int
    reserved: int
    live: int
    peak: int
    largest_free: int


class Arena:
    """Offset allocator over segments that a backend provides.

    Parameters
    ----------
    grow : callable
        ``grow(nbytes)`` makes the memory of the next segment; raises ``MemoryError`` if it cannot.
    first_bytes : int, optional
        Size of the first segment; each further one doubles, up to `max_segment_bytes`.
    max_segment_bytes : int, optional
        Largest segment the device can address; also the largest single block.
    limit_bytes : int or None, optional
        Never reserve more than this in all.
    align : int, optional
        Alignment of blocks in bytes, a power of two.
    guard : int, optional
        Bytes kept unused on either side of every block, for tests to fill and check; a multiple of `align`.
    """

    def __init__(
        self,
        grow: Callable[[int], None],
        *,
        first_bytes: int = 16 << 20,
        max_segment_bytes: int = 1 << 32,
        limit_bytes: int | None = None,
        align: int = 256,
        guard: int = 0,
    ) -> None:
        self._grow = grow
        self._next_bytes = first_bytes
        self._max_segment_bytes = max_segment_bytes
        self._limit_bytes = limit_bytes
        self.align = align
        self.guard = guard
        self._segments: list[int] = []  # sizes
        self._bins: dict[int, list[int]] = {}  # reserved size -> addresses, most recently freed last
        self._free: list[tuple[int, int]] = []  # (size, address), sorted: best fit is one bisection
        self._starts: dict[int, int] = {}  # address -> size of the free run that starts there
        self._ends: dict[int, int] = {}  # end address -> address of the free run that ends there
        self._lock = threading.Lock()
        self._live = 0
        self._peak = 0
        self._pinned: dict[int, int] | None = None  # address -> bytes of blocks that died while they were pinned
        self._pinning, self._pinned_lock = threading.Lock(), threading.RLock()

    def alloc(self, nbytes: int) -> Block:
        """A block of at least `nbytes` bytes (at least one alignment unit).

        Raises
        ------
        ArenaError
            If the device has no room for it.
        """
        align = self.align
        usable = (nbytes + align - 1) & -align or align
        size = usable + 2 * self.guard
        try:
            address = self._bins[size].pop()
        except (KeyError, IndexError):
            with self._lock:
                address = self._alloc_slowly(size)
        self._live += size
        if self._live > self._peak:
            self._peak = self._live
        return Block(self, address + self.guard, usable)

    def stats(self) -> ArenaStats:
        """The current fill; freed blocks are coalesced first."""
        with self._lock:
            self._empty_bins()
            return ArenaStats(len(self._segments), sum(self._segments), self._live, self._peak,
                              self._free[-1][0] if self._free else 0)

    def reset_peak(self) -> None:
        """Start measuring `peak` anew from what is live now."""
        self._peak = self._live

    @contextmanager
    def pinned(self) -> Iterator[Callable[[int], Block]]:
        """Inside, the memory of blocks that die is not given to anybody else.

        Yields
        ------
        callable
            ``revive(address)``: a new block in the place of one that died inside.
        """
        with self._pinning:  # one at a time
            self._pinned = {}
            try:
                yield self._revive
            finally:
                with self._pinned_lock:
                    dead, self._pinned = self._pinned, None
                for address, usable in dead.items():
                    self._release(address, usable)

    def _revive(self, address: int) -> Block:
        assert self._pinned is not None
        return Block(self, address, self._pinned.pop(address))

    def _release(self, address: int, usable: int) -> None:
        # Called from __del__, possibly in the middle of an allocation: it must not take the lock of the free lists.
        if self._pinned is not None:
            with self._pinned_lock:
                if self._pinned is not None:
                    self._pinned[address] = usable
                    return
        size = usable + 2 * self.guard
        self._live -= size
        self._bins.setdefault(size, []).append(address - self.guard)

    def _alloc_slowly(self, size: int) -> int:
        for make_room in (self._empty_bins, lambda: self._add_segment(size)):
            if self._free and self._free[-1][0] >= size:
                break
            make_room()
        i = bisect_left(self._free, (size, 0))
        run, address = self._free[i]
        self._take(run, address)
        if run > size:
            self._give(run - size, address + size)
        return address

    def _add_segment(self, size: int) -> None:
        reserved = sum(self._segments)
        room = self._max_segment_bytes
        if self._limit_bytes is not None:
            room = min(room, self._limit_bytes - reserved)
        if size > room:
            raise ArenaError(
                f"arena: a block of {size} bytes was asked for and a segment may have {max(room, 0)} more bytes "
                f"({reserved} are reserved, {self._live} in use); use smaller batches or free tensors.")
        nbytes = min(max(self._next_bytes, size), room)
        try:
            self._grow(nbytes)
        except MemoryError:
            nbytes = size  # the device may still have room for just this block
            try:
                self._grow(nbytes)
            except MemoryError as error:
                raise ArenaError(
                    f"arena: the device has no {size} bytes left ({reserved} are reserved, {self._live} in use); "
                    f"use smaller batches or free tensors.") from error
        self._next_bytes = min(self._next_bytes * 2, self._max_segment_bytes)
        self._segments.append(nbytes)
        self._give(nbytes, (len(self._segments) - 1) << OFFSET_BITS)

    def _empty_bins(self) -> None:
        for size, addresses in list(self._bins.items()):
            while addresses:
                address = addresses.pop()
                run = size
                after = self._starts.get(address + run)
                if after is not None:
                    self._take(after, address + run)
                    run += after
                before = self._ends.get(address)
                if before is not None:
                    self._take(address - before, before)
                    run += address - before
                    address = before
                self._give(run, address)

    def _give(self, size: int, address: int) -> None:
        insort(self._free, (size, address))
        self._starts[address] = size
        self._ends[address + size] = address

    def _take(self, size: int, address: int) -> None:
        del self._free[bisect_left(self._free, (size, address))]
        del self._starts[address]
        del self._ends[address + size]
