"""Hold an ONNX graph while it is written: nodes, initializers, names; sizes that follow the batch become nodes, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from ag.engine.dtype import F16, F32, F64, I32, U32, DType
from ag.engine.primitive import Array


class Size(NamedTuple):
    """A number that depends on the batch: ``fixed + per_sample * batch``."""

    fixed: int
    per_sample: int

    def __str__(self) -> str:
        times = "batch" if self.per_sample == 1 else f"{self.per_sample}*batch"
        return times if self.fixed == 0 else f"{times}{self.fixed:+d}"


Dim = int | Size
Dims = tuple[Dim, ...]


def fit(numbers: Sequence[int], batches: Sequence[int]) -> Dim | None:
    """Return the size that gave these numbers for these batches; None if they are on no straight line.

        batches of 4, 5, 7 samples:    3, 3, 3 -> 3    4, 5, 7 -> Size(0, 1)    16, 25, 49 -> None
    """
    if len(set(numbers)) == 1:
        return int(numbers[0])
    if batches[0] == batches[1]:
        return None
    slope = (numbers[1] - numbers[0]) // (batches[1] - batches[0])
    size = Size(int(numbers[0] - slope * batches[0]), int(slope))
    fits = all(size.fixed + size.per_sample * b == n for n, b in zip(numbers, batches, strict=True))
    return size if fits else None


ELEMENT = {F32: 1, I32: 6, F16: 10, F64: 11, U32: 12}  # onnx.TensorProto's numbers of element types
_SMALL = 64  # elements of constants that are kept once

Attribute = int | float | str | list[int]


@dataclass
class Node:
    """One operator; every operator here has one result, which is also the node's name."""

    operator: str
    inputs: list[str]
    output: str
    attributes: dict[str, Attribute]


def needed(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """Return the nodes that an output needs."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if node.output in wanted:
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


class Value(NamedTuple):
    """A value of the graph: its name, its shape and what `ag` holds it as; 16-bit ones are float32 to operators."""

    name: str
    dims: Dims
    dtype: DType

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.dims)


class Graph:
    """Nodes in order, and the arrays that they begin with."""

    def __init__(self, taken: Sequence[str], batch_of: tuple[str, int] | None) -> None:
        self.nodes: list[Node] = []
        self.initializers: dict[str, Array] = {}
        self.axes: dict[str, int] = {}  # how many axes a value has, where it is known
        self._taken = set(taken)  # names, also those of inputs and parameters
        self._batch_of = batch_of  # the input whose axis of that number is the batch
        self._made: dict[tuple[object, ...], str] = {}

    def fresh(self, stem: str) -> str:
        """Return a name that is not taken yet."""
        name = next(name for i in count(1) if (name := f"{stem}_{i}") not in self._taken)
        self._taken.add(name)
        return name

    def node(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        """The result of an operator; an input that is left out is called ``""``."""
        output = self.fresh(operator.lower())
        self.nodes.append(Node(operator, list(inputs), output, attributes))
        return output

    def once(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        """The result of an operator that may have been written already."""
        key = operator, inputs, repr(sorted(attributes.items()))
        if key not in self._made:
            self._made[key] = self.node(operator, *inputs, **attributes)
        return self._made[key]

    def constant(self, array: Array) -> str:
        """An initializer; small ones with the same values are one."""
        key = array.dtype.str, array.shape, array.tobytes() if array.size <= _SMALL else object()
        if key not in self._made:
            self._made[key] = name = self.fresh("constant")
            self.initializers[name] = array
        return self._made[key]

    def number(self, value: float, dtype: DType) -> str:
        """A number, in the type in which `dtype` is computed."""
        return self.constant(np.asarray(value, np.float32 if dtype.is_half else dtype.numpy_name))

    def whole(self, numbers: Sequence[int]) -> str:
        """Whole numbers, as operators have axes and places."""
        return self.constant(np.array(numbers, np.int64))

    def cast(self, x: str, dtype: DType) -> str:
        """A value in another element type."""
        return self.once("Cast", x, to=ELEMENT[dtype])

    def size(self, dim: Dim) -> str:
        """A size as a vector of one whole number."""
        if not isinstance(dim, Size):
            return self.whole([dim])
        assert self._batch_of is not None
        name, axis = self._batch_of
        batch = self.once("Shape", name, start=axis, end=axis + 1)
        times = batch if dim.per_sample == 1 else self.once("Mul", batch, self.whole([dim.per_sample]))
        return times if dim.fixed == 0 else self.once("Add", times, self.whole([dim.fixed]))

    def place(self, dim: Dim) -> str:
        """A whole number without axes."""
        return self.once("Squeeze", self.size(dim)) if isinstance(dim, Size) else self.constant(np.array(dim))

    def sizes(self, dims: Sequence[Dim]) -> str:
        """Sizes as a vector."""
        known = [dim for dim in dims if not isinstance(dim, Size)]
        if len(known) == len(dims):
            return self.whole(known)
        return self.size(dims[0]) if len(dims) == 1 else self.once("Concat", *map(self.size, dims), axis=0)

    def reshape(self, x: str, dims: Sequence[Dim]) -> str:
        """The same elements in another shape."""
        known = [-1 if isinstance(dim, Size) else dim for dim in dims]
        sizes = self.whole(known) if known.count(-1) == 1 and 0 not in known else self.sizes(dims)
        name = self.node("Reshape", x, sizes, **({"allowzero": 1} if 0 in known else {}))
        self.axes[name] = len(dims)
        return name

    def transpose(self, x: str, axes: Sequence[int]) -> str:
        """The axes in another order."""
        return x if list(axes) == sorted(axes) else self.node("Transpose", x, perm=list(axes))

    def reversed(self, x: str, ndim: int) -> str:
        """The axes the other way round."""
        return self.transpose(x, range(ndim)[::-1])

    def from_first(self, x: str, ndim: int) -> str:
        """The first axis, the batch of a file, brought to the last place."""
        return self.transpose(x, [*range(1, ndim), 0])

    def to_first(self, x: str, ndim: int) -> str:
        """The last axis, the batch, brought to the first place."""
        return self.transpose(x, [*range(ndim)[-1:], *range(ndim - 1)])
