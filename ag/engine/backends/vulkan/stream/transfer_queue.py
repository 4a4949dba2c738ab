"""Uploads beside launches: cards have engines that only copy, and a queue of their own for these.

In the queue for launches a copy waits for all that was started before.  Beside it, the next batch of data arrives while
a step computes.  For example, where a step takes 5 ms and its batch 2 ms on the link::

    one queue     copy 1   step 1        copy 2   step 2               14 ms for two steps
    two queues    copy 1   step 1                 step 2               12 ms
                           copy 2

Two queues need an order.  Whatever is started in the one for launches runs after all uploads that were started before:
the driver holds it until then (`Timeline` in third_party/kp).  The other way round nothing waits, so an upload goes
this way only while no launch on its way touches the words: the recorder looks, and every chunk looks again.

An interrupt may come anywhere, and a signal's handler may upload in the middle of an upload.  So a chunk is taken by
one operation, and put back by one: whoever takes it next waits until the device has fetched it.  One that an interrupt
loses in between is missed by nobody: with none left, uploads go the usual way.  Knows addresses in the arena, and no
buffer and no launch; the recorder calls it.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from ag.engine.arena import OFFSET_MASK
from ag.engine.backends.vulkan.kp_types import Manager, Sequence, Tensor, Words
from ag.engine.backends.vulkan.loader import kompute
from ag.engine.backends.vulkan.stream.hazards import Range

__all__ = ["CHUNK_BYTES", "TransferQueue", "staging"]

CHUNK_BYTES = 4 << 20  # of a transfer, which the host and the device work on at a time
_CHUNKS = 4
_ANYWHERE = 1 << 64  # behind every address
_QUEUE = 1  # of a manager that has two


def staging(manager: Manager, nbytes: int) -> tuple[Tensor, Words]:
    """Memory of the host that the device reads and writes, and a view of it."""
    tensor = manager.tensor_t(np.zeros(nbytes // 4, np.uint32), kompute().TensorTypes.host)
    return tensor, tensor.data()


class _Chunk:
    """The command buffer of a copy, which goes first and waits for it, the staging memory, a view of that, and the
    words that it writes, or is about to write.
    """

    def __init__(self, sequence: Sequence, tensor: Tensor, view: Words) -> None:
        self.sequence, self.tensor, self.view = sequence, tensor, view
        self.writes: Range = (0, 0)


class _Changing(Protocol):
    """What counts whatever is recorded or played in the queue for launches, or is to go beside them."""

    changes: int


class TransferQueue:
    """The queue for uploads of one device; where there is none, it takes nothing.

    Parameters
    ----------
    manager : kp.Manager
    """

    def __init__(self, manager: Manager) -> None:
        count = _CHUNKS if manager.transfers_apart() else 0
        self._chunks = tuple(_Chunk(manager.sequence(_QUEUE), *staging(manager, CHUNK_BYTES)) for _ in range(count))
        self._turns = deque(self._chunks)

    def upload(self, address: int, words: Words, segment: Tensor, launches: _Changing, changes: int) -> int:
        """Start copying words to an address in a segment; waits for the chunks that it needs.

        Parameters
        ----------
        address : int
        words : (n,) array of uint32
        segment : kp.Tensor
        launches : Recorder
        changes : int
            Its count, when no launch on its way touched the words.

        Returns
        -------
        int
            How many words are on their way, from the first: fewer than `n` if there is no chunk, or a signal's handler
            has recorded or uploaded something.

        Raises
        ------
        kp.OutOfMemoryError, kp.Error
        """
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
                # Python does not look for signals between these two lines, so no handler records anything there.
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
        """Whether there is such a queue."""
        return bool(self._chunks)

    @property
    def busy(self) -> bool:
        """Whether an upload was not waited for."""
        return any(chunk.sequence.is_running() for chunk in self._chunks)

    def touches(self, start: int, end: int) -> bool:
        """Whether an upload that was not waited for writes between these addresses."""
        return any(chunk.sequence.is_running() for chunk in self._writing(start, end))

    def wait(self, start: int = 0, end: int = _ANYWHERE) -> None:
        """Have the uploads end that write between these addresses.

        Raises
        ------
        kp.OutOfMemoryError, kp.Error
        """
        for chunk in self._writing(start, end):
            chunk.sequence.eval_await()

    def _writing(self, start: int, end: int) -> list[_Chunk]:
        return [chunk for chunk in self._chunks if chunk.writes[0] < end and start < chunk.writes[1]]
