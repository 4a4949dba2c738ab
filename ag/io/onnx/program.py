"""Find what the traces of one model have in common: its ops, with sizes that follow the batch.

Traces of batches of 4, 5 and 7 samples must have the same ops on the same values.  Sizes may differ, as in
``x.reshape(8, x.shape[1])``, and a constant may be longer if it repeats itself, as zeros do.  Any other difference was
made of the batch in Python, and a graph would have it wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ag.engine.dtype import DType
from ag.engine.primitive import Array
from ag.errors import ExportError
from ag.io.onnx.graph import Dims, Size, fit
from ag.io.onnx.trace import Ref, Step, Trace


@dataclass(frozen=True)
class Constant:
    """A constant, and the shape to which it is repeated."""

    array: Array
    dims: Dims


@dataclass(frozen=True)
class Program:
    """The ops of a model for any batch; numbers in `steps` may be a `Size`."""

    steps: list[Step]
    constants: list[Constant]
    dims: dict[Ref, Dims]
    types: dict[Ref, DType]
    outputs: dict[str, Ref]


class _DifferError(Exception):
    """Numbers that follow no rule."""


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
        try:
            params = _common([s.params for s in same], batches)
        except _DifferError as error:
            _refuse(f"calls {same[0].name} (op {i + 1}) with numbers that change with its input or the batch ({error})")
        assert isinstance(params, tuple)
        steps.append(same[0]._replace(params=params))
    dims = {ref: _dims([trace.shapes[ref] for trace in traces], batches, ref, first) for ref in first.shapes}
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


def _common(values: Sequence[object], batches: Sequence[int]) -> object:
    """Return the values' common one: themselves, or sizes in their place."""
    first = values[0]
    if all(type(x) is type(first) and (x == first or (x != x and first != first)) for x in values):
        return first
    if isinstance(first, (tuple, list)) and not isinstance(first, Ref):
        items = [x for x in values if isinstance(x, (tuple, list)) and len(x) == len(first)]
        if len(items) < len(values):
            raise _DifferError(f"{first} is {values[-1]}")
        return tuple(_common(same, batches) for same in zip(*items, strict=True))
    if isinstance(first, slice):
        slices = [x for x in values if isinstance(x, slice)]
        if len(slices) < len(values):
            raise _DifferError(f"{first} is {values[-1]}")
        return slice(*(_common([getattr(x, end) for x in slices], batches) for end in ("start", "stop", "step")))
    whole = [int(x) for x in values if isinstance(x, (int, np.integer)) and not isinstance(x, bool)]
    size = fit(whole, batches) if len(whole) == len(values) else None
    if size is None:
        raise _DifferError(f"{first!r:.60} is {values[-1]!r:.60}")
    return size


def _dims(shapes: Sequence[tuple[int, ...]], batches: Sequence[int], ref: Ref, trace: Trace) -> Dims:
    sizes = [fit(same, batches) for same in zip(*shapes, strict=True)] if len(set(map(len, shapes))) == 1 else [None]
    found = tuple(x for x in sizes if x is not None)
    if len(found) < len(sizes):
        what = trace.steps[ref.key].name if isinstance(ref.key, int) and ref.kind == "step" else f"{ref.kind} {ref.key}"
        _refuse(f"makes a tensor ({what}) of shapes {', '.join(map(str, shapes))} of batches of "
                f"{', '.join(map(str, batches))} samples")
    return found


def _constant(arrays: Sequence[Array], dims: Dims, batches: Sequence[int]) -> Constant:
    """Return one constant for all traces, whose axes of changing size repeat one element."""
    for axis, dim in enumerate(dims):
        if isinstance(dim, Size):
            if any(x.shape[axis] == 0 or not _equal(x, np.broadcast_to(x.take([0], axis), x.shape)) for x in arrays):
                _refuse(f"makes a constant of shape {arrays[0].shape} whose values along axis {axis} depend on the "
                        f"batch")
            arrays = [x.take([0], axis) for x in arrays]
    if not all(_equal(x, arrays[0]) for x in arrays):
        _refuse(f"makes a constant of shape {arrays[0].shape} that is another one with other inputs, such as a number "
                f"of samples or what numpy, threads or captured steps compute")
    return Constant(arrays[0], dims)


def _equal(x: Array, y: Array) -> bool:
    return x.shape == y.shape and bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f"))
