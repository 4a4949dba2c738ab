"""Rows of the case table: convolution, pooling and the layers made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from table import oracles
from table.rows import Array, Bad, Case, Row, Shape, case, copies, every

import ag
from ag.autograd.tensor import Tensor


def both(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value, value)


def windows(x: Array, kernel: Shape, stride: Any, padding: Any, dilation: Any = 1, fill: float = 0.0) -> Iterator[Any]:
    """Every place of a window, and what it sees of the padded images."""
    (s, t), (p, q), (d, e) = both(stride), both(padding), both(dilation)
    x = np.pad(x, [(0, 0), (p, p), (q, q), (0, 0)], constant_values=fill)
    high, wide = d * (kernel[0] - 1) + 1, e * (kernel[1] - 1) + 1
    for i, y in enumerate(range(0, x.shape[1] - high + 1, s)):
        for j, z in enumerate(range(0, x.shape[2] - wide + 1, t)):
            yield (i, j), x[:, y : y + high : d, z : z + wide : e]


def planes(found: dict[Any, Array]) -> Array:
    """Results by place as one array, places in the middle."""
    rows, columns = (max(place[a] for place in found) + 1 for a in (0, 1))
    return np.stack([np.stack([found[i, j] for j in range(columns)], 1) for i in range(rows)], 1)


def conv2d(x: Array, w: Array, b: Array | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
           groups: int = 1) -> Array:
    found = {}
    for place, seen in windows(x, w.shape[2:], stride, padding, dilation):
        parts = zip(np.split(w, groups), np.split(seen, groups), strict=True)
        found[place] = np.concatenate([np.einsum("ocij,cijn->on", w_g, x_g) for w_g, x_g in parts])
    return planes(found) + (0 if b is None else b.reshape(-1, 1, 1, 1))


def max_pool2d(x: Array, size: Any, stride: Any = None, padding: Any = 0) -> Array:
    seen = windows(x, both(size), size if stride is None else stride, padding, fill=-np.inf)
    return planes({place: pixels.max((1, 2)) for place, pixels in seen})


def avg_pool2d(x: Array, size: Any, stride: Any = None, padding: Any = 0) -> Array:
    seen = windows(x, both(size), size if stride is None else stride, padding)
    return planes({place: pixels.mean((1, 2)) for place, pixels in seen})


ONE_PIXEL = [(1, 1, 1, 1), (1, 1, 1, 1), (1, 1)]
SMALL = [(2, 5, 6, 3), (4, 2, 3, 2), (4, 1)]
GROUPED = [(4, 5, 4, 2), (6, 2, 3, 3), (6,)]
CONVOLUTIONS = [
    case(*ONE_PIXEL), case(*ONE_PIXEL, padding=1, stride=2),
    *every([SMALL], {}, {"stride": 2}, {"padding": 1}, {"stride": (1, 2), "padding": (2, 0)}, {"dilation": 2},
           {"stride": 2, "padding": (1, 2), "dilation": (2, 1)}, {"stride": 7, "padding": 3}),
    *every([GROUPED], {"groups": 2}, {"groups": 2, "stride": 2, "padding": 1}),
    case((3, 4, 4, 5), (3, 1, 3, 3), (3, 1), groups=3, padding=1),
    case((3, 8, 8, 17), (8, 3, 3, 3), padding=1), case((5, 6, 6, 7), (9, 5, 1, 1), stride=2),
    case((1, 2, 3, 11_001), (1, 1, 1, 1), (1, 1)),  # more than one piece of a weight's gradient
    case((2, 3, 3, 0), (4, 2, 2, 2), (4, 1)), case((0, 3, 3, 2), (4, 0, 2, 2)),
]


def conv_terms(x: Array, w: Array, b: Array | None = None, **_: Any) -> int:
    return w[0].size + (b is not None)


def refuse(situation: str, x: Shape, w: Shape, error: type[Exception], *fragments: str, **params: Any) -> Bad:
    return Bad(situation, [x, w], lambda x, w: ag.ag_conv2d(x, w, **params), error, ["ag_conv2d: ", *fragments])


X, W = (4, 5, 6, 2), (8, 4, 3, 3)
CONVOLUTION_ERRORS = [
    refuse("a convolution of one image without a batch axis", (4, 5, 6), W, ag.ShapeError, "x is (4, 5, 6)",
           "(channels, height, width, batch)"),
    refuse("convolution weights for another number of channels", X, (8, 3, 3, 3), ag.ShapeError,
           "x has 4 channels", "w is (8, 3, 3, 3)", "must be 4"),
    refuse("groups that do not divide the channels", X, (9, 2, 3, 3), ag.ShapeError,
           "groups is 3, and there are 4 channels and 9 features", groups=3),
    refuse("groups that do not divide the features", X, (9, 2, 3, 3), ag.ShapeError,
           "groups is 2, and there are 4 channels and 9 features", groups=2),
    refuse("a convolution kernel larger than the padded image", X, (8, 4, 8, 3), ag.ShapeError,
           "covers (8, 3) pixels", "the image has (5, 6)", "with padding (7, 8)", padding=1),
    refuse("a dilated kernel larger than the image", X, W, ag.ShapeError, "covers (7, 7) pixels", dilation=3),
    refuse("a convolution with stride 0", X, W, ValueError, "stride is 0", "at least 1", stride=0),
    refuse("a convolution with three strides", X, W, ValueError, "stride is (1, 1, 1)", stride=(1, 1, 1)),
    refuse("a convolution with negative padding", X, W, ValueError, "padding is (0, -1)", "at least 0",
           padding=(0, -1)),
    Bad("a convolution bias of another length", [X, W, (7, 1)], lambda x, w, b: ag.ag_conv2d(x, w, b), ag.ShapeError,
        ["ag_conv2d: b is (7, 1)", "(8, 1) is required"]),
]


def distinct(rng: np.random.Generator, shape: Shape, _before: Sequence[Array]) -> Array:
    """Numbers at least 1/64 apart, so that a small step leaves every maximum where it is."""
    return (rng.permutation(int(np.prod(shape))) / 64 - 1).reshape(shape)


POOLS = [
    case((1, 1, 1, 1), size=1), case((1, 1, 1, 1), size=2, padding=1),
    *every([[(3, 6, 5, 4)]], {"size": 2}, {"size": 3, "stride": 2, "padding": 1}, {"size": 3, "stride": 1},
           {"size": (1, 3)}, {"size": (2, 5), "stride": (3, 1), "padding": (1, 2)}, {"size": 2, "stride": 4}),
    case((3, 9, 8, 17), size=3, stride=1, padding=1), case((2, 3, 3, 0), size=2), case((0, 3, 3, 2), size=2),
]


def pooling_errors(op: str) -> list[Bad]:
    f = getattr(ag, op)
    return [
        Bad(f"{op} of an image without a batch axis", [(3, 6, 5)], lambda x: f(x, 2), ag.ShapeError,
            [f"{op}: x is (3, 6, 5)", "(channels, height, width, batch) is required"]),
        Bad(f"{op} with a window larger than the image", [(3, 6, 5, 2)], lambda x: f(x, 6), ag.ShapeError,
            [f"{op}: the window covers (6, 6) pixels", "the image has (6, 5)"]),
        Bad(f"{op} with more padding than half of the window", [(3, 6, 5, 2)], lambda x: f(x, 3, padding=2),
            ValueError, [f"{op}: padding is 2 and size is 3", "at most half"]),
        Bad(f"{op} with size 0", [(3, 6, 5, 2)], lambda x: f(x, 0), ValueError, [f"{op}: size is 0", "at least 1"]),
        Bad(f"{op} with stride 0", [(3, 6, 5, 2)], lambda x: f(x, 2, 0), ValueError, [f"{op}: stride is 0"]),
    ]


def window_size(x: Array, size: Any, **_: Any) -> int:
    return int(np.prod(both(size)))


GLOBAL_ERRORS = [
    Bad("global pooling of a matrix", [(3, 5)], ag.ag_global_avg_pool, ag.ShapeError,
        ["ag_global_avg_pool: x is (3, 5)", "(channels, height, width, batch) is required"]),
    Bad("global pooling of images without pixels", [(3, 0, 5, 2)], ag.ag_global_avg_pool, ag.ShapeError,
        ["ag_global_avg_pool: x is (3, 0, 5, 2)", "at least one pixel"]),
]

new_conv = copies(ag.ag_conv2d_layer)


def conv_layer(x: Tensor, W: Tensor, b: Tensor, **params: Any) -> Tensor:
    layer = new_conv(W.shape[1], W.shape[0], W.shape[2:], **params)
    layer.W, layer.b = W, b
    return layer(x)


def conv_layer_oracle(x: Array, W: Array, b: Array, activation: str | None = None, **params: Any) -> Array:
    return oracles.ACTIVATIONS[activation](conv2d(x, W, b, **params))


def residual(x: Tensor, W: Tensor, V: Tensor | None = None, stride: int = 1) -> Tensor:
    body = new_conv(W.shape[1], W.shape[0], W.shape[2:], stride, 1, bias=False)
    shortcut = None if V is None else new_conv(V.shape[1], V.shape[0], V.shape[2:], stride, bias=False)
    body.W = W
    if V is not None:
        shortcut.W = V
    return ag.ag_residual(body, shortcut, "tanh")(x)


def residual_oracle(x: Array, W: Array, V: Array | None = None, stride: int = 1) -> Array:
    return np.tanh(conv2d(x, W, None, stride, 1) + (x if V is None else conv2d(x, V, None, stride)))


LAYERS = [
    Row("ag_conv2d_layer", conv_layer_oracle, every(
        [SMALL], {"stride": 2, "padding": (1, 2)}, *({"activation": a} for a in ("relu", "tanh", "softmax"))),
        ulps=16, terms=lambda x, w, b, **_: conv_terms(x, w, b) + len(w), call=conv_layer,
        size=lambda x, w, b, activation=None, **p: 1 + conv2d(abs(x), abs(w), abs(b), **p), bad=[
            Bad("a convolution layer given another number of channels", [(2, 5, 6, 3)],
                lambda x: ag.ag_conv2d_layer(3, 4, 3)(x), ag.ShapeError,
                ["ag_conv2d_layer: x is (2, 5, 6, 3); (3, height, width, batch) is required"]),
            Bad("a convolution layer without outputs", [], lambda: ag.ag_conv2d_layer(3, 0, 3), ValueError,
                ["ag_conv2d_layer: in_ch is 3 and out_ch is 0"]),
            Bad("a convolution layer with an empty kernel", [], lambda: ag.ag_conv2d_layer(3, 4, (3, 0)), ValueError,
                ["ag_conv2d_layer: kernel is (3, 0)", "at least 1"]),
            Bad("a convolution layer with an unknown activation", [], lambda: ag.ag_conv2d_layer(3, 4, 3,
                activation="rleu"), ValueError, ["ag_conv2d_layer: unknown activation 'rleu'"]),
        ]),
    Row("ag_max_pool", max_pool2d, POOLS[2:4], [distinct], call=lambda x, **p: ag.ag_max_pool(**p)(x), bad=[
        Bad("a pooling layer with too much padding", [], lambda: ag.ag_max_pool(2, padding=2), ValueError,
            ["ag_max_pool: padding is 2 and size is 2"])]),
    Row("ag_avg_pool", avg_pool2d, POOLS[2:4], terms=window_size, size=lambda x, **p: avg_pool2d(abs(x), **p),
        call=lambda x, **p: ag.ag_avg_pool(**p)(x), bad=[
            Bad("an average pooling layer with size 0", [], lambda: ag.ag_avg_pool(0), ValueError,
                ["ag_avg_pool: size is 0"])]),
    Row("ag_global_pool", lambda x: x.mean((1, 2)), every([[(3, 6, 5, 4)]]), terms=lambda x: x[0, :, :, 0].size,
        size=lambda x: abs(x).mean((1, 2)), call=lambda x: ag.ag_global_pool()(x)),
    Row("ag_flatten_layer", lambda x: np.array([image.ravel() for image in np.moveaxis(x, -1, 0)]).T,
        every([[(3, 4, 5, 2)], [(3, 5)]]), ulps=0, terms=lambda *_: 0, call=lambda x: ag.ag_flatten_layer()(x), bad=[
            Bad("flattening a single number", [()], lambda x: ag.ag_flatten_layer()(x), ag.ShapeError,
                ["ag_flatten_layer: x is ()", "at least the batch axis"])]),
    Row("ag_residual", residual_oracle, [
        case((4, 5, 4, 3), (4, 4, 3, 3)), case((2, 6, 5, 3), (4, 2, 3, 3), (4, 2, 1, 1), stride=2)], ulps=16,
        terms=lambda x, w, v=None, **_: w[0].size + len(x), size=lambda x, w, v=None, stride=1: 1 + conv2d(
            abs(x), abs(w), None, stride, 1) + (abs(x) if v is None else conv2d(abs(x), abs(v), None, stride)),
        call=residual, bad=[
            Bad("a residual block that changes the shape without a shortcut", [(2, 5, 6, 3)],
                lambda x: ag.ag_residual(ag.ag_conv2d_layer(2, 4, 1))(x), ag.ShapeError,
                ["ag_residual: the body gives (4, 5, 6, 3) and the shortcut (2, 5, 6, 3)", "must be equal"]),
            Bad("a residual block around something that is no layer", [], lambda: ag.ag_residual(abs), TypeError,
                ["ag_residual: body is a builtin_function_or_method", "must be a layer"]),
        ]),
]

ROWS = [
    Row("ag_conv2d", conv2d, CONVOLUTIONS, terms=conv_terms,
        size=lambda x, w, b=None, **p: conv2d(abs(x), abs(w), None if b is None else abs(b), **p),
        bad=CONVOLUTION_ERRORS),
    Row("ag_max_pool2d", max_pool2d, POOLS, [distinct], bad=pooling_errors("ag_max_pool2d")),
    Row("ag_avg_pool2d", avg_pool2d, POOLS, terms=window_size, size=lambda x, **p: avg_pool2d(abs(x), **p),
        bad=pooling_errors("ag_avg_pool2d")),
    Row("ag_global_avg_pool", lambda x: x.mean((1, 2)), every([[(1, 1, 1, 1)], [(3, 6, 5, 4)], [(3, 33, 5, 17)]]),
        terms=lambda x: x[0, :, :, 0].size, size=lambda x: abs(x).mean((1, 2)), bad=GLOBAL_ERRORS),
    *LAYERS,
]


def another_window(case: Case) -> bool:
    """Return whether a window's case has the shapes of others: a driver compiles kernels for each, for 0.1 to 0.2 s."""
    if case.row.oracle not in (conv2d, max_pool2d, avg_pool2d):
        return False
    same = [params for shapes, params in reversed(case.row.cases) if shapes == case.shapes]
    return case.params is not max(same, key=len)
