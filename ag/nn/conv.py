"""Convolution of images: weights, bias and activation around `ag.ops.conv`."""

from __future__ import annotations

from math import prod, sqrt
from types import MappingProxyType

import numpy as np

from ag.autograd.create import ag_param
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.random import host_uniform
from ag.engine.shape import Pair, counts, pair, true_or_false
from ag.errors import ShapeError
from ag.nn.layer import Layer, Settings, activation_called
from ag.ops.conv import ag_conv2d

__all__ = ["Conv2d", "ag_conv2d_layer"]

_NAME = "ag_conv2d_layer"


class Conv2d(Layer):
    """Two-dimensional convolution, ``activation(ag_conv2d(x, W, b))``.

    Reference: PyTorch ``Conv2d``; Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", eq. 16, where a window's taps count as inputs and outputs.

    Parameters
    ----------
    in_ch, out_ch : int
        Channels of input and output, at least 1.
    kernel : int or (int, int)
        Size of the window; a pair is (height, width), here and below.
    stride : int or (int, int), optional
        Pixels from one place of the window to the next.
    padding : int or (int, int), optional
        Zeros around the image, on each side; ``kernel // 2`` keeps the size of the image if `kernel` is odd.
    activation : str or None, optional
        A function of `ag.ops.activation` by its name without the prefix, such as ``"relu"`` for `ag_relu`.
        Softmax is over the channels.
    bias : bool, optional
        Whether there is a `b`.

    Attributes
    ----------
    W : Tensor of shape (out_ch, in_ch, kernel height, kernel width)
        Initially Glorot-uniform.
    b : Tensor of shape (out_ch, 1)
        Initially 0.

    Examples
    --------
    >>> import numpy
    >>> ag.ag_conv2d_layer(3, 8, 3, padding=1)(numpy.ones((3, 16, 16, 2))).shape
    (8, 16, 16, 2)
    """

    _adjustable = MappingProxyType({})
    settings = ("in_ch", "out_ch", "kernel", "stride", "padding", "activation", "bias")
    _elsewhere = MappingProxyType({"weight": "W"})

    def __init__(self, in_ch: int, out_ch: int, kernel: int | Pair, stride: int | Pair = 1, padding: int | Pair = 0,
                 activation: str | None = None, bias: bool = True) -> None:
        if not counts(in_ch, out_ch):
            raise ValueError(f"{_NAME}: in_ch is {in_ch!r} and out_ch is {out_ch!r}; both must be whole numbers of at "
                             f"least 1.")
        self.in_ch = int(in_ch)
        self.out_ch = int(out_ch)
        self.kernel = pair(kernel, 1, "kernel", _NAME)
        self.stride = pair(stride, 1, "stride", _NAME)
        self.padding = pair(padding, 0, "padding", _NAME)
        self.activation = activation
        self.bias = true_or_false("ag_conv2d_layer", "bias", bias)
        self._activate = activation_called(activation, _NAME)
        limit = sqrt(6 / (prod(self.kernel) * (self.in_ch + self.out_ch)))
        self.W = ag_param(host_uniform((self.out_ch, self.in_ch, *self.kernel), -limit, limit))
        if bias:
            self.b = ag_param(np.zeros((self.out_ch, 1), np.float32))

    @classmethod
    def largest_tensor(cls, args: Settings) -> tuple[int, ...]:
        """The shape of `W`."""
        return args["out_ch"], args["in_ch"], *args["kernel"]

    def forward(self, x: TensorLike) -> Tensor:
        """Output of shape (out_ch, height, width, batch) for `x` of shape (in_ch, height, width, batch)."""
        x = as_input(x, self.W)
        if x.ndim != 4 or x.shape[0] != self.in_ch:
            raise ShapeError(f"{_NAME}: x is {x.shape}; ({self.in_ch}, height, width, batch) is required.")
        y = ag_conv2d(x, self.W, self.b if self.bias else None, self.stride, self.padding)
        return y if self._activate is None else self._activate(y)


ag_conv2d_layer = Conv2d
