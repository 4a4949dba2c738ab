"""Write each op as ONNX operators: `WRITERS` has a writer per function that users call.

A writer takes the graph, operands, other arguments and the result's shape, and returns the result's name.
An op without a row here or in `REFUSED` is a named error.  16-bit tensors are float32 to writers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isinf, sqrt
from operator import index
from typing import SupportsIndex, cast

from ag.engine.dtype import F32
from ag.engine.shape import Pair, Window, normalize_axes, normalize_axis
from ag.errors import ExportError
from ag.io.onnx.graph import Attribute, Dim, Dims, Graph, Size, Value
from ag.ops import activation, arithmetic, convert, elementwise, indexing, loss, norm, pool, reduce
from ag.ops import conv as convs
from ag.ops import embedding as embeddings
from ag.ops.attention import ag_attention, attention_of_heads
from ag.ops.matmul import affine, ag_matmul
from ag.ops.pool import pool_window
from ag.ops.reshape import ag_flatten, ag_reshape, ag_transpose

# What writes an op: the graph, operands, other arguments, and the result's shape; it returns the result's name.
Writer = Callable[[Graph, Sequence[Value], Sequence[object], Dims], str]

_TO, _BACK = (3, 0, 1, 2), (1, 2, 3, 0)  # [channels, height, width, batch] to [batch, channels, height, width]


def _places(window: Window) -> dict[str, Attribute]:
    """A window as attributes."""
    return {"kernel_shape": [*window.kernel], "strides": [*window.stride], "pads": [*window.padding, *window.padding]}


def _conv(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_conv2d`; a third operand is the bias, one number per feature."""
    window, groups = cast(Window, params[0]), cast(int, params[1])
    x, w, *bias = xs
    inputs = [g.transpose(x.name, _TO), w.name, *(g.reshape(b.name, (w.dims[0],)) for b in bias)]
    out = g.node("Conv", *inputs, **_places(window), dilations=[*window.dilation], group=int(groups))
    return g.transpose(out, _BACK)


def _pool(operator: str, **attributes: Attribute) -> Writer:
    def write(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
        if xs[0].dims[0] == 0:
            raise ExportError("export_onnx: the model pools images without channels, and operators of ONNX need at "
                              "least one; leave the pooling out.")
        size, stride, padding = cast("Sequence[int | Pair]", params)
        window = pool_window(size, stride, padding, operator)
        return g.transpose(g.node(operator, g.transpose(xs[0].name, _TO), **_places(window), **attributes), _BACK)
    return write


def _batch_norm_given(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_batch_norm_op` by given statistics."""
    x, *others = xs
    last = x.ndim - 1
    vectors = [g.reshape(v.name, (x.dims[0],)) for v in others]
    out = g.node("BatchNormalization", g.transpose(x.name, [last, *range(last)]), *vectors,
                 epsilon=cast(float, params[0]))
    return g.transpose(out, [*range(1, x.ndim), 0])


def _batch_norm(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_batch_norm_op` by the batch's own statistics: no operator does this, so it is written out."""
    x, *others = xs
    axes = g.whole(range(1, x.ndim))
    gamma, beta = (g.reshape(v.name, (x.dims[0], *[1] * (x.ndim - 1))) for v in others)
    apart = g.node("Sub", x.name, g.node("ReduceMean", x.name, axes, keepdims=1))
    variance = g.node("ReduceMean", g.node("Mul", apart, apart), axes, keepdims=1)
    deviation = g.node("Sqrt", g.node("Add", variance, g.number(cast(float, params[0]), x.dtype)))
    return g.node("Add", g.node("Mul", g.node("Div", apart, deviation), gamma), beta)


def _layer_norm(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_layer_norm_op`; the operator wants the features last."""
    x, *others = xs
    vectors = [g.reshape(v.name, (x.dims[0],)) for v in others]
    if x.dims[0] == 1:  # each value is its own mean, and some runtimes refuse to normalize one value
        out = g.node("Sub", x.name, x.name)  # NaN of infinity, as the operator's
        for operator, vector in zip(("Mul", "Add"), vectors, strict=False):
            out = g.node(operator, out, vector)
        return out
    out = g.node("LayerNormalization", g.transpose(x.name, [*range(1, x.ndim), 0]), *vectors, axis=-1,
                 epsilon=cast(float, params[0]))
    return g.transpose(out, [x.ndim - 1, *range(x.ndim - 1)])


def _rms_norm(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_rms_norm_op`, written out: the operator is of opset 23, which is newer than what files here need."""
    x, gamma = xs
    square = g.node("ReduceMean", g.node("Mul", x.name, x.name), g.whole([0]), keepdims=1)
    root = g.node("Sqrt", g.node("Add", square, g.number(cast(float, params[0]), x.dtype)))
    return g.node("Mul", g.node("Div", x.name, root), g.reshape(gamma.name, (x.dims[0], *[1] * (x.ndim - 1))))


def _lookup(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_embedding_lookup`: columns by number."""
    return g.node("Gather", xs[0].name, xs[1].name, axis=1)


# ---------------------------------------------------------------------------------------------- attention


def _attention_with(causal: int, rate: int, heads: int) -> Writer:
    """Attention whose other arguments are at these places."""
    return lambda g, xs, params, dims: _attention(
        g, xs, cast(int, params[heads]), bool(params[causal]), cast(float, params[rate]), dims)


def _attention(g: Graph, xs: Sequence[Value], heads: int, causal: bool, rate: float, dims: Dims) -> str:
    if rate:
        raise ExportError(f"export_onnx: ag_attention draws random numbers for its dropout of {rate}, which a graph "
                          f"cannot; export with dropout=0.0.")
    q, k, v = (_by_head(g, x, heads) for x in xs)
    features = xs[0].dims[0]
    assert isinstance(features, int)
    rest = [*range(xs[0].ndim - 1)]  # the axes of batch and heads
    scores = g.node("MatMul", q, g.transpose(k, [*rest, len(rest) + 1, len(rest)]))
    scores = g.node("Mul", scores, g.number(1 / sqrt(features // heads), xs[0].dtype))
    if causal:
        scores = g.node("Where", _seen(g, xs[0].dims[1], xs[1].dims[1]), scores, g.number(-inf, xs[0].dtype))
    out = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
    back = (0, 2, 1) if xs[0].ndim == 2 else (1, 3, 2, 0)
    return g.reshape(g.transpose(out, back), dims)


def _by_head(g: Graph, x: Value, heads: int) -> str:
    """[heads * d, time, batch] as [batch, heads, time, d]; without a batch, [heads, time, d]."""
    features, *others = x.dims
    assert isinstance(features, int)
    return g.transpose(g.reshape(x.name, (heads, features // heads, *others)),
                       (0, 2, 1) if x.ndim == 2 else (3, 0, 2, 1))


def _seen(g: Graph, queries: Dim, keys: Dim) -> str:
    """Return a mask [queries, keys]: each query sees the keys up to its own place."""
    places = [g.once("Range", g.place(0), g.place(n), g.place(1)) for n in (queries, keys)]
    return g.once("LessOrEqual", places[1], g.once("Unsqueeze", places[0], g.whole([1])))


def _negative_sum(g: Graph, x: Value, terms: str) -> str:
    """Minus the sum over classes, averaged over samples."""
    losses = g.node("ReduceSum", terms, g.whole([0]), keepdims=0)
    return g.node("Neg", g.node("ReduceMean", losses, g.whole(range(x.ndim - 1)), keepdims=0) if x.ndim > 1 else losses)


def _weighted(g: Graph, target: Value, logs: str) -> str:
    """Multiply targets and logarithms; a target of 0 counts 0 beside -inf."""
    nothing = g.number(0, target.dtype)
    return g.node("Mul", target.name, g.node("Where", g.node("Equal", target.name, nothing), nothing, logs))


def _mse(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_mse_loss`."""
    apart = g.node("Sub", xs[0].name, xs[1].name)
    squares = g.node("Mul", apart, apart)
    return g.node("ReduceMean", squares, g.whole(range(xs[0].ndim)), keepdims=0) if xs[0].ndim else squares


def _cross_entropy(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_cross_entropy_loss`."""
    return _negative_sum(g, xs[0], _weighted(g, xs[1], g.node("Log", xs[0].name)))


def _soft_target(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_softmax_cross_entropy_loss` with distributions."""
    return _negative_sum(g, xs[0], _weighted(g, xs[1], g.node("LogSoftmax", xs[0].name, axis=0)))


def _class_ids(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_softmax_cross_entropy_loss` with class numbers."""
    x, ids = xs
    chosen = g.node("GatherElements", g.node("LogSoftmax", x.name, axis=0), g.reshape(ids.name, (1, *x.dims[1:])),
                    axis=0)
    return _negative_sum(g, x, chosen)


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


def _by_attribute(operator: str, name: str) -> Writer:
    """An operator on the operand, with the other argument as an attribute."""
    return lambda g, xs, params, dims: g.node(operator, xs[0].name, **{name: cast("float | str", params[0])})


def _clamp(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    ends = ["" if isinf(end) else g.number(end, xs[0].dtype) for end in cast("Sequence[float]", params)]
    return g.node("Clip", xs[0].name, *(ends if ends[1] else ends[:1] if ends[0] else []))


def _silu(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    return g.node("Mul", xs[0].name, g.node("Sigmoid", xs[0].name))


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
    """Write a part: slices first, then ints, which drop axes, then the axes that None adds."""
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
    activation.ag_leaky_relu: _by_attribute("LeakyRelu", "alpha"),
    activation.ag_silu: _silu,
    activation.ag_gelu: _by_attribute("Gelu", "approximate"),
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
    convs._conv2d: _conv,
    pool.ag_max_pool2d: _pool("MaxPool"),
    pool.ag_avg_pool2d: _pool("AveragePool", count_include_pad=1),
    norm.ag_layer_norm_op: _layer_norm,
    norm.ag_rms_norm_op: _rms_norm,
    norm._by_batch: _batch_norm,
    norm._by_statistics: _batch_norm_given,
    embeddings._lookup: _lookup,
    ag_attention: _attention_with(causal=0, rate=1, heads=2),
    attention_of_heads: _attention_with(heads=0, causal=1, rate=2),
    loss.ag_mse_loss: _mse,
    loss.ag_cross_entropy_loss: _cross_entropy,
    loss._soft_target: _soft_target,
    loss._class_ids: _class_ids,
}

REFUSED: Mapping[object, str] = {
    elementwise.dropped: "draws random numbers, which a graph cannot; call eval() of the layer, or leave it out.",
    norm.batch_norm_train: "moves running averages in train mode, which a graph cannot; call eval() of the layer.",
}
