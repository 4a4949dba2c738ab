"""Write each op as ONNX operators: `WRITERS` has a writer per function that users call, other ops are refused.

16-bit tensors are float32 here.  Operators have the batch first, and the transposes around them cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf, isinf, prod, sqrt
from operator import index
from typing import Any, NamedTuple, SupportsIndex

import numpy as np

from ag.engine.dtype import F16, F32, F64, I32, U32, DType
from ag.engine.primitive import Array
from ag.engine.shape import Window, normalize_axes, normalize_axis
from ag.errors import ExportError
from ag.ops import activation, arithmetic, functions, images, indexing, loss, normalization, reduce
from ag.ops import conv as convs
from ag.ops.attention import attention_of_heads, plain_attention
from ag.ops.creation import ag_cast
from ag.ops.einsum import _products as products_of
from ag.ops.indexing import ag_flatten, ag_reshape, ag_transpose
from ag.ops.matmul import affine, affine_of_frozen, ag_matmul, product_of_frozen
from ag.ops.selection import _lookup as lookup_of
from ag.ops.selection import chosen_by, gathered_by, rows_of_frozen
from ag.ops.shapes import _expanded


class Size(NamedTuple):
    """A number that depends on the batch: ``fixed + per_sample * batch``."""

    fixed: int
    per_sample: int

    def __str__(self) -> str:
        times = "batch" if self.per_sample == 1 else f"{self.per_sample}*batch"
        return times if self.fixed == 0 else f"{times}{self.fixed:+d}"


Dim = int | Size
Dims = tuple[Dim, ...]

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
        known = [dim for dim in dims if not isinstance(dim, Size)]
        if len(known) == len(dims):
            return self.whole(known)
        return self.size(dims[0]) if len(dims) == 1 else self.once("Concat", *map(self.size, dims), axis=0)

    def reshape(self, x: str, dims: Sequence[Dim]) -> str:
        known = [-1 if isinstance(dim, Size) else dim for dim in dims]
        sizes = self.whole(known) if known.count(-1) == 1 and 0 not in known else self.sizes(dims)
        name = self.node("Reshape", x, sizes, **({"allowzero": 1} if 0 in known else {}))
        self.axes[name] = len(dims)
        return name

    def transpose(self, x: str, axes: Sequence[int]) -> str:
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

    def batch_first(self, operator: str, x: Value, *others: str, **attributes: Attribute) -> str:
        """The result of an operator that has the batch first."""
        return self.from_first(self.node(operator, self.to_first(x.name, x.ndim), *others, **attributes), x.ndim)


class Called(NamedTuple):
    """A call of an op: its operands, its other arguments, and the shape of the result."""

    xs: Sequence[Value]
    params: Sequence[Any]
    dims: Dims

    @property
    def x(self) -> Value:
        return self.xs[0]


Writer = Callable[[Graph, Called], str]  # returns the name of the result

def _places(window: Window) -> dict[str, Attribute]:
    """A window as attributes."""
    return {"kernel_shape": [*window.kernel], "strides": [*window.stride], "pads": [*window.padding, *window.padding]}


def _conv(g: Graph, op: Called) -> str:
    """`ag_conv2d`; a third operand is the bias, one number per feature."""
    window, groups = op.params
    x, w, *bias = op.xs
    return g.batch_first("Conv", x, w.name, *(g.reshape(b.name, (w.dims[0],)) for b in bias), **_places(window),
                         dilations=[*window.dilation], group=int(groups))


def _conv_transpose(g: Graph, op: Called) -> str:
    """`conv_transpose2d`; what its output has more is what its size says."""
    window, groups, image = op.params
    x, w = op.xs
    more = [n - (size - 1) * s + 2 * p - e for n, size, s, p, e in zip(
        image, x.dims[1:3], window.stride, window.padding, window.extent, strict=True) if isinstance(size, int)]
    if any(m >= s for m, s in zip(more, window.stride, strict=True)):
        raise ExportError(f"export_onnx: conv_transpose2d has output_padding {(*more,)} and stride {window.stride}; "
                          f"runtimes need less than the stride.")
    return g.batch_first("ConvTranspose", x, w.name, **_places(window), dilations=[*window.dilation],
                         group=int(groups), output_padding=more)


def _pool(operator: str, **attributes: Attribute) -> Writer:
    def write(g: Graph, op: Called) -> str:
        if op.x.dims[0] == 0:
            raise ExportError("export_onnx: the model pools images without channels, and operators of ONNX need at "
                              "least one; leave the pooling out.")
        return g.batch_first(operator, op.x, **_places(op.params[0]), **attributes)
    return write


def _batch_norm_given(g: Graph, op: Called) -> str:
    """`ag_batch_norm_op` by given statistics."""
    x, *others = op.xs
    vectors = [g.reshape(v.name, (x.dims[0],)) for v in others]
    return g.batch_first("BatchNormalization", x, *vectors, epsilon=op.params[0])


def _batch_norm(g: Graph, op: Called) -> str:
    """`ag_batch_norm_op` by the batch's own statistics: no operator does this, so it is written out."""
    x, *others = op.xs
    axes = g.whole(range(1, x.ndim))
    gamma, beta = (g.reshape(v.name, (x.dims[0], *[1] * (x.ndim - 1))) for v in others)
    apart = g.node("Sub", x.name, g.node("ReduceMean", x.name, axes, keepdims=1))
    variance = g.node("ReduceMean", g.node("Mul", apart, apart), axes, keepdims=1)
    deviation = g.node("Sqrt", g.node("Add", variance, g.number(op.params[0], x.dtype)))
    return g.node("Add", g.node("Mul", g.node("Div", apart, deviation), gamma), beta)


def _layer_norm(g: Graph, op: Called) -> str:
    """`ag_layer_norm_op`; the operator wants the features last."""
    x, *others = op.xs
    vectors = [g.reshape(v.name, (x.dims[0],)) for v in others]
    if x.dims[0] == 1:  # each value is its own mean, and some runtimes refuse to normalize one value
        out = g.node("Sub", x.name, x.name)  # NaN of infinity, as the operator's
        for operator, vector in zip(("Mul", "Add"), vectors, strict=False):
            out = g.node(operator, out, vector)
        return out
    out = g.node("LayerNormalization", g.reversed(x.name, x.ndim), *vectors, axis=-1, epsilon=op.params[0])
    return g.reversed(out, x.ndim)


def _rms_norm(g: Graph, op: Called) -> str:
    """`ag_rms_norm_op`, written out: the operator is of opset 23, which is newer than what files here need."""
    x, gamma = op.xs
    turned = g.reversed(x.name, x.ndim)
    square = g.node("ReduceMean", g.node("Mul", turned, turned), g.whole([x.ndim - 1]), keepdims=1)
    root = g.node("Sqrt", g.node("Add", square, g.number(op.params[0], x.dtype)))
    out = g.node("Mul", g.node("Div", turned, root), g.reshape(gamma.name, (x.dims[0],)))
    return g.reversed(out, x.ndim)


def _attention(g: Graph, op: Called) -> str:
    heads, causal, rate = op.params
    if rate:
        raise ExportError(f"export_onnx: ag_attention draws random numbers for its dropout of {rate}, which a graph "
                          f"cannot; export with dropout=0.0.")
    q, k, v = (_by_head(g, x, heads) for x in op.xs)
    features, queries = op.x.dims[:2]
    assert isinstance(features, int)
    n = op.x.ndim + 1
    scores = g.node("MatMul", q, g.transpose(k, [*range(n - 2), n - 1, n - 2]))
    scores = g.node("Mul", scores, g.number(1 / sqrt(features // heads), op.x.dtype))
    if causal:
        scores = g.node("Where", _seen(g, queries, op.xs[1].dims[1]), scores, g.number(-inf, op.x.dtype))
    out = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
    return g.reversed(g.reshape(_heads_and_time(g, out, n), op.dims[::-1]), n - 1)


def _by_head(g: Graph, x: Value, heads: int) -> str:
    """[heads * d, time, batch] as [batch, heads, time, d]; without a batch, [heads, time, d]."""
    features, *others = x.dims
    assert isinstance(features, int)
    split = g.reshape(g.reversed(x.name, x.ndim), (*others[::-1], heads, features // heads))
    return _heads_and_time(g, split, x.ndim + 1)


def _heads_and_time(g: Graph, x: str, ndim: int) -> str:
    """Swap the last axes but one, which are heads and time."""
    return g.transpose(x, [*range(ndim - 3), ndim - 2, ndim - 3, ndim - 1])


def _seen(g: Graph, queries: Dim, keys: Dim) -> str:
    """Return a mask [queries, keys]: each query sees the keys up to its own place."""
    places = [g.once("Range", g.place(0), g.place(n), g.place(1)) for n in (queries, keys)]
    return g.once("LessOrEqual", places[1], g.once("Unsqueeze", places[0], g.whole([1])))


def _negative_sum(g: Graph, op: Called, terms: str) -> str:
    """Minus the sum over classes, averaged over samples unless the op has ``mean=False``."""
    losses = g.node("ReduceSum", terms, g.whole([0]), keepdims=0)
    if False in op.params:
        return g.reshape(g.node("Neg", losses), op.dims)
    if op.x.ndim > 1:
        losses = g.node("ReduceMean", losses, g.whole(range(op.x.ndim - 1)), keepdims=0)
    return g.node("Neg", losses)


def _cross_entropy(logarithm: str, **attributes: Attribute) -> Writer:
    """Cross-entropy with distributions, given the operator that makes logarithms of probabilities."""
    def write(g: Graph, op: Called) -> str:
        x, target = op.xs
        nothing, logs = g.number(0, target.dtype), g.node(logarithm, x.name, **attributes)
        seen = g.node("Where", g.node("Equal", target.name, nothing), nothing, logs)  # a target of 0 counts 0, not -inf
        return _negative_sum(g, op, g.node("Mul", target.name, seen))
    return write


def _mse(g: Graph, op: Called) -> str:
    """`ag_mse_loss`."""
    apart = g.node("Sub", op.x.name, op.xs[1].name)
    squares = g.node("Mul", apart, apart)
    return g.node("ReduceMean", squares, g.whole(range(op.x.ndim)), keepdims=0) if op.x.ndim else squares


def _of_ids(g: Graph, op: Called) -> str:
    """Logarithms of the probabilities of class numbers."""
    x, ids = op.xs
    return g.node("GatherElements", g.node("LogSoftmax", x.name, axis=0), g.reshape(ids.name, (1, *x.dims[1:])), axis=0)


_FIRST, _LAST = -(1 << 31), (1 << 31) - 1  # places beyond every end of an axis, as the standard recommends


def _plain(operator: str) -> Writer:
    return lambda g, op: g.node(operator, *(x.name for x in op.xs))


def _along(operator: str) -> Writer:
    """An operator along one axis."""
    def write(g: Graph, op: Called) -> str:
        axis = (normalize_axis(op.params[0], op.x.ndim, operator) + 1) % op.x.ndim
        return g.batch_first(operator, op.x, axis=axis)
    return write


def _clamp(g: Graph, op: Called) -> str:
    ends = ["" if isinf(end) else g.number(end, op.x.dtype) for end in op.params]
    return g.node("Clip", op.x.name, *(ends if ends[1] else ends[:1] if ends[0] else []))


def _reduce(operator: str) -> Writer:
    def write(g: Graph, op: Called) -> str:
        dim, keepdim = op.params
        axes = normalize_axes(dim, op.x.ndim, operator)
        if not axes:
            return op.x.name
        keeps = int(bool(keepdim))
        if op.x.ndim - 1 in axes:
            return g.node(operator, op.x.name, g.whole(axes), keepdims=keeps)
        out = g.node(operator, g.to_first(op.x.name, op.x.ndim), g.whole([a + 1 for a in axes]), keepdims=keeps)
        return g.from_first(out, len(op.dims))
    return write


def _reshape(g: Graph, op: Called) -> str:
    """`ag_reshape`; where the batch stays last, it may as well stay first."""
    if op.x.ndim and op.dims and isinstance(op.dims[-1], Size) and op.x.dims[-1] == op.dims[-1]:
        first = g.reshape(g.to_first(op.x.name, op.x.ndim), (op.dims[-1], *op.dims[:-1]))
        return g.from_first(first, len(op.dims))
    return g.reshape(op.x.name, op.dims)


def _lookup(g: Graph, op: Called) -> str:
    """`ag_embedding_lookup`: a word is a column."""
    w, ids = op.xs
    out = g.node("Gather", w.name, g.reversed(ids.name, ids.ndim), axis=1)
    return g.transpose(out, [0, *range(1, ids.ndim + 1)[::-1]])


def _take(g: Graph, op: Called) -> str:
    """Places by ids of an axis, or of several that are one axis then."""
    x, ids = op.xs
    first, count = op.params[0]
    sizes = x.dims[first : first + count]
    if count > 1 and any(isinstance(size, Size) for size in sizes):
        raise ExportError("export_onnx: ids choose from the batch and other axes at once, so give dynamic=False.")
    whole = x.name if count == 1 else g.reshape(x.name, (*x.dims[:first], prod(sizes), *x.dims[first + count :]))
    return g.node("Gather", whole, ids.name, axis=first)


def _products(g: Graph, op: Called) -> str:
    first = [g.transpose(g.reshape(x.name, groups), (0, 3, 2, 1) if turned else (0, 3, 1, 2))
             for x, groups, turned in zip(op.xs, op.params[:2], op.params[2:4], strict=True)]
    return g.reshape(g.transpose(g.node("MatMul", *first), (0, 2, 3, 1)), op.dims)


def _transpose(g: Graph, op: Called) -> str:
    numbers = tuple(op.params[0]) if len(op.params) == 1 and isinstance(op.params[0], Iterable) else op.params
    axes = [normalize_axis(a, op.x.ndim, "ag_transpose") for a in numbers]
    return g.transpose(op.x.name, axes or [*reversed(range(op.x.ndim))])


def _concat(g: Graph, op: Called) -> str:
    axis = normalize_axis(op.params[0], op.x.ndim, "ag_concat")
    return op.x.name if len(op.xs) == 1 else g.node("Concat", *(x.name for x in op.xs), axis=axis)


def _slice(g: Graph, op: Called) -> str:
    """Write a part: slices first, then ints, which drop axes, then the axes that None adds."""
    key = op.params[0] if isinstance(op.params[0], tuple) else (op.params[0],)
    skipped = op.x.ndim - sum(k is not None and k is not Ellipsis for k in key)
    places = [k for part in key for k in ([slice(None)] * skipped if part is Ellipsis else [part])]
    axes = [*enumerate(k for k in places if k is not None)]
    cuts = [(axis, k) for axis, k in axes if isinstance(k, slice) and k != slice(None)]
    picked = [(axis, _dim(k)) for axis, k in axes if not isinstance(k, slice)]
    left = [k for k in places if k is None or isinstance(k, slice)]  # one for each axis of the result
    added = [axis for axis, k in enumerate(left) if k is None]
    name = op.x.name
    if cuts:
        starts, stops, steps = (g.sizes([*same]) for same in zip(*(_ends(k) for _, k in cuts), strict=True))
        name = g.node("Slice", name, starts, stops, g.whole([a for a, _ in cuts]), steps)
    for a, place in reversed(picked):
        name = g.node("Gather", name, g.place(place), axis=a)
    return g.node("Unsqueeze", name, g.whole(added)) if added else name


def _dim(place: Dim | SupportsIndex) -> Dim:
    return place if isinstance(place, Size) else index(place)


def _ends(k: slice) -> tuple[Dim, Dim, Dim]:
    """First place, last place and step of a slice, as the operator has them."""
    step = 1 if k.step is None else index(k.step)
    start = _dim(k.start) if k.start is not None else _LAST if step < 0 else 0
    return start, _dim(k.stop) if k.stop is not None else _FIRST if step < 0 else _LAST, step


def _matmul(g: Graph, op: Called) -> str:
    a, b = op.xs
    if b.ndim == 1:  # as a column, as onnxruntime 1.32 gets the product of a transposed matrix and a vector wrong
        return g.reshape(g.node("MatMul", a.name, g.reshape(b.name, (*b.dims, 1))), op.dims)
    return g.reversed(g.node("MatMul", g.reversed(b.name, b.ndim), g.reversed(a.name, 2)), b.ndim)


def _affine(g: Graph, op: Called) -> str:
    w, x, b = op.xs
    turned, row = g.reversed(x.name, x.ndim), g.reshape(b.name, (w.dims[0],))
    out = (g.node("Gemm", turned, w.name, row, transB=1) if x.ndim == 2 else
           g.node("Add", g.node("MatMul", turned, g.reversed(w.name, 2)), row))
    return g.reversed(out, x.ndim)


# Functions that are one operator, which load_onnx reads back.
SAME: Mapping[Callable[..., object], str] = {
    arithmetic.ag_add: "Add", arithmetic.ag_sub: "Sub", arithmetic.ag_mul: "Mul", arithmetic.ag_div: "Div",
    arithmetic.ag_exp: "Exp", arithmetic.ag_log: "Log", arithmetic.ag_sqrt: "Sqrt", arithmetic.ag_abs: "Abs",
    activation.ag_relu: "Relu", activation.ag_sigmoid: "Sigmoid", activation.ag_tanh: "Tanh",
    **{getattr(functions, name): operator for name, operator in {
        "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh",
        "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "reciprocal": "Reciprocal",
        "mish": "Mish", "hardswish": "HardSwish", "softsign": "Softsign", "sign": "Sign", "floor": "Floor",
        "ceil": "Ceil", "round": "Round", "maximum": "Max", "minimum": "Min", "power": "Pow"}.items()}}


WRITERS: Mapping[object, Writer] = {
    **{function: _plain(operator) for function, operator in SAME.items()},
    functions.square: lambda g, op: g.node("Mul", op.x.name, op.x.name),
    functions.rsqrt: lambda g, op: g.node("Reciprocal", g.node("Sqrt", op.x.name)),
    functions.logsigmoid: lambda g, op: g.node("Neg", g.node("Softplus", g.node("Neg", op.x.name))),
    functions.tanhshrink: lambda g, op: g.node("Sub", op.x.name, g.node("Tanh", op.x.name)),
    arithmetic.ag_scale: lambda g, op: g.node("Mul", op.x.name, g.number(op.params[0], op.x.dtype)),
    arithmetic.ag_pow: lambda g, op: g.node("Pow", op.x.name, g.number(op.params[0], op.x.dtype)),
    arithmetic.ag_clamp: _clamp,
    activation.ag_leaky_relu: lambda g, op: g.node("LeakyRelu", op.x.name, alpha=op.params[0]),
    activation.ag_silu: lambda g, op: g.node("Mul", op.x.name, g.node("Sigmoid", op.x.name)),
    activation.ag_gelu: lambda g, op: g.node("Gelu", op.x.name, approximate=op.params[0]),
    activation.ag_softmax: _along("Softmax"),
    activation.ag_log_softmax: _along("LogSoftmax"),
    reduce.ag_sum: _reduce("ReduceSum"),
    reduce.ag_mean: _reduce("ReduceMean"),
    reduce.ag_max: _reduce("ReduceMax"),
    reduce.min: _reduce("ReduceMin"),
    reduce.prod: _reduce("ReduceProd"),
    **dict.fromkeys((ag_reshape, ag_flatten), _reshape),
    ag_transpose: _transpose,
    indexing.ag_concat: _concat,
    indexing.ag_slice: _slice,
    ag_cast: lambda g, op: op.x.name if op.x.dtype.is_float else g.cast(op.x.name, F32),
    ag_matmul: _matmul,
    affine: _affine,
    convs._conv2d: _conv,
    convs._conv_transpose2d: _conv_transpose,
    images._max_pool2d: _pool("MaxPool"),
    images._avg_pool2d: _pool("AveragePool", count_include_pad=1),
    normalization.ag_layer_norm_op: _layer_norm,
    normalization.ag_rms_norm_op: _rms_norm,
    normalization._by_batch: _batch_norm,
    normalization._by_statistics: _batch_norm_given,
    _expanded: lambda g, op: g.node("Expand", op.x.name, g.sizes(op.dims)),
    lookup_of: _lookup,
    products_of: _products,
    chosen_by: _take,
    gathered_by: lambda g, op: g.node("GatherElements", *(x.name for x in op.xs), axis=op.params[0]),
    plain_attention: _attention,
    attention_of_heads: _attention,
    loss._mean_squares: _mse,
    loss._logistic: lambda g, op: g.node(
        "Add", g.node("Sub", g.node("Relu", op.x.name), g.node("Mul", *(x.name for x in op.xs))),
        g.node("Softplus", g.node("Neg", g.node("Abs", op.x.name)))),
    loss.ag_cross_entropy_loss: _cross_entropy("Log"),
    loss._of_distributions: _cross_entropy("LogSoftmax", axis=0),
    loss._of_ids: lambda g, op: _negative_sum(g, op, _of_ids(g, op)),
}

REFUSED: Mapping[object, str] = {
    arithmetic.dropped: "draws random numbers, which a graph cannot; call eval() of the layer, or leave it out.",
    normalization.batch_norm_train: "moves running averages in train mode, which a graph cannot; call its eval().",
    **dict.fromkeys((product_of_frozen, affine_of_frozen, rows_of_frozen), "has a frozen tensor, which is not written; "
                    "put ag_tensor(W.numpy()) in its place."),
}
