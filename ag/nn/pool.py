"""Layers without weights for images: pooling, and flattening for a linear layer that follows."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from types import MappingProxyType

from ag.autograd.create import ag_tensor
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.shape import Pair
from ag.errors import ShapeError
from ag.nn.layer import Layer
from ag.ops.pool import ag_avg_pool2d, ag_global_avg_pool, ag_max_pool2d, pool_window

__all__ = ["AvgPool", "Flatten", "GlobalPool", "MaxPool", "ag_avg_pool", "ag_flatten_layer", "ag_global_pool",
           "ag_max_pool"]


class _Pool(Layer):
    """Base of the pooling layers: a window, and the op that takes it."""

    _adjustable = MappingProxyType({})
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
    stride : int or (int, int), optional
    padding : int or (int, int), optional
        These three as of `ag_max_pool2d`.

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
    stride : int or (int, int), optional
    padding : int or (int, int), optional
        These three as of `ag_avg_pool2d`.

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


ag_max_pool = MaxPool
ag_avg_pool = AvgPool
ag_global_pool = GlobalPool
ag_flatten_layer = Flatten
