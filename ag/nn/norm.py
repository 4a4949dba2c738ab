"""Layers that normalise or drop: batch norm with running statistics, layer norm, RMS norm, dropout."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from ag.autograd.create import ag_param, ag_tensor, as_tensor
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.device import default_dtype
from ag.nn.layer import Layer, number, sizes
from ag.ops.elementwise import dropped
from ag.ops.normalization import ag_batch_norm_op, ag_layer_norm_op, ag_rms_norm_op, batch_norm_train

__all__ = ["BatchNorm", "Dropout", "LayerNorm", "RMSNorm", "ag_batch_norm", "ag_dropout", "ag_layer_norm",
           "ag_rms_norm"]

_eps, _layer_eps, _rms_eps = (number(f"{function}: eps", lambda x: x > 0, "a positive number")
                              for function in ("ag_batch_norm", "ag_layer_norm", "ag_rms_norm"))
_momentum = number("ag_batch_norm: momentum", lambda x: 0 <= x <= 1, "in [0, 1]")
_rate = number("ag_dropout: rate", lambda x: 0 <= x < 1, "in [0, 1)")


class BatchNorm(Layer):
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

    settings = ("num_features", "eps", "momentum")
    _largest = ("num_features",)
    _elsewhere = MappingProxyType({"weight": "gamma", "bias": "beta"})
    _adjustable = MappingProxyType({"eps": _eps, "momentum": _momentum})

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        (self.num_features,) = sizes("ag_batch_norm", num_features=num_features)
        self.eps = _eps(eps)
        self.momentum = _momentum(momentum)
        column = (self.num_features, 1)
        self.gamma = ag_param(np.ones(column, np.float32))
        self.beta = ag_param(np.zeros(column, np.float32))
        # In 16 bits a running average would stand still: a batch moves it by less than the last digit.
        exact = "f32" if default_dtype().is_half else None
        self.running_mean = ag_tensor(np.zeros(column, np.float32), dtype=exact)
        self.running_var = ag_tensor(np.ones(column, np.float32), dtype=exact)

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch) or (num_features, ..., batch)."""
        if self.training:
            return batch_norm_train(x, self.gamma, self.beta, self.running_mean, self.running_var,
                                    self.eps, self.momentum)
        return ag_batch_norm_op(x, self.gamma, self.beta, self.eps, self.running_mean, self.running_var)


class LayerNorm(Layer):
    """Layer norm: each sample's features get mean 0 and variance 1, then a factor and an offset.

    Reference: Ba, Kiros, Hinton, "Layer Normalization".

    Parameters
    ----------
    num_features : int
    eps : float, optional
        Added to the variance; positive.

    Attributes
    ----------
    gamma, beta : Tensor of shape (num_features, 1)
        Factor and offset, initially 1 and 0.

    Examples
    --------
    >>> ag.ag_layer_norm(2)(ag.ag_tensor([1.0, 3.0])).numpy().round(3).ravel().tolist()
    [-1.0, 1.0]
    """

    settings = ("num_features", "eps")
    _largest = ("num_features",)
    _elsewhere = MappingProxyType({"weight": "gamma", "bias": "beta"})
    _adjustable = MappingProxyType({"eps": _layer_eps})

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        (self.num_features,) = sizes("ag_layer_norm", num_features=num_features)
        self.eps = _layer_eps(eps)
        self.gamma = ag_param(np.ones((self.num_features, 1), np.float32))
        self.beta = ag_param(np.zeros((self.num_features, 1), np.float32))

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch, ...)."""
        return ag_layer_norm_op(x, self.gamma, self.beta, self.eps)


class RMSNorm(Layer):
    """RMS norm: each sample's features divided by the root of their mean square, then times a factor.

    Reference: Zhang, Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.

    Parameters
    ----------
    num_features : int
    eps : float, optional
        Added to the mean square; positive.  PyTorch's ``nn.RMSNorm`` has the type's machine epsilon, 2**-23 of float32.

    Attributes
    ----------
    gamma : Tensor of shape (num_features, 1)
        Factor, initially 1.

    Examples
    --------
    >>> ag.ag_rms_norm(4)(ag.ag_tensor([3.0, 0.0, 0.0, 0.0])).numpy().round(3).ravel().tolist()
    [2.0, 0.0, 0.0, 0.0]
    """

    settings = ("num_features", "eps")
    _largest = ("num_features",)
    _elsewhere = MappingProxyType({"weight": "gamma"})
    _adjustable = MappingProxyType({"eps": _rms_eps})

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        (self.num_features,) = sizes("ag_rms_norm", num_features=num_features)
        self.eps = _rms_eps(eps)
        self.gamma = ag_param(np.ones((self.num_features, 1), np.float32))

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch, ...)."""
        return ag_rms_norm_op(x, self.gamma, self.eps)


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


ag_batch_norm = BatchNorm
ag_dropout = Dropout
ag_layer_norm = LayerNorm
ag_rms_norm = RMSNorm
