"""Capture: a training step recorded once and replayed without Python deciding anything.

The first call runs the step as usual while the backend collects its launches.  Every argument stands for an input slot;
later calls fill the slots and run the program.  What a replay could not repeat (reading a tensor on the host, making a
parameter, uploading an array that is no argument) is refused while recording, so a captured step computes what the
eager one would, bit for bit, or does not exist.  A replay returns the tensors of the first call, with new values in
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.device import default_backend
from ag.engine.dtype import DType
from ag.engine.primitive import Array
from ag.engine.program import Program, Recording
from ag.errors import CaptureError

__all__ = ["CapturedStep", "ag_capture"]


class _TensorSlot:
    """A tensor argument: the step works on a tensor of its own, which every call fills."""

    def __init__(self, position: int, example: Tensor, backend: Backend) -> None:
        self._position = position
        self._backend = backend
        self._shape = example.shape
        self._dtype = example.buffer.dtype
        self._target = backend.alloc(self._shape, self._dtype)
        self.argument = Tensor(self._target)
        self.fill(example)

    def check(self, value: object) -> None:
        """Raise if `value` is not like the first one."""
        buffer = value.buffer if type(value) is Tensor else None
        if buffer is None or buffer.shape != self._shape or buffer.dtype is not self._dtype:
            raise _unlike(self._position, value, f"a tensor of shape {self._shape} and type {self._dtype}")

    def fill(self, value: Tensor) -> None:
        """Copy the values into the slot."""
        if value.buffer.backend is self._backend:
            self._backend.assign(self._target, value.buffer)
        else:
            self._backend.upload(value.numpy(), self._target)


class _ArraySlot:
    """A numpy argument: recognised by identity wherever the step turns it into a tensor."""

    def __init__(self, position: int, example: Array, backend: Backend) -> None:
        self._position = position
        self._backend = backend
        self._shape = example.shape
        self._dtype = example.dtype
        self._targets: list[Buffer] = []  # one per element type it is used in
        self._checks: list[Callable[[Array], None]] = []
        self.argument: Array | None = example

    def stands_for(self, array: Array) -> bool:
        """Whether `array` is the argument, perhaps in another shape."""
        given = self.argument
        return given is array or (
            given is not None
            and array.base is not None
            and array.size == given.size
            and array.dtype == given.dtype
            and array.flags.c_contiguous
            and given.flags.c_contiguous
            and array.__array_interface__["data"] == given.__array_interface__["data"]
        )

    def buffer_for(self, array: Array, dtype: DType) -> Buffer:
        """A buffer that every call fills with the argument, in the shape of `array`."""
        target = self._backend.alloc(array.shape, dtype)
        self._backend.upload(array, target)
        self._targets.append(target)
        return target

    def close(self, recording: Recording) -> None:
        """The step was recorded: let go of the example, and keep the checks of its values."""
        self.argument = None
        self._checks = [check for buffer, check in recording.value_checks if any(buffer is t for t in self._targets)]

    def check(self, value: object) -> None:
        """Raise if `value` is not like the first one, or holds what the step refuses."""
        if not isinstance(value, np.ndarray) or value.shape != self._shape or value.dtype != self._dtype:
            raise _unlike(self._position, value, f"a numpy array of shape {self._shape} and type {self._dtype}")
        for check in self._checks:
            check(value)

    def fill(self, value: Array) -> None:
        """Upload the values to where the step uses them."""
        for target in self._targets:
            self._backend.upload(value.reshape(target.shape), target)


def _unlike(position: int, value: object, wanted: str) -> CaptureError:
    if isinstance(value, (Tensor, np.ndarray)):
        kind = "tensor" if isinstance(value, Tensor) else "numpy array"
        given = f"a {kind} of shape {value.shape} and type {value.dtype}"
    else:
        given = f"a {type(value).__name__}"
    return CaptureError(f"ag_capture: argument {position} is {given}; the step was captured with {wanted}. "
                        f"Capture another step for it.")


class CapturedStep:
    """A step function that replays its first call.

    Attributes
    ----------
    program : Program or None
        The recorded launches, after the first call.
    """

    def __init__(self, step: Callable[..., Any], backend: Backend | None = None, recompute: bool = False) -> None:
        self._step = step
        self._backend = backend
        self._recompute = recompute
        self._check: list[Callable[[Any], None]] = []  # one of each per argument
        self._fill: list[Callable[[Any], None]] = []
        self._guards: list[Callable[[], object]] = []
        self._output: Any = None
        self.program: Program | None = None

    def __call__(self, *args: Any) -> Any:
        program = self.program
        if program is None:
            return self._capture(args)
        if len(args) != len(self._check):
            raise CaptureError(f"ag_capture: {len(args)} arguments were given and the step was captured with "
                               f"{len(self._check)}; pass as many.")
        if self._backend is not None and self._backend.recording is not None:
            self._backend.refuse_while_recording("replays another captured step")
        for guard in self._guards:
            guard()
        for check, value in zip(self._check, args, strict=True):
            check(value)
        for fill, value in zip(self._fill, args, strict=True):
            fill(value)
        program.run()
        return self._output

    def _capture(self, args: tuple[object, ...]) -> Any:
        for i, value in enumerate(args):
            if not isinstance(value, (Tensor, np.ndarray)):
                raise CaptureError(f"ag_capture: argument {i} is a {type(value).__name__}; every argument must be a "
                                   f"tensor or a numpy array. Bind other values with a closure.")
            if isinstance(value, Tensor) and value.requires_grad:
                raise CaptureError(f"ag_capture: argument {i} is a parameter of shape {value.shape}, and a "
                                   f"replay works on copies of its arguments; use parameters from a closure.")
        backend = self._backend or _device_of(args)
        backend.refuse_while_recording("calls another captured step for the first time")
        slots: list[_TensorSlot | _ArraySlot] = []
        arrays: list[_ArraySlot] = []
        for i, x in enumerate(args):
            if isinstance(x, Tensor):
                slots.append(_TensorSlot(i, x, backend))
            elif isinstance(x, np.ndarray):
                arrays.append(_ArraySlot(i, _apart(x, arrays), backend))
                slots.append(arrays[-1])
        with record(backend, lambda array, dtype: _slot_buffer(arrays, array, dtype), self._recompute) as recording:
            output = self._step(*[s.argument for s in slots])
        _refuse_host_values(output)
        for slot in arrays:
            slot.close(recording)
        self._check, self._fill = [s.check for s in slots], [s.fill for s in slots]
        self._backend, self._guards, self._output = backend, recording.guards, output
        self.program = recording.finished()
        return output

    def close(self) -> None:
        """Let go of the program and its memory; the next call captures anew."""
        if self.program is not None:
            self.program.close()
        self.program = self._output = None


def _device_of(args: tuple[object, ...]) -> Backend:
    backends = {x.buffer.backend.name: x.buffer.backend for x in args if isinstance(x, Tensor)}
    if len(backends) > 1:
        raise CaptureError(f"ag_capture: the arguments are on {' and '.join(sorted(backends))}; "
                           f"a captured step runs on one device.")
    shared = next(iter(backends.values()), None)
    return default_backend() if shared is None else cast(Backend, shared)


def _apart(array: Array, others: list[_ArraySlot]) -> Array:
    """`array` in memory of its own: two arguments that are one array now may be two at the next call."""
    shared = any(s.argument is not None and np.may_share_memory(array, s.argument) for s in others)
    return array.copy() if shared else array


def _slot_buffer(slots: list[_ArraySlot], array: Array, dtype: DType) -> Buffer | None:
    """The input slot that a host array used inside the step stands for; None for a constant number."""
    for slot in slots:
        if slot.stands_for(array):
            return slot.buffer_for(array, dtype)
    if array.ndim == 0:
        return None
    raise CaptureError(f"ag_capture: the step uploads an array of shape {array.shape} that is not one of its "
                       f"arguments; a replay would use its old values. Pass it as an argument, or make a tensor of "
                       f"it before the step.")


def _refuse_host_values(output: object) -> None:
    if isinstance(output, (list, tuple)):
        for item in output:
            _refuse_host_values(item)
    elif isinstance(output, dict):
        _refuse_host_values(list(output.values()))
    elif output is not None and not isinstance(output, Tensor):
        raise CaptureError(f"ag_capture: the step returns a {type(output).__name__}; a replay can only return tensors "
                           f"(in tuples, lists or dicts) or None.")


def ag_capture(step_fn: Callable[..., Any], *, recompute: bool = False) -> CapturedStep:
    """Record a step on its first call; later calls replay it.

    Parameters
    ----------
    step_fn : callable
        Takes tensors and numpy arrays (integer labels too) as positional arguments; returns tensors, in tuples,
        lists or dicts if it likes, or None.  It may compute losses, call `backward` and step optimizers.
    recompute : bool, optional
        Rematerialization: the compiler computes cheap results (activations, normalizations, embeddings) a second time
        in the backward pass rather than keep them, where that lowers the most memory a replay needs: a replay of a
        transformer needs a quarter less and takes some percent longer.

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
    step runs once; what it decided (branches, numbers) is part of the record, and a layer in another mode than then
    (train or eval) is refused.  A replay leaves the step's own gradient in each ``.grad``; it does not add to it, so
    accumulate inside the step, or call `zero_grad` there.  The program keeps its memory, even of parameters that were
    dropped, and does less than was recorded: copies are left out where the result can be computed in place.  What the
    step computes on the way shares memory, also with the gradients and outputs that it has yet to write.

    Examples
    --------
    >>> import ag
    >>> step = ag.ag_capture(lambda x: ag.ag_sum(x * x))
    >>> step(ag.ag_tensor([1.0, 2.0])).item(), step(ag.ag_tensor([3.0, 4.0])).item()
    (5.0, 25.0)
    """
    return CapturedStep(step_fn, recompute=recompute)
