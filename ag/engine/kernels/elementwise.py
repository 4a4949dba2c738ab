"""Elementwise arithmetic and functions: copy, + - * /, exp, log, square root, power, absolute value, clamp.

The kernels of those that are `fusable` are rows of shaders/functions.glsl.  The others have shaders of their own.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ag.engine.buffer import Buffer
from ag.engine.cpu_threads import in_blocks
from ag.engine.primitive import Array, Call, primitive
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


@primitive(broadcast, layout=broadcast_layout, bound=True, fusable=True)
def add(out: Array, a: Array, b: Array) -> Call:
    return partial(np.add, a, b, out)


@primitive(broadcast, layout=broadcast_layout, bound=True, neutral=1.0, fusable=True)
def mul(out: Array, a: Array, b: Array) -> Call:
    return partial(np.multiply, a, b, out)


@primitive(broadcast, layout=broadcast_layout, bound=True, fusable=True)
def sub(out: Array, a: Array, b: Array) -> Call:
    return partial(np.subtract, a, b, out)


@primitive(broadcast, layout=broadcast_layout, bound=True, fusable=True)
def div(out: Array, a: Array, b: Array) -> Call:
    return partial(np.divide, a, b, out)


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
def exp(out: Array, x: Array) -> Call:
    return partial(np.exp, x, out)


@primitive(bound=True, fusable=True)
def log(out: Array, x: Array) -> Call:
    return partial(np.log, x, out)


@primitive(bound=True, fusable=True)
def sqrt(out: Array, x: Array) -> Call:
    return partial(np.sqrt, x, out)


@primitive(bound=True, fusable=True)
def abs(out: Array, x: Array) -> Call:
    return partial(np.abs, x, out)


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
