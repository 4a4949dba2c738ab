"""Layers of images, sequences and volumes: convolution and its transposed form, pooling, flattening."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from types import MappingProxyType
from typing import ClassVar, cast

import numpy as np

from ag.autograd.create import ag_param, as_tensor
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.random import host_uniform
from ag.engine.shape import counts, per_axis, true_or_false
from ag.errors import ShapeError
from ag.nn.layer import ActivationLike, Layer, Settings, activation_called, sizes
from ag.ops.conv import ag_conv2d, around, conv1d, conv3d, conv_transpose1d, conv_transpose2d, padded
from ag.ops.images import AXES, ag_avg_pool2d, ag_global_avg_pool, ag_max_pool2d, pool_window

__all__ = ["AvgPool", "AvgPool2d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "Flatten",
           "GlobalPool", "MaxPool", "MaxPool2d", "ag_avg_pool", "ag_conv2d_layer", "ag_flatten_layer", "ag_global_pool",
           "ag_max_pool"]

Sizes = int | Sequence[int]
_MODES = "zeros", "reflect", "replicate", "circular"


class _Convolution(Layer):
    """Base of the convolutions: weights for windows of so many axes, and the op that moves them."""

    settings = ("in_ch", "out_ch", "kernel", "stride", "padding", "activation", "bias", "dilation", "groups",
                "padding_mode")
    _elsewhere = MappingProxyType({"weight": "W"})
    _known: ClassVar[str]  # the name in messages
    _axes: ClassVar[int]
    _moved: ClassVar[Callable[..., Tensor]]
    _turned: ClassVar[bool] = False  # the weights have the channels of the input first

    def __init__(self, in_ch: int, out_ch: int, kernel: Sizes, stride: Sizes = 1, padding: Sizes | str = 0,
                 activation: ActivationLike = None, bias: bool = True, dilation: Sizes = 1, groups: int = 1,
                 padding_mode: str = "zeros") -> None:
        name, axes = self._known, self._axes
        self.in_ch, self.out_ch = sizes(name, in_ch=in_ch, out_ch=out_ch)
        self.kernel, self.stride, self.dilation = (per_axis(value, axes, 1, of, name) for value, of in (
            (kernel, "kernel"), (stride, "stride"), (dilation, "dilation")))
        if not counts(groups) or self.in_ch % groups or self.out_ch % groups:
            raise ValueError(f"{name}: groups is {groups!r:.60}, in_ch is {in_ch} and out_ch is {out_ch}; groups must "
                             f"divide both.")
        if not isinstance(padding_mode, str) or padding_mode not in _MODES:
            raise ValueError(f"{name}: padding_mode is {padding_mode!r:.60}; one of {', '.join(_MODES)} is required.")
        self._around = around(name, self.kernel, self.stride, padding, self.dilation)
        self.padding = padding if isinstance(padding, str) else per_axis(padding, axes, 0, "padding", name)
        self.groups, self.padding_mode = int(groups), padding_mode
        self.bias = true_or_false(name, "bias", bias)
        self.activation, self._activate = activation_called(activation, name)
        limit = sqrt(6 * self.groups / (prod(self.kernel) * (self.in_ch + self.out_ch)))
        first, second = (self.in_ch, self.out_ch) if self._turned else (self.out_ch, self.in_ch)
        self.W = ag_param(host_uniform((first, second // self.groups, *self.kernel), -limit, limit))
        if self.bias:
            self.b = ag_param(np.zeros((self.out_ch, 1), np.float32))

    @classmethod
    def largest_tensor(cls, args: Settings) -> tuple[int, ...]:
        return args["out_ch"], args["in_ch"] // max(1, args.get("groups", 1)), *args["kernel"]

    def forward(self, x: TensorLike) -> Tensor:
        """Output of shape (out_ch, ..., batch) for `x` of shape (in_ch, ..., batch)."""
        x = as_input(x, self.W)
        if x.ndim != self._axes + 2 or x.shape[0] != self.in_ch:
            raise ShapeError(f"{self._known}: x is {x.shape}; ({self.in_ch}, {AXES[self._axes]}, batch) is required.")
        y = self._move(x, self.b if self.bias else None)
        return y if self._activate is None else self._activate(y)

    def _move(self, x: Tensor, b: Tensor | None) -> Tensor:
        x, padding = padded(x, self._around, self.padding_mode)
        return type(self)._moved(x, self.W, b, self.stride, padding, self.dilation, self.groups)


class Conv2d(_Convolution):
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
    padding : int, (int, int), "same" or "valid", optional
        Pixels around the image, on each side; "same" keeps the size of the image, "valid" is 0.
    activation : str, callable or None, optional
        As of `ag_linear`; softmax is over the channels.
    bias : bool, optional
    dilation : int or (int, int), optional
        Pixels from one tap of the window to the next.
    groups : int, optional
        Into how many parts channels are cut; a part of the outputs sees its part of the inputs.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}, optional
        What is around the image: zeros, the image mirrored at its edge, the edge, or the other side.

    Attributes
    ----------
    W : Tensor of shape (out_ch, in_ch / groups, kernel height, kernel width)
        Initially Glorot-uniform.
    b : Tensor of shape (out_ch, 1)
        Initially 0; without `bias` there is none.

    Examples
    --------
    >>> import numpy
    >>> ag.ag_conv2d_layer(3, 8, 3, padding="same")(numpy.ones((3, 16, 16, 2))).shape
    (8, 16, 16, 2)
    """

    _known, _axes, _moved = "ag_conv2d_layer", 2, ag_conv2d
    _later = MappingProxyType({"dilation": (1, 1), "groups": 1, "padding_mode": "zeros"})


class Conv1d(_Convolution):
    """Convolution of sequences (in_ch, time, batch), else as `Conv2d`; PyTorch ``Conv1d``."""

    _known, _axes, _moved = "Conv1d", 1, conv1d


class Conv3d(_Convolution):
    """Convolution of volumes (in_ch, depth, height, width, batch), else as `Conv2d`; PyTorch ``Conv3d``."""

    _known, _axes, _moved = "Conv3d", 3, conv3d


class ConvTranspose2d(_Convolution):
    """Transposed convolution, which enlarges images: ``activation(ops.conv_transpose2d(x, W, b))``.

    `W` has the shape (in_ch, out_ch / groups, kernel height, kernel width), as in PyTorch ``ConvTranspose2d``.

    >>> ag.nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1)(ag.ag_tensor([[[[1.0]] * 7] * 7] * 8)).shape
    (3, 14, 14, 1)
    """

    settings = ("in_ch", "out_ch", "kernel", "stride", "padding", "output_padding", "groups", "bias", "dilation",
                "activation")
    _known, _axes, _moved, _turned = "ConvTranspose2d", 2, conv_transpose2d, True

    def __init__(self, in_ch: int, out_ch: int, kernel: Sizes, stride: Sizes = 1, padding: Sizes = 0,
                 output_padding: Sizes = 0, groups: int = 1, bias: bool = True, dilation: Sizes = 1,
                 activation: ActivationLike = None) -> None:
        self.output_padding = per_axis(output_padding, self._axes, 0, "output_padding", self._known)
        per_axis(padding, self._axes, 0, "padding", self._known)
        super().__init__(in_ch, out_ch, kernel, stride, padding, activation, bias, dilation, groups)

    def _move(self, x: Tensor, b: Tensor | None) -> Tensor:
        return type(self)._moved(x, self.W, b, self.stride, cast(Sizes, self.padding), self.output_padding,
                                 self.groups, self.dilation)


class ConvTranspose1d(ConvTranspose2d):
    """Transposed convolution of sequences, else as `ConvTranspose2d`; PyTorch ``ConvTranspose1d``."""

    _known, _axes, _moved = "ConvTranspose1d", 1, conv_transpose1d


class _Pool(Layer):
    """Base of the pooling layers: a window, and the op that takes it."""

    _function: ClassVar[str]  # the name users know the layer by
    _pooled: ClassVar[Callable[..., Tensor]]

    def forward(self, x: TensorLike) -> Tensor:
        """Output of shape (channels, places down, places across, batch)."""
        return type(self)._pooled(x, *(getattr(self, name) for name in self.settings))


class MaxPool(_Pool):
    """Largest pixel of every window, `ag_max_pool2d`.

    Parameters
    ----------
    size : int or (int, int)
    stride, padding, dilation : int or (int, int), optional
    ceil_mode : bool, optional
        As of `ag_max_pool2d`.

    Examples
    --------
    >>> import numpy
    >>> ag.ag_max_pool(2)(numpy.ones((3, 8, 8, 5))).shape
    (3, 4, 4, 5)
    """

    settings = ("size", "stride", "padding", "dilation", "ceil_mode")
    _function, _pooled = "ag_max_pool", ag_max_pool2d
    _later = MappingProxyType({"dilation": (1, 1), "ceil_mode": False})

    def __init__(self, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
                 ceil_mode: bool = False) -> None:
        self.size, self.stride, self.padding, self.dilation = pool_window(self._function, 2, size, stride, padding,
                                                                            dilation)
        self.ceil_mode = true_or_false(self._function, "ceil_mode", ceil_mode)


class AvgPool(_Pool):
    """Mean of every window, `ag_avg_pool2d`.

    Parameters
    ----------
    size : int or (int, int)
    stride, padding : int or (int, int), optional
    ceil_mode, count_include_pad : bool, optional
        As of `ag_avg_pool2d`.

    Examples
    --------
    >>> import numpy
    >>> ag.ag_avg_pool(2)(numpy.ones((3, 8, 8, 5))).shape
    (3, 4, 4, 5)
    """

    settings = ("size", "stride", "padding", "ceil_mode", "count_include_pad")
    _function, _pooled = "ag_avg_pool", ag_avg_pool2d
    _later = MappingProxyType({"ceil_mode": False, "count_include_pad": True})

    def __init__(self, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:
        self.size, self.stride, self.padding, _ = pool_window(self._function, 2, size, stride, padding)
        self.ceil_mode = true_or_false(self._function, "ceil_mode", ceil_mode)
        self.count_include_pad = true_or_false(self._function, "count_include_pad", count_include_pad)


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


ag_conv2d_layer = Conv2d
ag_max_pool = MaxPool2d = MaxPool
ag_avg_pool = AvgPool2d = AvgPool
ag_global_pool = GlobalPool
ag_flatten_layer = Flatten
