"""Move words between the host and a device's arena, through staging memory or directly.

A signal's handler may use the device at any time, so one assignment takes a chunk's room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np

from ag.engine.arena import OFFSET_BITS, OFFSET_MASK, Arena, Block
from ag.engine.backends.vulkan.kp import Manager, Tensor, Words
from ag.engine.backends.vulkan.stream import Check, Command, Copy, Range, Recorded, Recorder
from ag.engine.backends.vulkan.transfer_queue import CHUNK_BYTES, staging
from ag.engine.primitive import Array
from ag.errors import ArenaError

_CHUNKS, _LANDINGS = 4, 2
_KEPT_BYTES = 1 << 20  # of the largest input with its own staging memory
_LOOKED_THROUGH = 1 << 20  # bytes; fewer are staged faster than commands in flight are searched
# Bytes that the host itself writes over a bus.  On an H100 a core stores 11 to 16 GB/s, and chunks bring 5 to 9 GB/s;
# of 64 MiB it is 11 against 8, and more would occupy a core for long.
_OVER_A_BUS = 16 << 20
_ORIGINS = 16  # sets of sources of a program's inputs that are kept
# Bytes of the smallest copy by a launch: on an H100 it moves 2,540 GB/s where copies do 850, but it starts later.
_LAUNCHED = 1 << 20
_PLACES, _AT_ONCE = 8, 3  # of a program's results: targets that are kept, and copies to each


@dataclass(eq=False)
class _Landing:
    tensor: Tensor
    view: Words
    place: Range  # for the hazard tracker: below all addresses of the arena
    filled_for: _Piece | None = None


class _Piece(NamedTuple):
    start: int
    words: int
    landing: _Landing


@dataclass(eq=False)
class Place:
    block: Block
    tensor: Tensor
    start: int
    array: Array  # a view of the memory


class Transfers:
    """Transfers of a device of this `kind`; `launched` makes the launch that copies bytes between arena addresses."""

    def __init__(self, manager: Manager, recorder: Recorder, segments: list[tuple[int, Tensor]], kind: str,
                 launched: Callable[[int, int, int], Command]) -> None:
        self._manager, self._recorder, self._segments = manager, recorder, segments
        made = partial(staging, manager)  # a method would form a cycle with the arena below
        # Allocated now, so that results can be read when memory has run out.
        self._landings = [_Landing(*made(CHUNK_BYTES), (-(k + 1) * CHUNK_BYTES, -k * CHUNK_BYTES))
                          for k in range(_LANDINGS)]
        self._chunks = [made(CHUNK_BYTES) for _ in range(_CHUNKS)]
        self._kept = Arena(made, first_bytes=_KEPT_BYTES, max_segment_bytes=CHUNK_BYTES)
        self._room = (0, 0)  # the chunk in use, and its used words
        self._most_written = inf if kind in ("integrated", "cpu") else _OVER_A_BUS  # bytes, by the host itself
        self._launched = None if kind == "cpu" else launched
        self._seen: dict[int, tuple[Words | None, bool]] = {}  # by segment: the host's view, and whether it is cached

    def _sees(self, address: int) -> tuple[Words | None, bool]:
        """Return the host's view of an address's segment, if any, and whether the processor caches reads of it."""
        if self._recorder.lost or address & 3:  # staged, a transfer of a lost device is an error
            return None, False
        number = address >> OFFSET_BITS
        if number not in self._seen:
            mapped, cached = self._manager.host_access(segment := self._segments[number][1])
            self._seen[number] = segment.data() if mapped else None, cached
        return self._seen[number]

    def _write(self, address: int, words: Words) -> bool:
        """Write to memory that the host sees; False, without effect, if a command in flight touches these words."""
        view, _ = self._sees(address)
        recorder = self._recorder
        looks = recorder.idle or words.nbytes >= _LOOKED_THROUGH
        if view is None or not looks or words.nbytes > self._most_written:
            return False
        changes, at = recorder.changes, (address & OFFSET_MASK) >> 2
        end, free = at + words.size, not recorder.touches(address, address + words.nbytes)
        # Python runs no signal handler between these two lines.
        if free and recorder.changes == changes:
            view[at:end] = words
            return True
        return False

    def upload(self, address: int, words: Words) -> None:
        """Copy host words to an arena address; wait only for the chunks that it needs."""
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
            self._recorder.record(Copy(tensor, self._segment(begin), (4 * at, begin & OFFSET_MASK, 4 * count), [],
                                       [(begin, begin + 4 * count)]))
            start += count
            if start < words.size:
                self._recorder.submit()

    def _staging_room(self, wanted: int) -> tuple[int, int, int]:
        """Take room: a chunk, the first of its unused words, and their count."""
        capacity = CHUNK_BYTES // 4
        while True:
            before = self._room
            chunk, used = before
            if used >= capacity:
                chunk, used = (chunk + 1) % _CHUNKS, 0
                self._recorder.wait_for_users(self._chunks[chunk][0])
            count = min(wanted, capacity - used)
            after = chunk, used + count
            if self._room is before:  # else a signal's handler has taken the room
                self._room = after
                return chunk, used, count

    def assign(self, target: int, source: int, nbytes: int) -> None:
        self._recorder.record(self.to_arena(source, target, nbytes))

    def download(self, address: int, count: int) -> Words:
        view, quickly = self._sees(address)
        at = (address & OFFSET_MASK) >> 2
        while view is not None and quickly:
            # A submission waits for uploads, and raises if the device was lost.
            if self._recorder.idle or self._recorder.beside.busy:
                self._recorder.record(Check([], []))
            changes = self._recorder.changes
            self._recorder.wait()
            copied = view[at : at + count].copy()
            if self._recorder.changes == changes:  # else a signal's handler has recorded something
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
            else:  # a signal's handler has used the landing place
                self._land(piece, address)
        return result

    def _land(self, piece: _Piece, address: int) -> None:
        piece.landing.filled_for = piece
        begin, nbytes = address + 4 * piece.start, 4 * piece.words
        self._recorder.record(Copy(self._segment(begin), piece.landing.tensor, (begin & OFFSET_MASK, 0, nbytes),
                                   [(begin, begin + nbytes)], [piece.landing.place], host=True))
        self._recorder.submit()

    def forget(self) -> None:
        """Let go of all segments; those that are there are seen anew."""
        self._seen.clear()

    def place(self, like: Array) -> Place | None:
        """Allocate staging memory for an array; None if there is no room."""
        try:
            block = self._kept.alloc(like.nbytes)
        except ArenaError:
            return None
        tensor, view = self._kept.segments[block.segment][1]
        start = block.offset
        array = view.view(np.uint8)[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
        return Place(block, tensor, start, array)

    def to_arena(self, source: int | Place, target: int, nbytes: int) -> Command | Copy:
        """Return a copy to an arena address, from a place or another address: on a card, a launch where it is large."""
        if isinstance(source, Place):
            return Copy(source.tensor, self._segment(target), (source.start, target & OFFSET_MASK, nbytes), [],
                        [(target, target + nbytes)])
        if self._launched is not None and nbytes >= _LAUNCHED:
            return self._launched(source, target, nbytes)
        region = (source & OFFSET_MASK, target & OFFSET_MASK, nbytes)
        return Copy(self._segment(source), self._segment(target), region, [(source, source + nbytes)],
                    [(target, target + nbytes)])

    def _segment(self, address: int) -> Tensor:
        return self._segments[address >> OFFSET_BITS][1]


class Inputs:
    """Copy a program's inputs to where it reads them; recorded once per set of sources, as that takes half a step."""

    def __init__(self) -> None:
        self._places: dict[int, Place | None] = {}  # by target
        self._recorded: dict[tuple[int | Place, ...], list[Recorded]] = {}  # by all sources

    def fill(self, given: list[tuple[int, int, Array | int]], transfers: Transfers,
             recorder: Recorder) -> list[Recorded]:
        """Return the sequences to play before the program, which must not run; given are (target, bytes, source)."""
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
                [transfers.to_arena(source, *to) for source, to in zip(sources, copied, strict=True)], old)
        return recorded


class Results:
    """Copy a program's results; the copies are recorded once per target, up to three each, as one may still run."""

    def __init__(self) -> None:
        self._recorded: dict[tuple[int, int, int], list[Recorded]] = {}  # by target, source and size

    def copy(self, target: int, source: int, nbytes: int, transfers: Transfers, recorder: Recorder) -> None:
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
                built += recorder.build_all([transfers.to_arena(source, target, nbytes)])
                recorder.enqueue(built[-1:])
                return
        transfers.assign(target, source, nbytes)


def whole_words(array: Array) -> Words:
    dense: Array = np.ascontiguousarray(array).reshape(-1)
    if dense.nbytes % 4:
        dense = np.append(dense, dense.dtype.type(0))
    return dense.view(np.uint32)
