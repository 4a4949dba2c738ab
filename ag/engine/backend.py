"""Specify what every backend provides: buffers, launches, recordings; see also `buffer` and `program`.

A backend runs any primitive and has no method per operation.  A launch returns at once on an asynchronous backend;
`download` and `synchronize` wait.  Launches run in order, so a freed block may be lent again at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from sys import getrefcount
from typing import Any, ClassVar, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import numpy as np

from ag.engine.arena import Block, guard_words
from ag.engine.buffer import Buffer, Device, fix, note_written
from ag.engine.dtype import DType
from ag.engine.interpreter import recording_here
from ag.engine.primitive import Array, Params, Primitive, PrimitiveTo, Returned
from ag.engine.program import Launch, Program
from ag.engine.shape import Shape, nbytes_of
from ag.errors import ArenaError, DeviceError, DtypeError
from ag.names import Making

_CONSTANTS_KEPT = 256  # per device; a training step uses a handful


class DeviceInfo(NamedTuple):
    """A device, as its driver describes it.

    Attributes
    ----------
    name, description, vendor, driver, kind : str
        Name to give to `ag_device`, name of the product, vendor, version of the driver or library, and ``"discrete"``,
        ``"integrated"``, ``"virtual"`` or ``"cpu"``.
    memory_bytes : int
        Of its own, and what an integrated chip may have of the host's besides; of the machine for CPU devices.
    features : tuple of str
        Optional abilities (``"float16"``, …).
    uuid : str
        32 hexadecimal digits; empty if unknown.
    units : int
        Multiprocessors, compute units or cores of a card; 0 if its driver does not say.

    Examples
    --------
    >>> import ag
    >>> all(info.name.startswith("vulkan:") for info in ag.ag_vulkan_devices())
    True
    """

    name: str
    description: str
    vendor: str
    driver: str
    kind: str
    memory_bytes: int
    features: tuple[str, ...] = ()
    uuid: str = ""
    units: int = 0


setattr(DeviceInfo, "__signature__", Making())  # noqa: B010 - the class itself may have fields only


class Event(NamedTuple):
    """One launch that was timed; begin and end as `time.perf_counter_ns` would have given them."""

    device: str
    kernel: str
    begin: int
    end: int


class _Finding(NamedTuple):
    subject: str
    found: str
    remedy: str
    verdict: str


class Finding(_Finding):
    """A finding of an examination: the subject, what is so, and the remedy where that is not good."""

    __slots__ = ()

    def __new__(cls, subject: str, found: str, remedy: str = "", verdict: str = "note") -> Finding:
        return super().__new__(cls, subject, found, remedy, verdict if remedy else "ok")


class Settings:
    """Settings of all devices of the process: services of the engine change them, backends read them."""

    precision: str = "highest"  # of products of matrices in float32, as `ag_matmul_precision` says
    events: list[Event] | None = None  # where launches are to be noted with their times, while `ag.profile` is active


class Meter:
    """Seconds that a device has worked; work counts when it was waited for."""

    seconds: float = 0.0


def closed(name: str) -> str:
    return (f"{name}: the device was closed by ag_shutdown, and what was on it is gone; make tensors, models and "
            f"captured steps anew.")


class Backend(Device):
    info: DeviceInfo
    dtypes: frozenset[DType]  # element types the device can hold
    settings: ClassVar[Settings] = Settings()  # the same object for every device
    timestamps: bool = False  # whether the device can say itself how long it has worked, as `meter` needs it

    @cached_property
    def _guarded(self) -> WeakKeyDictionary[Buffer, int]:
        """Buffers with painted guard words, and the addresses at which they were painted."""
        return WeakKeyDictionary()

    def alloc(self, shape: Shape, dtype: DType) -> Buffer:
        if dtype not in self.dtypes:
            held = ", ".join(sorted(d.name for d in self.dtypes))
            raise DtypeError(f"alloc: {self.name} cannot hold {dtype} elements; it can hold {held}.")
        return self.placed(nbytes_of(shape, dtype), shape, dtype)

    def placed(self, nbytes: int, shape: Shape, dtype: DType) -> Buffer:
        """`alloc` of a shape and a type that take so many bytes, and that the device is known to hold."""
        block = self.arena.alloc(nbytes)
        if (recording := recording_here()) is not None:
            recording.allocated(self, block)
        buffer = Buffer(self, block, block.address, shape, dtype)
        if self.arena.guard:
            self._paint_guards(buffer)
        return buffer

    def zeros(self, shape: Shape, dtype: DType) -> Buffer:
        buffer = self.alloc(shape, dtype)
        self.upload(np.zeros(shape, np.float32), buffer)
        return buffer

    def constant(self, value: float | Array, dtype: DType) -> Buffer:
        """Return a buffer of a number, or of an array, that all ops share; nothing may write there."""
        key: tuple[object, DType]  # 0.0 and -0.0 are equal, and not the same; NaN is not even equal to itself
        key = (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else (
            value if abs(value) > 0 else str(value)), dtype
        found = self.constants.get(key)
        if found is None:
            number = None if isinstance(value, np.ndarray) else float(value)
            if len(self.constants) >= _CONSTANTS_KEPT:
                self._forget_unused_constants()
            found = self.alloc(np.shape(value), dtype)
            self.upload(np.asarray(value), found)
            found.constant = number
            fix(found)
            self.constants[key] = found
        return found

    def _forget_unused_constants(self) -> None:
        """Forget constants that nothing else holds, nor views of them: a captured step is to find its own again."""
        for key, found in [*self.constants.items()]:  # dictionary, list, `found` and the count's own argument hold it
            if getrefcount(self.constants.get(key)) <= 4 and getrefcount(found.block) <= 2:
                self.constants.pop(key, None)

    def operands_of(self, primitive: Primitive, operands: tuple[Buffer, ...], into: Any, params: Params,
                    alloc: Callable[[Shape, DType], Buffer] | None = None) -> tuple[Any, tuple[Buffer, ...]]:
        """Return the result of a launch, allocated where `into` is None, and all operands in the reference's order."""
        if primitive.outputs == 0:
            return None, operands
        if into is not None:
            return into, (into, *operands) if primitive.outputs == 1 else (*into, *operands)
        shapes = primitive.shape(*[o.shape for o in operands], **params)
        alloc = alloc or self.alloc
        kind, rule = operands[0].dtype, primitive.dtype
        dtype = rule(**params) if rule is not None else kind if primitive.moves or primitive.copies else kind.wide
        if primitive.outputs == 1:
            out = alloc(shapes, dtype)
            return out, (out, *operands)
        outs = tuple(alloc(s, dtype) for s in shapes)
        return outs, (*outs, *operands)

    def launch(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
               **params: object) -> Returned:
        """Run a primitive; return its output(s), in fresh buffers or `into` given ones, or None if it only updates."""
        result: Returned
        for b in operands:
            if type(b.block) is not Block:
                b.block.settle()
        if (recording := recording_here()) is not None:
            result = recording.launch(self, primitive, operands, into, params)
            return result
        result, buffers = self.operands_of(primitive, operands, into, params)
        if into is not None:
            if primitive.outputs == 1:
                note_written(buffers[0])
            else:
                note_written(*buffers[: primitive.outputs])
        if primitive.updates:
            note_written(*[buffers[i] for i in primitive.updates])
        self._run(primitive, buffers, params)
        return result

    def check_operands(self, primitive: Primitive, buffers: tuple[Buffer, ...]) -> None:
        for b in buffers:
            if b.backend is not self:
                raise DeviceError(f"{primitive.name}: an operand is on {b.backend.name} and the launch on {self.name}; "
                                  f"move it with ag_to_device.")

    @abstractmethod
    def _run(self, primitive: Primitive, buffers: tuple[Buffer, ...], params: Params) -> None:
        """Run `primitive` on all its operands."""

    def reached(self, buffer: Buffer) -> Buffer | None:
        """Return a buffer of any device for launches here, if both share memory; who writes there notes it."""
        return buffer if buffer.backend is self else None

    @abstractmethod
    def close(self) -> None:
        """Wait and release the device."""

    def let_go(self, why: str) -> None:
        """Forget memory and constants; who asks for anything from now on gets a `DeviceError` that says why."""
        def refuse(*args: object, **kwargs: object) -> NoReturn:
            raise DeviceError(why)

        for name in ("check_open", "alloc", "launch", "upload", "download", "look", "assign", "program"):
            setattr(self, name, refuse)
        for name in ("submit", "synchronize", "retime", "meter", "release"):  # nothing is left to wait for
            setattr(self, name, lambda *args: {})
        self.constants.clear()
        self.generators.clear()
        self.arena.close(refuse)

    def forked(self) -> None:
        """Go on in a forked child, which has none of the other threads."""
        self.arena.forked()

    def release(self) -> dict[int, tuple[int, object]]:
        """Let go of the segments of the arena in which nothing lies; return these by number.  Waits."""
        self.refuse_while_recording("frees memory")
        self.constants.clear()
        return self.arena.release()

    def retime(self) -> None:
        """Begin or end noting launches, as `settings.events` was changed; waits for those before."""
        self.synchronize()

    def meter(self, meter: Meter | None) -> None:
        """From now on add the device's time to this meter, if it has `timestamps`; None: to none.  Does not wait."""
        return

    def examine(self) -> list[Finding]:
        """Examine this device and its driver, for the doctor; may take a second."""
        return []

    @abstractmethod
    def program(self, launches: list[Launch]) -> Program:
        """A program that makes these launches."""

    @abstractmethod
    def _write_bytes(self, address: int, content: bytes) -> None:
        """Overwrite raw arena memory."""

    @abstractmethod
    def _read_bytes(self, address: int, nbytes: int) -> bytes:
        """Raw arena memory."""

    def _guards(self, buffer: Buffer) -> list[tuple[str, int, int]]:
        """Unused bytes on either side of a buffer's elements: (side, address, bytes)."""
        end, block = buffer.address + buffer.nbytes, buffer.block
        return [("before", block.address - self.arena.guard, self.arena.guard),
                ("after", end, block.address + block.nbytes + self.arena.guard - end)]

    def _paint_guards(self, buffer: Buffer) -> None:
        for _, address, nbytes in self._guards(buffer):
            self._write_bytes(address, guard_words(address, nbytes))
        self._guarded[buffer] = buffer.address

    def check_guards(self) -> None:
        """Raise if memory beside a live buffer was overwritten, where it was made (needs an arena with guards)."""
        if not self.arena.guard:
            raise ArenaError(f"check_guards: {self.name} keeps no guard words; create the backend with guard > 0.")
        for buffer, painted in list(self._guarded.items()):
            for side, address, nbytes in self._guards(buffer) if buffer.address == painted else ():  # or it was moved
                if self._read_bytes(address, nbytes) != guard_words(address, nbytes):
                    raise ArenaError(f"check_guards: memory {side} {buffer!r} was overwritten.")
