"""Initial values of parameters, in place, under the names and with the arguments of ``torch.nn.init``.

Numbers are of `ag_seed`'s stream.  A weight is (out, in, ...), as those of `Linear` and `Conv2d` are.  Its `fan_in` is
``in`` times the size of a kernel, its `fan_out` ``out`` times that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature
from math import ceil, erf, pi, prod, sqrt
from typing import Concatenate, ParamSpec, cast

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.engine.random import host_uniform
from ag.engine.shape import Shape, counts
from ag.errors import ShapeError
from ag.names import parameters_of, wrong_arguments
from ag.ops.functions import erfinv

__all__ = ["calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
           "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_"]

P = ParamSpec("P")
_GAINS = {**dict.fromkeys((f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)), 1.0), "linear": 1.0,
          "sigmoid": 1.0, "tanh": 5 / 3, "relu": sqrt(2), "leaky_relu": sqrt(2), "selu": 3 / 4}


def _filling(values: Callable[Concatenate[Shape, P], Array]) -> Callable[Concatenate[Tensor, P], Tensor]:
    """Make a function of a shape one that fills a parameter."""
    name, (first, *others) = f"{values.__name__.strip('_')}_", parameters_of(values)
    header = Signature([first.replace(name="tensor", annotation="Tensor"), *others], return_annotation="Tensor")

    @wraps(values)
    def fill(tensor: Tensor, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        if not isinstance(tensor, Tensor) or not tensor.buffer.dtype.is_float:
            kind = f"of type {tensor.dtype}" if isinstance(tensor, Tensor) else f"a {type(tensor).__name__}"
            raise TypeError(f"{name}: tensor is {kind}; a tensor of floats is required, such as layer.W.")
        tensor.buffer.backend.refuse_while_recording(f"calls {name}")
        try:
            given = header.bind(tensor, *args, **kwargs).arguments
        except TypeError:
            raise wrong_arguments(name, header, (tensor, *args), kwargs) from None
        numbers = {key: number_given(name, key, x) if header.parameters[key].annotation == "float" else x
                   for key, x in given.items() if key != "tensor"}
        try:
            tensor.data = cast("Callable[..., Array]", values)(tensor.shape, **numbers)
        except (ShapeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        return tensor

    fill.__name__ = fill.__qualname__ = name
    weight = "[[[1.0, 2.0, 3.0]]]" if name == "dirac_" else "[[1.0, 2.0], [3.0, 4.0]]"
    required = ", 0.5" * sum(p.default is p.empty for p in others)
    fill.__doc__ = (f"{values.__doc__}\n\nReference: PyTorch ``torch.nn.init.{name}``.\n\nExamples\n--------\n"
                    f">>> W = ag.ag_param({weight})\n>>> ag.nn.init.{name}(W{required}) is W\nTrue\n")
    vars(fill)["__signature__"] = header
    return cast("Callable[Concatenate[Tensor, P], Tensor]", fill)


def _uniform(shape: Shape, a: float = 0.0, b: float = 1.0) -> Array:
    """Fill with numbers spread evenly over [a, b)."""
    if not a <= b:
        raise ValueError(f"a is {a} and b is {b}; a must not be greater.")
    return a + (b - a) * host_uniform(shape, 0.0, 1.0).astype(np.float64)


def _normal(shape: Shape, mean: float = 0.0, std: float = 1.0) -> Array:
    """Fill with normal numbers, by Box and Muller, "A note on the generation of random normal deviates"."""
    if not std >= 0:
        raise ValueError(f"std is {std}; a number from 0 on is required.")
    radius, angle = 1 - _uniform(shape, 0, 1), _uniform(shape, 0, 2 * pi)
    return np.asarray(mean + std * np.sqrt(-2 * np.log(radius)) * np.cos(angle))


def _fans(shape: Shape) -> tuple[int, int]:
    """Count the numbers that go into an element of a result, and the elements that a number goes to."""
    if len(shape) < 2:
        raise ShapeError(f"tensor is {shape}; (out, in, ...) is required.")
    return prod(shape[1:]), shape[0] * prod(shape[2:])


def _xavier(shape: Shape, gain: float) -> float:
    return gain * sqrt(2 / max(1, sum(_fans(shape))))


def _kaiming(shape: Shape, a: float, mode: str, nonlinearity: str) -> float:
    fans = dict(zip(("fan_in", "fan_out"), _fans(shape), strict=True))
    if not isinstance(mode, str) or mode not in fans:
        raise ValueError(f'mode is {mode!r:.80}; it must be "fan_in" or "fan_out".')
    return calculate_gain(nonlinearity, a) / sqrt(max(1, fans[mode]))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor of weights before a function that keeps the variance of what goes through it.

    Reference: PyTorch ``torch.nn.init.calculate_gain``.

    Parameters
    ----------
    nonlinearity : str
        A function, or a layer such as ``"linear"``.
    param : float, optional
        Slope of ``"leaky_relu"`` below 0, 0.01 by default.

    Examples
    --------
    >>> ag.nn.init.calculate_gain("tanh")
    1.6666666666666667
    """
    if not isinstance(nonlinearity, str) or nonlinearity not in _GAINS:
        raise ValueError(f"calculate_gain: nonlinearity is {nonlinearity!r:.80}; it must be one of "
                         f"{', '.join(_GAINS)}.")
    slope = 0.01 if param is None else number_given("calculate_gain", "param", param)
    slope *= nonlinearity == "leaky_relu"
    return _GAINS[nonlinearity] / sqrt(1 + slope * slope)


uniform_ = _filling(_uniform)
normal_ = _filling(_normal)


@_filling
def trunc_normal_(shape: Shape, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Array:
    """Fill with normal numbers, of which those outside [a, b] are drawn again."""
    if not std > 0 or not a < b or max(a - mean, mean - b) > 6 * std:
        raise ValueError(f"mean is {mean}, std {std}, a {a} and b {b}; std must be above 0, and a below b and not "
                         f"beyond 6 std.")
    low, high = (erf((x - mean) / std / sqrt(2)) for x in (a, b))
    inside = low + (high - low) * (_uniform((prod(shape), 1), 0, 1) + 2.0**-25)  # not at the end, where it is infinite
    return np.clip(mean + std * sqrt(2) * erfinv(ag_tensor(inside, "cpu", "f64")).numpy(), a, b).reshape(shape)


@_filling
def constant_(shape: Shape, val: float) -> Array:
    """Fill with a number."""
    return np.full(shape, val)


@_filling
def zeros_(shape: Shape) -> Array:
    """Fill with 0."""
    return np.zeros(shape)


@_filling
def ones_(shape: Shape) -> Array:
    """Fill with 1."""
    return np.ones(shape)


@_filling
def eye_(shape: Shape) -> Array:
    """Fill a matrix with 1 on the diagonal, and 0 elsewhere."""
    rows, columns = _matrix(shape)
    return np.eye(rows, columns)


@_filling
def xavier_uniform_(shape: Shape, gain: float = 1.0) -> Array:
    """Fill evenly, by Glorot: the variance is ``gain**2 * 2 / (fan_in + fan_out)``."""
    limit = sqrt(3) * _xavier(shape, gain)
    return _uniform(shape, -limit, limit)


@_filling
def xavier_normal_(shape: Shape, gain: float = 1.0) -> Array:
    """Fill with normal numbers, by Glorot: the variance is ``gain**2 * 2 / (fan_in + fan_out)``."""
    return _normal(shape, 0, _xavier(shape, gain))


@_filling
def kaiming_uniform_(shape: Shape, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Array:
    """Fill evenly, by He: the variance is the square of `calculate_gain` by the fan that `mode` names."""
    limit = sqrt(3) * _kaiming(shape, a, mode, nonlinearity)
    return _uniform(shape, -limit, limit)


@_filling
def kaiming_normal_(shape: Shape, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Array:
    """Fill with normal numbers, by He: the variance is the square of `calculate_gain` by the fan that `mode` names."""
    return _normal(shape, 0, _kaiming(shape, a, mode, nonlinearity))


@_filling
def orthogonal_(shape: Shape, gain: float = 1) -> Array:
    """Fill with a random matrix, (out, everything else), of orthogonal rows or columns of the length `gain`."""
    _fans(shape)
    rows, columns = shape[0], prod(shape[1:])
    q, r = np.linalg.qr(_normal((max(rows, columns), min(rows, columns)), 0, 1))
    q *= np.where(np.diag(r) < 0, -1, 1)
    return gain * (q.T if rows < columns else q).reshape(shape)


@_filling
def sparse_(shape: Shape, sparsity: float, std: float = 0.01) -> Array:
    """Fill a matrix with normal numbers, and a share `sparsity` of each column with 0."""
    rows, _ = _matrix(shape)
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity is {sparsity}; a number from 0 to 1 is required.")
    order = np.argsort(np.argsort(_uniform(shape, 0, 1), 0), 0)
    return np.where(order < ceil(sparsity * rows), 0, _normal(shape, 0, std))


@_filling
def dirac_(shape: Shape, groups: int = 1) -> Array:
    """Fill the weight of a convolution, (out, in, ...), with 1 where it passes channels on, and 0 elsewhere."""
    if not 3 <= len(shape) <= 5 or not counts(groups) or shape[0] % groups:
        raise ShapeError(f"tensor is {shape}; (out, in, width), or with more axes of a kernel, is required, of which "
                         f"out divides into {groups} groups.")
    out, each = np.zeros(shape), shape[0] // groups
    middle = np.ravel_multi_index([n // 2 for n in shape[2:]], shape[2:])
    for channel in range(min(each, shape[1])):
        out.reshape(*shape[:2], -1)[channel::each, channel, middle] = 1
    return out


def _matrix(shape: Shape) -> Shape:
    if len(shape) != 2:
        raise ShapeError(f"tensor is {shape}; a matrix is required.")
    return shape
