"""Random numbers: one counter-based generator, the same bits on every device.

Philox4x32-10 turns a key and a counter into four random words, with no state but the counter.  The key is the seed.
The counter is (word block, stream): every draw takes the next stream number and uses as many blocks as it needs.
On a device the seed and the stream number live in a small buffer, so a captured step draws anew on every replay.
The host draws initial weights from streams of its own, with the same function.  Knows no op and no layer: dropout and
activation checkpoints ask it for keys, layers for initial weights, checkpoints for its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ag.engine.buffer import Buffer, Device
from ag.engine.device import open_backends
from ag.engine.dtype import U32
from ag.engine.kernels.random import philox, rng_draw, uniform_from_bits
from ag.engine.primitive import Array
from ag.errors import CheckpointError, TapeError

__all__ = ["ag_seed", "current_seed", "draw_key", "draws_kept", "draws_repeated", "forget_generator",
           "generator_snapshot", "generator_state", "host_seed", "host_uniform", "restore_generator", "set_stream",
           "streams_used"]

_LOW32 = 0xFFFFFFFF
_HOST_STREAM = 1 << 31  # high word of the host's streams; devices count up from 0


# ---------------------------------------------------------------------------------------------- on a device


class _Seed:
    """The current seed, and how many host streams were used up under it."""

    def __init__(self, seed: int) -> None:
        self.key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
        self.host_streams = 0
        self.set_streams: dict[str, int] = {}  # where a device's streams begin, if not at 0


_seed: ContextVar[_Seed] = ContextVar("ag_seed")


def _current() -> _Seed:
    found = _seed.get(None)
    if found is None:
        found = _Seed(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]))
        _seed.set(found)
    return found


def generator_state(backend: Device) -> Buffer:
    """The device's generator: (seed low, seed high, stream low, stream high) as 32-bit words."""
    seed = _current()
    known = backend.generator
    if known is not None and known[0] is seed:
        return known[1]
    buffer = known[1] if known is not None else backend.alloc((4,), U32)
    stream = seed.set_streams.get(backend.name, 0)
    backend.upload(np.array([*seed.key, stream & _LOW32, stream >> 32], np.uint32), buffer)
    backend.generator = seed, buffer
    return buffer


def draw_key(backend: Device) -> Buffer:
    """Take the next stream of the device's generator: its key and stream number, four words."""
    return _draw.get()(backend)


def _draw_next(backend: Device) -> Buffer:
    if backend.recording is not None:
        # A replay after ag_seed draws from the new seed, as the step itself would.
        state = generator_state(backend)
        backend.recording.guards.append(
            lambda: None if generator_state(backend) is state else "the random generator is another one")
    key: Buffer = backend.launch(rng_draw, generator_state(backend))
    return key


_draw: ContextVar[Callable[[Device], Buffer]] = ContextVar("ag_draw", default=_draw_next)


@contextmanager
def draws_kept() -> Iterator[list[Buffer]]:
    """A list of all keys that are drawn inside the block."""
    draw, keys = _draw.get(), []

    def draw_and_keep(backend: Device) -> Buffer:
        keys.append(draw(backend))
        return keys[-1]

    token = _draw.set(draw_and_keep)
    try:
        yield keys
    finally:
        _draw.reset(token)


@contextmanager
def draws_repeated(keys: list[Buffer]) -> Iterator[list[Buffer]]:
    """Draw these keys again, in order, instead of new ones; yields those that are still to be drawn."""
    left = list(keys)

    def draw_again(backend: Device) -> Buffer:
        if not left or left[0].backend is not backend:
            raise TapeError(f"ag_checkpoint: a function that drew {len(keys)} times from the random generator draws "
                            f"otherwise when it is called again; it must do the same every time.")
        return left.pop(0)

    token = _draw.set(draw_again)
    try:
        yield left
    finally:
        _draw.reset(token)


def set_stream(backend: Device, stream: int) -> None:
    """Let the device's next draw use stream number `stream`."""
    seed = _current()
    words = [*seed.key, stream & 0xFFFFFFFF, stream >> 32]
    backend.upload(np.array(words, np.uint32), generator_state(backend))
    seed.set_streams[backend.name] = stream


def streams_used(backend: Device) -> int:
    """How many streams were drawn on the device since `set_stream`; waits for it."""
    return _stream(backend, generator_state(backend)) - _current().set_streams.get(backend.name, 0)


def _stream(backend: Device, state: Buffer) -> int:
    words = backend.download(state)
    return int(words[2]) | int(words[3]) << 32


# ---------------------------------------------------------------------------------------------- on the host


def host_uniform(shape: tuple[int, ...], low: float, high: float) -> Array:
    """Float32 numbers in [low, high), for initial weights."""
    seed = _current()
    bits = philox(seed.key, (seed.host_streams, _HOST_STREAM), int(np.prod(shape)))
    seed.host_streams += 1
    return (uniform_from_bits(bits) * np.float32(high - low) + np.float32(low)).reshape(shape)


def current_seed() -> int:
    """The seed in use, to go on with in another process."""
    low, high = _current().key
    return low | high << 32


def ag_seed(seed: int) -> None:
    """Seed the random generator, on the host and on every device.

    Parameters
    ----------
    seed : int
        Any integer; its low 64 bits count.

    Notes
    -----
    Initial weights and dropout masks after `ag_seed` are the same on every device and in every run.

    References
    ----------
    Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    Examples
    --------
    >>> import ag
    >>> ag.ag_seed(42)
    """
    for backend in open_backends():
        backend.refuse_while_recording("seeds the random generator")
    _seed.set(_Seed(int(seed)))


def host_seed() -> int:
    """A seed for a generator of the host's own, such as the order of samples."""
    seed = _current()
    words = philox(seed.key, (seed.host_streams, _HOST_STREAM), 2)
    seed.host_streams += 1
    return int(words[0]) | int(words[1]) << 32


# ---------------------------------------------------------------------------------------------- in checkpoints


def generator_snapshot() -> dict[str, Any]:
    """The generator as plain numbers: seed, host streams used up, next stream of each device in use; waits."""
    seed = _current()
    streams = dict(seed.set_streams)
    for backend in open_backends():
        known = backend.generator
        if known is not None and known[0] is seed:
            streams[backend.name] = _stream(backend, known[1])
    return {"seed": current_seed(), "host_streams": seed.host_streams, "streams": streams}


def forget_generator(backend: Device) -> None:
    """Leave a lost device out of snapshots."""
    backend.generator = None


def restore_generator(state: Mapping[str, Any]) -> None:
    """Go on where `generator_snapshot` was taken.

    Raises
    ------
    CheckpointError
        If the state is none; nothing changes.
    """
    try:
        numbers = [state["seed"], state["host_streams"], *state["streams"].values()]
        if not all(type(n) is int and 0 <= n < 1 << 64 for n in numbers):
            raise ValueError(f"{numbers} are not whole numbers of at most 64 bits")
        restored = _Seed(state["seed"])
        restored.host_streams = state["host_streams"]
        restored.set_streams = dict(state["streams"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"restore_generator: the state of the random generator cannot be used "
                              f"({error!r}); seed, host_streams and streams are required.") from error
    _seed.set(restored)
