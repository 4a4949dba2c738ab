"""How convolution, pooling and batch norm are written: ONNX has the batch first, then channels, `ag` the batch last.

Transposes stand around every operator; `ag.io.onnx.layout` takes out those that cancel, which leaves one at the
beginning and one at the end of a convolutional network.  Knows operators of ONNX and a graph; no model.
`ag.io.onnx.operators` lists what is here, `ag.io.onnx.write` calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ag.engine.window import Pair, Window
from ag.errors import ExportError
from ag.io.onnx.graph import Attribute, Graph, Value
from ag.io.onnx.sizes import Dims
from ag.ops.pool import pool_window

__all__ = ["avg_pool", "batch_norm", "batch_norm_given", "conv", "max_pool"]

_TO, _BACK = (3, 0, 1, 2), (1, 2, 3, 0)  # [channels, height, width, batch] to [batch, channels, height, width]


def _places(window: Window) -> dict[str, Attribute]:
    """A window as attributes."""
    return {"kernel_shape": [*window.kernel], "strides": [*window.stride], "pads": [*window.padding, *window.padding]}


def conv(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_conv2d`; a third operand is the bias, one number per feature."""
    window, groups = cast(Window, params[0]), cast(int, params[1])
    x, w, *bias = xs
    inputs = [g.transpose(x.name, _TO), w.name, *(g.reshape(b.name, (w.dims[0],)) for b in bias)]
    out = g.node("Conv", *inputs, **_places(window), dilations=[*window.dilation], group=int(groups))
    return g.transpose(out, _BACK)


def _pool(g: Graph, x: Value, operator: str, params: Sequence[object], **attributes: Attribute) -> str:
    if x.dims[0] == 0:
        raise ExportError("export_onnx: the model pools images without channels, and operators of ONNX need at least "
                          "one; leave the pooling out.")
    size, stride, padding = cast("Sequence[int | Pair]", params)
    window = pool_window(size, stride, padding, operator)
    return g.transpose(g.node(operator, g.transpose(x.name, _TO), **_places(window), **attributes), _BACK)


def max_pool(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_max_pool2d`."""
    return _pool(g, xs[0], "MaxPool", params)


def avg_pool(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_avg_pool2d`, which counts padding."""
    return _pool(g, xs[0], "AveragePool", params, count_include_pad=1)


def batch_norm_given(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_batch_norm_op` by given statistics."""
    x, *others = xs
    last = x.ndim - 1
    vectors = [g.reshape(v.name, (x.dims[0],)) for v in others]
    out = g.node("BatchNormalization", g.transpose(x.name, [last, *range(last)]), *vectors,
                 epsilon=cast(float, params[0]))
    return g.transpose(out, [*range(1, x.ndim), 0])


def batch_norm(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_batch_norm_op` by the batch's own statistics: no operator does this, so it is written out."""
    x, *others = xs
    axes = g.whole(range(1, x.ndim))
    gamma, beta = (g.reshape(v.name, (x.dims[0], *[1] * (x.ndim - 1))) for v in others)
    apart = g.node("Sub", x.name, g.node("ReduceMean", x.name, axes, keepdims=1))
    variance = g.node("ReduceMean", g.node("Mul", apart, apart), axes, keepdims=1)
    deviation = g.node("Sqrt", g.node("Add", variance, g.number(cast(float, params[0]), x.dtype)))
    return g.node("Add", g.node("Mul", g.node("Div", apart, deviation), gamma), beta)
