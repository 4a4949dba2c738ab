"""Two-dimensional convolution of images, ``[channels, height, width, batch]``.

The gradient of the weights sums in pieces, whose number the device's `Target` gives.
"""

from __future__ import annotations

from math import prod

from ag.autograd.op import Cotangents, Need, Result, Run, operands_on_one_device, part_of
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.kernels.conv import NAME, conv2d, conv2d_input_grad, conv2d_weight_grad
from ag.engine.shape import Pair, Window, counts, pair
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add
from ag.ops.matmul import added_up
from ag.ops.reshape import ag_reshape

__all__ = ["ag_conv2d"]


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


def ag_conv2d(
    x: TensorLike, w: TensorLike, b: TensorLike | None = None, stride: int | Pair = 1, padding: int | Pair = 0,
    dilation: int | Pair = 1, groups: int = 1,
) -> Tensor:
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

    Examples
    --------
    >>> import numpy
    >>> x, w = numpy.ones((3, 8, 8, 2)), numpy.ones((4, 3, 3, 3))
    >>> ag.ag_conv2d(x, w, padding=1).shape
    (4, 8, 8, 2)
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
