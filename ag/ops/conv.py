"""Two-dimensional convolution of batches of images, ``[channels, height, width, batch]``.

The batch is the last axis, so a tap of a window sees whole rows of memory and no layout is ever changed.  The
references gather what the taps see as ``[channels * taps, places * batch]``; convolution and gradients are then one
matrix product each.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ag.buffer import Buffer
from ag.conv_shape import Pair, Window, check_steps, pair, places, taps, window_layout
from ag.core_primitives import sum_over
from ag.errors import ShapeError
from ag.op import Cotangents, Need, Run, operands_on_one_device, part_of
from ag.ops.arithmetic import ag_add
from ag.ops.arrange import ag_reshape
from ag.primitive import primitive
from ag.shape import Layout, Shape
from ag.tensor import Array, Tensor, TensorLike

__all__ = ["ag_conv2d"]

_NAME = "ag_conv2d"
_CHUNK = 1 << 16  # a weight's gradient adds up all places and samples: in pieces, so that loops stay short


def _layout(x: Shape, y: Shape, window: Window, groups: int, elements: int) -> Layout:
    sizes = {"channels": x[0] // groups, "features": y[0] // groups}
    return {**window_layout(x, y, window, elements), **sizes}


def _forward_layout(out: Shape, x: Shape, w: Shape, *, window: Window, groups: int) -> Layout:
    check_steps(window, w[1], _NAME)
    return _layout(x, out, window, groups, prod(out))


def _input_layout(out: Shape, w: Shape, g: Shape, *, window: Window, groups: int, image: Pair) -> Layout:
    check_steps(window, g[0] // groups, _NAME)
    return _layout(out, g, window, groups, prod(out))


def _weight_layout(out: Shape, x: Shape, g: Shape, *, window: Window, groups: int, chunk: int) -> Layout:
    return {**_layout(x, g, window, groups, prod(out)), "weights": prod(out[1:])}


def _seen(x: Array, y: Array, window: Window, groups: int) -> Array:
    """What the taps see of `x` from the places of `y`: ``[groups, channels * taps, places * batch]``."""
    channels, *image, batch = x.shape
    grid = y.shape[1:3]
    columns = np.zeros((channels, *window.kernel, *grid, batch), x.dtype)
    for (i, j), (down, across), (rows, cols) in taps(tuple(image), grid, window):
        columns[:, i, j, down, across] = x[:, rows, cols]
    return columns.reshape(groups, channels // groups * prod(window.kernel), prod(grid) * batch)


def _grouped(x: Array, groups: int, columns: int) -> Array:
    return x.reshape(groups, x.shape[0] // groups, columns)


@primitive(lambda x, w, *, window, groups: (w[0], *places(x[1:3], window), x[3]), layout=_forward_layout)
def conv2d(out: Array, x: Array, w: Array, *, window: Window, groups: int) -> None:
    columns = _seen(x, out, window, groups)
    _, taps_seen, places_seen = columns.shape
    np.matmul(_grouped(w, groups, taps_seen), columns, out=_grouped(out, groups, places_seen))


@primitive(lambda w, g, *, window, groups, image: (w[1] * groups, *image, g[3]), layout=_input_layout)
def conv2d_input_grad(out: Array, w: Array, g: Array, *, window: Window, groups: int, image: Pair) -> None:
    grid, batch = g.shape[1:3], g.shape[3]
    kernels = _grouped(w, groups, prod(w.shape[1:]))
    columns = np.matmul(kernels.swapaxes(1, 2), _grouped(g, groups, prod(g.shape[1:])))
    columns = columns.reshape(len(out), *window.kernel, *grid, batch)
    out.fill(0)
    for (i, j), (down, across), (rows, cols) in taps(image, grid, window):
        out[:, rows, cols] += columns[:, i, j, down, across]


def _pieces(x: Shape, g: Shape, *, window: Window, groups: int, chunk: int) -> Shape:
    return (max(1, -(-prod(g[1:]) // chunk)), g[0], x[0] // groups, *window.kernel)


@primitive(_pieces, layout=_weight_layout)
def conv2d_weight_grad(out: Array, x: Array, g: Array, *, window: Window, groups: int, chunk: int) -> None:
    columns = _seen(x, g, window, groups)
    _, taps_seen, places_seen = columns.shape
    g = _grouped(g, groups, places_seen)
    for i, piece in enumerate(out):
        part = slice(i * chunk, (i + 1) * chunk)
        np.matmul(g[:, :, part], columns[:, :, part].swapaxes(1, 2), out=_grouped(piece, groups, taps_seen))


@part_of(_NAME)
def _conv2d(run: Run, x: TensorLike, w: TensorLike, window: Window, groups: int) -> tuple[Any, Any]:
    return run(conv2d, x, w, window=window, groups=groups), (x, w)


@_conv2d.vjp
def _conv2d_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need, window: Window,
                groups: int) -> Cotangents:
    x, w = saved
    dx = dw = None
    if need[0]:
        dx = run(conv2d_input_grad, w, g, window=window, groups=groups, image=x.shape[1:3])
    if need[1]:
        pieces = run(conv2d_weight_grad, x, g, window=window, groups=groups, chunk=_CHUNK)
        dw = (sum_over(run, pieces, (0,)) if pieces.shape[0] > 1 else pieces).view(w.shape)
    return dx, dw


def ag_conv2d(
    x: TensorLike, w: TensorLike, b: TensorLike | None = None, stride: int | Pair = 1, padding: int | Pair = 0,
    dilation: int | Pair = 1, groups: int = 1,
) -> Tensor:
    """Two-dimensional convolution (cross-correlation, as in every neural network library).

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)
    w : Tensor or array_like of shape (features, channels / groups, kernel height, kernel width)
    b : Tensor or array_like of shape (features,) or (features, 1), optional
        Added to every pixel of a feature.
    stride : int or (int, int), optional
        Pixels from one place of the window to the next; a pair is (height, width), here and below.
    padding : int or (int, int), optional
        Zeros around the image, on each side.
    dilation : int or (int, int), optional
        Pixels from one tap of the window to the next.
    groups : int, optional
        Into how many parts channels and features are cut; a part of the features sees its part of the channels.

    Returns
    -------
    Tensor of shape (features, places down, places across, batch)
        ``places = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1``.

    Raises
    ------
    ShapeError
        If the shapes do not fit each other or `groups`, or the window is larger than the padded image.
    ValueError
        If a parameter is too small.

    Notes
    -----
    On Vulkan, taps times channels of a group (for the gradient of `x`: features) must stay below about 65,000; more
    is refused.

    References
    ----------
    PyTorch ``conv2d``, whose layout is (batch, channels, height, width); ggmlR has no convolution on its tape.

    Examples
    --------
    >>> import ag, numpy
    >>> x, w = numpy.ones((3, 8, 8, 2)), numpy.ones((4, 3, 3, 3))
    >>> ag.ag_conv2d(x, w, padding=1).shape
    (4, 8, 8, 2)
    """
    operands = (x, w) if b is None else (x, w, b)
    x, w, *bias = operands_on_one_device(_NAME, operands)[1]
    if x.ndim != 4 or w.ndim != 4:
        raise ShapeError(f"{_NAME}: x is {x.shape} and w is {w.shape}; (channels, height, width, batch) and "
                         f"(features, channels, kernel height, kernel width) are required.")
    channels, features = x.shape[0], w.shape[0]
    if groups < 1 or channels % groups or features % groups:
        raise ShapeError(f"{_NAME}: groups is {groups}, and there are {channels} channels and {features} features; "
                         f"groups must divide both.")
    if w.shape[1] != channels // groups:
        raise ShapeError(f"{_NAME}: x has {channels} channels in {groups} group(s) and w is {w.shape}; its second size "
                         f"must be {channels // groups}.")
    window = Window(pair(w.shape[2:], 1, "the kernel", _NAME), pair(stride, 1, "stride", _NAME),
                    pair(padding, 0, "padding", _NAME), pair(dilation, 1, "dilation", _NAME))
    y = _conv2d(x, w, window, groups)
    if not bias:
        return y
    if bias[0].shape not in ((features,), (features, 1)):
        raise ShapeError(f"{_NAME}: b is {bias[0].shape}; ({features},) or ({features}, 1) is required.")
    return ag_add(y, ag_reshape(bias[0], features, 1, 1, 1))
