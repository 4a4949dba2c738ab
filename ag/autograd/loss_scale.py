"""Loss scaling: what keeps gradients inside the narrow range of f16.

A gradient that is stored in f16 is stored times the scale of its device, and divided by it where it leaves f16:
`ag.autograd.cotangent` does both in the backward pass, `ag.autograd.transfer` between devices.  All others are what
they are, so parameters always receive true gradients.  The scale is a power of two, begins at 2^16 and lives in device
memory, where optimizers move it: halved, and the step skipped, when a gradient is not finite; doubled after `INTERVAL`
steps that went well.  A device has a scale as long as there is an optimizer with f16 parameters on it: the optimizer
holds the state, the backend knows where it is.  bf16 has the range of float32 and needs none.

Micikevicius et al., "Mixed Precision Training", 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from weakref import ReferenceType, ref

import numpy as np

from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import F32
from ag.engine.kernels.convert import converted
from ag.engine.kernels.elementwise import add, mul
from ag.engine.kernels.optimizer import nonfinite, scale_update
from ag.engine.kernels.reduce import sum_over
from ag.engine.primitive import Array

__all__ = ["FIRST_SCALE", "INTERVAL", "SCALE_WORDS", "is_scaled", "move_scale", "read_scale", "scaled", "set_scale",
           "unfit", "unscaled"]

FIRST_SCALE = 65536.0
INTERVAL = 2000
SCALE_WORDS = ("scale", "inverse", "good steps", "skipped steps")
_LARGEST = 2.0**24  # beyond, gradients of a few units would overflow float32 on their way
_CHUNK = 1 << 12


def scaled(g: Buffer) -> Buffer:
    """`g` times its device's scale, in float32."""
    return _times(g, 0)


def unscaled(g: Buffer) -> Buffer:
    """`g` divided by its device's scale, in float32."""
    return _times(g, 1)


def _times(g: Buffer, word: int) -> Buffer:
    state = _state(g.backend)
    wide = converted(g, F32)
    return wide if state is None else g.backend.launch(mul, wide, state.view((), word))


def _state(backend: Device) -> Buffer | None:
    """The numbers of `SCALE_WORDS` on the device; None if nobody scales gradients there."""
    state = _now(backend)
    if backend.recording is not None:
        recorded = None if state is None else ref(state)
        backend.recording.guards["loss scale"] = partial(_another, backend, recorded)
    return state


def _now(backend: Device) -> Buffer | None:
    return None if backend.loss_scale is None else backend.loss_scale()


def _another(backend: Device, recorded: ReferenceType[Buffer] | None) -> str | None:
    """Why a step that was recorded with a scale, or without one, is not as it was."""
    now = _now(backend)
    same = now is None if recorded is None else now is not None and now is recorded()
    return None if same else "the loss scale is another one, or there is none any more"


def set_scale(backend: Device, scale: float, *counts: float) -> Buffer:
    """Scale gradients on a device as long as somebody keeps what is returned; does not wait.

    The counts of steps are set if they are given.
    """
    backend.refuse_while_recording("sets the loss scale")
    state = _state(backend)
    if state is None:
        state = backend.zeros((len(SCALE_WORDS),), F32)
        backend.loss_scale = ref(state)
    words = np.array([scale, 1 / scale, *counts])
    backend.upload(words, state.view(words.shape))
    return state


def is_scaled(backend: Device) -> bool:
    """Whether a gradient on this device may be infinite because it was scaled."""
    return _state(backend) is not None


def read_scale(backend: Device) -> Array:
    """The numbers of `SCALE_WORDS`; waits for the device."""
    state = _state(backend)
    assert state is not None, "whoever reads the scale holds its state"
    return backend.download(state)


def unfit(parts: Sequence[Buffer], one: Buffer) -> Buffer:
    """How many elements of some flat buffers of one device are not finite, as a buffer of shape ().

    `one` is the constant 1, in whose place a captured step may put what gradients are multiplied with.
    """
    launch = parts[0].backend.launch
    counts = [launch(nonfinite, x, one, chunk=_CHUNK) for x in parts]
    return reduce(partial(launch, add), [(sum_over(launch, x, (0,)) if x.size > 1 else x).view(()) for x in counts])


def move_scale(backend: Device, bad: Buffer) -> None:
    """Halve or raise the device's scale after a step with `bad` gradients that are not finite."""
    state = _state(backend)
    assert state is not None, "whoever moves the scale holds its state"
    backend.launch(scale_update, state, bad, interval=INTERVAL, largest=_LARGEST)
