"""Arithmetic with broadcasting, and scaling by a constant.

Gradient rules ignore broadcasting: the tape sums a cotangent back to its operand's shape.
"""

from __future__ import annotations

from ag.autograd.op import Cotangents, Need, Result, RowOrColumn, Run, op
from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import add, div, mul, scale, sub

__all__ = ["ag_add", "ag_div", "ag_mul", "ag_scale", "ag_sub"]


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
    """Elementwise quotient of two tensors, with broadcasting both ways.

    Division by zero follows IEEE 754: an infinity, or NaN for 0/0.
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
