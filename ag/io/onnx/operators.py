"""Each op as ONNX operators: one table, `WRITERS`, from the function that users call to what writes its nodes.

A writer gets the graph, the op's operands and its other arguments, and returns the name of the result:

    ag_relu(x)          Relu(x)                         affine(W, x, b)     Gemm(W, x, b), the weight as it is
    _conv2d(x, w)       Transpose, Conv, Transpose      as images are [channels, height, width, batch] here

16-bit tensors are float32 to writers.  Images, sequences and losses have files of their own.  Knows every op, and no
model; `ag.io.onnx.write` calls the writers.  Whoever adds an op adds a row here, or a reason to `REFUSED`; until then
exporting it is a named error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isinf
from operator import index
from typing import SupportsIndex, cast

from ag.engine.dtype import F32
from ag.engine.shape import normalize_axes, normalize_axis
from ag.io.onnx import images, losses, sequences
from ag.io.onnx.graph import Graph, Value
from ag.io.onnx.sizes import Dim, Dims, Size
from ag.ops import activation, arithmetic, convert, elementwise, indexing, loss, norm, pool, reduce
from ag.ops import conv as convs
from ag.ops import dropout as dropouts
from ag.ops import embedding as embeddings
from ag.ops.attention import ag_attention, attention_of_heads
from ag.ops.matmul import affine, ag_matmul
from ag.ops.reshape import ag_flatten, ag_reshape, ag_transpose

__all__ = ["REFUSED", "WRITERS", "Writer"]

# What writes an op: the graph, operands, other arguments, and the result's shape; it returns the result's name.
Writer = Callable[[Graph, Sequence[Value], Sequence[object], Dims], str]

_FIRST, _LAST = -(1 << 31), (1 << 31) - 1  # places beyond every end of an axis, as the standard recommends


def _plain(operator: str) -> Writer:
    """An operator on the operands, without attributes."""
    return lambda g, xs, params, dims: g.node(operator, *(x.name for x in xs))


def _along(operator: str) -> Writer:
    """An operator along one axis."""
    return lambda g, xs, params, dims: g.node(
        operator, xs[0].name, axis=normalize_axis(cast(int, params[0]), xs[0].ndim, operator))


def _by_number(operator: str) -> Writer:
    """An operator on the operand and a number."""
    return lambda g, xs, params, dims: g.node(operator, xs[0].name, g.number(cast(float, params[0]), xs[0].dtype))


def _clamp(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    ends = ["" if isinf(end) else g.number(end, xs[0].dtype) for end in cast("Sequence[float]", params)]
    return g.node("Clip", xs[0].name, *(ends if ends[1] else ends[:1] if ends[0] else []))


def _leaky_relu(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    return g.node("LeakyRelu", xs[0].name, alpha=cast(float, params[0]))


def _silu(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    return g.node("Mul", xs[0].name, g.node("Sigmoid", xs[0].name))


def _gelu(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    return g.node("Gelu", xs[0].name, approximate=cast(str, params[0]))


def _reduce(operator: str) -> Writer:
    def write(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
        dim, keepdim = params
        axes = normalize_axes(cast("int | None", dim), xs[0].ndim, operator)
        if not axes:
            return xs[0].name
        return g.node(operator, xs[0].name, g.whole(axes), keepdims=int(bool(keepdim)))
    return write


def _reshape(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    return g.reshape(xs[0].name, dims)


def _transpose(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    numbers = tuple(params[0]) if len(params) == 1 and isinstance(params[0], Iterable) else params
    axes = [normalize_axis(cast(int, a), xs[0].ndim, "ag_transpose") for a in numbers]
    return g.transpose(xs[0].name, axes or [*reversed(range(xs[0].ndim))])


def _concat(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    axis = normalize_axis(cast(int, params[0]), xs[0].ndim, "ag_concat")
    return xs[0].name if len(xs) == 1 else g.node("Concat", *(x.name for x in xs), axis=axis)


def _slice(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """A part: slices first, then ints, which drop axes, then the axes that None adds."""
    key = params[0] if isinstance(params[0], tuple) else (params[0],)
    skipped = xs[0].ndim - sum(k is not None and k is not Ellipsis for k in key)
    places = [k for part in key for k in ([slice(None)] * skipped if part is Ellipsis else [part])]
    cuts: list[tuple[int, slice]] = []
    picked: list[tuple[int, Dim]] = []
    added: list[int] = []
    axis = out = 0
    for k in places:
        if k is None:
            added.append(out)
        elif not isinstance(k, slice):
            picked.append((axis, _dim(k)))
        elif k != slice(None):
            cuts.append((axis, k))
        axis += k is not None
        out += k is None or isinstance(k, slice)
    name = xs[0].name
    if cuts:
        starts, stops, steps = (g.sizes([*same]) for same in zip(*(_ends(k) for _, k in cuts), strict=True))
        name = g.node("Slice", name, starts, stops, g.whole([a for a, _ in cuts]), steps)
    for a, place in reversed(picked):
        name = g.node("Gather", name, g.place(place), axis=a)
    return g.node("Unsqueeze", name, g.whole(added)) if added else name


def _dim(place: object) -> Dim:
    return place if isinstance(place, Size) else index(cast(SupportsIndex, place))


def _ends(k: slice) -> tuple[Dim, Dim, Dim]:
    """First place, last place and step of a slice, as the operator has them."""
    step = 1 if k.step is None else index(k.step)
    start = _dim(k.start) if k.start is not None else _LAST if step < 0 else 0
    return start, _dim(k.stop) if k.stop is not None else _FIRST if step < 0 else _LAST, step


def _cast(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    return xs[0].name if xs[0].dtype.is_float else g.cast(xs[0].name, F32)  # 16-bit ones are float32 to writers


def _matmul(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    a, b = xs
    if b.ndim == 1:
        return g.node("MatMul", a.name, b.name)
    out = g.node("MatMul", a.name, g.matrix(b))
    return out if b.ndim == 2 else g.reshape(out, dims)


def _affine(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    w, x, b = xs
    out = g.node("Gemm", w.name, g.matrix(x), b.name)
    return out if x.ndim == 2 else g.reshape(out, dims)


WRITERS: Mapping[object, Writer] = {
    **{function: _plain(operator) for function, operator in (
        (arithmetic.ag_add, "Add"), (arithmetic.ag_sub, "Sub"), (arithmetic.ag_mul, "Mul"), (arithmetic.ag_div, "Div"),
        (elementwise.ag_exp, "Exp"), (elementwise.ag_log, "Log"), (elementwise.ag_sqrt, "Sqrt"),
        (elementwise.ag_abs, "Abs"), (activation.ag_relu, "Relu"), (activation.ag_sigmoid, "Sigmoid"),
        (activation.ag_tanh, "Tanh"))},
    arithmetic.ag_scale: _by_number("Mul"),
    elementwise.ag_pow: _by_number("Pow"),
    elementwise.ag_clamp: _clamp,
    activation.ag_leaky_relu: _leaky_relu,
    activation.ag_silu: _silu,
    activation.ag_gelu: _gelu,
    activation.ag_softmax: _along("Softmax"),
    activation.ag_log_softmax: _along("LogSoftmax"),
    reduce.ag_sum: _reduce("ReduceSum"),
    reduce.ag_mean: _reduce("ReduceMean"),
    reduce.ag_max: _reduce("ReduceMax"),
    ag_reshape: _reshape,
    ag_flatten: _reshape,
    ag_transpose: _transpose,
    indexing.ag_concat: _concat,
    indexing.ag_slice: _slice,
    convert.ag_cast: _cast,
    ag_matmul: _matmul,
    affine: _affine,
    convs._conv2d: images.conv,
    pool.ag_max_pool2d: images.max_pool,
    pool.ag_avg_pool2d: images.avg_pool,
    norm.ag_layer_norm_op: sequences.layer_norm,
    norm.ag_rms_norm_op: sequences.rms_norm,
    norm._by_batch: images.batch_norm,
    norm._by_statistics: images.batch_norm_given,
    embeddings._lookup: sequences.lookup,
    ag_attention: sequences.attention,
    attention_of_heads: sequences.attention_of_heads,
    loss.ag_mse_loss: losses.mse,
    loss.ag_cross_entropy_loss: losses.cross_entropy,
    loss._soft_target: losses.soft_target,
    loss._class_ids: losses.class_ids,
}

REFUSED: Mapping[object, str] = {
    dropouts.dropped: "draws random numbers, which a graph cannot; call eval() of the layer, or leave it out.",
    norm.batch_norm_train: "moves running averages in train mode, which a graph cannot; call eval() of the layer.",
}
