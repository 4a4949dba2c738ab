"""Run primitives by their numpy references; `native` adds kernels in C.

Arrays are views into the arena's segments, so offsets and lifetimes are exercised as on a GPU.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import lru_cache, partial
from pathlib import Path
from threading import get_ident
from time import monotonic, perf_counter_ns, sleep
from typing import Any

import numpy as np

from ag.engine.arena import OFFSET_BITS, OFFSET_MASK, Arena, Block, after_fork
from ag.engine.backend import Backend, DeviceInfo, Event, Finding, closed
from ag.engine.backends.cpu.library import found, library
from ag.engine.buffer import Buffer, note_written, settle
from ag.engine.cpu_threads import one_by_one, overwrite
from ag.engine.dtype import BF16, BOOL, F16, F32, F64, I32, U32, DType
from ag.engine.interpreter import recording_here
from ag.engine.kernels.convert import compute_in_float32, computes_in_halves, loaded, stored
from ag.engine.primitive import Array, Call, Params, Primitive
from ag.engine.program import Given, Launch, Program, before_host
from ag.engine.shape import Shape
from ag.engine.target import Target

_ALIGN = 64  # bytes: a cache line, and the widest vector load
_NUMPY = {d: np.dtype(d.numpy_name) for d in (F16, BF16, F32, F64, I32, U32, BOOL)}


_under_way: dict[int, quiet] = {}  # by thread, what numpy is doing for it
_ENDS_S = 10.0  # how long a device that is closed waits for them
after_fork(_under_way.clear)


class quiet(np.errstate):  # noqa: N801 - as numpy's own
    """Around numpy's work for a launch: infinities and NaN are values, as on every other device."""

    def __init__(self) -> None:
        super().__init__(all="ignore")

    def __enter__(self) -> None:
        _under_way[get_ident()] = self
        super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _under_way.pop(get_ident(), None)


def quietly(calls: list[Call]) -> None:
    with quiet():
        one_by_one(calls)


def _wait_for_others() -> None:
    """Wait for what numpy does for other live threads: a process that ends while BLAS computes crashes."""
    there = {*sys._current_frames()}
    others = [item for item in _under_way.copy().items() if item[0] != get_ident() and item[0] in there]
    end = monotonic() + _ENDS_S
    while any(_under_way.get(thread) is work for thread, work in others) and monotonic() < end:
        sleep(0.0005)


def _memory(nbytes: int) -> Array:
    raw = np.zeros(nbytes + _ALIGN, np.uint8)  # zeros: pages are touched only when used
    skip = -raw.ctypes.data % _ALIGN
    return raw[skip : skip + nbytes]


_SYSTEM = Path("/proc/meminfo")  # of Linux


def _spare() -> int:
    return next(int(line.split()[1]) << 10 for line in _SYSTEM.read_text().splitlines() if "MemAvailable" in line)


@lru_cache(maxsize=1)
def _processor() -> str:
    """The processor's product name; Linux tells it in this file, and `platform` often nowhere."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def software() -> str:
    kernels = library()
    with_kernels = "" if kernels is None else f"kernels for {platform.machine()}{kernels.level.replace('.', '-')}, "
    return f"{with_kernels}numpy {np.__version__}"


def device_info(name: str) -> DeviceInfo:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return DeviceInfo(name, _processor(), platform.machine(), software(), "cpu", memory, ("float64",))


class NumpyProgram(Program):
    def __init__(self, backend: NumpyBackend, launches: list[Launch]) -> None:
        super().__init__(launches)
        self._backend = backend
        self._calls = [backend.call(x.primitive, x.buffers, x.params) for x in launches]

    def run(self, given: Given = ()) -> None:
        self._backend.check_open()
        self._backend.put(given)
        calls = self._calls
        if self._backend.settings.events is not None:
            calls = [partial(self._backend.timed, launch.primitive, call)
                     for launch, call in zip(self._launches, calls, strict=True)]
        quietly(calls)

    def copied(self, result: Buffer) -> Buffer:
        into = self._backend.alloc(result.shape, result.dtype)
        overwrite(into.native, result.native)
        return into

    def close(self) -> None:
        self._calls.clear()
        super().close()


class NumpyBackend(Backend):
    asynchronous = False
    # Smaller arrays are in the cache anyway; a product is a call of its own, whatever follows.
    target = Target(fuse_from=1 << 15, epilogues=False, sample_factor=1 << 17)
    dtypes = frozenset(_NUMPY)

    def __init__(self, index: int = 0, *, guard: int = 0, limit_bytes: int | None = None) -> None:
        self.name = "cpu" if index == 0 else f"cpu:{index}"
        self.info = device_info(self.name)
        self.arena = Arena(_memory, align=_ALIGN, guard=guard, limit_bytes=limit_bytes, name=self.name,
                           budget=_spare if _SYSTEM.is_file() else None)

    def native(self, address: int, shape: Shape, dtype: DType) -> Any:
        return np.ndarray(shape, _NUMPY[dtype], self._segment(address), address & OFFSET_MASK)

    def _segment(self, address: int) -> Array:
        """Return the memory in which an address lies; raise if another thread has closed the device."""
        try:
            memory: Array = self.arena.segments[address >> OFFSET_BITS][1]
        except IndexError:
            self.check_open()
            raise
        return memory

    def reached(self, buffer: Buffer) -> Buffer | None:
        """The same memory, as that of all CPU devices is the host's."""
        owner = buffer.backend
        if owner is self or not isinstance(owner, NumpyBackend):
            return super().reached(buffer)
        owner.check_open()
        address = self.arena.reach(owner.arena.segments[buffer.address >> OFFSET_BITS][1])
        address += buffer.address & OFFSET_MASK
        return Buffer(self, Block(address, buffer.block.nbytes), address, buffer.shape, buffer.dtype)

    def upload(self, array: Array, into: Buffer) -> None:
        if recording_here() is not None or type(into.block) is not Block:  # otherwise it would find nothing to do
            before_host(into)
        note_written(into)
        self._fill(into, array)

    def _fill(self, into: Buffer, array: Array) -> None:
        native = into.native
        if array.dtype == native.dtype and into.dtype not in (BF16, BOOL):
            overwrite(native, array)
        elif not into.dtype.is_float:
            native[...] = stored(array, into.dtype)
        else:
            with quiet():  # what is too large becomes infinite
                native[...] = array if into.dtype in (F32, F64) else stored(array, into.dtype)

    def copy(self, target: Buffer, source: Buffer) -> None:
        before_host(target, source)
        overwrite(target.native, source.native)

    def put(self, given: Given) -> None:
        """Put values into buffers of a program's own, of which nobody else has to know that they changed."""
        for target, value in given:
            if isinstance(value, Buffer):
                settle(value)
                overwrite(target.native, value.native)
            else:
                self._fill(target, value)

    def download(self, buffer: Buffer) -> Array:
        self.refuse_while_recording("reads a tensor on the host")
        before_host(buffer)
        return loaded(buffer.native.copy(), buffer.dtype)

    def look(self, buffer: Buffer) -> Array:
        if recording_here() is not None or type(buffer.block) is not Block:  # otherwise both would find nothing to do
            self.refuse_while_recording("reads a tensor on the host")
            before_host(buffer)
        memory: Array = buffer.native.view()
        memory.setflags(False)  # type: ignore[call-arg]  # write=False, in half the time
        return loaded(memory, buffer.dtype)

    def _run(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> None:
        call = NumpyBackend.call(self, primitive, buffers, params)
        with quiet():
            if self.settings.events is None:
                call()
            else:
                self.timed(primitive, call)

    def call(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> Call:
        arrays, dtypes = [b.native for b in buffers], [b.dtype for b in buffers]
        if computes_in_halves(primitive, dtypes):
            return partial(compute_in_float32, primitive, arrays, dtypes, params)
        return primitive.bind(*arrays, **params)

    def timed(self, primitive: Primitive, call: Call) -> None:
        begin = perf_counter_ns()
        call()
        if self.settings.events is not None:
            self.settings.events.append(Event(self.name, primitive.name, begin, perf_counter_ns()))

    def program(self, launches: list[Launch]) -> Program:
        return NumpyProgram(self, launches)

    def submit(self) -> None:
        """Nothing to do: launches have already run."""

    def synchronize(self) -> None:
        """Nothing to do: launches have already run."""

    def close(self) -> None:
        """Let go of the memory; the last buffer that looks into it frees it.  Waits for what numpy is doing."""
        self.let_go(closed(self.name))
        _wait_for_others()

    def examine(self) -> list[Finding]:
        kernels = found()
        return [Finding("kernels in C", kernels.lacks, kernels.remedy)] if kernels.lacks else []

    def _bytes(self, address: int, nbytes: int) -> Array:
        start = address & OFFSET_MASK
        return self._segment(address)[start : start + nbytes]

    def _write_bytes(self, address: int, content: bytes) -> None:
        self._bytes(address, len(content))[...] = np.frombuffer(content, np.uint8)

    def _read_bytes(self, address: int, nbytes: int) -> bytes:
        return self._bytes(address, nbytes).tobytes()
