"""Convolution of images, sequences and volumes, and the transposed convolution, which is its gradient.

A sequence is an image of one row.  The slices of a volume that a window sees are channels, its places in depth samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ag.autograd.op import Cotangents, Need, Result, Run, composed, documented, operands_on_one_device, part_of
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.kernels.conv import NAME, conv2d, conv2d_input_grad, conv2d_weight_grad
from ag.engine.kernels.indexing import part
from ag.engine.shape import Pair, Shape, Window, counts, pair, per_axis
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add
from ag.ops.indexing import ag_reshape, ag_transpose
from ag.ops.matmul import added_up
from ag.ops.shapes import pad, squeeze, stack, unsqueeze

__all__ = ["ag_conv2d", "conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d"]

Sizes = int | Sequence[int]


@part_of(NAME)
def _conv2d(run: Run, x: Buffer, w: Buffer, window: Window, groups: int) -> Result[tuple[Buffer, Buffer]]:
    return run(conv2d, x, w, window=window, groups=groups), (x, w)


@_conv2d.vjp
def _conv2d_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need, window: Window,
                groups: int) -> Cotangents:
    x, w = saved
    dx = run(conv2d_input_grad, w, g, window=window, groups=groups, image=x.shape[1:3]) if need[0] else None
    return dx, _weight_grad(run, x, g, w.shape, window, groups) if need[1] else None


def _weight_grad(run: Run, x: Buffer, g: Buffer, shape: Shape, window: Window, groups: int) -> Buffer:
    """Cotangent of weights by which `g` was computed from `x`."""
    chunk = x.backend.target.split_places(prod(g.shape[1:]), shape[0] // groups, prod(shape[1:]), groups)
    return added_up(run, run(conv2d_weight_grad, x, g, window=window, groups=groups, chunk=chunk))


@documented
def ag_conv2d(x: TensorLike, w: TensorLike, b: TensorLike | None = None, stride: Sizes = 1,
              padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1) -> Tensor:
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
    padding : int, (int, int), "same" or "valid", optional
        Zeros around the image, on each side; "same" keeps its size, "valid" is 0.
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
    x, w, b = _operands(NAME, x, w, b, "height, width", groups)
    if isinstance(padding, str):
        x, padding = padded(x, around(NAME, w.shape[2:], stride, padding, dilation))
    window = Window(pair(w.shape[2:], 1, "the kernel", NAME), pair(stride, 1, "stride", NAME),
                    pair(padding, 0, "padding", NAME), pair(dilation, 1, "dilation", NAME))
    return _with_bias(NAME, _conv2d(x, w, window, groups), b)


def _with_bias(function: str, y: Tensor, b: Tensor | None) -> Tensor:
    """`y` plus a number for each feature, if there are some."""
    features = y.shape[0]
    if b is not None and b.shape not in ((features,), (features, 1)):
        raise ShapeError(f"{function}: b is {b.shape}; ({features},) or ({features}, 1) is required.")
    return y if b is None else ag_add(y, ag_reshape(b, features, 1, 1, 1))


def around(function: str, kernel: Shape, stride: Sizes, padding: Sizes | str, dilation: Sizes) -> list[Pair]:
    """Return how many pixels a padding puts before and behind each axis."""
    count = len(kernel)
    if not isinstance(padding, str):
        return [(p, p) for p in per_axis(padding, count, 0, "padding", function)]
    if padding not in ("same", "valid"):
        raise ValueError(f"{function}: padding is {padding!r:.60}; a number, 'same' or 'valid' is required.")
    if padding == "same" and set(per_axis(stride, count, 1, "stride", function)) != {1}:
        raise ValueError(f"{function}: padding is 'same' and stride is {stride}; the stride must be 1.")
    steps = per_axis(dilation, count, 1, "dilation", function)
    both = [d * (k - 1) if padding == "same" else 0 for d, k in zip(steps, kernel, strict=True)]
    return [(n // 2, n - n // 2) for n in both]


def padded(x: Tensor, widths: Sequence[Pair], mode: str = "zeros") -> tuple[Tensor, Shape]:
    """Put around images what are not as many zeros on both sides; those are left to the convolution."""
    if mode == "zeros" and all(before == behind for before, behind in widths):
        return x, tuple([before for before, _ in widths])
    flat = [width for pair in reversed(widths) for width in pair]
    return pad(x, flat, "constant" if mode == "zeros" else mode), (0,) * len(widths)


def _operands(function: str, x: TensorLike, w: TensorLike, b: TensorLike | None, axes: str, groups: int,
              turned: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    """Operands as tensors, with axes of these names between the channels and the batch; `w` may have channels first."""
    x, w, *bias = operands_on_one_device(function, (x, w) if b is None else (x, w, b))[1]
    if {x.ndim, w.ndim} != {axes.count(",") + 3}:
        first = "channels, features" if turned else "features, channels"
        raise ShapeError(f"{function}: x is {x.shape} and w is {w.shape}; (channels, {axes}, batch) and ({first}, "
                         f"kernel {axes.replace(', ', ', kernel ')}) are required.")
    channels, features = x.shape[0], w.shape[1 if turned else 0]
    if not counts(groups) or channels % groups or (features % groups and not turned):
        raise ShapeError(f"{function}: groups is {groups}, and there are {channels} channels and {features} features; "
                         f"groups must divide both.")
    place, count = (0, channels) if turned else (1, channels // groups)
    if w.shape[place] != count:
        raise ShapeError(f"{function}: x has {channels} channels in {groups} group(s) and w is {w.shape}; its "
                         f"{'first' if turned else 'second'} size must be {count}.")
    return x, w, bias[0] if bias else None


@composed
def conv1d(x: TensorLike, w: TensorLike, b: TensorLike | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
           dilation: Sizes = 1, groups: int = 1) -> Tensor:
    """Convolution of sequences: `x` is (channels, time, batch), `w` (features, channels / groups, kernel).

    >>> ag.ops.conv1d([[[1.0], [2.0], [3.0]]], [[[1.0, -1.0]]]).numpy().ravel().tolist()
    [-1.0, -1.0]
    """
    x, w, b = _operands("conv1d", x, w, b, "time", groups)
    x, (zeros,) = padded(x, around("conv1d", w.shape[2:], stride, padding, dilation))
    (step,), (apart,) = per_axis(stride, 1, 1, "stride", "conv1d"), per_axis(dilation, 1, 1, "dilation", "conv1d")
    return squeeze(ag_conv2d(unsqueeze(x, 1), unsqueeze(w, 2), b, (1, step), (0, zeros), (1, apart), groups), 1)


@composed
def conv3d(x: TensorLike, w: TensorLike, b: TensorLike | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
           dilation: Sizes = 1, groups: int = 1) -> Tensor:
    """Convolution of volumes: `x` is (channels, depth, height, width, batch), `w` has the kernel's three axes last.

    >>> import numpy as np
    >>> ag.ops.conv3d(np.ones((3, 5, 6, 7, 2)), np.ones((4, 3, 3, 3, 3)), padding="same").shape
    (4, 5, 6, 7, 2)
    """
    x, w, b = _operands("conv3d", x, w, b, "depth, height, width", groups)
    x, (deep, *zeros) = padded(x, around("conv3d", w.shape[2:], stride, padding, dilation))
    (down, *steps), (apart, *others) = (per_axis(value, 3, 1, name, "conv3d") for value, name in (
        (stride, "stride"), (dilation, "dilation")))
    x, taps = pad(x, (0, 0, 0, 0, deep, deep)), w.shape[2]
    seen = x.shape[1] - apart * (taps - 1)  # first slices of a window
    if seen < 1:
        raise ShapeError(f"conv3d: the kernel covers {apart * (taps - 1) + 1} slices and the volume has {x.shape[1]}, "
                         f"with its padding; it must fit.")
    slices = ag_transpose(x, 0, 2, 3, 1, 4)
    channels = stack([slices[:, :, :, i * apart : i * apart + seen : down] for i in range(taps)], 1)
    _, _, *image, places, batch = channels.shape
    y = ag_conv2d(ag_reshape(channels, x.shape[0] * taps, *image, places * batch),
                  ag_reshape(w, w.shape[0], w.shape[1] * taps, *w.shape[3:]), b, stride=(steps[0], steps[1]),
                  padding=(zeros[0], zeros[1]), dilation=(others[0], others[1]), groups=groups)
    return ag_transpose(ag_reshape(y, *y.shape[:3], places, batch), 0, 3, 1, 2, 4)


@part_of("conv_transpose2d")
def _conv_transpose2d(run: Run, x: Buffer, w: Buffer, window: Window, groups: int,
                      image: Pair) -> Result[tuple[Buffer, Buffer]]:
    return run(conv2d_input_grad, w, x, window=window, groups=groups, image=image), (x, w)


@_conv_transpose2d.vjp
def _conv_transpose2d_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need, window: Window, groups: int,
                          image: Pair) -> Cotangents:
    x, w = saved
    dx = run(conv2d, g, w, window=window, groups=groups) if need[0] else None
    for axis in (1, 2):
        if dx is not None and dx.shape[axis] > x.shape[axis]:  # by an output_padding of at least the stride
            dx = run(part, dx, axis=axis, start=0, step=1, count=x.shape[axis])
    return dx, _weight_grad(run, g, x, w.shape, window, groups) if need[1] else None


@composed
def conv_transpose2d(x: TensorLike, w: TensorLike, b: TensorLike | None = None, stride: Sizes = 1, padding: Sizes = 0,
                     output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1) -> Tensor:
    """Transposed convolution, the gradient of `ag_conv2d` with respect to its images, which enlarges images.

    `w` is (channels, features / groups, kernel height, kernel width).  `padding` cuts off pixels of the result, and
    `output_padding` adds some below and to the right.  The size is
    ``(size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1``.

    >>> ag.ops.conv_transpose2d([[[[1.0], [2.0]]]], [[[[1.0, 1.0]]]], stride=(1, 2)).numpy().ravel().tolist()
    [1.0, 1.0, 2.0, 2.0]
    """
    name = "conv_transpose2d"
    x, w, b = _operands(name, x, w, b, "height, width", groups, turned=True)
    window = Window(pair(w.shape[2:], 1, "the kernel", name), pair(stride, 1, "stride", name),
                    pair(padding, 0, "padding", name), pair(dilation, 1, "dilation", name))
    more = pair(output_padding, 0, "output_padding", name)
    if any(n >= max(s, d) for n, s, d in zip(more, window.stride, window.dilation, strict=True)):
        raise ValueError(f"{name}: output_padding is {output_padding}, stride is {stride} and dilation {dilation}; it "
                         f"must be less than one of them.")
    high, wide = ((n - 1) * s - 2 * p + e + m for n, s, p, e, m in zip(
        x.shape[1:3], window.stride, window.padding, window.extent, more, strict=True))
    if min(high, wide, *x.shape[1:3]) < 1:
        raise ShapeError(f"{name}: x is {x.shape} and padding is {padding}, so that the result would have {high} x "
                         f"{wide} pixels; at least one is required.")
    return _with_bias(name, _conv_transpose2d(x, w, window, groups, (high, wide)), b)


@composed
def conv_transpose1d(x: TensorLike, w: TensorLike, b: TensorLike | None = None, stride: Sizes = 1, padding: Sizes = 0,
                     output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1) -> Tensor:
    """Transposed convolution of sequences: `x` is (channels, time, batch), `w` (channels, features / groups, kernel).

    >>> ag.ops.conv_transpose1d([[[1.0], [2.0]]], [[[1.0, 1.0]]]).numpy().ravel().tolist()
    [1.0, 3.0, 2.0]
    """
    x, w, b = _operands("conv_transpose1d", x, w, b, "time", groups, turned=True)
    step, cut, more, apart = (per_axis(value, 1, least, name, "conv_transpose1d")[0] for value, least, name in (
        (stride, 1, "stride"), (padding, 0, "padding"), (output_padding, 0, "output_padding"),
        (dilation, 1, "dilation")))
    y = conv_transpose2d(unsqueeze(x, 1), unsqueeze(w, 2), b, stride=(1, step), padding=(0, cut),
                         output_padding=(0, more), groups=groups, dilation=(1, apart))
    return squeeze(y, 1)
