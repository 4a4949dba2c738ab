"""Elementwise arithmetic and functions: copy, + - * /, exp, log, square root, power, absolute value, clamp.

The kernels of those that are `fusable` are rows of shaders/functions.glsl.  The others have shaders of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from ag.engine.buffer import Buffer
from ag.engine.cpu_threads import in_blocks
from ag.engine.primitive import Array, Call, PrimitiveTo, primitive
from ag.engine.shape import broadcast, broadcast_layout, same


@primitive(same, bound=True, copies=True)
def copy(out: Array, x: Array) -> Call:
    return partial(out.__setitem__, Ellipsis, x)


def copied(x: Buffer) -> Buffer:
    """The same values in memory of their own."""
    if not x.dtype.is_half:
        return x.backend.launch(copy, x)
    words = x.words()
    out = x.backend.alloc(x.shape, x.dtype)
    x.backend.launch(copy, words, into=out.words())
    return out


def signed(rule: Callable[..., Call], name: str, operands: Iterable[str], params: Iterable[str]) -> None:
    """Give the rule of a primitive with any operands its name, and theirs."""
    rule.__name__ = name
    rule.__dict__["__signature__"] = Signature(
        [Parameter(key, Parameter.POSITIONAL_OR_KEYWORD) for key in operands]
        + [Parameter(key, Parameter.KEYWORD_ONLY) for key in params])


def of_numpy(name: str, function: Callable[..., object], operands: Sequence[str] = ("x",), params: Iterable[str] = (),
             neutral: float | None = None) -> PrimitiveTo[Buffer]:
    """Declare a function of numpy as a primitive of one operand, or of two that broadcast."""
    def bind(out: Array, *xs: Array, **numbers: float) -> Call:
        if isinstance(function, np.ufunc):
            return partial(function, *xs, out=out)  # numpy wants the name of the result of some
        return lambda: out.__setitem__(Ellipsis, function(*xs, **numbers))

    signed(bind, name, ("out", *operands), params)
    rules: dict[str, Any] = {"shape": broadcast, "layout": broadcast_layout} if len(operands) == 2 else {}
    return primitive(**rules, bound=True, neutral=neutral, fusable=True)(bind)


add, sub, div = of_numpy("add", np.add, "ab"), of_numpy("sub", np.subtract, "ab"), of_numpy("div", np.divide, "ab")
mul = of_numpy("mul", np.multiply, "ab", neutral=1.0)
exp, log, sqrt = of_numpy("exp", np.exp), of_numpy("log", np.log), of_numpy("sqrt", np.sqrt)
abs = of_numpy("abs", np.abs)


@primitive(broadcast, layout=broadcast_layout, fusable=True)
def target_log(out: Array, a: Array, b: Array) -> None:
    # log b, but 0 where a target a of 0 meets a probability b of 0: their product is 0, not NaN.  `out` may be a or b.
    none = (a == 0) & ((b == 0) | (b == np.inf))
    np.log(b, out=out)
    np.copyto(out, 0, where=none)


@primitive(broadcast, layout=broadcast_layout, fusable=True)
def target_div(out: Array, a: Array, b: Array) -> None:
    none = (a == 0) & (b == 0)
    np.divide(a, b, out=out)
    np.copyto(out, 0, where=none)


@primitive(bound=True, fusable=True)
def scale(out: Array, x: Array, *, factor: float) -> Call:
    return partial(np.multiply, x, factor, out)


@primitive(bound=True, fusable=True)
@in_blocks
def abs_grad(out: Array, x: Array, g: Array) -> None:
    np.multiply(g, np.sign(x), out=out)


@primitive()
def pow(out: Array, x: Array, *, p: float) -> None:
    _power(x, p, out)


@primitive(bound=True)
@in_blocks
def pow_grad(out: Array, x: Array, g: Array, *, p: float) -> None:
    np.multiply(g, p * _power(x, p - 1) if p != 0 else 0.0, out=out)


def _power(x: Array, p: float, out: Array | None = None) -> Array:
    # Whether the power 1/2 is the root at -0 and -inf depends on numpy's version; here it is.
    result: Array = np.sqrt(x, out=out) if p == 0.5 else np.power(x, p, out=out)
    return result


@primitive()
def clamp(out: Array, x: Array, *, lo: float, hi: float) -> None:
    np.minimum(np.maximum(x, lo, out=out), hi, out=out)


@primitive()
def clamp_grad(out: Array, x: Array, g: Array, *, lo: float, hi: float) -> None:
    np.multiply(g, (x >= lo) & (x <= hi), out=out)
