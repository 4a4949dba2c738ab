"""The CPU backend with kernels in C: what has one runs there, everything else in numpy.

A launch of a kernel is a row of words, which the library runs; a program joins the rows of neighbouring launches, so
that a step whose primitives all have kernels is one call, during which other threads have Python for themselves.  Which
primitives these are, `ag.engine.backends.cpu.library` knows; `ag.engine.backends.cpu` makes the devices.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import groupby

from ag.engine.arena import OFFSET_BITS
from ag.engine.backends.cpu.backend import NumpyBackend, quiet
from ag.engine.backends.cpu.library import Library
from ag.engine.buffer import Buffer
from ag.engine.primitive import Call, Params, Primitive
from ag.engine.program import Launch, Program, held_bytes

__all__ = ["NativeBackend"]

_NOTHING = nullcontext()


class NativeProgram:
    """Launches in as few calls as possible; they keep their buffers alive."""

    def __init__(self, backend: NativeBackend, launches: list[Launch]) -> None:
        self._backend = backend
        self._launches = launches
        self._calls: list[Call] = []  # of single launches, to time them; made when they are
        self._runs: list[Call] = []
        rows = [(launch, backend.words(launch.primitive, launch.buffers, launch.params)) for launch in launches]
        for in_c, group in groupby(rows, lambda row: row[1] is not None):
            if in_c:
                found = [row for _, row in group if row is not None]
                words = b"".join(row for row, _ in found)
                self._runs.append(partial(backend.run, words, len(found), sum(work for _, work in found)))
            else:
                calls = [backend.in_numpy(x.primitive, x.buffers, x.params) for x, _ in group]
                self._runs.append(partial(quietly, calls))

    @property
    def launches(self) -> int:
        """Number of launches in one run."""
        return len(self._launches)

    @property
    def nbytes(self) -> int:
        """Arena bytes of all blocks held."""
        return held_bytes(self._launches)

    def run(self) -> None:
        """Make all launches again."""
        if self._backend.settings.events is None:
            for call in self._runs:
                call()
            return
        if not self._calls:
            self._calls = [self._backend.call(x.primitive, x.buffers, x.params) for x in self._launches]
        for launch, call in zip(self._launches, self._calls, strict=True):
            self._backend.timed(launch.primitive, call)

    def close(self) -> None:
        """Forget calls and buffers."""
        self._calls.clear()
        self._runs.clear()
        self._launches.clear()


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
        plan = None if kernel is None else kernel.plan(primitive, buffers, params)
        if plan is None:
            return None
        starts = self._starts
        try:
            pointers = [b.address + starts[b.address >> OFFSET_BITS] for b in buffers]
        except IndexError:
            for number in range(len(starts), len(self.arena.segments)):
                starts.append(self.arena.segments[number][1].ctypes.data - (number << OFFSET_BITS))
            pointers = [b.address + starts[b.address >> OFFSET_BITS] for b in buffers]
        return plan.pack(*pointers) + plan.tail, plan.work

    def call(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> Call:
        """A launch, to be made many times."""
        found = self.words(primitive, buffers, params)
        if found is None:
            return partial(quietly, [self.in_numpy(primitive, buffers, params)])
        return partial(self.run, found[0], 1, found[1])

    def in_numpy(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> Call:
        """A launch by the reference, to be made many times."""
        return primitive.bind(*[b.native for b in buffers], **params)

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
