"""Words between the host and a device's arena, by way of staging memory, which both can read and write.

Knows addresses in the arena; no buffer and no primitive.  The Vulkan backend calls it; the recorder starts the copies.

A large transfer goes in chunks, so that the host and the device work at the same time.  Uploading 16 MiB in chunks of
4, where the host copies a chunk in 1 ms and the device takes 1 ms to fetch one, takes 5 ms instead of 8::

    host     write 1   write 2   write 3   write 4
    device             fetch 1   fetch 2   fetch 3   fetch 4

A chunk is submitted as soon as it is full, and written again once it was fetched: there are four, used in turn.  On the
way down there are two landing places: the device fills one while the host reads the other.

An interrupt may come anywhere, and a signal's handler may use the device in the middle of a call.  So a chunk's room is
taken by one assignment, and a landing place says what it was last filled for: where that is something else when the
host reads it, the piece is fetched once more.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from ag.engine.arena import OFFSET_BITS
from ag.engine.backends.vulkan.commands import Copy
from ag.engine.backends.vulkan.hazards import Range
from ag.engine.backends.vulkan.kp_types import Manager, Tensor, Words
from ag.engine.backends.vulkan.loader import kompute
from ag.engine.backends.vulkan.recorder import Recorder

__all__ = ["Transfers"]

_CHUNK_BYTES = 4 << 20
_CHUNKS, _LANDINGS = 4, 2
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


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


class Transfers:
    """Transfers of one device.

    Parameters
    ----------
    manager : kp.Manager
    recorder : Recorder
        Of the same device.
    segments : list of (int, kp.Tensor)
        The arena's segments.
    """

    def __init__(self, manager: Manager, recorder: Recorder, segments: list[tuple[int, Tensor]]) -> None:
        self._manager = manager
        self._recorder = recorder
        self._segments = segments
        self._kp = kompute()
        # Staging memory, and views of it: made now, so that whoever runs out of memory can still read results.
        self._landings = [_Landing(*self._host_tensor(), (-(k + 1) * _CHUNK_BYTES, -k * _CHUNK_BYTES))
                          for k in range(_LANDINGS)]
        self._chunks = [self._host_tensor() for _ in range(_CHUNKS)]
        self._room = (0, 0)  # the chunk in use, and how much of it is

    def upload(self, address: int, words: Words) -> None:
        """Copy host words to an arena address; does not wait for the device but for the chunk that it needs."""
        start = 0
        while start < words.size:
            chunk, at, count = self._staging_room(words.size - start)
            tensor, view = self._chunks[chunk]
            view[at : at + count] = words[start : start + count]
            begin = address + 4 * start
            self._copy(tensor, self._segment(begin), (4 * at, begin & _OFFSET_MASK, 4 * count),
                       [], [(begin, begin + 4 * count)])
            start += count
            if start < words.size:
                self._recorder.submit()

    def _staging_room(self, wanted: int) -> tuple[int, int, int]:
        """A chunk, where its unused words begin, and how many of them are the caller's."""
        capacity = _CHUNK_BYTES // 4
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
        region = (source & _OFFSET_MASK, target & _OFFSET_MASK, 4 * count)
        self._copy(self._segment(source), self._segment(target), region,
                   [(source, source + 4 * count)], [(target, target + 4 * count)])

    def download(self, address: int, count: int) -> Words:
        """Words at an arena address; waits."""
        result = np.empty(count, np.uint32)
        size = _CHUNK_BYTES // 4
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
        self._copy(self._segment(begin), piece.landing.tensor, (begin & _OFFSET_MASK, 0, nbytes),
                   [(begin, begin + nbytes)], [piece.landing.place], to_host=True)
        self._recorder.submit()

    def _copy(self, source: Tensor, target: Tensor, region: tuple[int, int, int], reads: list[Range],
              writes: list[Range], to_host: bool = False) -> None:
        host = self._kp.OpBarrier if to_host else None
        self._recorder.record(Copy(self._kp.OpCopy, source, target, region, reads, writes, host))

    def _segment(self, address: int) -> Tensor:
        return self._segments[address >> OFFSET_BITS][1]

    def _host_tensor(self) -> tuple[Tensor, Words]:
        tensor = self._manager.tensor_t(np.zeros(_CHUNK_BYTES // 4, np.uint32), self._kp.TensorTypes.host)
        return tensor, tensor.data()
