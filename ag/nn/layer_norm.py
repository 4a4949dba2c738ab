"""Layer norm and RMS norm: layers that normalise each sample's features, in train and eval mode alike.

The computation is `ag.ops.norm`.  It knows no other layer but its base.  Users' models call it.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from ag.autograd.create import ag_param
from ag.autograd.tensor import Tensor, TensorLike
from ag.nn.layer import Layer, Settings
from ag.nn.settings import features, number
from ag.ops.norm import ag_layer_norm_op, ag_rms_norm_op

__all__ = ["LayerNorm", "RMSNorm", "ag_layer_norm", "ag_rms_norm"]

_eps, _rms_eps = (number(f"{function}: eps", lambda x: x > 0, "a positive number")
                  for function in ("ag_layer_norm", "ag_rms_norm"))


class LayerNorm(Layer):
    """Layer norm: each sample's features get mean 0 and variance 1, then a factor and an offset.

    Parameters
    ----------
    num_features : int
        Size of the first axis, at least 1.
    eps : float, optional
        Added to the variance; positive.

    Attributes
    ----------
    gamma, beta : Tensor of shape (num_features, 1)
        Factor and offset, initially 1 and 0.

    Raises
    ------
    ValueError
        If `num_features` or `eps` is not positive.

    References
    ----------
    Ba, Kiros, Hinton, "Layer Normalization".

    Examples
    --------
    >>> import ag
    >>> ag.ag_layer_norm(2)(ag.ag_tensor([1.0, 3.0])).numpy().round(3).ravel().tolist()
    [-1.0, 1.0]
    """

    settings = ("num_features", "eps")
    _elsewhere = MappingProxyType({"weight": "gamma", "bias": "beta"})
    _adjustable = MappingProxyType({"eps": _eps})
    eps: float

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        self.num_features = features("ag_layer_norm", num_features)
        self.eps = _eps(eps)
        self.gamma = ag_param(np.ones((self.num_features, 1), np.float32))
        self.beta = ag_param(np.zeros((self.num_features, 1), np.float32))

    @classmethod
    def largest_tensor(cls, args: Settings) -> tuple[int, ...]:
        """The shape of both."""
        return args["num_features"], 1

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch, ...)."""
        return ag_layer_norm_op(x, self.gamma, self.beta, self.eps)


class RMSNorm(Layer):
    """RMS norm: each sample's features divided by the root of their mean square, then times a factor.

    Parameters
    ----------
    num_features : int
        Size of the first axis, at least 1.
    eps : float, optional
        Added to the mean square; positive.  PyTorch's ``nn.RMSNorm`` takes the machine epsilon of the type where none
        is given, 2**-23 for float32: give that to compute what it does.

    Attributes
    ----------
    gamma : Tensor of shape (num_features, 1)
        Factor, initially 1.

    Raises
    ------
    ValueError
        If `num_features` or `eps` is not positive.

    References
    ----------
    Zhang, Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.

    Examples
    --------
    >>> import ag
    >>> ag.ag_rms_norm(4)(ag.ag_tensor([3.0, 0.0, 0.0, 0.0])).numpy().round(3).ravel().tolist()
    [2.0, 0.0, 0.0, 0.0]
    """

    settings = ("num_features", "eps")
    _elsewhere = MappingProxyType({"weight": "gamma"})
    _adjustable = MappingProxyType({"eps": _rms_eps})
    eps: float

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        self.num_features = features("ag_rms_norm", num_features)
        self.eps = _rms_eps(eps)
        self.gamma = ag_param(np.ones((self.num_features, 1), np.float32))

    @classmethod
    def largest_tensor(cls, args: Settings) -> tuple[int, ...]:
        """The shape of its only one."""
        return args["num_features"], 1

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (num_features, batch, ...)."""
        return ag_rms_norm_op(x, self.gamma, self.eps)


ag_layer_norm = LayerNorm
ag_rms_norm = RMSNorm
