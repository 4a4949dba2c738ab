"""The CPU backend with kernels in C: a primitive that has one runs in C, every other one in numpy.

A launch of a kernel is a row of words, which the library runs; a program joins the rows of neighbouring launches, so
that a step whose primitives all have kernels is one call, during which other threads have Python for themselves.  Which
primitives these are, `ag.engine.backends.cpu.library` knows; `ag.engine.backends.cpu` makes the devices.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import groupby

from ag.engine.arena import OFFSET_BITS
from ag.engine.backends.cpu.backend import NumpyBackend, NumpyProgram, quiet
from ag.engine.backends.cpu.library import Library
from ag.engine.buffer import Buffer
from ag.engine.primitive import Call, Params, Primitive
from ag.engine.program import Given, Launch, Program

__all__ = ["NativeBackend"]

_NOTHING = nullcontext()


class NativeProgram(NumpyProgram):
    """Launches in as few calls as possible."""

    def __init__(self, backend: NativeBackend, launches: list[Launch]) -> None:
        super().__init__(backend, launches)
        self._runs: list[Call] = []
        rows = [(call, backend.words(x.primitive, x.buffers, x.params))
                for x, call in zip(launches, self._calls, strict=True)]
        for in_c, group in groupby(rows, lambda row: row[1] is not None):
            if in_c:
                found = [row for _, row in group if row is not None]
                words = b"".join(row for row, _ in found)
                self._runs.append(partial(backend.run, words, len(found), sum(work for _, work in found)))
            else:
                self._runs.append(partial(quietly, [call for call, _ in group]))

    def run(self, given: Given = ()) -> None:
        """Make all launches again, one by one where they are timed."""
        if self._backend.settings.events is not None:
            super().run(given)
            return
        self._backend.put(given)
        for call in self._runs:
            call()

    def close(self) -> None:
        """Forget calls and buffers."""
        self._runs.clear()
        super().close()


class NativeBackend(NumpyBackend):
    """A CPU device with kernels in C.

    Parameters
    ----------
    kernels : Library
    index, guard, limit_bytes
        As of `NumpyBackend`.
    """

    def __init__(self, kernels: Library, index: int = 0, *, guard: int = 0, limit_bytes: int | None = None) -> None:
        super().__init__(index, guard=guard, limit_bytes=limit_bytes)
        self.run, self._kernels = kernels.run, kernels.kernels
        self._starts: list[int] = []  # by segment: what makes a pointer of an address

    def words(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> tuple[bytes, int] | None:
        """A launch as words, and how much work it is; None if there is no kernel for it."""
        kernel = self._kernels.get(primitive.name)
        if kernel is None:
            return None
        key: list[object] = []
        for b in buffers:  # not in two comprehensions: every launch of a small step feels them
            if b.backend is not self:
                self.check_operands(primitive, buffers)  # whose addresses mean other memory here
            key += b.shape, b.dtype
        plan = kernel.plan(key, primitive, buffers, params)
        if plan is None:
            return None
        try:
            starts = self._starts
            pointers = [b.address + starts[b.address >> OFFSET_BITS] for b in buffers]
        except IndexError:  # of a new segment; other threads may be here, too, so the list is made anew, not added to
            self._starts = starts = [memory.ctypes.data - (number << OFFSET_BITS)
                                     for number, (_, memory) in enumerate(self.arena.segments)]
            pointers = [b.address + starts[b.address >> OFFSET_BITS] for b in buffers]
        return plan.pack(*pointers) + plan.tail, plan.work

    def call(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> Call:
        found = self.words(primitive, buffers, params)
        return super().call(primitive, buffers, params) if found is None else partial(self.run, found[0], 1, found[1])

    def _run(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> None:
        found = self.words(primitive, buffers, params)
        if found is None:
            with quiet():
                super()._run(primitive, buffers, params)
        elif self.settings.events is None:
            self.run(found[0], 1, found[1])
        else:
            self.timed(primitive, partial(self.run, found[0], 1, found[1]))

    def quiet(self) -> AbstractContextManager[object]:
        return _NOTHING  # kernels warn of nothing, and what runs in numpy is quiet by itself

    def program(self, launches: list[Launch]) -> Program:
        return NativeProgram(self, launches)


def quietly(calls: list[Call]) -> None:
    """Make calls without warnings of infinities and NaN."""
    with quiet():
        for call in calls:
            call()
