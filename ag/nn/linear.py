"""Fully connected layers, and embedding."""

from __future__ import annotations

from math import sqrt
from types import MappingProxyType

import numpy as np

from ag.autograd.create import ag_param
from ag.autograd.operands import as_input
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.engine.random import host_uniform
from ag.engine.shape import true_or_false
from ag.errors import ShapeError
from ag.nn.layer import ActivationLike, Layer, activation_called, sizes
from ag.ops.matmul import affine, ag_matmul
from ag.ops.selection import ag_embedding_lookup

__all__ = ["Embedding", "Linear", "ag_embedding", "ag_linear"]


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


ag_linear = Linear
ag_embedding = Embedding
