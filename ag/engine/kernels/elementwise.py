"""The few primitives that the core itself launches: copy, add, multiply, sum.

The tape adds and scales cotangents and undoes broadcasting, a captured step copies inputs into their slots.
Everything else that computes is declared in `ag.ops` or next to the optimizer that needs it.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ag.engine.buffer import Buffer, Device
from ag.engine.cpu_threads import in_blocks
from ag.engine.dtype import DType
from ag.engine.primitive import Array, Call, primitive
from ag.engine.shape import Shape, broadcast, broadcast_layout, same

__all__ = ["add", "copy", "mul", "zeros", "div", "scale", "sub", "abs", "abs_grad", "clamp", "clamp_grad", "exp", "log",
           "pow", "pow_grad", "sqrt"]


def zeros(backend: Device, shape: Shape, dtype: DType) -> Buffer:
    """A fresh buffer of zeros; does not wait."""
    buffer = backend.alloc(shape, dtype)
    backend.upload(np.zeros(shape, np.float32), buffer)
    return buffer


@primitive(same, bound=True, copies=True)
def copy(out: Array, x: Array) -> Call:
    return partial(out.__setitem__, Ellipsis, x)


@primitive(broadcast, layout=broadcast_layout, bound=True)
def add(out: Array, a: Array, b: Array) -> Call:
    return partial(np.add, a, b, out)


@primitive(broadcast, layout=broadcast_layout, bound=True, neutral=1.0)
def mul(out: Array, a: Array, b: Array) -> Call:
    return partial(np.multiply, a, b, out)


@primitive(broadcast, layout=broadcast_layout, bound=True)
def sub(out: Array, a: Array, b: Array) -> Call:
    return partial(np.subtract, a, b, out)


@primitive(broadcast, layout=broadcast_layout, bound=True)
def div(out: Array, a: Array, b: Array) -> Call:
    return partial(np.divide, a, b, out)


@primitive(bound=True)
def scale(out: Array, x: Array, *, factor: float) -> Call:
    return partial(np.multiply, x, factor, out)


@primitive(bound=True)
def exp(out: Array, x: Array) -> Call:
    return partial(np.exp, x, out)


@primitive(bound=True)
def log(out: Array, x: Array) -> Call:
    return partial(np.log, x, out)


@primitive(bound=True)
def sqrt(out: Array, x: Array) -> Call:
    return partial(np.sqrt, x, out)


@primitive(bound=True)
def abs(out: Array, x: Array) -> Call:
    return partial(np.abs, x, out)


@primitive(bound=True)
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
