"""Layers with weights: fully connected ones, embedding, convolution and its transposed form, norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from types import MappingProxyType
from typing import ClassVar, cast

import numpy as np

from ag import ops
from ag.autograd.create import ag_param, ag_tensor, as_tensor
from ag.autograd.operands import as_input
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.engine.device import default_dtype
from ag.engine.random import host_uniform
from ag.engine.shape import counts, per_axis, true_or_false
from ag.errors import ShapeError
from ag.nn.layer import ActivationLike, Layer, Settings, activation_called, number, sizes
from ag.ops import normalization as norms
from ag.ops.conv import ag_conv2d, around, conv1d, conv3d, conv_transpose1d, conv_transpose2d, padded
from ag.ops.images import AXES
from ag.ops.matmul import affine, ag_matmul

__all__ = ["BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
           "ConvTranspose2d", "Embedding", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
           "LayerNorm", "Linear", "RMSNorm", "ag_batch_norm", "ag_conv2d_layer", "ag_embedding", "ag_layer_norm",
           "ag_linear", "ag_rms_norm"]

Sizes = int | Sequence[int]
_MODES = "zeros", "reflect", "replicate", "circular"
_eps, _layer_eps, _rms_eps, _group_eps, _instance_eps = (
    number(f"{function}: eps", lambda x: x > 0, "a positive number")
    for function in ("ag_batch_norm", "ag_layer_norm", "ag_rms_norm", "GroupNorm", "InstanceNorm"))
_momentum = number("ag_batch_norm: momentum", lambda x: 0 <= x <= 1, "in [0, 1]")


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
        Word ids are 0..vocab_size-1.  Vectors are the columns of `weight`, (dim, vocab_size), first of variance 1.

    Examples
    --------
    >>> ag.ag_embedding(10, 4)([[1, 2, 3], [4, 5, 6]]).shape
    (4, 2, 3)
    """

    _largest = ("vocab_size", "dim")
    _elsewhere = MappingProxyType({"W": "weight"})

    def __init__(self, vocab_size: int, dim: int) -> None:
        self.vocab_size, self.dim = sizes("ag_embedding", vocab_size=vocab_size, dim=dim)
        self.weight = ag_param(host_uniform((self.dim, self.vocab_size), -sqrt(3), sqrt(3)))

    def forward(self, x: ArrayLike) -> Tensor:
        """Vectors of shape (dim, *S) for ids of any shape S."""
        return ops.embedding_lookup(self.weight, x)


class _Convolution(Layer):
    """Base of the convolutions: weights for windows of so many axes, and the op that moves them."""

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

    Reference: PyTorch ``Conv2d``; the first weights are as of `ag_linear`, where taps count as inputs and outputs.

    Parameters
    ----------
    in_ch, out_ch : int
        Channels of input and output.
    kernel : int or (int, int)
        Size of the window; a pair is (height, width), here and below.
    stride : int or (int, int), optional
    padding : int, (int, int), "same" or "valid", optional
        As of `ag_conv2d`, and so are `dilation` and `groups`.
    activation : str, callable or None, optional
        As of `ag_linear`; softmax is over the channels.
    bias : bool, optional
    dilation : int or (int, int), optional
    groups : int, optional
    padding_mode : {"zeros", "reflect", "replicate", "circular"}, optional
        What is around the image: zeros, the image mirrored at its edge, the edge, or the other side.

    Attributes
    ----------
    W : Tensor of shape (out_ch, in_ch / groups, kernel height, kernel width)
        Initially Glorot-uniform.
    b : Tensor of shape (out_ch, 1)
        As of `ag_linear`.

    Examples
    --------
    >>> ag.ag_conv2d_layer(3, 8, 3, padding="same")(ag.ops.ones(3, 16, 16, 2)).shape
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


def constant_beside(x: Tensor, shape: tuple[int, ...], value: float) -> Tensor:
    """A number in this shape, beside `x`."""
    dtype = x.buffer.dtype.wide
    number = Tensor(x.buffer.backend.constant(value, dtype)).reshape(*[1] * len(shape))
    return ops.expand(number, shape).astype(x.dtype)


class _Norm(Layer):
    """Base of norms: a factor and an offset for each feature, either of which may be left out."""

    gamma: Tensor
    beta: Tensor
    _largest = ("num_features",)
    _elsewhere = MappingProxyType({"weight": "gamma", "bias": "beta"})
    _has = (True, True)  # gamma and beta

    def _make(self, features: int, factor: bool, offset: bool) -> None:
        self._has = factor, offset
        if factor:
            self.gamma = ag_param(np.ones((features, 1), np.float32))
        if offset:
            self.beta = ag_param(np.zeros((features, 1), np.float32))

    def _affine(self, x: TensorLike) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return `x` as a tensor, the factor and the offset."""
        gamma, beta = self.gamma if self._has[0] else None, self.beta if self._has[1] else None
        x, features = as_tensor(x) if gamma is None else as_input(x, gamma), getattr(self, self._largest[0])
        if x.shape[:1] != (features,):
            raise ShapeError(f"{type(self).__name__}: x is {x.shape}; ({features}, ..., batch) is required.")
        return x, gamma, beta

    def scaling(self, x: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
        """Return `x` as a tensor, the factor and the offset; constants stand for what the layer does not have."""
        x, gamma, beta = self._affine(x)
        column = (*x.shape[:1], 1)
        return (x, constant_beside(x, column, 1.0) if gamma is None else gamma,
                constant_beside(x, column, 0.0) if beta is None else beta)


class BatchNorm(_Norm):
    """Batch norm: each feature gets mean 0 and variance 1 over the batch, then a factor and an offset.

    As in PyTorch, a batch is normalised with the biased variance and the unbiased one goes into `running_var`.
    Reference: ggmlR ``ag_batch_norm`` (whose gradient takes mean and variance for constants); Ioffe and Szegedy, "Batch
    Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift".

    Parameters
    ----------
    num_features : int
        Size of the first axis: features of vectors, channels of images.
    eps : float, optional
        Added to the variance; positive.
    momentum : float, optional
        How far a batch moves the running statistics, in [0, 1].
    affine : bool, optional
        Whether there are `gamma` and `beta`.

    Attributes
    ----------
    gamma, beta : Tensor of shape (num_features, 1)
        Factor and offset, initially 1 and 0.
    running_mean, running_var : Tensor of shape (num_features, 1)
        Buffers, initially 0 and 1: averages over batches, also in captured steps, which eval mode uses instead of the
        batch's own.

    Examples
    --------
    >>> layer = ag.ag_batch_norm(1)
    >>> layer(ag.ag_tensor([[1.0, 3.0]])).numpy().round(3).tolist()
    [[-1.0, 1.0]]
    >>> round(layer.running_mean.item(), 3)
    0.2
    """

    _later = MappingProxyType({"affine": True})
    _adjustable = MappingProxyType({"eps": _eps, "momentum": _momentum})

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        (self.num_features,) = sizes("ag_batch_norm", num_features=num_features)
        self.eps, self.momentum = _eps(eps), _momentum(momentum)
        self.affine = true_or_false("ag_batch_norm", "affine", affine)
        self._make(self.num_features, self.affine, self.affine)
        # In 16 bits a running average would stand still: a batch moves it by less than the last digit.
        exact = "f32" if default_dtype().is_half else None
        self.running_mean, self.running_var = (
            ag_tensor(np.full((self.num_features, 1), x, np.float32), dtype=exact) for x in (0.0, 1.0))

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch) or (num_features, ..., batch)."""
        x, gamma, beta = self.scaling(x)
        if self.training:
            return norms.batch_norm_train(x, gamma, beta, self.running_mean, self.running_var, self.eps, self.momentum)
        return norms.ag_batch_norm_op(x, gamma, beta, self.eps, self.running_mean, self.running_var)


class LayerNorm(_Norm):
    """Layer norm: each sample's features get mean 0 and variance 1, then the factor `gamma` and the offset `beta`.

    Reference: Ba, Kiros, Hinton, "Layer Normalization".

    Parameters
    ----------
    num_features : int
    eps : float, optional
        As of `ag_batch_norm`.
    elementwise_affine, bias : bool, optional
        Whether there are `gamma` and `beta`, as of `ag_batch_norm`, and whether there is `beta`.

    Examples
    --------
    >>> ag.ag_layer_norm(2)(ag.ag_tensor([1.0, 3.0])).numpy().round(3).ravel().tolist()
    [-1.0, 1.0]
    """

    _later = MappingProxyType({"elementwise_affine": True, "bias": True})
    _elsewhere = MappingProxyType({"weight": "gamma"})
    _adjustable = MappingProxyType({"eps": _layer_eps})

    def __init__(self, num_features: int, eps: float = 1e-5, elementwise_affine: bool = True,
                 bias: bool = True) -> None:
        (self.num_features,) = sizes("ag_layer_norm", num_features=num_features)
        self.eps = _layer_eps(eps)
        self.elementwise_affine = true_or_false("ag_layer_norm", "elementwise_affine", elementwise_affine)
        self.bias = true_or_false("ag_layer_norm", "bias", bias)
        self._make(self.num_features, self.elementwise_affine, self.elementwise_affine and self.bias)

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch, ...)."""
        x, gamma, beta = self.scaling(x)
        return norms.ag_layer_norm_op(x, gamma, beta, self.eps)


class GroupNorm(_Norm):
    """Group norm: in each sample, each group of channels gets mean 0 and variance 1, then a factor and an offset.

    Arguments are the numbers of groups and channels, what is added to the variance, and whether there are `gamma` and
    `beta`, of shape (num_channels, 1).  Reference: PyTorch ``GroupNorm``; Wu, He, "Group Normalization", ECCV 2018.
    """

    _largest = ("num_channels",)
    _adjustable = MappingProxyType({"eps": _group_eps})

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        self.num_groups, self.num_channels = sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if self.num_channels % self.num_groups:
            raise ValueError(f"GroupNorm: num_groups is {num_groups} and num_channels is {num_channels}; groups must "
                             f"divide the channels.")
        self.eps, self.affine = _group_eps(eps), true_or_false("GroupNorm", "affine", affine)
        self._make(self.num_channels, self.affine, self.affine)

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_channels, ..., batch)."""
        x, gamma, beta = self._affine(x)
        return ops.group_norm(x, self.num_groups, gamma, beta, self.eps)


class InstanceNorm2d(_Norm):
    """Instance norm: in each sample, each channel gets mean 0 and variance 1, with `affine` a factor and an offset.

    These are `gamma` and `beta`, of shape (num_features, 1); there are no running statistics.
    Reference: PyTorch ``InstanceNorm2d``.
    """

    _adjustable = MappingProxyType({"eps": _instance_eps})

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = False) -> None:
        (self.num_features,) = sizes("InstanceNorm", num_features=num_features)
        self.eps, self.affine = _instance_eps(eps), true_or_false("InstanceNorm", "affine", affine)
        self._make(self.num_features, self.affine, self.affine)

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, ..., batch)."""
        x, gamma, beta = self._affine(x)
        return ops.instance_norm(x, gamma, beta, self.eps)


class RMSNorm(_Norm):
    """RMS norm: each sample's features divided by the root of their mean square, then times a factor `gamma`.

    Reference: Zhang, Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.

    Parameters
    ----------
    num_features : int
    eps : float, optional
        Added to the mean square; positive.  PyTorch's ``nn.RMSNorm`` has the type's machine epsilon, 2**-23 of float32.
    elementwise_affine : bool, optional
        Whether there is `gamma`, as of `ag_batch_norm`.

    Examples
    --------
    >>> ag.ag_rms_norm(4)(ag.ag_tensor([3.0, 0.0, 0.0, 0.0])).numpy().round(3).ravel().tolist()
    [2.0, 0.0, 0.0, 0.0]
    """

    _later = MappingProxyType({"elementwise_affine": True})
    _adjustable = MappingProxyType({"eps": _rms_eps})

    def __init__(self, num_features: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        (self.num_features,) = sizes("ag_rms_norm", num_features=num_features)
        self.eps = _rms_eps(eps)
        self.elementwise_affine = true_or_false("ag_rms_norm", "elementwise_affine", elementwise_affine)
        self._make(self.num_features, self.elementwise_affine, False)

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch, ...)."""
        x, gamma, _ = self._affine(x)
        return norms.ag_rms_norm_op(x, constant_beside(x, (*x.shape[:1], 1), 1.0) if gamma is None else gamma, self.eps)


ag_linear = Linear
ag_embedding = Embedding
ag_conv2d_layer = Conv2d
BatchNorm1d = BatchNorm2d = BatchNorm3d = ag_batch_norm = BatchNorm
InstanceNorm1d = InstanceNorm3d = InstanceNorm2d
ag_layer_norm = LayerNorm
ag_rms_norm = RMSNorm
