"""Pooling over windows of images, ``[channels, height, width, batch]``: maximum, mean, and the mean of whole images.

Gradients are gathered: every pixel asks the windows that see it, in a fixed order, so results are the same bits
every time.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np

from ag.autograd.op import Cotangents, Need, Run, op, operands_on_one_device
from ag.autograd.tensor import Array, Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.primitive import primitive
from ag.engine.shape import Layout, Shape
from ag.engine.window import Pair, Window, check_steps, pair, places, taps, window_layout
from ag.errors import ShapeError
from ag.ops.reduce import ag_mean

__all__ = ["ag_avg_pool2d", "ag_global_avg_pool", "ag_max_pool2d", "pool_window"]


def _pooled(x: Shape, window: Window) -> Shape:
    return (x[0], *places(x[1:3], window), x[3])


def _image(g: Shape, image: Pair) -> Shape:
    return (g[0], *image, g[3])


def _max_layout(out: Shape, _tap: Shape, x: Shape, *, window: Window) -> Layout:
    return window_layout(x, out, window, prod(out))


def _avg_layout(out: Shape, x: Shape, *, window: Window) -> Layout:
    return window_layout(x, out, window, prod(out))


def _grad_layout(out: Shape, *seen: Shape, window: Window, image: Pair) -> Layout:
    return window_layout(out, seen[-1], window, prod(out))


@primitive(lambda x, *, window: (_pooled(x, window),) * 2, layout=_max_layout, outputs=2)
def max_pool2d(out: Array, tap: Array, x: Array, *, window: Window) -> None:
    # tap: from which tap the first maximum came, counted row by row; NaN is larger than any number
    out.fill(-inf)
    for _, (down, across), (rows, cols) in taps(x.shape[1:3], out.shape[1:3], window):
        best = out[:, down, across]
        np.maximum(best, x[:, rows, cols], out=best)
    none = prod(window.kernel)
    tap.fill(none)
    for (i, j), (down, across), (rows, cols) in taps(x.shape[1:3], out.shape[1:3], window):
        seen, first = x[:, rows, cols], tap[:, down, across]
        is_best = (seen == out[:, down, across]) | (seen != seen)
        np.minimum(first, i * window.kernel[1] + j + ~is_best * first.dtype.type(none), out=first)


def _only(chosen: Array, g: Array) -> Array:
    """`g`, and 0 elsewhere; np.where takes five times as long, as processors cannot guess what is chosen."""
    bits = np.dtype(f"i{g.itemsize}")
    only: Array = (g.view(bits) & -chosen.astype(bits)).view(g.dtype)
    return only


@primitive(lambda _tap, g, *, window, image: _image(g, image), layout=_grad_layout)
def max_pool2d_grad(out: Array, tap: Array, g: Array, *, window: Window, image: Pair) -> None:
    out.fill(0)
    for (i, j), (down, across), (rows, cols) in taps(image, g.shape[1:3], window):
        chosen = tap[:, down, across] == i * window.kernel[1] + j
        out[:, rows, cols] += _only(chosen, g[:, down, across])


@primitive(lambda x, *, window: _pooled(x, window), layout=_avg_layout)
def avg_pool2d(out: Array, x: Array, *, window: Window) -> None:
    out.fill(0)
    for _, (down, across), (rows, cols) in taps(x.shape[1:3], out.shape[1:3], window):
        out[:, down, across] += x[:, rows, cols]
    np.divide(out, prod(window.kernel), out=out)


@primitive(lambda g, *, window, image: _image(g, image), layout=_grad_layout)
def avg_pool2d_grad(out: Array, g: Array, *, window: Window, image: Pair) -> None:
    out.fill(0)
    for _, (down, across), (rows, cols) in taps(image, g.shape[1:3], window):
        out[:, rows, cols] += g[:, down, across]
    np.divide(out, prod(window.kernel), out=out)


def pool_window(size: int | Pair, stride: int | Pair | None, padding: int | Pair, function: str) -> Window:
    """The window of a pooling function, its parameters checked."""
    window = Window(pair(size, 1, "size", function), pair(size if stride is None else stride, 1, "stride", function),
                    pair(padding, 0, "padding", function))
    if any(2 * p > n for p, n in zip(window.padding, window.kernel, strict=True)):
        raise ValueError(f"{function}: padding is {padding} and size is {size}; padding may be at most half of the "
                         f"size, so that every window sees a pixel.")
    check_steps(window, 0, function)
    return window


def _checked(x: Any, function: str) -> Any:
    if x.ndim != 4:
        raise ShapeError(f"{function}: x is {x.shape}; (channels, height, width, batch) is required.")
    return x


@op
def ag_max_pool2d(
    run: Run, x: TensorLike, size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
) -> tuple[Any, Any]:
    """Largest pixel of every window.

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)
    size : int or (int, int)
        Of the window; a pair is (height, width), here and below.
    stride : int or (int, int), optional
        Pixels from one place of the window to the next; default: `size`.
    padding : int or (int, int), optional
        Pixels around the image, on each side, that are smaller than any other; at most half of `size`.

    Returns
    -------
    Tensor of shape (channels, places down, places across, batch)
        ``places = (pixels + 2 * padding - size) // stride + 1``.

    Raises
    ------
    ShapeError
        If `x` is no batch of images, or the window is larger than the padded image.
    ValueError
        If a parameter is too small, or `padding` too large.

    Notes
    -----
    The gradient goes to the first maximum of a window, row by row.  NaN is larger than any number.

    References
    ----------
    PyTorch ``max_pool2d``, whose layout is (batch, channels, height, width).

    Examples
    --------
    >>> import ag, numpy
    >>> x = numpy.arange(16.0).reshape(1, 4, 4, 1)
    >>> ag.ag_max_pool2d(x, 2).numpy().ravel().tolist()
    [5.0, 7.0, 13.0, 15.0]
    """
    window = pool_window(size, stride, padding, "ag_max_pool2d")
    out, tap = run(max_pool2d, _checked(x, "ag_max_pool2d"), window=window)
    return out, (tap, window, x.shape[1:3])  # type: ignore[union-attr]


@ag_max_pool2d.vjp
def _max_pool2d_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Window, Pair], need: Need, *_params: Any) -> Cotangents:
    tap, window, image = saved
    return (run(max_pool2d_grad, tap, g, window=window, image=image),)


@op
def ag_avg_pool2d(
    run: Run, x: TensorLike, size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
) -> tuple[Any, Any]:
    """Mean of every window.

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)
    size : int or (int, int)
        Of the window; a pair is (height, width), here and below.
    stride : int or (int, int), optional
        Pixels from one place of the window to the next; default: `size`.
    padding : int or (int, int), optional
        Zeros around the image, on each side; at most half of `size`.

    Returns
    -------
    Tensor of shape (channels, places down, places across, batch)
        ``places = (pixels + 2 * padding - size) // stride + 1``.

    Raises
    ------
    ShapeError
        If `x` is no batch of images, or the window is larger than the padded image.
    ValueError
        If a parameter is too small, or `padding` too large.

    Notes
    -----
    Padding counts: every sum is divided by the size of the window, as PyTorch does by default.

    References
    ----------
    PyTorch ``avg_pool2d``, whose layout is (batch, channels, height, width).

    Examples
    --------
    >>> import ag, numpy
    >>> x = numpy.arange(16.0).reshape(1, 4, 4, 1)
    >>> ag.ag_avg_pool2d(x, 2).numpy().ravel().tolist()
    [2.5, 4.5, 10.5, 12.5]
    """
    window = pool_window(size, stride, padding, "ag_avg_pool2d")
    out = run(avg_pool2d, _checked(x, "ag_avg_pool2d"), window=window)
    return out, (window, x.shape[1:3])  # type: ignore[union-attr]


@ag_avg_pool2d.vjp
def _avg_pool2d_vjp(run: Run, g: Buffer, saved: tuple[Window, Pair], need: Need, *_params: Any) -> Cotangents:
    window, image = saved
    return (run(avg_pool2d_grad, g, window=window, image=image),)


def ag_global_avg_pool(x: TensorLike) -> Tensor:
    """Mean of every image: one number per channel and sample.

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)

    Returns
    -------
    Tensor of shape (channels, batch)
        Ready for a linear layer.

    Raises
    ------
    ShapeError
        If `x` is no batch of images, or they have no pixel.

    References
    ----------
    Lin, Chen, Yan, "Network In Network", ICLR 2014; PyTorch ``adaptive_avg_pool2d(x, 1)``, which keeps the axes.

    Examples
    --------
    >>> import ag, numpy
    >>> ag.ag_global_avg_pool(numpy.ones((3, 8, 8, 2))).shape
    (3, 2)
    """
    (images,) = operands_on_one_device("ag_global_avg_pool", (x,))[1]
    if 0 in _checked(images, "ag_global_avg_pool").shape[1:3]:
        raise ShapeError(f"ag_global_avg_pool: x is {images.shape}; a mean needs at least one pixel.")
    return ag_mean(images, dim=(1, 2))
