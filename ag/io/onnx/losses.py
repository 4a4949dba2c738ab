"""How losses are written: sums over classes, means over samples.

Means are operators of their own, so they follow the batch.  Knows operators of ONNX and a graph; no model.
`ag.io.onnx.operators` lists what is here, `ag.io.onnx.write` calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ag.io.onnx.graph import Graph, Value
from ag.io.onnx.sizes import Dims

__all__ = ["class_ids", "cross_entropy", "mse", "soft_target"]


def _mean_over_samples(g: Graph, losses: str, ndim: int) -> str:
    """The mean of all that is left after the classes were added up."""
    return g.node("ReduceMean", losses, g.whole(range(ndim - 1)), keepdims=0) if ndim > 1 else losses


def _negative_sum(g: Graph, x: Value, terms: str) -> str:
    return g.node("Neg", _mean_over_samples(g, g.node("ReduceSum", terms, g.whole([0]), keepdims=0), x.ndim))


def mse(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_mse_loss`."""
    apart = g.node("Sub", xs[0].name, xs[1].name)
    squares = g.node("Mul", apart, apart)
    return g.node("ReduceMean", squares, g.whole(range(xs[0].ndim)), keepdims=0) if xs[0].ndim else squares


def cross_entropy(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_cross_entropy_loss`."""
    return _negative_sum(g, xs[0], g.node("Mul", xs[1].name, g.node("Log", xs[0].name)))


def soft_target(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_softmax_cross_entropy_loss` with distributions."""
    return _negative_sum(g, xs[0], g.node("Mul", xs[1].name, g.node("LogSoftmax", xs[0].name, axis=0)))


def class_ids(g: Graph, xs: Sequence[Value], params: Sequence[object], dims: Dims) -> str:
    """`ag_softmax_cross_entropy_loss` with class numbers."""
    x, ids = xs[0], cast(Value, params[0])
    chosen = g.node("GatherElements", g.node("LogSoftmax", x.name, axis=0), g.reshape(ids.name, (1, *x.dims[1:])),
                    axis=0)
    return _negative_sum(g, x, chosen)
