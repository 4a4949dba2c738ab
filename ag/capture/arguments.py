"""Arguments of a captured step: slots in device memory that every call fills, and stand-ins that the step gets.

A tensor's stand-in is a tensor on its slot.  An array's stand-in refuses access to its values (`StepArgument`), and
becomes a slot where the step makes a tensor of it.  A stand-in that is alive after the step was kept, which is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, cast
from weakref import ref

import numpy as np

from ag.autograd.tensor import Tensor
from ag.capture.trace import Label
from ag.engine.buffer import Buffer, Device
from ag.engine.dtype import DType
from ag.engine.interpreter import recording_here
from ag.engine.kernels.convert import StandIn
from ag.engine.primitive import Array
from ag.engine.program import Given, Recording
from ag.engine.shape import Shape
from ag.errors import CaptureError

Args = tuple[Any, ...]  # of a call: tensors and numpy arrays
_Given = list[tuple[Buffer, Array | Buffer]]

# Methods and functions that read no values: _SHAPED and _SHAPING return the argument in another shape.
_SHAPED = frozenset(("astype", "copy", "flatten", "ravel", "reshape", "squeeze", "swapaxes", "transpose"))
_SHAPING = frozenset((np.atleast_1d, np.atleast_2d, np.expand_dims, np.moveaxis, np.ravel, np.reshape, np.squeeze,
                      np.swapaxes, np.transpose))
_LIKE = frozenset((np.empty_like, np.full_like, np.iscomplexobj, np.isrealobj, np.ndim, np.ones_like, np.result_type,
                   np.shape, np.size, np.zeros_like))
_DESCRIBED = frozenset(("dtype", "itemsize", "nbytes", "ndim", "shape", "size", "strides"))
_WRITES = frozenset(("fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort"))
_REFLECTED = ("add", "and", "divmod", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow", "rshift", "sub",
              "truediv", "xor")
_OPERATORS = (*_REFLECTED, *(f"r{name}" for name in _REFLECTED), "eq", "ge", "gt", "le", "lt", "ne", "neg", "pos",
              "abs", "invert", "bool", "complex", "contains", "float", "index", "int", "iter")
_IN_PLACE = (*(f"i{name}" for name in _REFLECTED if name != "divmod"), "setitem")


class StepArgument(StandIn):
    """Stand-in for an array argument, or for a view `of` one: its shape may be read, its values may not.

    It passes for an array (`isinstance`, ``shape``, ``x[:, :3]``, operators and functions with tensors), and refuses
    operators, methods and functions that need values.  A subclass of `ndarray` could not refuse access from C.
    """

    __slots__ = ("__weakref__", "_array", "_of", "_recording")
    __hash__ = None  # type: ignore[assignment]  # like arrays

    def __init__(self, array: Array, of: StepArgument | None = None) -> None:
        self._array = array  # a copy of what was passed
        self._of = of  # kept alive, as a kept view is a kept argument
        self._recording: ref[Recording] = ref(cast(Recording, recording_here())) if of is None else of._recording

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Make `isinstance(x, np.ndarray)` true."""
        return np.ndarray

    def opened(self) -> Array:
        return self._array

    def _values(self, writes: bool = False) -> Array:
        """Return the array for access to its values; refused while the step is recorded."""
        recording = self._recording()
        if recording is not None and recording.is_open:  # else it acts like any array
            refused = (f"ag_capture: the step reads or changes the values of an argument of shape {self._array.shape} "
                       f"in Python; a replay would not see those of another call. Compute with tensors, or beforehand.")
            if writes:
                raise CaptureError(refused)  # also on trial: the caller's array would not change
            recording.refuse(CaptureError(refused))
        return self._array

    def _view(self, array: object) -> StepArgument:
        """Return the argument in another shape."""
        return StepArgument(cast(Array, array), self)

    def __getattr__(self, name: str) -> object:
        found = getattr(self._array, name)  # AttributeError, as of an array
        if name in _DESCRIBED:
            return found
        if name in _SHAPED:
            return lambda *args, **options: self._view(found(*args, **options))
        if name in ("T", "mT"):
            return self._view(found)
        self._values(name in _WRITES)
        return found

    def __setattr__(self, name: str, value: object) -> None:
        if name in StepArgument.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._values(writes=True), name, value)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Any) -> object:
        part = self._array[key]
        return self._view(part) if isinstance(part, np.ndarray) else self._values()[key]

    def __repr__(self) -> str:
        return f"<argument of a captured step, {self._array.dtype} of shape {self._array.shape}>"

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> Array:
        return np.array(self._values(), dtype)

    def __buffer__(self, flags: int) -> memoryview:  # Python calls it from 3.12 on; before, there is no buffer
        return self._values().data

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        return self._values().__reduce_ex__(protocol)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        if any(isinstance(x, Tensor) for x in inputs):
            return NotImplemented  # the tensor's op makes a slot of the argument
        for x in cast("tuple[object, ...]", options.get("out") or ()):
            if type(x) is StepArgument:
                x._values(writes=True)
        self._values()
        return getattr(ufunc, method)(*map(_opened, inputs), **{k: _opened(v) for k, v in options.items()})

    def __array_function__(self, function: Callable[..., object], types: Sequence[type], args: Sequence[object],
                           options: dict[str, object]) -> object:
        first, *more = args or (None,)
        if type(first) is StepArgument and StepArgument not in map(type, more):
            if function in _LIKE:
                return function(first.opened(), *more, **options)
            if function in _SHAPING:
                return first._view(function(first.opened(), *more, **options))
        if any(issubclass(kind, Tensor) for kind in types):
            return NotImplemented
        self._values()
        return function(*map(_opened, args), **{k: _opened(v) for k, v in options.items()})


def _opened(x: object) -> object:
    """Replace stand-ins by their arrays."""
    if type(x) is StepArgument:
        return x.opened()
    if type(x) is list:
        return [*map(_opened, x)]
    return tuple(map(_opened, x)) if type(x) is tuple else x


def _operator(name: str, writes: bool) -> Callable[..., object]:
    def operator(self: StepArgument, *others: object) -> object:
        if not writes and any(isinstance(x, Tensor) for x in others):
            return NotImplemented  # the tensor's operator is an op
        return getattr(self._values(writes), name)(*map(_opened, others))

    return operator


for _name in (*_OPERATORS, *_IN_PLACE):
    setattr(StepArgument, f"__{_name}__", _operator(f"__{_name}__", _name in _IN_PLACE))


class _TensorSlot:
    """A tensor argument: the step computes with a tensor of its own, which every call fills."""

    def __init__(self, example: Tensor) -> None:
        device = example.buffer.backend
        self.target = device.alloc(example.shape, example.buffer.dtype)
        device.copy(self.target, example.buffer)
        self._name, self.example = example.name, example.buffer

    def stand_in(self) -> Tensor:
        """Return the tensor that the step gets."""
        made = Tensor(self.target)
        made.name = self._name
        return made

    def close(self, recording: Recording) -> None:
        """End recording; raise if the step also uses the memory of the caller's tensor."""
        given, self.example = self.example, self.target
        for launch in recording.launches:
            if any(b.block is given.block and b.overlaps(given) for b in launch.buffers):
                raise CaptureError(f"ag_capture: an argument of shape {given.shape} is a tensor that the step also "
                                   f"uses without being given it, such as a layer's; a replay works on a copy of its "
                                   f"arguments. Pass another tensor, or leave the argument out.")

    def give(self, value: Tensor, to: _Given) -> None:
        """Add the slot and its values."""
        to.append((self.target, value.buffer))


class _ArraySlot:
    """An array argument, recognised by its memory where the step makes a tensor of it."""

    def __init__(self, example: Array) -> None:
        self._example: Array | None = example.copy()  # the caller's array may also be in the step's closure
        self._example.flags.writeable = False
        self.targets: list[Buffer] = []  # one per use
        self.checks: list[Callable[[Array], None]] = []

    def stand_in(self) -> StepArgument:
        """Return the object that the step gets."""
        assert self._example is not None
        return StepArgument(self._example)

    def stands_for(self, array: Array) -> bool:
        """Return whether `array` is the argument, perhaps in another shape."""
        given = self._example
        return given is not None and array.size == given.size and array.dtype == given.dtype and (
            (array.flags.c_contiguous and given.flags.c_contiguous) or array.strides == given.strides) and (
            array.__array_interface__["data"][0] == given.__array_interface__["data"][0])

    def buffer_for(self, array: Array, dtype: DType, device: Device) -> Buffer:
        """Return a buffer that every call fills with the argument, in the shape of `array`."""
        target = device.alloc(array.shape, dtype)
        device.upload(array, target)
        self.targets.append(target)
        return target

    def close(self, recording: Recording) -> None:
        """End recording: free the example, and keep the checks of values."""
        self._example = None
        self.checks = [check for buffer, check in recording.value_checks if any(buffer is t for t in self.targets)]

    def place(self, shape: Shape) -> Buffer | Callable[[Array, _Given], None]:
        """Return the only target if values go there unchanged; else the method that adds all targets."""
        alone = len(self.targets) == 1 and not self.checks and self.targets[0].shape == shape
        return self.targets[0] if alone else self.give

    def give(self, value: Array, to: _Given) -> None:
        """Add all targets, each with the values in its shape."""
        if self.checks and value.dtype.kind in "iu":  # checked: they fit
            value = value.astype(np.int32)
        for target in self.targets:
            to.append((target, value if value.shape == target.shape else value.reshape(target.shape)))


class Arguments:
    """The slots of one recording."""

    def __init__(self, args: tuple[Tensor | Array, ...]) -> None:
        self._slots = [_TensorSlot(x) if isinstance(x, Tensor) else _ArraySlot(x) for x in args]
        self.device = next((x.buffer.backend for x in args if isinstance(x, Tensor)), None)
        self.labels: dict[int, Label] = {}  # by ids of blocks, for traces
        for i, slot in enumerate(self._slots):
            if isinstance(slot, _TensorSlot):
                self.labels[id(slot.target.block)] = "argument", i
        self._checks: list[tuple[int, Callable[[Array], None]]] = []  # of values, by argument
        self._numbers: list[Buffer] = []  # kept alive, as labels refer to ids of their blocks

    def stand_ins(self) -> list[Tensor | StepArgument]:
        """Return the step's arguments; called in the recording thread."""
        return [slot.stand_in() for slot in self._slots]

    def on_upload(self, array: Array, dtype: DType, device: Device) -> Buffer | None:
        """Return the buffer of a host array that the step uses: a slot or a number; else refuse, and return None."""
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
        instead = ("Pass it as an argument, or make a tensor of it before the step." if dtype.is_float else
                   "Make it an argument of the step.")
        if not dtype.is_float and array.size > 1 and np.array_equal(array.ravel(), np.arange(array.size)):
            instead = "Pass it as an argument, or take weight[:, :n] of an embedding for its positions 0 to n - 1."
        cast(Recording, recording_here()).refuse(CaptureError(
            f"ag_capture: the step uploads an array of shape {array.shape} that is not one of its arguments; a replay "
            f"would use its old values. {instead}"))
        return None

    def close(self, recording: Recording) -> None:
        """End recording."""
        for i, slot in enumerate(self._slots):
            slot.close(recording)
            if isinstance(slot, _ArraySlot):
                self._checks += [(i, check) for check in slot.checks]
        self._numbers.clear()

    @property
    def has_arrays(self) -> bool:
        """Tell whether an argument is an array."""
        return any(isinstance(slot, _ArraySlot) for slot in self._slots)

    @property
    def checked(self) -> bool:
        """Tell whether values of arguments are checked."""
        return bool(self._checks)

    def kinds(self, args: Args) -> list[tuple[object, ...]]:
        """Return of each argument like `args` type, target, and name; of an array type, target, dtype and shape."""
        return [(Tensor, slot.target, x.name, None) if isinstance(slot, _TensorSlot) else (
            np.ndarray, slot.place(x.shape), x.dtype, x.shape) for slot, x in zip(self._slots, args, strict=True)]

    def targets(self) -> list[Buffer]:
        """Return all slots."""
        return [t for slot in self._slots for t in (slot.targets if isinstance(slot, _ArraySlot) else [slot.target])]

    def check(self, args: Args) -> None:
        """Raise if a value is not allowed."""
        for i, check in self._checks:
            check(args[i])

    def given(self, args: Args) -> Given:
        """Return the slots with the values of a call."""
        found: _Given = []
        for slot, value in zip(self._slots, args, strict=True):
            slot.give(value, found)
        return found
