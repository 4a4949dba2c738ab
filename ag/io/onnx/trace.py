"""List the ops that a model calls with batches of several sizes, and take what these calls have in common.

Larger batches repeat the example's samples with other values.  Sizes may differ, as in ``x.reshape(8, x.shape[1])``,
and a constant may be longer if it repeats itself, as zeros do.  Any other difference was made in Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ag.autograd.operands import as_array, column, to_buffer
from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Device
from ag.engine.device import default_backend, default_dtype
from ag.engine.dtype import I32, DType
from ag.engine.interpreter import Interpreter
from ag.engine.primitive import Array
from ag.engine.shape import Shape
from ag.errors import ExportError, ShapeError
from ag.io.onnx.graph import Dims, Size, fit
from ag.io.onnx.operators import REFUSED, WRITERS


class Argument(NamedTuple):
    """An input of the model."""

    name: str  # in the graph
    key: str  # of the argument
    array: Array  # the example
    dtype: DType  # of the tensor that the model gets
    is_long: bool = False  # whether the graph takes int64 and makes int32 of it


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
        samples = next((x.array.shape[-1] for x in self.arguments if x.array.ndim), None)
        if not dynamic or samples is None:
            return [1 if samples is None else samples] * 2
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


def called_with(model: Callable[..., object], example: object, tensors: Mapping[str, Tensor]) -> Call:
    """Return the call that an example stands for."""
    by_name = isinstance(example, Mapping)
    values = [*example.values()] if isinstance(example, Mapping) else [*example] if isinstance(example, tuple) else [
        example]
    keys = [str(key) for key in example] if isinstance(example, Mapping) else _names(model, len(values))
    if not values:
        raise TypeError("export_onnx: the example is empty; an array is required, or a tuple or dict of them.")
    backend = next((x.buffer.backend for x in (*tensors.values(), *values) if isinstance(x, Tensor)), None)
    floating = next((t.buffer.dtype for t in tensors.values() if t.buffer.dtype.is_float), default_dtype())
    return Call([_argument(key, f"{key}_input" if key in tensors else key, x, floating)
                 for key, x in zip(keys, values, strict=True)], by_name, backend or default_backend())


def _argument(key: str, name: str, value: object, floating: DType) -> Argument:
    if isinstance(value, Tensor):
        return Argument(name, key, value.numpy(), value.buffer.dtype)
    array = as_array(value, "export_onnx")
    if array.dtype.kind in "iu":
        return Argument(name, key, array, I32, array.dtype == np.int64)
    return Argument(name, key, column(array), floating)


def _names(model: Callable[..., object], count: int) -> list[str]:
    """Return the model's names of its first arguments."""
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    except (TypeError, ValueError):  # of a function written in C
        parameters = {}.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return names + [f"input{i + 1}" for i in range(len(names), count)]


# ---------------------------------------------------------------------------------------------- one call's ops


class Ref(NamedTuple):
    """A value by what it is (``"input"``, ``"parameter"``, ``"constant"``, ``"step"``) and its name or number."""

    kind: str
    key: str | int


class Step(NamedTuple):
    """One op: the function, what messages call it, its operands and its other arguments."""

    function: object
    name: str
    operands: tuple[Ref, ...]
    params: tuple[object, ...]


class Trace(Interpreter):
    """Lists the ops of one call, in order; a tensor that is no input, parameter or result is a constant."""

    exports = True

    def __init__(self, parameters: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
        self._refs: dict[int, Ref] = {}
        self._follow: set[Ref] = set()  # what is computed from the inputs
        self.steps: list[Step] = []
        self.constants: list[Array] = []
        self.shapes: dict[Ref, Shape] = {}
        self.types: dict[Ref, DType] = {}
        self.outputs: dict[str, Ref] = {}
        for kind, tensors in (("parameter", parameters), ("input", inputs)):
            for name, x in tensors.items():
                self._know(x, self._refs.get(x.id, Ref(kind, name)))
        self._follow |= {Ref("input", name) for name in inputs}

    def _know(self, x: Tensor, ref: Ref) -> Ref:
        self._refs[x.id], self.shapes[ref], self.types[ref] = ref, x.shape, x.buffer.dtype
        return ref

    def _ref(self, x: Tensor) -> Ref:
        """Return the reference of a tensor; an unknown one is a constant."""
        known = self._refs.get(x.id)
        if known is None:
            known = self._know(x, Ref("constant", len(self.constants)))
            self.constants.append(x.numpy())
        return known

    def after_op(self, function: object, name: str, operands: Sequence[object], params: Sequence[object],
                 out: object) -> None:
        """Append an op."""
        if function not in WRITERS:
            reason = REFUSED.get(function, "has no ONNX operator; compute with other ops of ag.ops.")
            raise ExportError(f"export_onnx: {name} {reason}")
        refs = tuple(self._ref(x) for x in operands if isinstance(x, Tensor))
        others = tuple(self._ref(x) if isinstance(x, Tensor) else x for x in params)
        ref = Ref("step", len(self.steps))
        self.steps.append(Step(function, name, refs, others))
        if isinstance(out, Tensor):
            self._know(out, ref)
        if self._follow.intersection(x for x in (*refs, *others) if isinstance(x, Ref)):
            self._follow.add(ref)

    def same(self, x: object, other: object) -> None:
        """Let the second tensor stand for the first."""
        if isinstance(x, Tensor) and isinstance(other, Tensor) and x.id in self._refs:
            self._refs[other.id] = self._refs[x.id]

    def read(self, x: object) -> None:
        """Refuse to read a value that follows from an input."""
        if isinstance(x, Tensor) and self._refs.get(x.id) in self._follow:
            raise ExportError(f"export_onnx: the model reads the values of a tensor of shape {x.shape} that follows "
                              f"from its input, and what Python does with them cannot be in a graph; compute with "
                              f"ops, without numpy, float(t), item or comparing.")

    def fill(self, run: Callable[[], object]) -> None:
        """Call a model, list its ops and note its results under their names."""
        with self, no_grad():
            out = run()
        named: Mapping[object, object] = out if isinstance(out, dict) else {"output": out}
        if isinstance(out, (tuple, list)):
            named = {f"output{i}": x for i, x in enumerate(out, 1)}
        what = "nothing" if not named else next(
            (f"a {type(x).__name__} as {name!r}" for name, x in named.items() if not isinstance(x, Tensor)), None)
        if what is not None:
            raise ExportError(f"export_onnx: the model returns {what}; a tensor is required, or a tuple, list or dict "
                              f"of tensors.")
        for name, x in named.items():
            assert isinstance(x, Tensor)
            if x.id not in self._refs:
                raise ExportError(f"export_onnx: the model returns as {name!r} a tensor of shape {x.shape} that no op "
                                  f"of this call computed; return what ops compute, outside of captured steps and "
                                  f"threads.")
            self.outputs[str(name)] = self._refs[x.id]


# -------------------------------------------------------------------------------------------- what calls have in common


class Constant(NamedTuple):
    """A constant, and the shape to which it is repeated."""

    array: Array
    dims: Dims


class Program(NamedTuple):
    """The ops of a model for any batch; numbers in `steps` may be a `Size`."""

    steps: list[Step]
    constants: list[Constant]
    dims: dict[Ref, Dims]
    types: dict[Ref, DType]
    outputs: dict[str, Ref]


def merged(traces: Sequence[Trace], batches: Sequence[int]) -> Program:
    """Return what the traces have in common; `batches` are their numbers of samples."""
    first = traces[0]
    names = [[step.name for step in trace.steps] for trace in traces]
    for trace, called, batch in zip(traces, names, batches, strict=True):
        if called != names[0] or trace.outputs != first.outputs:
            _refuse(f"calls {_first_other(names[0], called)} with a batch of {batches[0]}, and "
                    f"{_first_other(called, names[0])} with a batch of {batch}")
    steps = []
    for i, same in enumerate(zip(*(trace.steps for trace in traces), strict=True)):
        if any((s.function, s.operands) != (same[0].function, same[0].operands) for s in same):
            _refuse(f"calls {same[0].name} (op {i + 1}) on other tensors when the batch has another size")
        what = f"calls {same[0].name} (op {i + 1}) with numbers that change with its input or the batch"
        steps.append(same[0]._replace(params=_common([s.params for s in same], batches, what)))
    dims: dict[Ref, Dims] = {}
    for ref in first.shapes:
        shapes = [trace.shapes[ref] for trace in traces]
        made = first.steps[ref.key].name if isinstance(ref.key, int) and ref.kind == "step" else f"{ref.kind} {ref.key}"
        dims[ref] = _common(shapes, batches, f"makes a tensor ({made}) of shapes {', '.join(map(str, shapes))} of "
                            f"batches of {', '.join(map(str, batches))} samples")
    constants = [_constant(arrays, dims[Ref("constant", i)], batches)
                 for i, arrays in enumerate(zip(*(trace.constants for trace in traces), strict=True))]
    return Program(steps, constants, dims, first.types, first.outputs)


def _refuse(what: str) -> NoReturn:
    raise ExportError(f"export_onnx: the model {what}, so no one graph is true for every batch; compute with ops "
                      f"alone, in the same way for every batch, or export for the example's size with dynamic=False.")


def _first_other(names: list[str], others: list[str]) -> str:
    """Name the first op that another call does not have at its place."""
    differing = (f"{name} (op {i + 1})" for i, (name, other) in enumerate(zip(names, others, strict=False))
                 if name != other)
    return next(differing, f"{len(names)} ops")


def _common(values: Sequence[Any], batches: Sequence[int], what: str) -> Any:
    """Return the values' common one: themselves, or sizes in their place; an ExportError says what the model does."""
    first = values[0]
    if all(type(x) is type(first) and (x == first or (x != x and first != first)) for x in values):
        return first
    if all(isinstance(x, slice) for x in values):
        return slice(*_common([(x.start, x.stop, x.step) for x in values], batches, what))
    if all(isinstance(x, (tuple, list)) and not isinstance(x, Ref) and len(x) == len(first) for x in values):
        return tuple(_common(same, batches, what) for same in zip(*values, strict=True))
    is_whole = all(isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in values)
    size = fit(values, batches) if is_whole else None
    if size is None:
        _refuse(f"{what} ({first!r:.60} is {values[-1]!r:.60})")
    return size


def _constant(arrays: Sequence[Array], dims: Dims, batches: Sequence[int]) -> Constant:
    """Return one constant for all traces, whose axes of changing size repeat one element."""
    for axis, dim in enumerate(dims):
        if isinstance(dim, Size):
            if any(x.shape[axis] == 0 or not np.array_equal(x, np.broadcast_to(x.take([0], axis), x.shape), True)
                   for x in arrays):
                _refuse(f"makes a constant of shape {arrays[0].shape} whose values along axis {axis} depend on the "
                        f"batch")
            arrays = [x.take([0], axis) for x in arrays]
    if not all(np.array_equal(x, arrays[0], equal_nan=True) for x in arrays):
        _refuse(f"makes a constant of shape {arrays[0].shape} that is another one with other inputs, such as a number "
                f"of samples or what numpy, threads or captured steps compute")
    return Constant(arrays[0], dims)
