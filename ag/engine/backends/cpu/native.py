"""Run primitives in C where they have a kernel, and the others in numpy.

Neighbouring launches of a program are one call, during which other threads have Python for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy as copy_of
from functools import partial
from itertools import groupby

from ag.engine.arena import OFFSET_BITS, Block
from ag.engine.backends.cpu.backend import NumpyBackend, NumpyProgram, quietly
from ag.engine.backends.cpu.library import PLANS_KEPT, SHARED_FROM, Kernel, Library, Plan, Ready
from ag.engine.buffer import Buffer, note_written
from ag.engine.kernels.elementwise import copy
from ag.engine.primitive import PRIMITIVES, Call, Params, Primitive
from ag.engine.program import Given, Launch, Program
from ag.engine.shape import nbytes_of
from ag.native import code as _code

_HELD = 1 << 16  # work of a program during which Python's lock is held: some ten microseconds


class NativeProgram(NumpyProgram):
    """Launches in as few calls as possible."""

    def __init__(self, backend: NativeBackend, launches: list[Launch]) -> None:
        super().__init__(backend, launches)
        self.quick_copy = partial(backend.launch, copy)
        self._runs: list[Call] = []
        # rows have addresses, and another thread may close the device meanwhile
        self._memory = [backend.arena.segments[number][1]
                        for number in {b.address >> OFFSET_BITS for x in launches for b in x.buffers}]
        rows = [(call, backend.words(x.primitive, x.buffers, x.params))
                for x, call in zip(launches, self._calls, strict=True)]
        for in_c, group in groupby(rows, lambda row: row[1] is not None):
            if in_c:
                found = [row for _, row in group if row is not None]
                words = b"".join(row for row, _ in found)
                self._runs.append(partial(backend.run, words, len(found), sum(work for _, work in found)))
                if len(found) == len(rows):
                    backend.compile_run(self, words, [work for _, work in found])
            else:
                self._runs.append(partial(quietly, [call for call, _ in group]))

    def run(self, given: Given = ()) -> None:
        """Make all launches again, one by one where they are timed."""
        if self._backend.settings.events is not None:
            super().run(given)
            return
        self._backend.check_open()
        self._backend.put(given)
        for call in self._runs:
            call()

    def close(self) -> None:
        vars(self).pop("run", None)
        self._runs.clear()
        super().close()


class NativeBackend(NumpyBackend):
    def __init__(self, kernels: Library, index: int = 0, *, guard: int = 0, limit_bytes: int | None = None) -> None:
        super().__init__(index, guard=guard, limit_bytes=limit_bytes)
        self.run, self.launch_briefly, self._kernels = kernels.run, kernels.launch_briefly, kernels.kernels
        self._library = kernels
        self.halves = kernels.halves
        self.starts: list[int] = []  # by segment: what makes a pointer of an address
        if _code is not None and kernels.launch_at and not guard and type(self).launch is NativeBackend.launch:
            setattr(self, "launch", self._compiled_launch(self.launch, kernels))  # noqa: B010 - in the place of the method

    def _compiled_launch(self, launch: Callable[..., object], kernels: Library) -> object:
        return _code.Launch(self, _table(self._kernels), self.settings, launch, note_written, Buffer, Block,
                            OFFSET_BITS, kernels.launch_at, self._run_shared, tuple, (), self._prepare)

    def compile_run(self, program: NativeProgram, words: bytes, work: list[int]) -> None:
        """Let compiled code run a program of small launches, whose rows these are; else it calls `run`."""
        run_at = self._library.run_at
        if _code is not None and isinstance(self.launch, _code.Launch) and run_at and (
                max(work) < SHARED_FROM and sum(work) < _HELD):
            slowly = copy_of(program).run  # of the same lists, as a program that holds its own method dies late
            quick = _code.Run(self.launch, slowly, words, len(work), run_at)
            setattr(program, "run", quick)  # noqa: B010 - in the place of the method

    def close(self) -> None:
        super().close()
        self.starts = []  # of memory that may be gone

    def memory(self) -> list[object]:
        """Return the memory, to be held while its addresses are in use."""
        return [memory for _, memory in self.arena.segments]

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
        plan = kernel.plan(key, primitive, params)
        return None if plan is None else (self._row(plan, buffers), plan.work)

    def _row(self, plan: Plan, buffers: tuple[Buffer, ...]) -> bytes:
        """The words of a planned launch on these buffers."""
        starts, pointers = self.starts, []
        try:
            for b in buffers:
                pointers.append(b.address + starts[b.address >> OFFSET_BITS])
        except IndexError:  # of a new segment; other threads may be here, too, so the list is made anew, not added to
            self.check_open()
            self._find_starts()
            return self._row(plan, buffers)
        return plan.pack(*pointers) + plan.tail

    def _find_starts(self) -> None:
        self.starts = [0 if memory is None else memory.ctypes.data - (number << OFFSET_BITS)
                       for number, (_, memory) in enumerate(self.arena.segments)]

    def _prepare(self, primitive: Primitive, key: tuple[object, ...], operands: tuple[Buffer, ...],
                 params: dict[str, object]) -> Ready | None:
        """Plan a launch for compiled code, which finds it by `key`; None if Python is to make it."""
        kernel = self._kernels[primitive.name]
        if len(kernel.key_of(primitive, params)) > len(params):
            return None  # `key` does not tell such parameters apart
        if len(self.starts) < len(self.arena.segments):
            self._find_starts()
        shape = primitive.shape(*[b.shape for b in operands], **params)
        kind, rule = operands[0].dtype, primitive.dtype
        dtype = rule(**params) if rule is not None else kind if primitive.moves else kind.wide
        plan = kernel.plan([shape, dtype, *[x for b in operands for x in (b.shape, b.dtype)]], primitive, params)
        if len(kernel.ready) >= PLANS_KEPT:
            kernel.ready.clear()
        ready = None
        if plan is not None:
            row = plan.pack(*[0] * (1 + len(operands))) + plan.tail
            ready = Ready(nbytes_of(shape, dtype), shape, dtype, row)
        kernel.ready[key] = ready
        return ready

    def _run_shared(self, row: bytes) -> None:
        memory = self.memory()
        self.run(row, 1, SHARED_FROM)
        del memory

    def call(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> Call:
        found = self.words(primitive, buffers, params)
        return super().call(primitive, buffers, params) if found is None else partial(self.run, found[0], 1, found[1])

    def _run(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> None:
        memory = self.memory()
        found = self.words(primitive, buffers, params)
        if found is None:
            super()._run(primitive, buffers, params)
        elif self.settings.events is not None:
            self.timed(primitive, partial(self.run, found[0], 1, found[1]))
        else:
            row, work = found
            if work < SHARED_FROM:
                self.launch_briefly(row)
            else:
                self.run(row, 1, work)
        del memory

    def program(self, launches: list[Launch]) -> Program:
        return NativeProgram(self, launches)


def _table(kernels: Mapping[str, Kernel]) -> dict[str, tuple[dict[object, Ready | None], tuple[str, ...]]]:
    """List by name the primitives that compiled code may launch."""
    known = {name: PRIMITIVES[name] for name in kernels}
    return {name: (kernels[name].ready, p.params) for name, p in known.items()
            if p.outputs == 1 and not p.updates and "chain" not in p.params}
