"""Layers that multiply by weights, fully connected or by convolution; embedding; pooling and flattening of images."""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from types import MappingProxyType

import numpy as np

from ag.autograd.create import ag_param, as_tensor
from ag.autograd.operands import as_input
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.engine.random import host_uniform
from ag.engine.shape import Pair, pair, true_or_false
from ag.errors import ShapeError
from ag.nn.layer import ActivationLike, Layer, Settings, activation_called, sizes
from ag.ops.conv import ag_avg_pool2d, ag_conv2d, ag_global_avg_pool, ag_max_pool2d, pool_window
from ag.ops.matmul import affine, ag_matmul
from ag.ops.selection import ag_embedding_lookup

__all__ = ["AvgPool", "Conv2d", "Embedding", "Flatten", "GlobalPool", "Linear", "MaxPool", "ag_avg_pool",
           "ag_conv2d_layer", "ag_embedding", "ag_flatten_layer", "ag_global_pool", "ag_linear", "ag_max_pool"]


class Linear(Layer):
    """Fully connected layer, ``activation(W @ x + b)``.

    Reference: ggmlR ``ag_linear``; Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    networks", eq. 16.

    Parameters
    ----------
    in_features, out_features : int
    activation : str, callable or None, optional
        A function of `ag.ops.activation` or its name without the prefix, such as ``"relu"`` for `ag_relu`.
    bias : bool, optional

    Attributes
    ----------
    W : Tensor of shape (out_features, in_features)
        Initially Glorot-uniform.
    b : Tensor of shape (out_features, 1)
        Initially 0; without `bias` there is none.

    Examples
    --------
    >>> ag.ag_linear(4, 3)(ag.ag_tensor([[1.0]] * 4)).shape
    (3, 1)
    """

    settings = ("in_features", "out_features", "activation", "bias")
    _largest = ("out_features", "in_features")
    _elsewhere = MappingProxyType({"weight": "W"})

    def __init__(self, in_features: int, out_features: int, activation: ActivationLike = None,
                 bias: bool = True) -> None:
        self.in_features, self.out_features = sizes("ag_linear", in_features=in_features, out_features=out_features)
        self.bias = true_or_false("ag_linear", "bias", bias)
        self.activation, self._activate = activation_called(activation, "ag_linear")
        limit = sqrt(6 / (in_features + out_features))
        self.W = ag_param(host_uniform((self.out_features, self.in_features), -limit, limit))
        if bias:
            self.b = ag_param(np.zeros((self.out_features, 1), np.float32))

    def forward(self, x: TensorLike) -> Tensor:
        """Output of shape (out_features, batch, ...) for `x` of shape (in_features, batch, ...)."""
        x = as_input(x, self.W)
        if x.ndim < 2 or x.shape[0] != self.in_features:
            raise ShapeError(f"ag_linear: x is {x.shape}; ({self.in_features}, batch) is required.")
        y = affine(self.W, x, self.b) if self.bias else ag_matmul(self.W, x)
        return y if self._activate is None else self._activate(y)


class Embedding(Layer):
    """A vector for each word of a vocabulary.

    Reference: ggmlR ``ag_embedding`` (which drops the id -1 without a word).

    Parameters
    ----------
    vocab_size, dim : int
        Word ids are 0..vocab_size-1, and a vector has `dim` numbers.

    Attributes
    ----------
    weight : Tensor of shape (dim, vocab_size)
        The vectors as columns, initially uniform with variance 1.

    Examples
    --------
    >>> ag.ag_embedding(10, 4)([[1, 2, 3], [4, 5, 6]]).shape
    (4, 2, 3)
    """

    settings = _largest = ("vocab_size", "dim")
    _elsewhere = MappingProxyType({"W": "weight"})

    def __init__(self, vocab_size: int, dim: int) -> None:
        self.vocab_size, self.dim = sizes("ag_embedding", vocab_size=vocab_size, dim=dim)
        self.weight = ag_param(host_uniform((self.dim, self.vocab_size), -sqrt(3), sqrt(3)))

    def forward(self, x: ArrayLike) -> Tensor:
        """Vectors of shape (dim, *S) for ids of any shape S."""
        return ag_embedding_lookup(self.weight, x)


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
        self.in_ch, self.out_ch = sizes("ag_conv2d_layer", in_ch=in_ch, out_ch=out_ch)
        self.kernel = pair(kernel, 1, "kernel", "ag_conv2d_layer")
        self.stride = pair(stride, 1, "stride", "ag_conv2d_layer")
        self.padding = pair(padding, 0, "padding", "ag_conv2d_layer")
        self.bias = true_or_false("ag_conv2d_layer", "bias", bias)
        self.activation, self._activate = activation_called(activation, "ag_conv2d_layer")
        limit = sqrt(6 / (prod(self.kernel) * (self.in_ch + self.out_ch)))
        self.W = ag_param(host_uniform((self.out_ch, self.in_ch, *self.kernel), -limit, limit))
        if bias:
            self.b = ag_param(np.zeros((self.out_ch, 1), np.float32))

    @classmethod
    def largest_tensor(cls, args: Settings) -> tuple[int, ...]:
        return args["out_ch"], args["in_ch"], *args["kernel"]

    def forward(self, x: TensorLike) -> Tensor:
        """Output of shape (out_ch, height, width, batch) for `x` of shape (in_ch, height, width, batch)."""
        x = as_input(x, self.W)
        if x.ndim != 4 or x.shape[0] != self.in_ch:
            raise ShapeError(f"ag_conv2d_layer: x is {x.shape}; ({self.in_ch}, height, width, batch) is required.")
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
        x = as_tensor(x)
        if x.ndim < 1:
            raise ShapeError(f"ag_flatten_layer: x is {x.shape}; at least the batch axis is required.")
        return x.reshape(prod(x.shape[:-1]), x.shape[-1])


ag_linear = Linear
ag_embedding = Embedding
ag_conv2d_layer = Conv2d
ag_max_pool = MaxPool
ag_avg_pool = AvgPool
ag_global_pool = GlobalPool
ag_flatten_layer = Flatten
