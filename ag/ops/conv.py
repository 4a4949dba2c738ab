"""Convolution of images, and pooling: the largest or the mean value of each window."""

from __future__ import annotations

from math import prod
from typing import TypeVar

from ag.autograd.op import Cotangents, Need, Result, Run, documented, op, operands_on_one_device, part_of
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.kernels.conv import (
    NAME,
    avg_pool2d,
    avg_pool2d_grad,
    conv2d,
    conv2d_input_grad,
    conv2d_weight_grad,
    max_pool2d,
    max_pool2d_grad,
)
from ag.engine.shape import Pair, Shape, Window, check_steps, counts, pair
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add
from ag.ops.indexing import ag_reshape
from ag.ops.matmul import added_up
from ag.ops.reduce import ag_mean

__all__ = ["ag_avg_pool2d", "ag_conv2d", "ag_global_avg_pool", "ag_max_pool2d"]


@part_of(NAME)
def _conv2d(run: Run, x: Buffer, w: Buffer, window: Window, groups: int) -> Result[tuple[Buffer, Buffer]]:
    return run(conv2d, x, w, window=window, groups=groups), (x, w)


@_conv2d.vjp
def _conv2d_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need, window: Window,
                groups: int) -> Cotangents:
    x, w = saved
    dx = dw = None
    if need[0]:
        dx = run(conv2d_input_grad, w, g, window=window, groups=groups, image=x.shape[1:3])
    if need[1]:
        chunk = x.backend.target.split_inner(prod(g.shape[1:]), w.shape[0] // groups, prod(w.shape[1:]), groups)
        dw = added_up(run, run(conv2d_weight_grad, x, g, window=window, groups=groups, chunk=chunk))
    return dx, dw


@documented
def ag_conv2d(x: TensorLike, w: TensorLike, b: TensorLike | None = None, stride: int | Pair = 1,
              padding: int | Pair = 0, dilation: int | Pair = 1, groups: int = 1) -> Tensor:
    """Two-dimensional convolution (cross-correlation, as in every neural network library).

    On Vulkan, taps times channels of a group (for the gradient of `x`: features) must stay below about 65,000; more
    is refused.
    PyTorch ``conv2d``, whose layout is (batch, channels, height, width); ggmlR has no convolution on its tape.

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

    >>> ag.ag_conv2d([[[[1.0]]]], [[[[2.0]]]], b=[1.0], padding=1).numpy().ravel().tolist()
    [1.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0]
    """
    operands = (x, w) if b is None else (x, w, b)
    x, w, *bias = operands_on_one_device(NAME, operands)[1]
    if x.ndim != 4 or w.ndim != 4:
        raise ShapeError(f"{NAME}: x is {x.shape} and w is {w.shape}; (channels, height, width, batch) and "
                         f"(features, channels, kernel height, kernel width) are required.")
    channels, features = x.shape[0], w.shape[0]
    if not counts(groups) or channels % groups or features % groups:
        raise ShapeError(f"{NAME}: groups is {groups}, and there are {channels} channels and {features} features; "
                         f"groups must divide both.")
    if w.shape[1] != channels // groups:
        raise ShapeError(f"{NAME}: x has {channels} channels in {groups} group(s) and w is {w.shape}; its second size "
                         f"must be {channels // groups}.")
    window = Window(pair(w.shape[2:], 1, "the kernel", NAME), pair(stride, 1, "stride", NAME),
                    pair(padding, 0, "padding", NAME), pair(dilation, 1, "dilation", NAME))
    y = _conv2d(x, w, window, groups)
    if not bias:
        return y
    if bias[0].shape not in ((features,), (features, 1)):
        raise ShapeError(f"{NAME}: b is {bias[0].shape}; ({features},) or ({features}, 1) is required.")
    return ag_add(y, ag_reshape(bias[0], features, 1, 1, 1))


def pool_window(size: int | Pair, stride: int | Pair | None, padding: int | Pair, function: str) -> Window:
    """The window of a pooling function, its parameters checked."""
    window = Window(pair(size, 1, "size", function), pair(size if stride is None else stride, 1, "stride", function),
                    pair(padding, 0, "padding", function))
    if any(2 * p > n for p, n in zip(window.padding, window.kernel, strict=True)):
        raise ValueError(f"{function}: padding is {padding} and size is {size}; padding may be at most half of the "
                         f"size, so that every window sees a pixel.")
    check_steps(window, 0, function)
    return window


Images = TypeVar("Images", Buffer, Tensor)


def _checked(x: Images, function: str) -> Images:
    if x.ndim != 4:
        raise ShapeError(f"{function}: x is {x.shape}; (channels, height, width, batch) is required.")
    return x


@op
def ag_max_pool2d(
    run: Run, x: Buffer, size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
) -> Result[tuple[Buffer, Window, Shape]]:
    """Largest pixel of every window.

    The gradient goes to the first maximum of a window, row by row.  NaN is larger than any number.
    Reference: PyTorch ``max_pool2d``, whose layout is (batch, channels, height, width).

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

    >>> ag.ag_max_pool2d([[[[1.0], [2.0]], [[3.0], [4.0]]]], 2).item()
    4.0
    """
    window = pool_window(size, stride, padding, "ag_max_pool2d")
    out, tap = run(max_pool2d, _checked(x, "ag_max_pool2d"), window=window)
    return out, (tap, window, x.shape[1:3])


@ag_max_pool2d.vjp
def _max_pool2d_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Window, Shape], need: Need,
                    *_params: object) -> Cotangents:
    tap, window, image = saved
    return (run(max_pool2d_grad, tap, g, window=window, image=image),)


@op
def ag_avg_pool2d(
    run: Run, x: Buffer, size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0
) -> Result[tuple[Window, Shape]]:
    """Mean of every window.

    Padding counts: every sum is divided by the size of the window, as PyTorch does by default.

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)
    size : int or (int, int)
    stride, padding : int or (int, int), optional
        All three as of `ag_max_pool2d`.

    Returns
    -------
    Tensor of shape (channels, places down, places across, batch)

    >>> ag.ag_avg_pool2d([[[[1.0], [2.0]], [[3.0], [4.0]]]], 2).item()
    2.5
    """
    window = pool_window(size, stride, padding, "ag_avg_pool2d")
    out = run(avg_pool2d, _checked(x, "ag_avg_pool2d"), window=window)
    return out, (window, x.shape[1:3])


@ag_avg_pool2d.vjp
def _avg_pool2d_vjp(run: Run, g: Buffer, saved: tuple[Window, Shape], need: Need, *_params: object) -> Cotangents:
    window, image = saved
    return (run(avg_pool2d_grad, g, window=window, image=image),)


@documented
def ag_global_avg_pool(x: TensorLike) -> Tensor:
    """Mean of every image: one number per channel and sample.

    Lin, Chen, Yan, "Network In Network", ICLR 2014; PyTorch ``adaptive_avg_pool2d(x, 1)``, which keeps the axes.

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)

    Returns
    -------
    Tensor of shape (channels, batch)

    >>> ag.ag_global_avg_pool([[[[1.0], [3.0]]]]).numpy().tolist()
    [[2.0]]
    """
    (images,) = operands_on_one_device("ag_global_avg_pool", (x,))[1]
    if 0 in _checked(images, "ag_global_avg_pool").shape[1:3]:
        raise ShapeError(f"ag_global_avg_pool: x is {images.shape}; a mean needs at least one pixel.")
    return ag_mean(images, dim=(1, 2))
