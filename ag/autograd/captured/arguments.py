"""Arguments of a captured step: slots in device memory that every call fills, and what the step sees in their place.

While it is recorded, the step gets stand-ins: for a tensor one of its own, for an array what has its shape and refuses
to tell its values (`ag.autograd.captured.step_argument`).  An array becomes a slot where the step makes a tensor of it,
in whatever shape and element type.  A stand-in that is still alive after the step was kept by it, which a replay could
not do again: refused.  Knows no program; `ag.autograd.capture` calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ag.autograd.captured.step_argument import StepArgument
from ag.autograd.captured.trace import Label
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import DType
from ag.engine.primitive import Array
from ag.engine.program import Given, Recording, recording_here
from ag.engine.shape import Shape
from ag.errors import CaptureError

__all__ = ["Args", "Arguments"]

Args = tuple[Any, ...]  # of a call: tensors and numpy arrays
_Given = list[tuple[Buffer, Array | Buffer]]


class _TensorSlot:
    """A tensor argument: the step works on a tensor of its own, which every call fills."""

    def __init__(self, example: Tensor) -> None:
        device = example.buffer.backend
        self.target = device.alloc(example.shape, example.buffer.dtype)
        device.copy(self.target, example.buffer)

    def stand_in(self) -> Tensor:
        """What the step gets."""
        return Tensor(self.target)

    def give(self, value: Tensor, to: _Given) -> None:
        """Note the slot, and where its values are."""
        to.append((self.target, value.buffer))


class _ArraySlot:
    """A numpy argument: recognised by its memory wherever the step turns it into a tensor."""

    def __init__(self, example: Array) -> None:
        self._example: Array | None = example.copy()  # the caller's own array is none, if the step holds that, too
        self._example.flags.writeable = False
        self.targets: list[Buffer] = []  # one per shape and element type it is used in
        self.checks: list[Callable[[Array], None]] = []

    def stand_in(self) -> StepArgument:
        """What the step gets."""
        assert self._example is not None
        return StepArgument(self._example)

    def stands_for(self, array: Array) -> bool:
        """Whether `array` is the argument, perhaps in another shape."""
        given = self._example
        return given is not None and array.size == given.size and array.dtype == given.dtype and (
            (array.flags.c_contiguous and given.flags.c_contiguous) or array.strides == given.strides) and (
            array.__array_interface__["data"][0] == given.__array_interface__["data"][0])

    def buffer_for(self, array: Array, dtype: DType, device: Device) -> Buffer:
        """A buffer that every call fills with the argument, in the shape of `array`."""
        target = device.alloc(array.shape, dtype)
        device.upload(array, target)
        self.targets.append(target)
        return target

    def close(self, recording: Recording) -> None:
        """The step was recorded: let go of the example, and keep the checks of its values."""
        self._example = None
        self.checks = [check for buffer, check in recording.value_checks if any(buffer is t for t in self.targets)]

    def place(self, shape: Shape) -> Buffer | Callable[[Array, _Given], None]:
        """Where the step uses values of this shape, if that is one place and they go there as they are; else `give`."""
        alone = len(self.targets) == 1 and not self.checks and self.targets[0].shape == shape
        return self.targets[0] if alone else self.give

    def give(self, value: Array, to: _Given) -> None:
        """Note where the step uses the values, and they in the shape that they have there."""
        if self.checks and value.dtype.kind in "iu":  # so they fit
            value = value.astype(np.int32)
        for target in self.targets:
            to.append((target, value if value.shape == target.shape else value.reshape(target.shape)))


class Arguments:
    """The slots of one recording.

    Parameters
    ----------
    args : tuple of Tensor or numpy array
        Of the call that is recorded.

    Attributes
    ----------
    device : Device or None
        The one that tensors among the arguments are on.
    labels : dict of int to Label
        What buffers of the recording stand for, by the ``id`` of their blocks.
    """

    def __init__(self, args: tuple[Tensor | Array, ...]) -> None:
        self._slots = [_TensorSlot(x) if isinstance(x, Tensor) else _ArraySlot(x) for x in args]
        self.device = next((x.buffer.backend for x in args if isinstance(x, Tensor)), None)
        self.labels: dict[int, Label] = {}
        for i, slot in enumerate(self._slots):
            if isinstance(slot, _TensorSlot):
                self.labels[id(slot.target.block)] = "argument", i
        self._checks: list[tuple[int, Callable[[Array], None]]] = []  # of arguments whose values may be refused
        self._numbers: list[Buffer] = []  # their blocks are labelled, so they must not die

    def stand_ins(self) -> list[Tensor | StepArgument]:
        """What the step is called with, in the thread whose recording is open."""
        return [slot.stand_in() for slot in self._slots]

    def on_upload(self, array: Array, dtype: DType, device: Device) -> Buffer | None:
        """The buffer of a host array that the step uses: the slot it stands for, or a constant number's, or None."""
        for i, slot in enumerate(self._slots):
            if isinstance(slot, _ArraySlot) and slot.stands_for(array):
                target = slot.buffer_for(array, dtype, device)
                self.labels[id(target.block)] = "argument", i, len(slot.targets)
                return target
        if array.ndim == 0:
            number = device.alloc((), dtype)
            device.upload(array, number)
            self.labels[id(number.block)] = "number", array.item()
            self._numbers.append(number)
            return number
        instead = ("make a tensor of it before the step" if dtype.is_float else
                   "take weight[:, :n] of an embedding for its positions 0 to n - 1")
        cast(Recording, recording_here()).refuse(CaptureError(
            f"ag_capture: the step uploads an array of shape {array.shape} that is not one of its arguments; a replay "
            f"would use its old values. Pass it as an argument, or {instead}."))
        return None

    def close(self, recording: Recording) -> None:
        """The step was recorded."""
        for i, slot in enumerate(self._slots):
            if isinstance(slot, _ArraySlot):
                slot.close(recording)
                self._checks += [(i, check) for check in slot.checks]
        self._numbers.clear()

    @property
    def checked(self) -> bool:
        """Whether there are values that are not allowed."""
        return bool(self._checks)

    def kinds(self, args: Args) -> list[tuple[object, ...]]:
        """For arguments like `args`: of each its type, where to put it, and if it is an array, its dtype and shape."""
        return [(Tensor, slot.target, None, None) if isinstance(slot, _TensorSlot) else (
            np.ndarray, slot.place(x.shape), x.dtype, x.shape) for slot, x in zip(self._slots, args, strict=True)]

    def targets(self) -> list[Buffer]:
        """All slots."""
        return [t for slot in self._slots for t in (slot.targets if isinstance(slot, _ArraySlot) else [slot.target])]

    def check(self, args: Args) -> None:
        """Raise if a value is not allowed."""
        for i, check in self._checks:
            check(args[i])

    def given(self, args: Args) -> Given:
        """The slots, and the values of a call for them."""
        found: _Given = []
        for slot, value in zip(self._slots, args, strict=True):
            slot.give(value, found)
        return found
