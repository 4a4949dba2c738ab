"""What stands for an array argument while its step is recorded: its shape may be looked at, its values may not.

A replay would not see the values that the step looks at now, so whoever asks for them is refused: by an operator, a
method, a function of numpy or ``numpy.asarray``.  For that it is no array (a subclass of one has its memory open to all
of C), but an object that passes for one:

    isinstance(x, np.ndarray)   True                ag_tensor(x), W @ x    what the step is for: a slot of the program
    x.shape, len(x), x[:, :3]   as of the array     x.max(), np.dot(x, x), float(x[0, 0]), memoryview(x)    refused

Knows no program; `ag.autograd.captured.arguments` makes it, ops take the array out of it (`StandIn`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, cast
from weakref import ref

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.kernels.convert import StandIn
from ag.engine.primitive import Array
from ag.engine.program import OPEN, Recording, recording_here
from ag.errors import CaptureError

__all__ = ["StepArgument"]

# Methods and functions that look at no value; what they give is the argument in another shape, or no argument any more.
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
    """An array argument of a step, or a view of one.

    Parameters
    ----------
    array : ndarray
        A copy of what was passed, which the step must not see as long as this thread's recording is open.
    of : StepArgument or None, optional
        What it is a view of, which must not seem to be dropped as long as this is held.
    """

    __slots__ = ("__weakref__", "_array", "_of", "_recording")
    __hash__ = None  # type: ignore[assignment]  # as of arrays

    def __init__(self, array: Array, of: StepArgument | None = None) -> None:
        self._array, self._of = array, of
        self._recording: ref[Recording] = ref(cast(Recording, recording_here())) if of is None else of._recording

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What `isinstance` goes by where the type is none."""
        return np.ndarray

    def opened(self) -> Array:
        return self._array

    def _values(self, writes: bool = False) -> Array:
        """The array, for somebody who looks at its values, or would change them."""
        recording = self._recording()
        if recording is not None and recording in list(OPEN.values()):  # otherwise this is like any array
            refused = (f"ag_capture: the step reads or changes the values of an argument of shape {self._array.shape} "
                       f"in Python; a replay would not see those of another call. Compute with tensors, or beforehand.")
            if writes:
                raise CaptureError(refused)  # on trial, too: the caller's array is another one
            recording.refuse(CaptureError(refused))
        return self._array

    def _view(self, array: object) -> StepArgument:
        """The argument in another shape."""
        return StepArgument(cast(Array, array), self)

    def __getattr__(self, name: str) -> object:
        found = getattr(self._array, name)  # AttributeError: arrays have none either
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

    def __buffer__(self, flags: int) -> memoryview:  # from Python 3.12 on; before, there is no buffer
        return self._values().data

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        return self._values().__reduce_ex__(protocol)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> object:
        if any(isinstance(x, Tensor) for x in inputs):
            return NotImplemented  # the tensor makes an op of it, which makes a slot of the argument
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
    """Arrays in the place of arguments."""
    if type(x) is StepArgument:
        return x.opened()
    if type(x) is list:
        return [*map(_opened, x)]
    return tuple(map(_opened, x)) if type(x) is tuple else x


def _operator(name: str, writes: bool) -> Callable[..., object]:
    def operator(self: StepArgument, *others: object) -> object:
        if not writes and any(isinstance(x, Tensor) for x in others):
            return NotImplemented  # the tensor's operator makes an op of it
        return getattr(self._values(writes), name)(*map(_opened, others))

    return operator


for _name in (*_OPERATORS, *_IN_PLACE):
    setattr(StepArgument, f"__{_name}__", _operator(f"__{_name}__", _name in _IN_PLACE))
