"""Layers without weights: functions of `ag.ops` with their other arguments given, as a table.

A row has the layer's name, which is PyTorch's, the function, and the arguments that are always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import ClassVar

import numpy as np

from ag.autograd.create import ag_param, as_tensor
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.shape import normalize_axis, per_axis, reshaped
from ag.errors import ShapeError
from ag.names import wrong_arguments
from ag.names.elsewhere import ARGUMENTS
from ag.nn.layer import Layer, number, sizes
from ag.ops import activation, compositions, functions, images
from ag.ops.indexing import ag_reshape
from ag.ops.shapes import pad

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
           "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool3d", "CELU", "CircularPad1d", "CircularPad2d", "CircularPad3d",
           "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "ELU", "Fold", "GELU", "GLU", "Hardshrink",
           "Hardsigmoid", "Hardswish", "Hardtanh", "Identity", "LeakyReLU",
           "LocalResponseNorm", "LogSigmoid", "LogSoftmax", "MaxPool1d", "MaxPool3d", "Mish", "PReLU", "PixelShuffle",
           "PixelUnshuffle", "ReLU", "ReLU6", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d",
           "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "SELU", "SiLU", "Sigmoid", "Softmax",
           "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold", "Unflatten", "Unfold",
           "Upsample", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d"]

_init = number("PReLU: init", lambda x: abs(x) < 3e38, "a finite number")
_GIVEN = (bool, int, float, str, type(None), np.bool_, np.integer, np.floating)


class _FunctionLayer(Layer):
    """Base of the layers of the table."""

    _called: ClassVar[Callable[..., Tensor]]

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take what the function takes beside its operand."""

    def forward(self, x: TensorLike) -> Tensor:
        """The function of `x`."""
        return type(self)._called(x, *(getattr(self, name) for name in self.settings))


def _plain(layer: str, name: str, value: object) -> object:
    """Check an argument, which a file of the model must be able to hold."""
    if isinstance(value, (tuple, list)):
        return tuple([_plain(layer, name, x) for x in value])
    if not isinstance(value, _GIVEN):
        raise TypeError(f"{layer}: {name} is a {type(value).__name__}; a number, a name or a sequence of them is "
                        f"required.")
    return value.item() if isinstance(value, np.generic) else value


def _layer(name: str, function: Callable[..., Tensor]) -> type[_FunctionLayer]:
    """Make the layer of a function."""
    _, *parameters = signature(function).parameters.values()
    has = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *parameters])

    def init(self: _FunctionLayer, *args: object, **kwargs: object) -> None:
        try:
            bound = has.bind(self, *args, **kwargs)
        except TypeError:
            raise wrong_arguments(name, has, (self, *args), kwargs, ARGUMENTS["ag.nn"]) from None
        bound.apply_defaults()
        for key in self.settings:
            setattr(self, key, _plain(name, key, bound.arguments[key]))

    init.__name__ = "__init__"
    vars(init)["__signature__"] = has
    return type(name, (_FunctionLayer,), {
        "__init__": init, "__module__": __name__, "__doc__": function.__doc__, "_called": staticmethod(function),
        "settings": tuple([p.name for p in parameters])})


def _identity(x: TensorLike) -> Tensor:
    """Return the input."""
    return as_tensor(x)


def _unflatten(x: TensorLike, dim: int, unflattened_size: Sequence[int]) -> Tensor:
    """Make an axis several, of these sizes; one of them may be -1."""
    x = as_tensor(x)
    axis = normalize_axis(dim, x.ndim, "Unflatten")
    inner = reshaped((x.shape[axis],), tuple(unflattened_size), "Unflatten")
    return ag_reshape(x, *x.shape[:axis], *inner, *x.shape[axis + 1 :])


def _pads(kind: str, mode: str) -> list[type[_FunctionLayer]]:
    """Make the layers that put something around sequences, images and volumes."""
    def made(axes: int) -> type[_FunctionLayer]:
        name = f"{kind}{axes}d"

        def padded(x: TensorLike, padding: int | Sequence[int], value: float = 0.0) -> Tensor:
            """Put values around, as `ops.pad`: so many everywhere, or before and behind each axis, the last first."""
            x, widths = as_tensor(x), per_axis(padding, 2 * axes, 0, "padding", name)
            if x.ndim != axes + 2:
                raise ShapeError(f"{name}: x is {x.shape}; {axes + 2} axes are required, the batch last.")
            return pad(x, widths, mode, value)

        def without_value(x: TensorLike, padding: int | Sequence[int]) -> Tensor:
            return padded(x, padding)

        without_value.__doc__ = padded.__doc__
        return _layer(name, padded if kind == "ConstantPad" else without_value)

    return [made(axes) for axes in (1, 2, 3)]


ReLU = _layer("ReLU", activation.ag_relu)
LeakyReLU = _layer("LeakyReLU", activation.ag_leaky_relu)
Sigmoid = _layer("Sigmoid", activation.ag_sigmoid)
Tanh = _layer("Tanh", activation.ag_tanh)
GELU = _layer("GELU", activation.ag_gelu)
SiLU = _layer("SiLU", activation.ag_silu)
Softmax = _layer("Softmax", activation.ag_softmax)
LogSoftmax = _layer("LogSoftmax", activation.ag_log_softmax)
Softmin = _layer("Softmin", compositions.softmin)
Softplus = _layer("Softplus", functions.softplus)
LogSigmoid = _layer("LogSigmoid", functions.logsigmoid)
Mish = _layer("Mish", functions.mish)
Hardsigmoid = _layer("Hardsigmoid", functions.hardsigmoid)
Hardswish = _layer("Hardswish", functions.hardswish)
ReLU6 = _layer("ReLU6", functions.relu6)
ELU = _layer("ELU", functions.elu)
CELU = _layer("CELU", functions.celu)
SELU = _layer("SELU", functions.selu)
Softsign = _layer("Softsign", functions.softsign)
Tanhshrink = _layer("Tanhshrink", functions.tanhshrink)
Softshrink = _layer("Softshrink", functions.softshrink)
Hardshrink = _layer("Hardshrink", functions.hardshrink)
Hardtanh = _layer("Hardtanh", compositions.hardtanh)
Threshold = _layer("Threshold", compositions.threshold)
GLU = _layer("GLU", compositions.glu)

MaxPool1d = _layer("MaxPool1d", images.max_pool1d)
MaxPool3d = _layer("MaxPool3d", images.max_pool3d)
AvgPool1d = _layer("AvgPool1d", images.avg_pool1d)
AvgPool3d = _layer("AvgPool3d", images.avg_pool3d)
AdaptiveAvgPool1d = _layer("AdaptiveAvgPool1d", images.adaptive_avg_pool1d)
AdaptiveAvgPool2d = _layer("AdaptiveAvgPool2d", images.adaptive_avg_pool2d)
AdaptiveAvgPool3d = _layer("AdaptiveAvgPool3d", images.adaptive_avg_pool3d)
AdaptiveMaxPool1d = _layer("AdaptiveMaxPool1d", images.adaptive_max_pool1d)
AdaptiveMaxPool2d = _layer("AdaptiveMaxPool2d", images.adaptive_max_pool2d)
AdaptiveMaxPool3d = _layer("AdaptiveMaxPool3d", images.adaptive_max_pool3d)

Upsample = _layer("Upsample", images.interpolate)
PixelShuffle = _layer("PixelShuffle", images.pixel_shuffle)
PixelUnshuffle = _layer("PixelUnshuffle", images.pixel_unshuffle)
Unfold = _layer("Unfold", images.unfold)
Fold = _layer("Fold", images.fold)
LocalResponseNorm = _layer("LocalResponseNorm", images.local_response_norm)
Unflatten = _layer("Unflatten", _unflatten)
Identity = _layer("Identity", _identity)
ZeroPad1d, ZeroPad2d, ZeroPad3d = _pads("ZeroPad", "constant")
ConstantPad1d, ConstantPad2d, ConstantPad3d = _pads("ConstantPad", "constant")
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _pads("ReflectionPad", "reflect")
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _pads("ReplicationPad", "replicate")
CircularPad1d, CircularPad2d, CircularPad3d = _pads("CircularPad", "circular")


class PReLU(Layer):
    """`x` above 0, a learned `weight` times `x` below, one for all channels or one for each; PyTorch ``PReLU``.

    >>> ag.nn.PReLU()([[-2.0, 3.0]]).numpy().tolist()
    [[-0.5, 3.0]]
    """

    settings = ("num_parameters", "init")
    _largest = ("num_parameters",)

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        (self.num_parameters,) = sizes("PReLU", num_parameters=num_parameters)
        self.init = _init(init)
        self.weight = ag_param(np.full((self.num_parameters, 1), self.init, np.float32))

    def forward(self, x: TensorLike) -> Tensor:
        """Output of the shape of `x`, (channels, ..., batch)."""
        x = as_input(x, self.weight)
        if self.num_parameters > 1 and x.shape[:1] != (self.num_parameters,):
            raise ShapeError(f"PReLU: x is {x.shape}; ({self.num_parameters}, ..., batch) is required.")
        return compositions.prelu(x, ag_reshape(self.weight, self.num_parameters, *(1,) * max(0, x.ndim - 1)))
