"""Random numbers: one counter-based generator, the same bits on every device.

Philox4x32-10 turns the seed and a counter (word block, stream) into four words; every draw takes the next stream.  Seed
and stream number lie in a buffer per generator and device, so a captured step draws anew on every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count
from operator import index
from threading import RLock, current_thread, get_ident, main_thread
from typing import Any

import numpy as np

from ag.engine.arena import after_fork
from ag.engine.buffer import Buffer, Device
from ag.engine.device import open_backends
from ag.engine.dtype import U32
from ag.engine.kernels.elementwise import copy
from ag.engine.kernels.random import philox, rng_draw, uniform_from_bits
from ag.engine.primitive import Array
from ag.errors import CheckpointError, TapeError

_LOW32 = 0xFFFFFFFF
_HOST_STREAM = 1 << 31  # high word of the host's streams; devices count up from 0
_AFTERWARDS = _HOST_STREAM + 2  # of seeds for what comes after a job; `ag.parallel` has orders of samples at + 1


# ---------------------------------------------------------------------------------------------- on a device


class _Generator:
    """A seed, and how far its streams were used up; `ag_seed` sets it back in place, as captured steps draw from it."""

    def __init__(self, seed: int, streams: Mapping[str, int] | None = None, host_streams: int = 0) -> None:
        self.thread = get_ident()
        self.restart(seed, streams, host_streams)

    def restart(self, seed: int, streams: Mapping[str, int] | None = None, host_streams: int = 0) -> None:
        """Begin with a seed; streams of devices and of the host at these numbers, or at 0."""
        self.key = (seed & _LOW32, seed >> 32 & _LOW32)
        self.set_streams = dict(streams or {})  # where a device's streams begin, if not at 0
        self.host_streams = host_streams
        self._host = count(host_streams)
        self.seeding = object()  # another after every seeding: what a device has from an earlier one is out of date

    def host_stream(self) -> tuple[int, int]:
        """A stream of the host that nobody else gets."""
        stream = next(self._host)  # one operation, whichever thread
        if stream >= self.host_streams:
            self.host_streams = stream + 1
        return stream, _HOST_STREAM


_uploading = RLock()


@after_fork
def _forked() -> None:
    """Drop the lock of a thread that does not exist in a forked child."""
    global _uploading
    _uploading = RLock()


_of_process: list[_Generator] = []  # at most one
_own: ContextVar[_Generator | None] = ContextVar("ag_generator", default=None)  # of a thread that has called ag_seed


def _current() -> _Generator:
    found = _own.get()
    if found is not None:
        return found
    if not _of_process:
        _of_process.append(_Generator(int(np.random.SeedSequence().generate_state(1, np.uint64)[0])))
    return _of_process[0]  # the first, if several threads came at once


def _restart(seed: int, streams: Mapping[str, int] | None = None, host_streams: int = 0) -> None:
    """Begin anew in the calling thread: with the process's generator in the main thread, and its own in another."""
    if current_thread() is main_thread():
        _own.set(None)
        _current().restart(seed, streams, host_streams)
        return
    own = _own.get()
    if own is not None and own.thread == get_ident():
        own.restart(seed, streams, host_streams)
    else:
        _own.set(_Generator(seed, streams, host_streams))


def generator_state(backend: Device) -> Buffer:
    """The device's generator: (seed low, seed high, stream low, stream high) as 32-bit words."""
    generator = _current()
    known = backend.generators.get(generator)
    if known is not None and known[0] is generator.seeding:
        return known[1]
    with _uploading:  # a thread that came second would set back what the first has drawn from
        seeding = generator.seeding
        known = backend.generators.get(generator)
        if known is not None and known[0] is seeding:
            return known[1]
        buffer = known[1] if known is not None else backend.alloc((4,), U32)
        backend.upload(_words(generator.set_streams.get(backend.name, 0)), buffer)
        backend.generators[generator] = seeding, buffer
        return buffer


def draw_key(backend: Device) -> Buffer:
    """Take the next stream of the device's generator: its key and stream number, four words."""
    return _draw.get()(backend)


def _draw_next(backend: Device) -> Buffer:
    state = generator_state(backend)
    if (recording := backend.recording) is not None:
        if recording.owns(state.block):
            recording.adopt(state.block)
        recording.guards["generator"] = partial(_another, backend, state)
    key: Buffer = backend.launch(rng_draw, state)
    return key


def _another(backend: Device, state: Buffer) -> str | None:
    """Why a recorded draw is none of this thread's generator; a replay after `ag_seed` draws from the new seed."""
    return None if generator_state(backend) is state else "another random generator is used"


_draw: ContextVar[Callable[[Device], Buffer]] = ContextVar("ag_draw", default=_draw_next)


@contextmanager
def _drawing(draw: Callable[[Device], Buffer]) -> Iterator[None]:
    token = _draw.set(draw)
    try:
        yield
    finally:
        _draw.reset(token)


@contextmanager
def draws_kept() -> Iterator[list[Buffer]]:
    """A list of all keys that are drawn inside the block."""
    draw, keys = _draw.get(), list[Buffer]()

    def draw_and_keep(backend: Device) -> Buffer:
        keys.append(draw(backend))
        return keys[-1]

    with _drawing(draw_and_keep):
        yield keys


@contextmanager
def draws_repeated(keys: list[Buffer]) -> Iterator[list[Buffer]]:
    """Draw these keys again, in order, instead of new ones; yields those that are still to be drawn."""
    left = list(keys)

    def draw_again(backend: Device) -> Buffer:
        if not left or left[0].backend is not backend:
            raise TapeError(f"ag_checkpoint: a function that drew {len(keys)} times from the random generator draws "
                            f"otherwise when it is called again; it must do the same every time.")
        return left.pop(0)

    with _drawing(draw_again):
        yield left


@contextmanager
def draws_from(*numbers: int) -> Iterator[None]:
    """Draw from a generator of its own inside the block, which follows from the numbers alone."""
    drawn = count()

    def draw(backend: Device) -> Buffer:
        backend.refuse_while_recording("draws what the host has seeded")
        key = np.random.SeedSequence([n % (1 << 64) for n in numbers]).generate_state(2)
        buffer = backend.alloc((4,), U32)
        backend.upload(np.array([*key, next(drawn), 0], np.uint32), buffer)
        return buffer

    with _drawing(draw):
        yield


def set_stream(backend: Device, stream: int) -> None:
    """Let the device's next draw use stream number `stream`."""
    generator, state = _current(), generator_state(backend)
    backend.upload(_words(stream), state)
    generator.set_streams[backend.name] = stream


class Streams:
    """Streams for parts of a computation that may draw differently often, and a switch by a launch for many draws."""

    def __init__(self, backend: Device) -> None:
        self._backend = backend
        self._beyond = backend.alloc((4,), U32)
        self._numbers: tuple[int, int | None, int] = (0, None, 0)
        self._seeding: object = None  # of the generator whose state is on the device
        self.drawn = 0  # how often the last part has drawn

    def prepare(self, first: int, most: int | None, beyond: int, draws: int) -> None:
        """Before a part, of which a replay draws so often, or less."""
        seeding = _current().seeding
        if seeding is not self._seeding:
            generator_state(self._backend)  # is there before anything is recorded
            self._seeding = seeding
        self._numbers, self.drawn = (first, most, beyond), 0
        if draws:
            set_stream(self._backend, first)
            if most is not None and draws > most:
                self._backend.upload(_words(beyond), self._beyond)

    def counted(self) -> AbstractContextManager[None]:
        """Inside, where Python makes them, draws on the device take the part's streams and are counted."""
        return _drawing(self._next)

    def _next(self, backend: Device) -> Buffer:
        first, most, beyond = self._numbers
        if backend is self._backend:
            if self.drawn == 0:
                set_stream(backend, first)
            if self.drawn == most:
                backend.upload(_words(beyond), self._beyond)
                backend.launch(copy, self._beyond, into=generator_state(backend))
            self.drawn += 1
        return _draw_next(backend)


def _words(stream: int) -> Array:
    return np.array([*_current().key, stream & _LOW32, stream >> 32], np.uint32)


# ---------------------------------------------------------------------------------------------- on the host


def host_uniform(shape: tuple[int, ...], low: float, high: float) -> Array:
    """Float32 numbers in [low, high), for initial weights."""
    generator = _current()
    bits = philox(generator.key, generator.host_stream(), int(np.prod(shape)))
    return (uniform_from_bits(bits) * np.float32(high - low) + np.float32(low)).reshape(shape)


def current_seed() -> int:
    """The seed in use, to go on with in another process."""
    low, high = _current().key
    return low | high << 32


def ag_seed(seed: int) -> None:
    """Seed the random generator, on the host and on every device.

    What is drawn after it is the same on every device and in every run.  The threads of a process share one generator;
    any but the main one that calls `ag_seed` has its own from then on.
    Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    Parameters
    ----------
    seed : int
        Any integer; its low 64 bits count.

    Examples
    --------
    >>> ag.ag_seed(42)
    """
    try:
        number = index(seed)
    except TypeError:
        raise TypeError(f"ag_seed: the seed is a {type(seed).__name__}; a whole number is required.") from None
    for backend in open_backends():
        backend.refuse_while_recording("seeds the random generator")
    _restart(number)


def go_on_after(seed: int) -> None:
    """Begin this thread's generator anew with a seed that follows from one, however much was drawn since."""
    words = philox((seed & _LOW32, seed >> 32), (0, _AFTERWARDS), 2)
    _current().restart(int(words[0]) | int(words[1]) << 32)


def host_seed() -> int:
    """A seed for a generator of the host's own, such as the order of samples."""
    generator = _current()
    words = philox(generator.key, generator.host_stream(), 2)
    return int(words[0]) | int(words[1]) << 32


# ---------------------------------------------------------------------------------------------- in checkpoints


def generator_snapshot() -> dict[str, Any]:
    """The generator as plain numbers: seed, host streams used up, next stream of each device in use; waits."""
    generator = _current()
    streams = dict(generator.set_streams)
    for backend in open_backends():
        seeding, state = backend.generators.get(generator, (None, None))
        if state is not None and seeding is generator.seeding:
            words = backend.download(state)
            streams[backend.name] = int(words[2]) | int(words[3]) << 32
    return {"seed": current_seed(), "host_streams": generator.host_streams, "streams": streams}


def restore_generator(state: Mapping[str, Any]) -> None:
    """Go on where `generator_snapshot` was taken."""
    try:
        numbers = [state["seed"], state["host_streams"], *state["streams"].values()]
        if not all(type(n) is int and 0 <= n < 1 << 64 for n in numbers):
            raise ValueError(f"{numbers} are not whole numbers of at most 64 bits")
        seed, host_streams, streams = state["seed"], state["host_streams"], dict(state["streams"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"restore_generator: the state of the random generator cannot be used "
                              f"({error!r}); seed, host_streams and streams are required.") from error
    _restart(seed, streams, host_streams)
