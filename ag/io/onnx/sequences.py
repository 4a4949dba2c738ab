"""How layer norm, RMS norm, embedding and attention are written.

    attention of [heads * d, time, batch]:   Reshape, Transpose to [batch, heads, time, d]
                                             MatMul, Mul by 1 / sqrt(d), Where causal, Softmax, MatMul, and back

Knows operators of ONNX and a graph; no model.  `ag.io.onnx.operators` lists what is here, `ag.io.onnx.write` calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import cast

from ag.errors import ExportError
from ag.io.onnx.graph import Graph, Value
from ag.io.onnx.sizes import Dim, Dims

__all__ = ["attention", "attention_of_heads", "layer_norm", "lookup", "rms_norm"]


def layer_norm(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
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


def rms_norm(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_rms_norm_op`, written out: the operator is of opset 23, which is newer than what files here need."""
    x, gamma = xs
    square = g.node("ReduceMean", g.node("Mul", x.name, x.name), g.whole([0]), keepdims=1)
    root = g.node("Sqrt", g.node("Add", square, g.number(cast(float, params[0]), x.dtype)))
    return g.node("Mul", g.node("Div", x.name, root), g.reshape(gamma.name, (x.dims[0], *[1] * (x.ndim - 1))))


def lookup(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_embedding_lookup`: columns by number."""
    return g.node("Gather", xs[0].name, cast(Value, params[0]).name, axis=1)


# ---------------------------------------------------------------------------------------------- attention


def attention(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_attention`."""
    causal, rate, heads = params
    return _attention(g, xs, cast(int, heads), bool(causal), cast(float, rate), dims)


def attention_of_heads(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """The same inside of `ag_multihead_attention`."""
    heads, causal, rate = params
    return _attention(g, xs, cast(int, heads), bool(causal), cast(float, rate), dims)


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
    """Which keys each query sees, those up to its own place: [queries, keys]."""
    places = [g.once("Range", g.place(0), g.place(n), g.place(1)) for n in (queries, keys)]
    return g.once("LessOrEqual", places[1], g.once("Unsqueeze", places[0], g.whole([1])))
