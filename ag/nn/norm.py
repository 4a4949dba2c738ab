"""Layers that normalise or drop: batch norm with running statistics, layer, group, instance and RMS norm, dropout."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from ag.autograd.create import ag_param, ag_tensor, as_tensor
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.device import default_dtype
from ag.engine.dtype import F32
from ag.engine.shape import true_or_false
from ag.errors import ShapeError
from ag.nn.layer import Layer, number, sizes
from ag.ops.arithmetic import ag_mul, dropped
from ag.ops.normalization import (
    ag_batch_norm_op,
    ag_layer_norm_op,
    ag_rms_norm_op,
    batch_norm_train,
    group_norm,
    instance_norm,
)
from ag.ops.shapes import expand

__all__ = ["BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d",
           "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LayerNorm", "RMSNorm", "ag_batch_norm",
           "ag_dropout", "ag_layer_norm", "ag_rms_norm"]

_eps, _layer_eps, _rms_eps, _group_eps, _instance_eps = (
    number(f"{function}: eps", lambda x: x > 0, "a positive number")
    for function in ("ag_batch_norm", "ag_layer_norm", "ag_rms_norm", "GroupNorm", "InstanceNorm"))
_momentum = number("ag_batch_norm: momentum", lambda x: 0 <= x <= 1, "in [0, 1]")
_rate = number("ag_dropout: rate", lambda x: 0 <= x < 1, "in [0, 1)")


def _constant(x: Tensor, shape: tuple[int, ...], value: float) -> Tensor:
    """A number in this shape, beside `x`."""
    dtype = F32 if x.buffer.dtype.is_half else x.buffer.dtype
    number = Tensor(x.buffer.backend.constant(value, dtype)).reshape(*[1] * len(shape))
    return expand(number, shape).astype(x.dtype)


class _Norm(Layer):
    """Base of norms: a factor and an offset for each feature, either of which may be left out."""

    gamma: Tensor
    beta: Tensor
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
        return as_tensor(x) if gamma is None else as_input(x, gamma), gamma, beta

    def scaling(self, x: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
        """Return `x` as a tensor, the factor and the offset; constants stand for what the layer does not have."""
        x, gamma, beta = self._affine(x)
        column = (*x.shape[:1], 1)
        return (x, _constant(x, column, 1.0) if gamma is None else gamma,
                _constant(x, column, 0.0) if beta is None else beta)


class BatchNorm(_Norm):
    """Batch norm: each feature gets mean 0 and variance 1 over the batch, then a factor and an offset.

    As in PyTorch, a batch is normalised with the biased variance and the unbiased one goes into `running_var`.  They
    are updated on the device, in captured steps too.
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
        Buffers, initially 0 and 1: averages over batches, which eval mode uses instead of the batch's own.

    Examples
    --------
    >>> layer = ag.ag_batch_norm(1)
    >>> layer(ag.ag_tensor([[1.0, 3.0]])).numpy().round(3).tolist()
    [[-1.0, 1.0]]
    >>> round(layer.running_mean.item(), 3)
    0.2
    """

    settings = ("num_features", "eps", "momentum", "affine")
    _later = MappingProxyType({"affine": True})
    _largest = ("num_features",)
    _adjustable = MappingProxyType({"eps": _eps, "momentum": _momentum})

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        (self.num_features,) = sizes("ag_batch_norm", num_features=num_features)
        self.eps = _eps(eps)
        self.momentum = _momentum(momentum)
        self.affine = true_or_false("ag_batch_norm", "affine", affine)
        column = (self.num_features, 1)
        self._make(self.num_features, self.affine, self.affine)
        # In 16 bits a running average would stand still: a batch moves it by less than the last digit.
        exact = "f32" if default_dtype().is_half else None
        self.running_mean = ag_tensor(np.zeros(column, np.float32), dtype=exact)
        self.running_var = ag_tensor(np.ones(column, np.float32), dtype=exact)

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch) or (num_features, ..., batch)."""
        x, gamma, beta = self.scaling(x)
        if self.training:
            return batch_norm_train(x, gamma, beta, self.running_mean, self.running_var, self.eps, self.momentum)
        return ag_batch_norm_op(x, gamma, beta, self.eps, self.running_mean, self.running_var)


class LayerNorm(_Norm):
    """Layer norm: each sample's features get mean 0 and variance 1, then a factor and an offset.

    Reference: Ba, Kiros, Hinton, "Layer Normalization".

    Parameters
    ----------
    num_features : int
    eps : float, optional
        Added to the variance; positive.
    elementwise_affine, bias : bool, optional
        Whether there are `gamma` and `beta`, and whether there is `beta`.

    Attributes
    ----------
    gamma, beta : Tensor of shape (num_features, 1)
        Factor and offset, initially 1 and 0.

    Examples
    --------
    >>> ag.ag_layer_norm(2)(ag.ag_tensor([1.0, 3.0])).numpy().round(3).ravel().tolist()
    [-1.0, 1.0]
    """

    settings = ("num_features", "eps", "elementwise_affine", "bias")
    _later = MappingProxyType({"elementwise_affine": True, "bias": True})
    _largest = ("num_features",)
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
        return ag_layer_norm_op(x, gamma, beta, self.eps)


class GroupNorm(_Norm):
    """Group norm: in each sample, each group of channels gets mean 0 and variance 1, then a factor and an offset.

    Arguments are the numbers of groups and channels, what is added to the variance, and whether there are `gamma` and
    `beta`, of shape (num_channels, 1).  Reference: PyTorch ``GroupNorm``; Wu, He, "Group Normalization", ECCV 2018.
    """

    settings = ("num_groups", "num_channels", "eps", "affine")
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
        if x.shape[:1] != (self.num_channels,):
            raise ShapeError(f"GroupNorm: x is {x.shape}; ({self.num_channels}, ..., batch) is required.")
        return group_norm(x, self.num_groups, gamma, beta, self.eps)


class InstanceNorm2d(_Norm):
    """Instance norm: in each sample, each channel gets mean 0 and variance 1, with `affine` a factor and an offset.

    These are `gamma` and `beta`, of shape (num_features, 1); there are no running statistics.
    Reference: PyTorch ``InstanceNorm2d``.
    """

    settings = ("num_features", "eps", "affine")
    _largest = ("num_features",)
    _adjustable = MappingProxyType({"eps": _instance_eps})

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = False) -> None:
        (self.num_features,) = sizes("InstanceNorm", num_features=num_features)
        self.eps, self.affine = _instance_eps(eps), true_or_false("InstanceNorm", "affine", affine)
        self._make(self.num_features, self.affine, self.affine)

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, ..., batch)."""
        x, gamma, beta = self._affine(x)
        if x.shape[:1] != (self.num_features,):
            raise ShapeError(f"InstanceNorm: x is {x.shape}; ({self.num_features}, ..., batch) is required.")
        return instance_norm(x, gamma, beta, self.eps)


class RMSNorm(_Norm):
    """RMS norm: each sample's features divided by the root of their mean square, then times a factor.

    Reference: Zhang, Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.

    Parameters
    ----------
    num_features : int
    eps : float, optional
        Added to the mean square; positive.  PyTorch's ``nn.RMSNorm`` has the type's machine epsilon, 2**-23 of float32.
    elementwise_affine : bool, optional
        Whether there is `gamma`.

    Attributes
    ----------
    gamma : Tensor of shape (num_features, 1)
        Factor, initially 1.

    Examples
    --------
    >>> ag.ag_rms_norm(4)(ag.ag_tensor([3.0, 0.0, 0.0, 0.0])).numpy().round(3).ravel().tolist()
    [2.0, 0.0, 0.0, 0.0]
    """

    settings = ("num_features", "eps", "elementwise_affine")
    _later = MappingProxyType({"elementwise_affine": True})
    _largest = ("num_features",)
    _adjustable = MappingProxyType({"eps": _rms_eps})

    def __init__(self, num_features: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        (self.num_features,) = sizes("ag_rms_norm", num_features=num_features)
        self.eps = _rms_eps(eps)
        self.elementwise_affine = true_or_false("ag_rms_norm", "elementwise_affine", elementwise_affine)
        self._make(self.num_features, self.elementwise_affine, False)

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch, ...)."""
        x, gamma, _ = self._affine(x)
        return ag_rms_norm_op(x, _constant(x, (*x.shape[:1], 1), 1.0) if gamma is None else gamma, self.eps)


class Dropout(Layer):
    """Set elements to 0 at random while training.

    Kept elements are divided by ``1 - rate``, so eval mode needs no scaling.  The mask is the same on every device
    after the same `ag_seed`.  Each replay of a captured step draws a new one.
    Reference: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting".

    Parameters
    ----------
    rate : float
        Probability of being dropped, in [0, 1).

    Examples
    --------
    >>> ag.ag_eval(ag.ag_dropout(0.5))([1.0, 2.0]).numpy().ravel().tolist()
    [1.0, 2.0]
    """

    settings = ("rate",)
    _elsewhere = MappingProxyType({"p": "rate"})
    _adjustable = MappingProxyType({"rate": _rate})

    def __init__(self, rate: float) -> None:
        self.rate = _rate(rate)

    def forward(self, x: TensorLike) -> Tensor:
        """`x` with elements dropped in train mode, `x` itself in eval mode."""
        x = as_tensor(x)
        return dropped(x, self.rate) if self.training and self.rate else x


class Dropout2d(Dropout):
    """Set whole channels to 0 at random while training, in each sample others; PyTorch ``Dropout2d``."""

    def forward(self, x: TensorLike) -> Tensor:
        """`x` of shape (channels, ..., batch), with channels dropped in train mode."""
        x = as_tensor(x)
        if x.ndim < 2:
            raise ShapeError(f"Dropout2d: x is {x.shape}; (channels, ..., batch) is required.")
        kept = (x.shape[0], *(1,) * (x.ndim - 2), x.shape[-1])
        return ag_mul(x, dropped(_constant(x, kept, 1.0), self.rate)) if self.training and self.rate else x


BatchNorm1d = BatchNorm2d = BatchNorm3d = ag_batch_norm = BatchNorm
InstanceNorm1d = InstanceNorm3d = InstanceNorm2d
Dropout1d = Dropout3d = Dropout2d
ag_dropout = Dropout
ag_layer_norm = LayerNorm
ag_rms_norm = RMSNorm
