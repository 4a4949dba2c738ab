"""Call the model that is exported: its inputs by name, made of an example, for batches of any size.

Larger batches repeat the example's samples with other values.  So numbers that Python makes of values or sizes
differ between calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ag.autograd.operands import as_array, column, to_buffer
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Device
from ag.engine.device import default_backend, default_dtype
from ag.engine.dtype import BF16, I32, DType
from ag.engine.primitive import Array
from ag.errors import DtypeError, ShapeError
from ag.io.onnx.graph import ELEMENT

_INT64 = 7  # onnx.TensorProto's number of it


@dataclass(frozen=True)
class Argument:
    """An input of the model."""

    name: str  # in the graph
    key: str  # of the argument
    array: Array  # the example
    dtype: DType  # of the tensor that the model gets
    is_long: bool = False  # whether the graph takes int64 and makes int32 of it
    is_whole: bool = False  # whether it is an array of the host's that holds whole numbers

    @property
    def element(self) -> int:
        """Return onnx.TensorProto's number of the element type that the graph takes."""
        return _INT64 if self.is_long else ELEMENT[self.dtype]


@dataclass(frozen=True)
class Call:
    """Arguments of a model, on one device; whether they are passed by name."""

    arguments: list[Argument]
    by_name: bool
    backend: Device

    @property
    def batch_of(self) -> tuple[str, int] | None:
        """Return the input whose last axis is the batch, and that axis; None without axes."""
        return next(((x.name, x.array.ndim - 1) for x in self.arguments if x.array.ndim), None)

    def batches(self, dynamic: bool) -> list[int]:
        """Return the numbers of samples to try; without a batch, twice the example's.

        Three sizes tell a straight line from a square, and from an end as ``min(n, 8)``; one sample may be special.
        """
        samples = next((x.array.shape[-1] for x in self.arguments if x.array.ndim), 1)
        if not dynamic or self.batch_of is None:
            return [samples, samples]
        if samples == 0:
            raise ShapeError("export_onnx: the example has no sample along its last axis, the batch; at least one is "
                             "required.")
        return [samples, samples + 1, 2 * samples + 9, *([1] if samples > 1 else [])]

    def inputs(self, batches: Sequence[int], number: int) -> dict[str, Tensor]:
        """Make tensors by the graph's names for one of the batches; the first is the example itself."""
        rng = np.random.default_rng(number)
        inputs = {}
        for x in self.arguments:
            array = x.array
            if array.ndim and array.shape[-1] == batches[0] != batches[number]:
                array = array.take(np.arange(batches[number]) % batches[0], -1)
            if number > 0:
                array = np.flip(array)
                if x.dtype.is_float:  # no zero stays one, and no sign changes
                    array = array * rng.uniform(0.5, 1.5, array.shape) + (array == 0) * rng.uniform(0, 1, array.shape)
            inputs[x.name] = Tensor(to_buffer(array, self.backend, x.dtype))
        return inputs

    def run(self, model: Callable[..., object], inputs: Mapping[str, Tensor]) -> object:
        """Call the model."""
        if self.by_name:
            return model(**{x.key: inputs[x.name] for x in self.arguments})
        return model(*(inputs[x.name] for x in self.arguments))


def called_with(function: str, model: Callable[..., object], example: object, tensors: Mapping[str, Tensor]) -> Call:
    """Return the call that an example stands for."""
    for name, t in tensors.items():
        if t.buffer.dtype is BF16:
            raise DtypeError(f"{function}: {name} is of type bf16, for which runtimes have no operators; give the "
                             f"values to a model of type f32 with load_state_dict, and export that.")
    by_name = isinstance(example, Mapping)
    values = list(example.values()) if isinstance(example, Mapping) else (
        list(example) if isinstance(example, tuple) else [example])
    keys = [str(key) for key in example] if isinstance(example, Mapping) else _names(model, len(values))
    if not values:
        raise TypeError(f"{function}: the example is empty; an array is required, or a tuple or dict of them.")
    backend = next((t.buffer.backend for t in tensors.values()), None) or next(
        (x.buffer.backend for x in values if isinstance(x, Tensor)), None) or default_backend()
    floating = next((t.buffer.dtype for t in tensors.values() if t.buffer.dtype.is_float), default_dtype())
    return Call([_argument(function, key, f"{key}_input" if key in tensors else key, x, floating)
                 for key, x in zip(keys, values, strict=True)], by_name, backend)


def _argument(function: str, key: str, name: str, value: object, floating: DType) -> Argument:
    if isinstance(value, Tensor):
        argument = Argument(name, key, value.numpy(), value.buffer.dtype)
    else:
        array = as_array(value, function)
        if array.dtype.kind in "iu":
            argument = Argument(name, key, array, I32, bool(array.dtype == np.int64), True)
        else:
            argument = Argument(name, key, column(array), floating)
    if argument.dtype is BF16:
        raise DtypeError(f"{function}: the input {name} is of type bf16, for which runtimes have no operators; give "
                         f"it in float32.")
    return argument


def _names(model: Callable[..., object], count: int) -> list[str]:
    """Return the model's names of its first arguments."""
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    except (TypeError, ValueError):  # of a function written in C
        parameters = {}.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return names + [f"input{i + 1}" for i in range(len(names), count)]
