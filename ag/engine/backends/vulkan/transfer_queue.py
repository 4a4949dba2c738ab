"""Upload in a card's queue for copies, beside launches: the next batch of data arrives while a step computes.

Launches wait for all earlier uploads (`Timeline` in third_party/kp), uploads for no launch: they go this way only while
no launch in flight touches their words.  A signal's handler may launch at any time, so every chunk checks that anew.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ag.engine.arena import OFFSET_MASK
from ag.engine.backends.vulkan.kp import Manager, Sequence, Tensor, Words, kompute

CHUNK_BYTES = 4 << 20  # of a transfer; the host fills one while the device copies another
_CHUNKS = 4
_ANYWHERE = 1 << 64  # above every address
_QUEUE = 1  # of a manager that has two


def staging(manager: Manager, nbytes: int) -> tuple[Tensor, Words]:
    """Return host memory that the device reads and writes, and a view of it."""
    tensor = manager.tensor_t(np.zeros(nbytes // 4, np.uint32), kompute().TensorTypes.host)
    return tensor, tensor.data()


@dataclass(eq=False)
class _Chunk:
    sequence: Sequence
    tensor: Tensor
    view: Words
    writes: tuple[int, int] = (0, 0)  # also before it starts


class _Changing(Protocol):
    changes: int  # grows with each command and sequence in the queue for launches, and each upload beside it


class TransferQueue:
    """Upload in a second queue; upload nothing on a device without one."""

    def __init__(self, manager: Manager) -> None:
        count = _CHUNKS if manager.transfers_apart() else 0
        self._chunks = tuple(_Chunk(manager.sequence(_QUEUE), *staging(manager, CHUNK_BYTES)) for _ in range(count))
        self._turns = deque(self._chunks)

    def upload(self, address: int, words: Words, segment: Tensor, launches: _Changing, changes: int) -> int:
        """Start copying words, which no launch touched at `changes`; return how many, fewer if a handler meddled."""
        start, begin = 0, address
        while start < words.size and self._turns:
            chunk = self._turns.popleft()
            sequence = chunk.sequence
            try:
                sequence.eval_await()
                some = words[start : start + chunk.view.size]
                chunk.writes = begin, begin + some.nbytes
                chunk.view[: some.size] = some
                sequence.clear()
                sequence.copy(chunk.tensor, segment, 0, begin & OFFSET_MASK, some.nbytes, False, False)
                # Python runs no signal handler between these two lines.
                if launches.changes == changes:
                    sequence.eval_async_after([])
                else:
                    return start
            finally:
                self._turns.append(chunk)
            start += some.size
            begin += some.nbytes
        return start

    @property
    def apart(self) -> bool:
        return bool(self._chunks)

    @property
    def busy(self) -> bool:
        return any(chunk.sequence.is_running() for chunk in self._chunks)

    def touches(self, start: int, end: int) -> bool:
        return any(chunk.sequence.is_running() for chunk in self._writing(start, end))

    def wait(self, start: int = 0, end: int = _ANYWHERE) -> None:
        for chunk in self._writing(start, end):
            chunk.sequence.eval_await()

    def forget(self) -> None:
        """Let go of the segments of past uploads, which were waited for."""
        for chunk in self._chunks:
            chunk.sequence.clear()

    def _writing(self, start: int, end: int) -> list[_Chunk]:
        return [chunk for chunk in self._chunks if chunk.writes[0] < end and start < chunk.writes[1]]
