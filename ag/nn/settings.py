"""Settings of layers: checks of numbers, and activations by name.

Knows ops and numbers; no layer.  Layers call it when they are made, and where a setting is assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from numbers import Real

from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.shape import counts
from ag.ops import activation

__all__ = ["ACTIVATIONS", "activation_called", "features", "number"]

# What layers call "relu" is `ag_relu`, and so on.
ACTIVATIONS: dict[str, Callable[[TensorLike], Tensor]] = {
    name.removeprefix("ag_"): getattr(activation, name) for name in activation.__all__}


def number(what: str, fits: Callable[[float], bool], required: str) -> Callable[[object], float]:
    """A check of a setting; `what` begins its message, such as "ag_dropout: rate"."""

    function, _, argument = what.partition(": ")

    def check(value: object) -> float:
        if isinstance(value, Tensor):
            number_given(function, argument, value)
        if not isinstance(value, Real) or isinstance(value, bool) or not (isfinite(value) and fits(float(value))):
            raise ValueError(f"{what} is {value!s:.60}; it must be {required}.")
        return float(value)

    return check


def features(function: str, given: int) -> int:
    """The size of the axis that a norm, which messages call `function`, has its parameters for."""
    if not counts(given):
        raise ValueError(f"{function}: num_features is {given!r}; it must be a whole number of at least 1.")
    return int(given)


def activation_called(name: str | None, function: str) -> Callable[[TensorLike], Tensor] | None:
    """The activation of that name; None for None."""
    if name is not None and not (isinstance(name, str) and name in ACTIVATIONS):
        raise ValueError(f"{function}: unknown activation {name!r:.60}; use one of {', '.join(ACTIVATIONS)}, or None.")
    return None if name is None else ACTIVATIONS[name]
