"""Layers for images: convolution, pooling, and flattening for a linear layer that follows."""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from types import MappingProxyType

import numpy as np

from ag.autograd.create import ag_param, ag_tensor
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.random import host_uniform
from ag.engine.shape import Pair, pair, true_or_false
from ag.errors import ShapeError
from ag.nn.layer import ActivationLike, Layer, Settings, activation_called, sizes
from ag.ops.conv import ag_avg_pool2d, ag_conv2d, ag_global_avg_pool, ag_max_pool2d, pool_window

__all__ = ["AvgPool", "Conv2d", "Flatten", "GlobalPool", "MaxPool", "ag_avg_pool", "ag_conv2d_layer",
           "ag_flatten_layer", "ag_global_pool", "ag_max_pool"]

_NAME = "ag_conv2d_layer"


class Conv2d(Layer):
    """Two-dimensional convolution, ``activation(ag_conv2d(x, W, b))``.

    Reference: PyTorch ``Conv2d``; Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", eq. 16, where a window's taps count as inputs and outputs.

    Parameters
    ----------
    in_ch, out_ch : int
        Channels of input and output.
    kernel : int or (int, int)
        Size of the window; a pair is (height, width), here and below.
    stride : int or (int, int), optional
        Pixels from one place of the window to the next.
    padding : int or (int, int), optional
        Zeros around the image, on each side; ``kernel // 2`` keeps the size of the image if `kernel` is odd.
    activation : str, callable or None, optional
        As of `ag_linear`; softmax is over the channels.
    bias : bool, optional

    Attributes
    ----------
    W : Tensor of shape (out_ch, in_ch, kernel height, kernel width)
        Initially Glorot-uniform.
    b : Tensor of shape (out_ch, 1)
        Initially 0; without `bias` there is none.

    Examples
    --------
    >>> import numpy
    >>> ag.ag_conv2d_layer(3, 8, 3, padding=1)(numpy.ones((3, 16, 16, 2))).shape
    (8, 16, 16, 2)
    """

    settings = ("in_ch", "out_ch", "kernel", "stride", "padding", "activation", "bias")
    _elsewhere = MappingProxyType({"weight": "W"})

    def __init__(self, in_ch: int, out_ch: int, kernel: int | Pair, stride: int | Pair = 1, padding: int | Pair = 0,
                 activation: ActivationLike = None, bias: bool = True) -> None:
        self.in_ch, self.out_ch = sizes(_NAME, in_ch=in_ch, out_ch=out_ch)
        self.kernel = pair(kernel, 1, "kernel", _NAME)
        self.stride = pair(stride, 1, "stride", _NAME)
        self.padding = pair(padding, 0, "padding", _NAME)
        self.bias = true_or_false(_NAME, "bias", bias)
        self.activation, self._activate = activation_called(activation, _NAME)
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


class _Pool(Layer):
    """Base of the pooling layers: a window, and the op that takes it."""

    settings = ("size", "stride", "padding")
    _function: str  # the name users know the layer by
    _pooled: Callable[..., Tensor]

    def __init__(self, size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0) -> None:
        self.size, self.stride, self.padding, _ = pool_window(size, stride, padding, self._function)

    def forward(self, x: TensorLike) -> Tensor:
        """Output of shape (channels, places down, places across, batch)."""
        return type(self)._pooled(x, self.size, self.stride, self.padding)


class MaxPool(_Pool):
    """Largest pixel of every window, `ag_max_pool2d`.

    Parameters
    ----------
    size : int or (int, int)
    stride, padding : int or (int, int), optional
        As of `ag_max_pool2d`.

    Examples
    --------
    >>> import numpy
    >>> ag.ag_max_pool(2)(numpy.ones((3, 8, 8, 5))).shape
    (3, 4, 4, 5)
    """

    _function = "ag_max_pool"
    _pooled = ag_max_pool2d


class AvgPool(_Pool):
    """Mean of every window, `ag_avg_pool2d`.

    Parameters
    ----------
    size : int or (int, int)
    stride, padding : int or (int, int), optional
        As of `ag_avg_pool2d`.

    Examples
    --------
    >>> import numpy
    >>> ag.ag_avg_pool(2)(numpy.ones((3, 8, 8, 5))).shape
    (3, 4, 4, 5)
    """

    _function = "ag_avg_pool"
    _pooled = ag_avg_pool2d


class GlobalPool(Layer):
    """Mean of every image, `ag_global_avg_pool`: from (channels, height, width, batch) to (channels, batch).

    Reference: Lin, Chen, Yan, "Network In Network", ICLR 2014.

    Examples
    --------
    >>> import numpy
    >>> ag.ag_global_pool()(numpy.ones((3, 8, 8, 5))).shape
    (3, 5)
    """

    def forward(self, x: TensorLike) -> Tensor:
        """Output of shape (channels, batch)."""
        return ag_global_avg_pool(x)


class Flatten(Layer):
    """All axes but the last, the batch, as one: from (channels, height, width, batch) to (features, batch).

    Reference: PyTorch ``Flatten``, which keeps the first axis, the batch there.

    Examples
    --------
    >>> import numpy
    >>> ag.ag_flatten_layer()(numpy.ones((3, 8, 8, 5))).shape
    (192, 5)
    """

    def forward(self, x: TensorLike) -> Tensor:
        """Output of shape (features, batch), which shares memory with `x`."""
        x = x if isinstance(x, Tensor) else ag_tensor(x)
        if x.ndim < 1:
            raise ShapeError(f"ag_flatten_layer: x is {x.shape}; at least the batch axis is required.")
        return x.reshape(prod(x.shape[:-1]), x.shape[-1])


ag_conv2d_layer = Conv2d
ag_max_pool = MaxPool
ag_avg_pool = AvgPool
ag_global_pool = GlobalPool
ag_flatten_layer = Flatten
