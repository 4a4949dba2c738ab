"""Loss scaling: what keeps gradients inside the narrow range of f16.

A gradient that is stored in f16 is stored times the scale of its device; all others are what they are, so parameters
always receive true gradients.  The scale is a power of two and lives in device memory, where optimizers move it:
halved, and the step skipped, when a gradient is not finite; doubled after `INTERVAL` steps that went well.  A device
has a scale as long as there is an optimizer with f16 parameters on it.  bf16 has the range of float32 and needs none.

Micikevicius et al., "Mixed Precision Training", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from weakref import WeakValueDictionary

import numpy as np

from ag.autograd.create import to_buffer
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import F16, F32, DType
from ag.engine.kernels.convert import converted
from ag.engine.kernels.elementwise import add, mul
from ag.engine.kernels.optimizer import nonfinite, scale_update
from ag.engine.kernels.reduce import sum_over
from ag.engine.primitive import Array

__all__ = ["FIRST_SCALE", "INTERVAL", "SCALE_WORDS", "fetch_cotangent", "is_scaled", "move_cotangent", "move_scale",
           "place_cotangent", "read_scale", "scaled", "set_scale", "unfit", "unscaled"]

FIRST_SCALE = 65536.0
INTERVAL = 2000
SCALE_WORDS = ("scale", "inverse", "good steps", "skipped steps")
_LARGEST = 2.0**24  # beyond, gradients of a few units would overflow float32 on their way
_CHUNK = 1 << 12

_states: WeakValueDictionary[Device, Buffer] = WeakValueDictionary()  # optimizers hold them


def scaled(g: Buffer) -> Buffer:
    """`g` times its device's scale, in float32."""
    return _times(g, 0)


def unscaled(g: Buffer) -> Buffer:
    """`g` divided by its device's scale, in float32."""
    return _times(g, 1)


def _times(g: Buffer, word: int) -> Buffer:
    state = _states.get(g.backend)
    wide = converted(g, F32)
    return wide if state is None else g.backend.launch(mul, wide, state.view((), word))


def fetch_cotangent(g: Buffer) -> Array:
    """The true values of a cotangent, without its device's scale; 16-bit ones in float32."""
    wide = unscaled(g) if g.dtype is F16 else converted(g, F32) if g.dtype.is_half else g
    array: Array = g.backend.download(wide)
    return array


def place_cotangent(values: Array, target: Device, dtype: DType) -> Buffer:
    """A cotangent of a tensor of type `dtype`, from its true values: if that is f16, times the scale of `target`."""
    wide = to_buffer(values, target, F32 if dtype.is_half else dtype)
    return scaled(wide) if dtype is F16 else wide


def move_cotangent(g: Buffer, target: Device) -> Buffer:
    """A cotangent on another device, whose scale may be another one."""
    if g.dtype is F16:
        return place_cotangent(fetch_cotangent(g), target, F16)
    return to_buffer(g.backend.download(g), target, g.dtype)


def set_scale(backend: Device, scale: float, *counts: float) -> Buffer:
    """Scale gradients on a device as long as somebody keeps what is returned; does not wait.

    The counts of steps are set if they are given.
    """
    backend.refuse_while_recording("sets the loss scale")
    state = _states.get(backend)
    if state is None:
        state = _states[backend] = backend.zeros((len(SCALE_WORDS),), F32)
    words = np.array([scale, 1 / scale, *counts])
    backend.upload(words, state.view(words.shape))
    return state


def is_scaled(backend: Device) -> bool:
    """Whether a gradient on this device may be infinite because it was scaled."""
    return backend in _states


def read_scale(backend: Device) -> Array:
    """The numbers of `SCALE_WORDS`; waits for the device."""
    array: Array = backend.download(_states[backend])
    return array


def unfit(parts: Sequence[Buffer], one: Buffer) -> Buffer:
    """How many elements of some flat buffers of one device are not finite, as a buffer of shape ().

    `one` is the constant 1, in whose place a captured step may put what gradients are multiplied with.
    """
    launch = parts[0].backend.launch
    counts = [launch(nonfinite, x, one, chunk=_CHUNK) for x in parts]
    return reduce(partial(launch, add), [(sum_over(launch, x, (0,)) if x.size > 1 else x).view(()) for x in counts])


def move_scale(backend: Device, bad: Buffer) -> None:
    """Halve or raise the device's scale after a step with `bad` gradients that are not finite."""
    backend.launch(scale_update, _states[backend], bad, interval=INTERVAL, largest=_LARGEST)
