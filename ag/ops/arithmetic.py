"""Arithmetic with broadcasting, scaling, elementwise functions, and dropout for layers.

Gradient rules ignore broadcasting: the tape sums a cotangent back to its operand's shape.
"""

from __future__ import annotations

from math import inf

from ag.autograd.op import Cotangents, Need, Result, RowOrColumn, Run, launching, op, part_of
from ag.engine.buffer import Buffer
from ag.engine.kernels import elementwise as kernels
from ag.engine.kernels.elementwise import add, div, mul, scale, sub
from ag.engine.kernels.random import dropout
from ag.engine.random import draw_key

__all__ = ["ag_abs", "ag_add", "ag_clamp", "ag_div", "ag_exp", "ag_log", "ag_mul", "ag_pow", "ag_scale", "ag_sqrt",
           "ag_sub"]

_LARGEST = (2 - 2**-23) * 2.0**127  # number of float32, in which devices hold the exponent


@op
def ag_add(run: Run, A: RowOrColumn, B: RowOrColumn) -> Result[None]:
    """Sum of two tensors, with broadcasting both ways.

    Reference: ggmlR ``ag_add`` (which broadcasts one way only).

    >>> ag.ag_add([[1.0], [2.0]], [[10.0, 20.0]]).numpy().tolist()
    [[11.0, 21.0], [12.0, 22.0]]
    """
    return run(add, A, B), None


@ag_add.vjp
def _add_vjp(run: Run, g: Buffer, saved: None, need: Need) -> Cotangents:
    return g, g


@op
def ag_sub(run: Run, A: RowOrColumn, B: RowOrColumn) -> Result[None]:
    """Difference of two tensors, with broadcasting both ways.

    >>> ag.ag_sub([[1.0], [2.0]], 1.0).numpy().tolist()
    [[0.0], [1.0]]
    """
    return run(sub, A, B), None


@ag_sub.vjp
def _sub_vjp(run: Run, g: Buffer, saved: None, need: Need) -> Cotangents:
    return g, run(scale, g, factor=-1.0) if need[1] else None


@op
def ag_mul(run: Run, A: RowOrColumn, B: RowOrColumn) -> Result[tuple[Buffer, Buffer]]:
    """Elementwise product of two tensors, with broadcasting both ways.

    >>> ag.ag_mul([[1.0, 2.0]], [[3.0], [4.0]]).numpy().tolist()
    [[3.0, 6.0], [4.0, 8.0]]
    """
    return run(mul, A, B), (A, B)


@ag_mul.vjp
def _mul_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need) -> Cotangents:
    a, b = saved
    return run(mul, g, b) if need[0] else None, run(mul, g, a) if need[1] else None


@op
def ag_div(run: Run, A: RowOrColumn, B: RowOrColumn) -> Result[tuple[Buffer, Buffer]]:
    """Elementwise quotient of two tensors, with broadcasting both ways; over 0 it is infinite, and NaN for 0/0.

    Reference: numpy ``divide``; ggmlR has no such function.

    >>> ag.ag_div([[1.0, 2.0]], 4.0).numpy().tolist()
    [[0.25, 0.5]]
    """
    out = run(div, A, B)
    return out, (B, out)


@ag_div.vjp
def _div_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need) -> Cotangents:
    b, out = saved
    over_b = run(div, g, b)  # d(a/b)/db = -(a/b)/b
    return over_b, run(scale, run(mul, over_b, out), factor=-1.0) if need[1] else None


@op
def ag_scale(run: Run, x: Buffer, scalar: float) -> Result[None]:
    """A tensor times a constant `scalar`, which a captured step keeps.

    Parameters
    ----------
    scalar : float

    >>> ag.ag_scale([[1.0, 2.0]], 3.0).numpy().tolist()
    [[3.0, 6.0]]
    """
    return run(scale, x, factor=scalar), None


@ag_scale.vjp
def _scale_vjp(run: Run, g: Buffer, saved: None, need: Need, scalar: float) -> Cotangents:
    return (run(scale, g, factor=scalar),)


@op
def ag_pow(run: Run, x: Buffer, p: float) -> Result[Buffer]:
    """Elementwise power with a constant exponent; the gradient for ``p == 0`` is 0 everywhere.

    Reference: ggmlR ``ag_pow`` (whose GPU version gives NaN for every negative base).

    Parameters
    ----------
    p : float
        The exponent; negative numbers to a power that is no whole number are NaN.

    >>> ag.ag_pow([[-2.0, 3.0]], 3).numpy().tolist()
    [[-8.0, 27.0]]
    """
    if not -_LARGEST <= p <= _LARGEST:
        raise ValueError(f"ag_pow: p is {p}; a finite number is required, of at most {_LARGEST:.4g}.")
    return run(kernels.pow, x, p=p), x


@op
def ag_exp(run: Run, x: Buffer) -> Result[Buffer]:
    """Elementwise exponential.

    >>> ag.ag_exp([[0.0]]).item()
    1.0
    """
    y = run(kernels.exp, x)
    return y, y


@op
def ag_log(run: Run, x: Buffer) -> Result[Buffer]:
    """Elementwise natural logarithm; of 0 it is -inf, and of negative numbers NaN.

    >>> ag.ag_log([[1.0]]).item()
    0.0
    """
    return run(kernels.log, x), x


@ag_log.vjp
def _log_vjp(run: Run, g: Buffer, x: Buffer, need: Need) -> Cotangents:
    return (run(div, g, x),)


@op
def ag_sqrt(run: Run, x: Buffer) -> Result[Buffer]:
    """Elementwise square root, NaN of negative numbers; its gradient at 0 is infinite.

    >>> ag.ag_sqrt([[4.0, 9.0]]).numpy().tolist()
    [[2.0, 3.0]]
    """
    y = run(kernels.sqrt, x)
    return y, y


@ag_sqrt.vjp
def _sqrt_vjp(run: Run, g: Buffer, y: Buffer, need: Need) -> Cotangents:
    return (run(scale, run(div, g, y), factor=0.5),)


@op
def ag_abs(run: Run, x: Buffer) -> Result[Buffer]:
    """Elementwise absolute value; its gradient is the sign, so 0 at 0.

    >>> ag.ag_abs([[-2.0, 3.0]]).numpy().tolist()
    [[2.0, 3.0]]
    """
    return run(kernels.abs, x), x


@op
def ag_clamp(run: Run, x: Buffer, lo: float = -inf, hi: float = inf) -> Result[Buffer]:
    """Limit every element to an interval; the gradient is 1 in it, ends included, and 0 outside.

    Parameters
    ----------
    lo, hi : float, optional
        Ends of the interval; ``lo <= hi``.

    >>> ag.ag_clamp([[-2.0, 0.5, 2.0]], -1.0, 1.0).numpy().tolist()
    [[-1.0, 0.5, 1.0]]
    """
    if not lo <= hi:
        raise ValueError(f"ag_clamp: lo is {lo} and hi is {hi}; lo must not be larger than hi.")
    return run(kernels.clamp, x, lo=lo, hi=hi), x


@part_of("ag_dropout")
def dropped(run: Run, x: Buffer, rate: float) -> Result[Buffer]:
    """`x` with each element set to 0 with probability `rate`, the others scaled to keep the mean."""
    key = draw_key(x.backend)
    return run(dropout, x, key, rate=rate), key


@dropped.vjp
def _dropped_vjp(run: Run, g: Buffer, key: Buffer, need: Need, rate: float) -> Cotangents:
    return (run(dropout, g, key, rate=rate),)


ag_exp.vjp(launching(mul))
ag_pow.vjp(launching(kernels.pow_grad, "p"))
ag_abs.vjp(launching(kernels.abs_grad))
ag_clamp.vjp(launching(kernels.clamp_grad, "lo", "hi"))
