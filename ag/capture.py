"""Capture: a training step recorded once and replayed without Python deciding anything.

The first call runs the step as usual while the backend collects its launches.  Every argument stands for an input
slot; later calls fill the slots and run the program.  What a replay could not repeat (reading a tensor on the host,
making a parameter, uploading an array that is no argument) is refused while recording, so a captured step computes
what the eager one would, bit for bit, or does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ag.backend import Backend, Buffer, Program, Recording
from ag.core_primitives import copy
from ag.device import default_backend
from ag.dtype import DType
from ag.errors import CaptureError
from ag.tensor import Array, Tensor

__all__ = ["CapturedStep", "ag_capture"]


class _Slot:
    """One argument: where its values go on the device, and what they must look like."""

    def __init__(self, position: int, value: Tensor | Array) -> None:
        self.position = position
        self.value: Any = value
        self.shape = value.shape
        self.dtype = value.dtype
        self.targets: list[Buffer] = []  # a host array may be used in several element types
        self.tensor: Tensor | None = None

    def describe(self, value: Any) -> str:
        return f"{type(value).__name__} of shape {tuple(value.shape)} and type {value.dtype}"

    def check(self, value: Any) -> None:
        if not isinstance(value, Tensor if self.tensor is not None else np.ndarray):
            kind = "a tensor" if self.tensor is not None else "a numpy array"
            raise CaptureError(f"ag_capture: argument {self.position} was {kind} when the step was captured and is "
                               f"{type(value).__name__} now; pass the same kind of value.")
        if value.shape != self.shape or value.dtype != self.dtype:
            raise CaptureError(f"ag_capture: argument {self.position} is a {self.describe(value)}; the step was "
                               f"captured with shape {self.shape} and type {self.dtype}. Capture another step for it.")

    def check_values(self, value: Any, recording: Recording) -> None:
        for buffer, check in recording.value_checks:
            if any(buffer is target for target in self.targets):
                check(value)

    def fill(self, value: Any, backend: Backend) -> None:
        if self.tensor is None:
            for target in self.targets:
                backend.upload(value.reshape(target.shape), target)
        elif value.buffer.backend is backend:
            backend.launch(copy, value.buffer, into=self.tensor.buffer)
        else:
            backend.upload(value.numpy(), self.tensor.buffer)


class CapturedStep:
    """A step function that replays its first call.

    Attributes
    ----------
    program : Program or None
        The recorded launches, after the first call.
    """

    def __init__(self, step: Callable[..., Any], backend: Backend | None = None) -> None:
        self._step = step
        self._backend = backend
        self._slots: list[_Slot] = []
        self._recording = Recording()
        self._output: Any = None
        self.program: Program | None = None

    def __call__(self, *args: Any) -> Any:
        if self.program is None:
            return self._capture(args)
        if len(args) != len(self._slots):
            raise CaptureError(f"ag_capture: {len(args)} arguments were given and the step was captured with "
                               f"{len(self._slots)}; pass as many.")
        backend = self._backend
        assert backend is not None
        backend.refuse_while_recording("calls another captured step")
        for guard in self._recording.guards:
            guard()
        for slot, value in zip(self._slots, args, strict=True):
            slot.check(value)
            slot.check_values(value, self._recording)
        for slot, value in zip(self._slots, args, strict=True):
            slot.fill(value, backend)
        self.program.run()
        return self._output

    def _capture(self, args: tuple[Any, ...]) -> Any:
        slots = []
        for i, value in enumerate(args):
            if not isinstance(value, (Tensor, np.ndarray)):
                raise CaptureError(f"ag_capture: argument {i} is a {type(value).__name__}; every argument must be a "
                                   f"tensor or a numpy array. Bind other values with a closure.")
            slots.append(_Slot(i, value))
        backend = self._backend or _device_of(args)
        inputs = []
        for slot in slots:
            if isinstance(slot.value, Tensor):
                slot.tensor = Tensor(backend.alloc(slot.shape, slot.value.buffer.dtype))
                slot.fill(slot.value, backend)
            inputs.append(slot.value if slot.tensor is None else slot.tensor)

        with backend.record(lambda array, dtype: _slot_buffer(slots, backend, array, dtype)) as recording:
            output = self._step(*inputs)
        _refuse_host_values(output)
        for slot in slots:
            slot.value = None
        self._slots, self._backend, self._recording, self._output = slots, backend, recording, output
        self.program = recording.finished()
        return output

    def close(self) -> None:
        """Let go of the program and its memory."""
        if self.program is not None:
            self.program.close()
        self._output = None


def _device_of(args: tuple[Any, ...]) -> Backend:
    backends = {x.buffer.backend.name: x.buffer.backend for x in args if isinstance(x, Tensor)}
    if len(backends) > 1:
        raise CaptureError(f"ag_capture: the arguments are on {' and '.join(sorted(backends))}; "
                           f"a captured step runs on one device.")
    return next(iter(backends.values()), None) or default_backend()


def _slot_buffer(slots: list[_Slot], backend: Backend, array: Array, dtype: DType) -> Buffer | None:
    """The input slot that a host array used inside the step stands for."""
    for slot in slots:
        given = slot.value
        if slot.tensor is None and (array is given or (array.base is not None and _same_memory(array, given))):
            target = backend.alloc(array.shape, dtype)
            backend.upload(array, target)
            slot.targets.append(target)
            return target
    if array.size == 1 and array.ndim == 0:
        return None
    raise CaptureError(f"ag_capture: the step uploads an array of shape {array.shape} that is not one of its "
                       f"arguments; a replay would use its old values. Pass it as an argument, or make a tensor of "
                       f"it before the step.")


def _same_memory(array: Array, given: Array) -> bool:
    """Whether `array` is `given` in another shape."""
    return (
        array.size == given.size
        and array.dtype == given.dtype
        and array.flags.c_contiguous
        and given.flags.c_contiguous
        and array.__array_interface__["data"] == given.__array_interface__["data"]
    )


def _refuse_host_values(output: Any) -> None:
    if isinstance(output, (list, tuple)):
        for item in output:
            _refuse_host_values(item)
    elif isinstance(output, dict):
        _refuse_host_values(list(output.values()))
    elif output is not None and not isinstance(output, Tensor):
        raise CaptureError(f"ag_capture: the step returns a {type(output).__name__}; a replay can only return tensors "
                           f"(in tuples, lists or dicts) or None.")


def ag_capture(step_fn: Callable[..., Any]) -> CapturedStep:
    """Record a step on its first call; later calls replay it.

    Parameters
    ----------
    step_fn : callable
        Takes tensors and numpy arrays (integer labels too) as positional arguments; returns tensors, in tuples,
        lists or dicts if it likes, or None.  It may compute losses, call `backward` and step optimizers.

    Returns
    -------
    CapturedStep
        Call it like `step_fn`, with values of the same shapes and types.  It returns the same output tensors every
        time, with new values in them.

    Raises
    ------
    CaptureError
        On the first call if the step does what cannot be replayed: reads a tensor on the host, makes a parameter,
        uploads an array that is not an argument.  On later calls if the arguments differ in number, kind, shape or
        type from the first.

    Notes
    -----
    A replay computes what the step would, bit for bit.  Learning rates may change between calls.  Python code in the
    step runs once; what it decided (train or eval mode, branches, numbers) is part of the record.  The program keeps
    its memory, even of parameters that were dropped.

    Examples
    --------
    >>> import ag
    >>> step = ag.ag_capture(lambda x: ag.ag_sum(x * x))
    >>> step(ag.ag_tensor([1.0, 2.0])).item(), step(ag.ag_tensor([3.0, 4.0])).item()
    (5.0, 25.0)
    """
    return CapturedStep(step_fn)
