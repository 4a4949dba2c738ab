"""Tensor parallelism: fully connected layers whose weights are spread over devices, in equal parts or not.

A column and a row parallel layer, one after the other, exchange one sum, as in Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from ag.autograd.create import ag_param
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.device import backend_of
from ag.engine.primitive import Array
from ag.engine.random import host_uniform
from ag.engine.shape import counts
from ag.errors import ShapeError
from ag.nn.layer import ActivationLike, Layer, activation_called
from ag.ops.arithmetic import ag_add
from ag.ops.creation import ag_to_device
from ag.ops.indexing import ag_concat
from ag.ops.matmul import ag_matmul
from ag.parallel.comm.tensor_collectives import moved, reduce, split
from ag.parallel.comm.tree_reduction import shard_sizes

__all__ = ["ColumnParallelLinear", "RowParallelLinear"]


class _ParallelLinear(Layer):
    """A weight in parts, one per device."""

    settings: tuple[str, ...] = ("in_features", "out_features", "devices", "activation", "bias", "weights")
    _axis: int  # of the weight that is cut

    def __init__(self, in_features: int, out_features: int, devices: Sequence[str], activation: ActivationLike = None,
                 bias: bool = True, weights: Sequence[float] | None = None) -> None:
        name = type(self).__name__
        if not counts(in_features, out_features):
            raise ValueError(f"{name}: in_features is {in_features!r} and out_features is {out_features!r}; both must "
                             f"be whole numbers of at least 1.")
        self.in_features, self.out_features = int(in_features), int(out_features)
        self.devices = tuple(backend_of(device).name for device in devices)
        self.weights = [1.0] * len(self.devices) if weights is None else [float(w) for w in weights]
        cut = (self.out_features, self.in_features)[self._axis]
        if not self.devices or len(self.weights) != len(self.devices) or not min(self.weights) > 0:
            raise ValueError(f"{name}: devices are {list(self.devices)} and weights {self.weights}; at least one "
                             f"device and a positive weight for each are required.")
        self.sizes = shard_sizes(cut, self.weights)
        if 0 in self.sizes:
            raise ValueError(f"{name}: {cut} features in the proportions {self.weights} are {self.sizes} per device; "
                             f"each device needs at least one.")
        self.activation, self._activate = activation_called(activation, name)
        self.bias = bool(bias)
        limit = sqrt(6 / (in_features + out_features))
        self._set_weight(host_uniform((self.out_features, self.in_features), -limit, limit))
        if bias:
            self._set_bias(np.zeros((self.out_features, 1), np.float32))

    def replace_devices(self, instead: Mapping[str, str]) -> None:
        """Replace failed devices."""
        self.devices = tuple(instead.get(name, name) for name in self.devices)

    def _set_weight(self, whole: Array) -> None:
        self.W = self._dealt(whole, self._axis)

    def _dealt(self, whole: Array, axis: int) -> list[Tensor]:
        parts = np.split(whole, np.cumsum(self.sizes)[:-1], axis)
        return [ag_param(np.ascontiguousarray(part), device=device)
                for part, device in zip(parts, self.devices, strict=True)]

    @classmethod
    def from_linear(cls, linear: Any, devices: Sequence[str], weights: Sequence[float] | None = None) -> Any:
        """Make the parallel form of a fully connected layer, with its values."""
        make: Any = cls
        layer = make(linear.in_features, linear.out_features, devices, linear.activation, linear.bias, weights)
        layer._set_weight(linear.W.numpy())
        if linear.bias:
            layer._set_bias(linear.b.numpy())
        return layer

    def _set_bias(self, whole: Array) -> None:
        self.b: Any = ag_param(whole, device=self.devices[0]) if self._axis else self._dealt(whole, 0)

    def places(self) -> list[str]:
        """Return the devices of the parts, which differ from `devices` in a replica."""
        return [w.device for w in self.W]

    def weight(self) -> Array:
        """Return the whole weight, of shape (out_features, in_features), on the host."""
        return np.concatenate([w.numpy() for w in self.W], self._axis)

    def _checked(self, x: TensorLike) -> Tensor:
        x = as_input(x, self.W[0])
        if x.ndim < 2 or x.shape[0] != self.in_features:
            raise ShapeError(f"{type(self).__name__}: x is {x.shape}; ({self.in_features}, batch) is required.")
        return x


def _column(b: Tensor, like: Tensor) -> Tensor:
    return b.reshape(b.shape[0], *(1,) * (like.ndim - 1))


class ColumnParallelLinear(_ParallelLinear):
    """Fully connected layer with its output features spread over devices.

    Reference: Shoeybi et al., "Megatron-LM", 2019, section 3.

    Parameters
    ----------
    in_features, out_features : int
    devices : sequence of str
        A device may occur several times.
    activation : str or None, optional
        As of `ag_linear`; it must act on each feature alone, so no softmax.
    bias : bool, optional
    weights : sequence of float, optional
        How the output features are shared out: in proportion to these; default: equally.
    gather_output : bool, optional
        Whether the result is one tensor on the first device; else a list, one part per device.

    Attributes
    ----------
    W, b : list of Tensor of shape (share, in_features) and (share, 1)

    Raises
    ------
    ValueError
        If a size is no positive whole number, a device has no feature, or the activation is none of these.

    Examples
    --------
    >>> import ag
    >>> layer = ag.ColumnParallelLinear(2, 4, ["cpu", "cpu:1"], weights=[3, 1])
    >>> layer.sizes, layer(ag.ag_tensor([[1.0], [2.0]])).shape
    ([3, 1], (4, 1))
    """

    settings = (*_ParallelLinear.settings, "gather_output")
    _axis = 0

    def __init__(self, in_features: int, out_features: int, devices: Sequence[str], activation: ActivationLike = None,
                 bias: bool = True, weights: Sequence[float] | None = None, gather_output: bool = True) -> None:
        activation, _ = activation_called(activation, "ColumnParallelLinear")
        if activation in ("softmax", "log_softmax"):
            raise ValueError(f"ColumnParallelLinear: {activation} needs all features of a sample; "
                             f"apply ag_{activation} to the gathered result.")
        self.gather_output = bool(gather_output)
        super().__init__(in_features, out_features, devices, activation, bias, weights)

    def forward(self, x: TensorLike) -> Any:
        """Output of shape (out_features, batch, ...) for `x` of shape (in_features, batch, ...), or its parts."""
        parts = []
        x = self._checked(x)
        for i, w in enumerate(self.W):
            y = ag_matmul(w, ag_to_device(x, w.device))
            if self.bias:
                y = ag_add(y, _column(self.b[i], y))
            parts.append(y if self._activate is None else self._activate(y))
        return ag_concat(moved(parts, parts[0].device), 0) if self.gather_output else parts


class RowParallelLinear(_ParallelLinear):
    """Fully connected layer with its input features spread over devices, often behind a `ColumnParallelLinear`.

    Parameters
    ----------
    in_features, out_features : int
    devices : sequence of str
        A device may occur several times; the first makes the sum.
    activation, bias, weights : optional
        As of `ColumnParallelLinear`, for the input features, and so are errors; the activation may be any.

    Attributes
    ----------
    W : list of Tensor of shape (out_features, share)
    b : Tensor of shape (out_features, 1)
        On the first device.

    Examples
    --------
    >>> import ag
    >>> devices = ["cpu", "cpu:1"]
    >>> first = ag.ColumnParallelLinear(2, 4, devices, activation="relu", gather_output=False)
    >>> ag.RowParallelLinear(4, 2, devices)(first(ag.ag_tensor([[1.0], [2.0]]))).shape
    (2, 1)
    """

    _axis = 1

    def forward(self, x: Any) -> Tensor:
        """Output of shape (out_features, batch, ...) for `x` of shape (in_features, batch, ...), or its parts."""
        places = self.places()
        if isinstance(x, (list, tuple)):
            parts = [ag_to_device(part, device) for part, device in zip(x, places, strict=False)]
            shares = [part.shape[0] for part in x]
            if shares != self.sizes:
                raise ShapeError(f"RowParallelLinear: the parts of x have {shares} features; {self.sizes} are "
                                 f"required. Give both layers the same devices and weights.")
        else:
            parts = split(self._checked(x), self.sizes, places, 0)
        y = reduce([ag_matmul(w, part) for w, part in zip(self.W, parts, strict=True)], places[0])
        if self.bias:
            y = ag_add(y, _column(self.b, y))
        return y if self._activate is None else self._activate(y)
