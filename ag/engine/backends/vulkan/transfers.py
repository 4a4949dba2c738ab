"""Words between the host and a device's arena: by way of staging memory, which both read and write, or straight.

Knows addresses in the arena; no buffer and no primitive.  The Vulkan backend calls it; the recorder starts the copies.

A large transfer goes in chunks, so that the host and the device work at the same time.  Uploading 16 MiB in chunks of
4, where the host copies a chunk in 1 ms and the device takes 1 ms to fetch one, takes 5 ms instead of 8::

    host     write 1   write 2   write 3   write 4
    device             fetch 1   fetch 2   fetch 3   fetch 4

A chunk is submitted as soon as it is full, and written again once it was fetched: there are four, used in turn.  On the
way down there are two landing places: the device fills one while the host reads the other.  A card may have a queue of
its own for uploads; they then go beside the launches, where these let them (`transfer_queue`).

Memory of the device that the host sees, too, it writes and reads itself, without a copy by the device: what it writes
no command on its way may touch, and what it reads must be cached by the processor, or a read takes 40 times as long.
Over a bus it writes up to 16 MiB itself.  On an H100 a core stored there at 11 to 16 GB/s, and by way of chunks,
which it has to write as well, 5 to 9 GB/s arrived; of 64 MiB it was 11 against 8, and more would keep a core for long.

An interrupt may come anywhere, and a signal's handler may use the device in the middle of a call.  So a chunk's room is
taken by one assignment, and a landing place says what it was last filled for: where that is something else when the
host reads it, the piece is fetched once more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np

from ag.engine.arena import OFFSET_BITS, OFFSET_MASK, Arena, Block
from ag.engine.backends.vulkan.kp_types import Manager, Tensor, Words
from ag.engine.backends.vulkan.stream.commands import Check, Command, Copy, Recorded
from ag.engine.backends.vulkan.stream.hazards import Range
from ag.engine.backends.vulkan.stream.recorder import Recorder
from ag.engine.backends.vulkan.stream.transfer_queue import CHUNK_BYTES, staging
from ag.engine.primitive import Array
from ag.errors import ArenaError

__all__ = ["Inputs", "Results", "Transfers", "whole_words"]

_CHUNKS, _LANDINGS = 4, 2
_KEPT_BYTES = 1 << 20  # the largest array that has staging memory of its own
_LOOKED_THROUGH = 1 << 20  # bytes: in less time they are staged than all commands on their way are looked through
_OVER_A_BUS = 16 << 20  # bytes that the host writes itself
_ORIGINS = 16  # of a program's inputs: sets of places that are remembered
_LAUNCHED = 1 << 20  # bytes
_PLACES, _AT_ONCE = 8, 3  # of a program's results: places that are remembered, and copies to each


class _Landing:
    """Staging memory for a piece on its way down."""

    def __init__(self, tensor: Tensor, view: Words, place: Range) -> None:
        self.tensor, self.view = tensor, view
        self.place = place  # for the hazard tracker: no address of an arena
        self.filled_for: _Piece | None = None


class _Piece(NamedTuple):
    """A part of a download: its first word, how many there are, and where they land."""

    start: int
    words: int
    landing: _Landing


class Place:
    """Staging memory that somebody keeps: a block of it, the tensor that it is in, where, and the array that it is."""

    def __init__(self, block: Block, tensor: Tensor, start: int, array: Array) -> None:
        self.block, self.tensor, self.start, self.array = block, tensor, start, array


class Transfers:
    """Transfers of one device.

    Parameters
    ----------
    manager : kp.Manager
    recorder : Recorder
        Of the same device.
    segments : list of (int, kp.Tensor)
        The arena's segments.
    kind : str
        Of the device, as in `DeviceInfo`: whether its memory is the host's own or lies behind a bus.
    launched : callable
        The launch that copies so many bytes from an arena address to another one.
    """

    def __init__(self, manager: Manager, recorder: Recorder, segments: list[tuple[int, Tensor]], kind: str,
                 launched: Callable[[int, int, int], Command]) -> None:
        self._recorder = recorder
        self._segments = segments
        made = partial(staging, manager)  # no method: the arena below would be a cycle then, which is freed late
        # Staging memory, and views of it: made now, so that whoever runs out of memory can still read results.
        self._landings = [_Landing(*made(CHUNK_BYTES), (-(k + 1) * CHUNK_BYTES, -k * CHUNK_BYTES))
                          for k in range(_LANDINGS)]
        self._chunks = [made(CHUNK_BYTES) for _ in range(_CHUNKS)]
        self._kept = Arena(made, first_bytes=_KEPT_BYTES, max_segment_bytes=CHUNK_BYTES)
        self._room = (0, 0)  # the chunk in use, and how much of it is
        self._manager = manager
        self._most_written = inf if kind in ("integrated", "cpu") else _OVER_A_BUS  # bytes, by the host itself
        self._launched = None if kind == "cpu" else launched
        self._seen: dict[int, tuple[Words | None, bool]] = {}  # by segment: what the host sees, and reads quickly

    def _sees(self, address: int) -> tuple[Words | None, bool]:
        """The segment of an address, if the host sees its memory, and whether it also reads it at full speed."""
        if self._recorder.lost or address & 3:  # what a lost device has left is anything; staged, it is an error
            return None, False
        number = address >> OFFSET_BITS
        if number not in self._seen:
            mapped, cached = self._manager.host_access(segment := self._segments[number][1])
            self._seen[number] = segment.data() if mapped else None, cached
        return self._seen[number]

    def _write(self, address: int, words: Words) -> bool:
        """Write to memory that the host sees, if nothing on its way touches these words; False if nothing was done."""
        view, _ = self._sees(address)
        recorder = self._recorder
        looks = recorder.idle or words.nbytes >= _LOOKED_THROUGH
        if view is None or not looks or words.nbytes > self._most_written:
            return False
        changes, at = recorder.changes, (address & OFFSET_MASK) >> 2
        end, free = at + words.size, not recorder.touches(address, address + words.nbytes)
        # Python does not look for signals between these two lines, so no handler records anything there.
        if free and recorder.changes == changes:
            view[at:end] = words
            return True
        return False

    def upload(self, address: int, words: Words) -> None:
        """Copy host words to an arena address; does not wait for the device but for the chunk that it needs."""
        if self._write(address, words):
            return
        start = 0
        if words.nbytes >= _LOOKED_THROUGH:
            start = self._recorder.upload_beside(address, words, self._segment(address))
        while start < words.size:
            chunk, at, count = self._staging_room(words.size - start)
            tensor, view = self._chunks[chunk]
            view[at : at + count] = words[start : start + count]
            begin = address + 4 * start
            self._copy(tensor, self._segment(begin), (4 * at, begin & OFFSET_MASK, 4 * count),
                       [], [(begin, begin + 4 * count)])
            start += count
            if start < words.size:
                self._recorder.submit()

    def _staging_room(self, wanted: int) -> tuple[int, int, int]:
        """A chunk, where its unused words begin, and how many of them are the caller's."""
        capacity = CHUNK_BYTES // 4
        while True:
            before = self._room
            chunk, used = before
            if used >= capacity:
                chunk, used = (chunk + 1) % _CHUNKS, 0
                self._recorder.wait_for_users(self._chunks[chunk][0])
            count = min(wanted, capacity - used)
            after = chunk, used + count
            if self._room is before:  # or a signal's handler has taken the room
                self._room = after
                return chunk, used, count

    def assign(self, target: int, source: int, count: int) -> None:
        """Copy words between arena addresses; does not wait."""
        self._recorder.record(self.inside(source, target, 4 * count))

    def download(self, address: int, count: int) -> Words:
        """Words at an arena address; waits."""
        view, quickly = self._sees(address)
        at = (address & OFFSET_MASK) >> 2
        while view is not None and quickly:
            # Who reads hears if the device was lost, which a submission tells; and it waits for uploads.
            if self._recorder.idle or self._recorder.beside.busy:
                self._recorder.record(Check([], []))
            changes = self._recorder.changes
            self._recorder.wait()
            copied = view[at : at + count].copy()
            if self._recorder.changes == changes:  # or a signal's handler has recorded something
                return copied
        result = np.empty(count, np.uint32)
        size = CHUNK_BYTES // 4
        coming: deque[_Piece] = deque()
        start = 0
        while start < count or coming:
            while start < count and len(coming) < _LANDINGS:
                piece = _Piece(start, min(size, count - start), self._landings[start // size % _LANDINGS])
                self._land(piece, address)
                coming.append(piece)
                start += piece.words
            piece = coming[0]
            self._recorder.wait_for_users(piece.landing.tensor)
            result[piece.start : piece.start + piece.words] = piece.landing.view[: piece.words]
            if piece.landing.filled_for is piece:
                coming.popleft()
            else:  # a signal's handler has read something else
                self._land(piece, address)
        return result

    def _land(self, piece: _Piece, address: int) -> None:
        """Start the way down of a piece of what lies at an address."""
        piece.landing.filled_for = piece
        begin, nbytes = address + 4 * piece.start, 4 * piece.words
        self._copy(self._segment(begin), piece.landing.tensor, (begin & OFFSET_MASK, 0, nbytes),
                   [(begin, begin + nbytes)], [piece.landing.place], to_host=True)
        self._recorder.submit()

    def place(self, like: Array) -> Place | None:
        """Staging memory for an array, for somebody to keep; None if there is no room."""
        try:
            block = self._kept.alloc(like.nbytes)
        except ArenaError:
            return None
        tensor, view = self._kept.segments[block.address >> OFFSET_BITS][1]
        start = block.address & OFFSET_MASK
        array = view.view(np.uint8)[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
        return Place(block, tensor, start, array)

    def to_arena(self, place: Place, target: int, nbytes: int) -> Copy:
        """The copy of what lies in such a place to an arena address."""
        return Copy(place.tensor, self._segment(target), (place.start, target & OFFSET_MASK, nbytes), [],
                    [(target, target + nbytes)])

    def inside(self, source: int, target: int, nbytes: int) -> Command | Copy:
        """A copy between arena addresses: on a card, a launch where it is large.

        On an H100 copies moved 850 GB/s and launches 2,540, but a launch takes the host and the card more to begin.
        """
        if self._launched is not None and nbytes >= _LAUNCHED:
            return self._launched(source, target, nbytes)
        region = (source & OFFSET_MASK, target & OFFSET_MASK, nbytes)
        return Copy(self._segment(source), self._segment(target), region, [(source, source + nbytes)],
                    [(target, target + nbytes)])

    def _copy(self, source: Tensor, target: Tensor, region: tuple[int, int, int], reads: list[Range],
              writes: list[Range], to_host: bool = False) -> None:
        self._recorder.record(Copy(source, target, region, reads, writes, to_host))

    def _segment(self, address: int) -> Tensor:
        return self._segments[address >> OFFSET_BITS][1]


class Inputs:
    """What a program is given before it runs: values of the host, and what lies elsewhere in the arena.

    The copies to where the program finds them are recorded once for each set of places that they come from, as those
    of a loop are few, so that a step costs the host a copy per array of the host: to record them took half of
    a small step on an H100.  Values of the host lie in staging memory of their own, as a copy that was recorded always
    reads the same place; large ones go by the chunks of `Transfers`.
    """

    def __init__(self) -> None:
        self._places: dict[int, Place | None] = {}  # by where the values go
        self._recorded: dict[tuple[int | Place, ...], list[Recorded]] = {}  # by where all is copied from

    def fill(self, given: list[tuple[int, int, Array | int]], transfers: Transfers,
             recorder: Recorder) -> list[Recorded]:
        """What is to be played before the program, on the device that it always is.

        Given are addresses, how many bytes, and what goes there: an array, or what lies at another address.  Nothing
        that this has returned may run.
        """
        sources: list[int | Place] = []
        copied: list[tuple[int, int]] = []
        for target, nbytes, value in given:
            source: int | Place | None
            if isinstance(value, int):
                source = value
            else:
                source = self._places.get(target)
                if source is None and value.nbytes <= _KEPT_BYTES:
                    source = self._places[target] = transfers.place(value)
                if source is None:
                    transfers.upload(target, whole_words(value))
                    continue
                source.array[...] = value
            sources.append(source)
            copied.append((target, nbytes))
        recorded = self._recorded.get(origin := tuple(sources))
        if recorded is None:
            old = self._recorded.pop(next(iter(self._recorded)), []) if len(self._recorded) >= _ORIGINS else []
            if any(map(recorder.runs, old)):  # a signal's handler has started it
                old = []
            recorded = self._recorded[origin] = recorder.build_all(
                [transfers.inside(source, target, nbytes) if isinstance(source, int)
                 else transfers.to_arena(source, target, nbytes)
                 for source, (target, nbytes) in zip(sources, copied, strict=True)], old)
        return recorded


class Results:
    """Copies of a program's results, recorded once for each place that they go to, as those of a loop go to few.

    Of each there are up to three, used in turn: by the time that a place comes again, its last copy may still run.
    """

    def __init__(self) -> None:
        self._recorded: dict[tuple[int, int, int], list[Recorded]] = {}  # of places that came at least once

    def copy(self, target: int, source: int, nbytes: int, transfers: Transfers, recorder: Recorder) -> None:
        """Copy what lies at an address to another one; does not wait."""
        place = target, source, nbytes
        if place not in self._recorded:
            if len(self._recorded) == _PLACES:
                self._recorded.pop(next(iter(self._recorded)), None)
            self._recorded[place] = []
        elif recorder.timing is None:
            built = self._recorded[place]
            for recorded in built:
                if not recorder.runs(recorded):
                    recorder.enqueue([recorded])
                    return
            if len(built) < _AT_ONCE:
                built += recorder.build_all([transfers.inside(source, target, nbytes)])
                recorder.enqueue(built[-1:])
                return
        transfers.assign(target, source, nbytes // 4)


def whole_words(array: Array) -> Words:
    """The elements of an array, one behind the other, and zero to the end of the last word."""
    dense: Array = np.ascontiguousarray(array).reshape(-1)
    if dense.nbytes % 4:
        dense = np.append(dense, dense.dtype.type(0))
    return dense.view(np.uint32)
