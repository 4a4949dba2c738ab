"""Layers of functions of `ag.ops`, also losses: they keep the other arguments.

A layer has PyTorch's name, and its function that name in lower case, unless `_FUNCTIONS` has another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from ag import ops
from ag.autograd.create import ag_param, ag_tensor, as_tensor
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.shape import normalize_axis, per_axis, reshaped, true_or_false
from ag.errors import ShapeError
from ag.names import dedented, parameters_of, wrong_arguments
from ag.names.elsewhere import ARGUMENTS
from ag.nn.layer import Layer, number, sizes
from ag.nn.linear import Sizes, constant_beside
from ag.ops.arithmetic import dropped
from ag.ops.images import pool_window

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
           "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool3d", "BCELoss", "BCEWithLogitsLoss", "CELU", "CircularPad1d",
           "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "CosineEmbeddingLoss",
           "CrossEntropyLoss", "ELU", "Flatten", "Fold", "GELU", "GLU", "GaussianNLLLoss", "GlobalPool", "Hardshrink",
           "Hardsigmoid", "Hardswish", "Hardtanh", "HingeEmbeddingLoss", "HuberLoss", "Identity", "KLDivLoss",
           "L1Loss", "LeakyReLU", "LocalResponseNorm", "LogSigmoid", "LogSoftmax", "MSELoss", "MarginRankingLoss",
           "MaxPool1d", "MaxPool3d", "Mish", "MultiMarginLoss", "NLLLoss", "PixelShuffle", "PixelUnshuffle",
           "PoissonNLLLoss", "ReLU", "ReLU6", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d",
           "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "SELU", "SiLU", "Sigmoid", "SmoothL1Loss",
           "SoftMarginLoss", "Softmax", "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink",
           "Threshold", "TripletMarginLoss", "Unflatten", "Unfold", "Upsample", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d"]

_rate = number("ag_dropout: rate", lambda x: 0 <= x < 1, "in [0, 1)")
_SELF = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
_GIVEN = (bool, int, float, str, type(None), np.bool_, np.integer, np.floating)


class _FunctionLayer(Layer):
    """Base of the layers of functions."""

    _called: ClassVar[Callable[..., Tensor]]

    def forward(self, x: TensorLike, *others: TensorLike) -> Tensor:
        """The function of `x`, and of other operands."""
        return type(self)._called(x, *others, **{name: getattr(self, name) for name in self.settings})


def _kept(layer: str, name: str, value: Any) -> object:
    """Return an argument as a layer keeps it: numbers, which a file of the model can hold, and weights as tensors."""
    if name.endswith("weight") and value is not None:
        return value if isinstance(value, Tensor) else ag_tensor(value).reshape(np.shape(value))
    if isinstance(value, (tuple, list)):
        return tuple([_kept(layer, name, x) for x in value])
    if not isinstance(value, _GIVEN):
        raise TypeError(f"{layer}: {name} is a {type(value).__name__}; a number, a name or a sequence of them is "
                        f"required.")
    return value.item() if isinstance(value, np.generic) else value


class _Text:
    """The docstring of a function without its operands and its result, made when it is read."""

    def __init__(self, function: Callable[..., Tensor], operands: Sequence[str] = ("x",)) -> None:
        self.function, self.operands = function, operands

    def __get__(self, layer: object, kind: type) -> str:
        text = re.sub(r"\n\nReturns\n-+\n.*?(?=\n\n|\Z)", "", dedented(self.function), flags=re.DOTALL)
        text = re.sub(rf"\n(?:{'|'.join(self.operands)})\b.* : .*(?:\n    .*)*", "", text)
        return re.sub(r"\n\nParameters\n-+(?=\n\n|\Z)", "", text) + "\n"


def _layer(name: str) -> type[_FunctionLayer]:
    """Make the layer of a function; the operands of a loss are what it must be given."""
    function = _FUNCTIONS[name] if name in _FUNCTIONS else _OPS[name.lower()]
    first, *parameters = parameters_of(function)
    operands = [first.name]
    if name.endswith("Loss"):
        operands += [p.name for p in parameters if p.default is p.empty]
    parameters = [p for p in parameters if p.name not in operands]
    has = Signature([_SELF, *parameters])

    def init(self: _FunctionLayer, *args: object, **kwargs: object) -> None:
        try:
            bound = has.bind(self, *args, **kwargs)
        except TypeError:
            raise wrong_arguments(name, has, (self, *args), kwargs, ARGUMENTS["ag.nn"]) from None
        bound.apply_defaults()
        for key in self.settings:
            setattr(self, key, _kept(name, key, bound.arguments[key]))

    init.__name__ = "__init__"
    vars(init)["__signature__"] = has
    return type(name, (_FunctionLayer,), {
        "__init__": init, "__module__": __name__, "__doc__": _Text(function, operands),
        "_called": staticmethod(function), "settings": tuple([p.name for p in parameters])})


def _identity(x: TensorLike) -> Tensor:
    """Return the input."""
    return as_tensor(x)


def _unflatten(x: TensorLike, dim: int, unflattened_size: Sequence[int]) -> Tensor:
    """Make an axis several, of these sizes; one of them may be -1."""
    x = as_tensor(x)
    axis = normalize_axis(dim, x.ndim, "Unflatten")
    inner = reshaped((x.shape[axis],), tuple(unflattened_size), "Unflatten")
    return ops.reshape(x, *x.shape[:axis], *inner, *x.shape[axis + 1 :])


def _flatten(x: TensorLike) -> Tensor:
    """Make all axes but the last, the batch, one: from (channels, height, width, batch) to (features, batch).

    Reference: PyTorch ``Flatten``, which keeps the first axis, the batch there.

    Examples
    --------
    >>> ag.ag_flatten_layer()(ag.ops.ones(3, 8, 8, 5)).shape
    (192, 5)
    """
    x = as_tensor(x)
    if x.ndim < 1:
        raise ShapeError(f"ag_flatten_layer: x is {x.shape}; at least the batch axis is required.")
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


def _padding(name: str, axes: int, mode: str) -> Callable[..., Tensor]:
    """Make the function that puts something around sequences, images or volumes."""
    def padded(x: TensorLike, padding: Sizes, value: float = 0.0) -> Tensor:
        """Put values around, as `ops.pad`: so many everywhere, or before and behind each axis, the last first."""
        x, widths = as_tensor(x), per_axis(padding, 2 * axes, 0, "padding", name)
        if x.ndim != axes + 2:
            raise ShapeError(f"{name}: x is {x.shape}; {axes + 2} axes are required, the batch last.")
        return ops.pad(x, widths, mode, value)

    if not name.startswith("Constant"):  # others put no value of the caller's
        vars(padded)["__signature__"] = Signature(parameters_of(padded)[:2])
    return padded


_PADDINGS = {"ZeroPad": "constant", "ConstantPad": "constant", "ReflectionPad": "reflect",
             "ReplicationPad": "replicate", "CircularPad": "circular"}
_OPS = {name.replace("_", ""): function for name, function in vars(ops).items()}
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "BCELoss": ops.binary_cross_entropy, "BCEWithLogitsLoss": ops.binary_cross_entropy_with_logits,
    "CrossEntropyLoss": ops.cross_entropy, "Flatten": _flatten, "GlobalPool": ops.global_avg_pool,
    "Identity": _identity, "KLDivLoss": ops.kl_div, "Unflatten": _unflatten, "Upsample": ops.interpolate,
    **{f"{kind}{n}d": _padding(f"{kind}{n}d", n, mode) for kind, mode in _PADDINGS.items() for n in (1, 2, 3)}}
(AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d,
 AvgPool1d, AvgPool3d, BCELoss, BCEWithLogitsLoss, CELU, CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d,
 ConstantPad2d, ConstantPad3d, CosineEmbeddingLoss, CrossEntropyLoss, ELU, Flatten, Fold, GELU, GLU, GaussianNLLLoss,
 GlobalPool, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, HingeEmbeddingLoss, HuberLoss, Identity, KLDivLoss, L1Loss,
 LeakyReLU, LocalResponseNorm, LogSigmoid, LogSoftmax, MSELoss, MarginRankingLoss, MaxPool1d, MaxPool3d, Mish,
 MultiMarginLoss, NLLLoss, PixelShuffle, PixelUnshuffle, PoissonNLLLoss, ReLU, ReLU6, ReflectionPad1d, ReflectionPad2d,
 ReflectionPad3d, ReplicationPad1d, ReplicationPad2d, ReplicationPad3d, SELU, SiLU, Sigmoid, SmoothL1Loss,
 SoftMarginLoss, Softmax, Softmin, Softplus, Softshrink, Softsign, Tanh, Tanhshrink, Threshold, TripletMarginLoss,
 Unflatten, Unfold, Upsample, ZeroPad1d, ZeroPad2d, ZeroPad3d) = map(_layer, __all__)
__all__ += ["AvgPool", "AvgPool2d", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "MaxPool", "MaxPool2d", "PReLU",
            "ag_avg_pool", "ag_dropout", "ag_flatten_layer", "ag_global_pool", "ag_max_pool"]


class PReLU(Layer):
    """`x` above 0, a learned `weight` times `x` below, one for all channels or one for each; PyTorch ``PReLU``.

    >>> ag.nn.PReLU()([[-2.0, 3.0]]).numpy().tolist()
    [[-0.5, 3.0]]
    """

    _largest = ("num_parameters",)

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        (self.num_parameters,) = sizes("PReLU", num_parameters=num_parameters)
        self.init = number("PReLU: init", lambda x: abs(x) < 3e38, "a finite number")(init)
        self.weight = ag_param(np.full((self.num_parameters, 1), self.init, np.float32))

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (channels, ..., batch)."""
        x = as_input(x, self.weight)
        if self.num_parameters > 1 and x.shape[:1] != (self.num_parameters,):
            raise ShapeError(f"PReLU: x is {x.shape}; ({self.num_parameters}, ..., batch) is required.")
        return ops.prelu(x, ops.reshape(self.weight, self.num_parameters, *(1,) * max(0, x.ndim - 1)))


class MaxPool(_FunctionLayer):
    __doc__ = _Text(ops.max_pool2d)
    _called = ops.max_pool2d
    _later = MappingProxyType({"dilation": (1, 1), "ceil_mode": False})

    def __init__(self, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
                 ceil_mode: bool = False) -> None:
        self.size, self.stride, self.padding, self.dilation = pool_window("ag_max_pool", 2, size, stride, padding,
                                                                          dilation)
        self.ceil_mode = true_or_false("ag_max_pool", "ceil_mode", ceil_mode)


class AvgPool(_FunctionLayer):
    __doc__ = _Text(ops.avg_pool2d)
    _called = ops.avg_pool2d
    _later = MappingProxyType({"ceil_mode": False, "count_include_pad": True})

    def __init__(self, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> None:
        self.size, self.stride, self.padding, _ = pool_window("ag_avg_pool", 2, size, stride, padding)
        self.ceil_mode = true_or_false("ag_avg_pool", "ceil_mode", ceil_mode)
        self.count_include_pad = true_or_false("ag_avg_pool", "count_include_pad", count_include_pad)


class Dropout(Layer):
    """Set elements to 0 at random while training.

    Kept elements are divided by ``1 - rate``.  The mask is the same on every device after the same `ag_seed`, and each
    replay of a captured step draws a new one.
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
        return ops.mul(x, dropped(constant_beside(x, kept, 1.0), self.rate)) if self.training and self.rate else x


Dropout1d = Dropout3d = Dropout2d
ag_dropout = Dropout
ag_max_pool = MaxPool2d = MaxPool
ag_avg_pool = AvgPool2d = AvgPool
ag_global_pool = GlobalPool
ag_flatten_layer = Flatten
