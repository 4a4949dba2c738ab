"""Elementwise functions as a table: a name, the function in numpy, and slopes made of other rows.

A row declares the primitive, whose kernels are the function of its name in shaders/functions.glsl, and the op with its
gradient.  A slope is text over the operands (`x`, or `a` and `b`), the result `y`, and rows; where it has the cotangent
`g`, it is all that is sent back.  Its parts are launched one by one, and a captured step makes a chain of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache, partialmethod
from inspect import Parameter
from typing import Any, cast

import numpy as np

from ag.autograd.op import Cotangents, Need, Op, Result, RowOrColumn, composed, no_gradient, op
from ag.autograd.operands import as_mask
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer, Run
from ag.engine.kernels.elementwise import of_numpy
from ag.engine.primitive import PRIMITIVES, Array, PrimitiveTo
from ag.ops.reduce import ag_sum

_NAMES: list[str] = []  # of rows
AnyOp = Op[..., Any]
# What layers take by name, beside those of ag/ops/activation.py.
ACTIVATIONS = ("softplus", "logsigmoid", "mish", "hardsigmoid", "hardswish", "relu6", "elu", "celu", "selu", "softsign",
               "tanhshrink", "softshrink", "hardshrink", "sin")
UFUNCS: dict[np.ufunc, AnyOp] = {}  # the row of each function of numpy
Function = Callable[..., object]  # of numpy
_PLAIN = Parameter.POSITIONAL_OR_KEYWORD
_OPERANDS = {1: ("x",), 2: ("a", "b")}  # of functions of one and of two


class _Value:
    """A buffer in a slope, whose operators launch primitives."""

    def __init__(self, run: Run, buffer: Buffer) -> None:
        self.run, self.buffer = run, buffer

    def launch(self, name: str, *operands: Any, **params: float) -> _Value:
        dtype = self.buffer.dtype.wide
        buffers = [x.buffer if isinstance(x, _Value) else self.buffer.backend.constant(x, dtype) for x in operands]
        return _Value(self.run, cast(Buffer, self.run(primitive_of(name), *buffers, **params)))

    def __mul__(self, other: Any) -> _Value:
        return self.launch("mul", self, other) if isinstance(other, _Value) else self.launch(
            "scale", self, factor=other)

    def __neg__(self) -> _Value:
        return self * -1.0

    def _first(self, name: str, other: object) -> _Value:
        return self.launch(name, self, other)

    def _second(self, name: str, other: object) -> _Value:
        return self.launch(name, other, self)

    __rmul__ = __mul__
    __add__ = __radd__ = partialmethod(_first, "add")
    __sub__, __rsub__ = partialmethod(_first, "sub"), partialmethod(_second, "sub")
    __truediv__, __rtruediv__ = partialmethod(_first, "div"), partialmethod(_second, "div")


def primitive_of(name: str) -> PrimitiveTo[Buffer]:
    return cast("PrimitiveTo[Buffer]", PRIMITIVES[name])


class _Rows(dict[str, object]):
    """The names of a slope: its values, and every primitive as a function of values."""

    def __missing__(self, name: str) -> Callable[..., _Value]:
        rule = PRIMITIVES[name]
        count = len(rule.operands) - 1

        def call(*args: Any) -> _Value:
            first = next(x for x in args if isinstance(x, _Value))
            return first.launch(name, *args[:count], **dict(zip(rule.params, args[count:], strict=True)))

        return call


def _row(name: str, function: Function, *slopes: str, doc: str, **param: float) -> AnyOp:
    """Declare a function with a gradient; `param` is the number that it takes beside its operand, with its default."""
    operands = _OPERANDS[len(slopes)]
    words = re.findall(r"[a-z]\w*", " ".join(slopes))
    used = [key for key in (*operands, "y") if key in words]
    made = of_numpy(name, function, operands, param)

    def forward(run: Run, *args: Any) -> tuple[Buffer, tuple[Buffer, ...]]:
        values, numbers = args[: len(operands)], args[len(operands):]
        for key, number in zip(param, numbers, strict=True):
            if not (0 <= number < math.inf if name.endswith("shrink") else math.isfinite(number) and number):
                needed = "of at least 0" if name.endswith("shrink") else "other than 0"
                raise ValueError(f"{name}: {key} is {number}; a finite number {needed} is required.")
        y = run(made, *values, **dict(zip(param, numbers, strict=True)))
        return y, tuple([x for key, x in zip((*operands, "y"), (*values, y), strict=True) if key in used])

    public = _published(name, forward, function, operands, param, doc)

    @public.vjp
    def vjp(run: Run, g: Buffer, saved: tuple[Buffer, ...], need: Need, *numbers: float) -> Cotangents:
        values = _Rows({key: _Value(run, buffer) for key, buffer in zip(used, saved, strict=True)})
        values |= {"g": _Value(run, g), **dict(zip(param, numbers, strict=True))}
        return tuple(_sent(slope, values) if wanted else None for slope, wanted in zip(slopes, need, strict=True))

    return public


def _mask(name: str, function: np.ufunc, doc: str) -> AnyOp:
    """Declare a question, whose answers are a tensor of truth values; no gradient flows through it."""
    made = of_numpy(name, function, _OPERANDS[function.nin])
    public = _published(name, lambda run, *values: (as_mask(run(made, *values)), None), function,
                        _OPERANDS[function.nin], {}, doc)
    public.vjp(no_gradient)
    return public


def _published(name: str, forward: Callable[..., Result[Any]], function: object, operands: tuple[str, ...],
               param: dict[str, float], doc: str) -> AnyOp:
    """Make the op of a row."""
    one = len(operands) == 1
    kind = "Buffer" if one else "Compared" if len(name) == 2 else "RowOrColumn"  # gt to ne
    shapes, result = ("any shape", "same") if one else ("shapes that broadcast", "broadcast")
    given = [f"{', '.join(operands)} : Tensor, array_like or float, of {shapes}",
             *(f"{key} : float, optional\n    A number; no gradient flows to it." for key in param)]
    forward.__name__, forward.__qualname__, forward.__module__ = name, name, __name__
    forward.__doc__ = "\n".join([doc, "", f"Reference: PyTorch ``{name}``.", "", "Parameters", "----------", *given, "",
                                 "Returns", "-------", f"Tensor of the {result} shape", ""])
    public: AnyOp = op.of(forward, [
        *(Parameter(key, _PLAIN, annotation=kind) for key in operands),
        *(Parameter(key, _PLAIN, default=value, annotation="float") for key, value in param.items())])
    _NAMES.append(name)
    if isinstance(function, np.ufunc):
        UFUNCS[function] = public
    return public


_compiled = cache(lambda slope: compile(slope, f"<slope {slope}>", "eval"))  # at the first gradient


def _sent(slope: str, values: _Rows) -> Buffer | None:
    """Return the cotangent of an operand."""
    if slope == "1":
        return cast(_Value, values["g"]).buffer
    rule = _compiled(slope)
    found = eval(rule, {"__builtins__": {}}, values)
    return cast(_Value, found if "g" in rule.co_names else values["g"] * found).buffer


# ---------------------------------------------------------------------------------------------- masks

gt = _mask("gt", np.greater, "Whether ``a > b``.")
ge = _mask("ge", np.greater_equal, "Whether ``a >= b``.")
lt = _mask("lt", np.less, "Whether ``a < b``.")
le = _mask("le", np.less_equal, "Whether ``a <= b``.")
eq = _mask("eq", np.equal, "Whether ``a == b``.")
ne = _mask("ne", np.not_equal, "Whether ``a != b``.")
isnan = _mask("isnan", np.isnan, "Whether `x` is NaN.")
isinf = _mask("isinf", np.isinf, "Whether `x` is infinite.")
isfinite = _mask("isfinite", np.isfinite, "Whether `x` is neither infinite nor NaN.")
signbit = _mask("signbit", np.signbit, "Whether `x` has a minus, as -0.0 has.")
logical_not = _mask("logical_not", np.logical_not, "Whether `x` is 0; ``~x`` of truth values.")
logical_and = _mask("logical_and", np.logical_and, "Whether neither is 0; ``a & b`` of truth values.")
logical_or = _mask("logical_or", np.logical_or, "Whether one is not 0; ``a | b`` of truth values.")
logical_xor = _mask("logical_xor", np.logical_xor, "Whether one is 0; ``a ^ b`` of truth values.")
_keep = of_numpy("keep", lambda a, b: np.where(a != 0, b, 0), "ab")
_drop = of_numpy("drop", lambda a, b: np.where(a != 0, 0, b), "ab")
_either = of_numpy("either", lambda a, b: np.where((a == 0) & ~np.signbit(a), b, a), "ab")


@op
def where(run: Run, mask: RowOrColumn, a: RowOrColumn, b: RowOrColumn) -> tuple[Buffer, Buffer]:
    """Choose element by element: `a` where the mask is true, `b` elsewhere.

    The gradient of what is not chosen is 0, also where it is infinite or NaN.
    Reference: PyTorch ``where``.

    Parameters
    ----------
    mask : Tensor or array_like of truth values, or of numbers, which are true unless 0
    a, b : Tensor, array_like or float, of shapes that broadcast with the mask's

    Returns
    -------
    Tensor of the broadcast shape

    >>> ag.ops.where([[False, True]], [[-1.0, 4.0]], 0.0).numpy().tolist()
    [[0.0, 4.0]]
    """
    return run(_either, run(_keep, mask, a), run(_drop, mask, b)), mask


@where.vjp
def _where_vjp(run: Run, g: Buffer, mask: Buffer, need: Need) -> Cotangents:
    return None, run(_keep, mask, g) if need[1] else None, run(_drop, mask, g) if need[2] else None


@composed
def any(x: TensorLike, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Return whether any element along axes is not 0, as truth values; False of none.

    >>> ag.ops.any([[0.0, 2.0], [0.0, 0.0]], dim=1).numpy().tolist()
    [True, False]
    """
    return gt(ag_sum(ne(x, 0.0), dim, keepdim), 0.0)


@composed
def all(x: TensorLike, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
    """Return whether all elements along axes are not 0, as truth values; True of none.

    >>> ag.ops.all([[1.0, 2.0], [0.0, 3.0]], dim=1).numpy().tolist()
    [True, False]
    """
    return eq(ag_sum(eq(x, 0.0), dim, keepdim), 0.0)


@composed
def masked_fill(x: TensorLike, mask: TensorLike, value: float) -> Tensor:
    """Replace elements by a number where a mask is true.

    The mask has truth values, and a shape that broadcasts with that of `x`; -inf is a number, too.

    >>> ag.ops.masked_fill([[1.0, 2.0]], [[True, False]], -1.0).numpy().tolist()
    [[-1.0, 2.0]]
    """
    return where(mask, value, x)


# ---------------------------------------------------------------------------------------------- trigonometry

def _near(function: np.ufunc) -> Callable[[Array], Array]:
    """A function of angles, which are too coarse beyond 2^24 in float32."""
    return lambda x: np.where((abs(x) < 2**24) | (x.dtype == np.float64), function(x), np.nan)


_ALONG = "; NaN beyond 2^24, where float32 has no digits behind the point"
sin = _row("sin", _near(np.sin), "cos(x)", doc=f"Sine of an angle in radians{_ALONG}.")
cos = _row("cos", _near(np.cos), "-sin(x)", doc=f"Cosine of an angle in radians{_ALONG}.")
tan = _row("tan", _near(np.tan), "1 + y * y", doc=f"Tangent of an angle in radians{_ALONG}.")
UFUNCS |= {np.sin: sin, np.cos: cos, np.tan: tan}
asin = _row("asin", np.arcsin, "rsqrt(1 - x * x)", doc="Angle from -pi/2 to pi/2 of a sine.")
acos = _row("acos", np.arccos, "-rsqrt(1 - x * x)", doc="Angle from 0 to pi of a cosine.")
atan = _row("atan", np.arctan, "1 / (1 + x * x)", doc="Angle from -pi/2 to pi/2 of a tangent.")
atan2 = _row("atan2", np.arctan2, "b * drop(eq(d := a * a + b * b, 0), 1 / d)",
             "-a * drop(eq(d := a * a + b * b, 0), 1 / d)",
             doc="Angle from -pi to pi of the point with the ordinate `a` and the abscissa `b`.")
hypot = _row("hypot", np.hypot, "a / y", "b / y", doc="Length of the hypotenuse, ``sqrt(a**2 + b**2)``.")
sinh = _row("sinh", np.sinh, "cosh(x)", doc="Hyperbolic sine.")
cosh = _row("cosh", np.cosh, "sinh(x)", doc="Hyperbolic cosine.")
asinh = _row("asinh", np.arcsinh, "rsqrt(1 + x * x)", doc="Inverse hyperbolic sine.")
acosh = _row("acosh", np.arccosh, "rsqrt(x * x - 1)", doc="Inverse hyperbolic cosine.")
atanh = _row("atanh", np.arctanh, "1 / (1 - x * x)", doc="Inverse hyperbolic tangent.")

# ---------------------------------------------------------------------------------------------- powers and logarithms

log1p = _row("log1p", np.log1p, "1 / (1 + x)", doc="Logarithm of ``1 + x``, which keeps the digits of a small `x`.")
expm1 = _row("expm1", np.expm1, "1 + y", doc="``exp(x) - 1``, which keeps the digits of a small `x`.")
log2 = _row("log2", np.log2, f"{1 / math.log(2)} / x", doc="Logarithm to the base 2.")
log10 = _row("log10", np.log10, f"{1 / math.log(10)} / x", doc="Logarithm to the base 10.")
exp2 = _row("exp2", np.exp2, f"{math.log(2)} * y", doc="Power of 2, ``2**x``.")
rsqrt = _row("rsqrt", lambda x: 1 / np.sqrt(x), "-0.5 * y * y * y", doc="Reciprocal of the square root.")
reciprocal = _row("reciprocal", np.reciprocal, "-y * y", doc="``1 / x``.")
square = _row("square", np.square, "2.0 * x", doc="``x * x``.")
power = _row("power", np.power, "drop(eq(b, 0), g * b * power(a, b - 1))", "drop(eq(a, 0) * ge(b, 0), g * y * log(a))",
             doc="`a` to the power of `b`, which may be a tensor.")
logaddexp = _row("logaddexp", np.logaddexp, "sigmoid(a - b)", "sigmoid(b - a)",
                 doc="``log(exp(a) + exp(b))``, without overflow.")

# ---------------------------------------------------------------------------------------------- the error function

_erf, _erfc = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def _erfinv(x: Array) -> Array:
    """Giles' polynomial (GPU Computing Gems 2011, chapter 10), and two steps of Newton's method in float64."""
    x = x.astype(np.float64)
    w = -np.log((1 - x) * (1 + x))
    near = np.polyval([2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                        -0.00417768164, 0.246640727, 1.50140941], w - 2.5)
    far = np.polyval([-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                       0.00943887047, 1.00167406, 2.83297682], np.sqrt(w) - 3)
    y = x * np.where(w < 5, near, far)
    for _ in range(2):
        step = (np.asarray(_erf(y), np.float64) - x) * np.exp(y * y) * (math.sqrt(math.pi) / 2)
        y = np.where(abs(x) < 1, y - step, y)
    return np.where(abs(x) == 1, x * np.inf, y)


erf = _row("erf", lambda x: _erf(x), f"{2 / math.sqrt(math.pi)} * exp(-x * x)", doc="Error function.")
erfc = _row("erfc", lambda x: _erfc(x), f"{-2 / math.sqrt(math.pi)} * exp(-x * x)",
            doc="``1 - erf(x)``, which keeps the digits of a small result.")
erfinv = _row("erfinv", _erfinv, f"{math.sqrt(math.pi) / 2} * exp(y * y)", doc="Inverse of the error function.")

# ---------------------------------------------------------------------------------------------- activations

softplus = _row("softplus", lambda x, beta: np.where(beta * x > 40, x, np.logaddexp(0, beta * x) / beta),
                "sigmoid(beta * x)", beta=1.0,
                doc="Smooth rectifier, ``log(1 + exp(beta * x)) / beta``, without overflow.")
logsigmoid = _row("logsigmoid", lambda x: -np.logaddexp(0, -x), "sigmoid(-x)",
                  doc="Logarithm of the sigmoid, without overflow; its gradient at 0 is 1/2.")
mish = _row("mish", lambda x: x * np.tanh(np.logaddexp(0, x)),
            "(t := tanh(softplus(x, 1.0))) + x * (1 - t * t) * sigmoid(x)", doc="``x * tanh(softplus(x))``.")
hardsigmoid = _row("hardsigmoid", lambda x: np.clip(x / 6 + 0.5, 0, 1), "gt(x, -3) * lt(x, 3) / 6",
                   doc="``x / 6 + 1/2``, from 0 to 1.")
hardswish = _row("hardswish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
                 "keep(gt(x, -3) * lt(x, 3), x / 3 + 0.5) + ge(x, 3)", doc="``x * hardsigmoid(x)``.")
relu6 = _row("relu6", lambda x: np.clip(x, 0, 6), "gt(x, 0) * lt(x, 6)", doc="Rectifier with results up to 6.")
elu = _row("elu", lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x)),
           "gt(x, 0) + drop(gt(x, 0), alpha * exp(x))", alpha=1.0, doc="`x` above 0, ``alpha * (exp(x) - 1)`` below.")
celu = _row("celu", lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(x / alpha)),
            "gt(x, 0) + drop(gt(x, 0), exp(x / alpha))", alpha=1.0,
            doc="`x` above 0, ``alpha * (exp(x / alpha) - 1)`` below.")
selu = _row("selu", lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
            "1.0507009873554805 * gt(x, 0) + drop(gt(x, 0), 1.7580993408473766 * exp(x))",
            doc="Scaled `elu`, which keeps mean 0 and variance 1 from layer to layer.")
softsign = _row("softsign", lambda x: x / (1 + abs(x)), "square(reciprocal(1 + abs(x)))", doc="``x / (1 + abs(x))``.")
tanhshrink = _row("tanhshrink", lambda x: x - np.tanh(x), "square(tanh(x))", doc="``x - tanh(x)``.")
softshrink = _row("softshrink", lambda x, lambd: np.where(abs(x) > lambd, x - np.copysign(lambd, x), x * 0),
                  "gt(abs(x), lambd)", lambd=0.5, doc="`x`, by `lambd` nearer to 0; 0 from ``-lambd`` to `lambd`.")
hardshrink = _row("hardshrink", lambda x, lambd: np.where(abs(x) <= lambd, 0, x), "gt(abs(x), lambd)", lambd=0.5,
                  doc="`x`, but 0 from ``-lambd`` to `lambd`.")

# ---------------------------------------------------------------------------------------------- steps and choices

_NONE = "drop(1, g)"  # zeros, also of a cotangent that is infinite
sign = _row("sign", np.sign, _NONE, doc="Sign, which is -1, 0 or 1; its gradient is 0.")
floor = _row("floor", np.floor, _NONE, doc="The largest whole number that is not above `x`; its gradient is 0.")
ceil = _row("ceil", np.ceil, _NONE, doc="The smallest whole number that is not below `x`; its gradient is 0.")
trunc = _row("trunc", np.trunc, _NONE, doc="The whole number beside `x`, towards 0; its gradient is 0.")
round = _row("round", np.rint, _NONE, doc="The nearest whole number, of two the even one; its gradient is 0.")
frac = _row("frac", lambda x: x - np.trunc(x), "1", doc="``x - trunc(x)``.")
maximum = _row("maximum", np.maximum, "1 - (lt(a, b) + le(a, b)) * 0.5", "1 - (lt(b, a) + le(b, a)) * 0.5",
               doc="The larger of two; equal ones get half of the gradient each.")
minimum = _row("minimum", np.minimum, "1 - (gt(a, b) + ge(a, b)) * 0.5", "1 - (gt(b, a) + ge(b, a)) * 0.5",
               doc="The smaller of two; equal ones get half of the gradient each.")
fmod = _row("fmod", np.fmod, "1", "-trunc(a / b)", doc="Remainder of a division, with the sign of `a`.")
remainder = _row("remainder", np.remainder, "1", "-floor_divide(a, b)",
                 doc="Remainder of a division, with the sign of `b`, as ``%`` of Python.")
floor_divide = _row("floor_divide", np.floor_divide, _NONE, _NONE,
                    doc="``floor(a / b)``, as ``//`` of Python; its gradient is 0.")
copysign = _row("copysign", np.copysign, "drop(eq(a, 0), g * y / a)", _NONE, doc="`a` with the sign of `b`.")

MYPY = False  # as in ag/ops/__init__.py: what mypy reads has no list, so it knows every row
if not MYPY:
    __all__: list[str] = [*_NAMES, "all", "any", "masked_fill", "where"]
del MYPY
