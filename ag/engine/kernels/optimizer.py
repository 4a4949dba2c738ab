"""The optimizers' primitives: one launch updates a flat run of parameters in place.

    Adam:  m += (1 - beta1) (g - m)     v += (1 - beta2) (g^2 - v)     c1 = 1 - beta1^t     c2 = 1 - beta2^t
           p = (1 - lr weight_decay) p - lr (m / c1) / (sqrt(v / c2) + eps)
    SGD:   d = g + weight_decay p       b = mu b + d                   p -= lr (d + mu b  if nesterov  else b)

Everything that changes from step to step (learning rate, step count, bias corrections) is in the `state` operand,
in device memory, so a captured step can be replayed.  `state` moves on when `last` is set: a step whose parameters
are not contiguous takes several launches with the same state.  The buffer has `STATE_WORDS` words; those after the
named ones belong to the kernels, which count finished workgroups there to know who advances the state.

Gradients are multiplied with `factor` first, in place; `bad` is how many of them are not finite: if any, neither
parameters nor state change.
"""

from __future__ import annotations

from functools import partial
from math import sqrt

import numpy as np

from ag.engine.cpu_threads import BLOCK, cut, makes, scratch
from ag.engine.kernels.elementwise import mul
from ag.engine.primitive import Array, Call, primitive
from ag.engine.shape import Layout, Shape

__all__ = ["STATE_WORDS", "adam_update", "sgd_update", "nonfinite", "pieces", "scale_update",
           "clip_factor", "square_sums"]

STATE_WORDS = 8


@primitive(outputs=0, updates=("p", "m", "v", "state", "g"), bound=True, scaling=(mul, "g", "factor"))
def adam_update(
    p: Array, m: Array, v: Array, state: Array, g: Array, factor: Array, bad: Array,
    *, rate1: float, rate2: float, eps: float, weight_decay: float, last: bool,
) -> Call:
    # state = (lr, c1, c2, t), rate = 1 - beta, c = 1 - beta^t: complements keep their digits where beta is near 1.
    after = state[1:4]
    slow, slower = np.asarray(rate1, p.dtype), np.asarray(rate2, p.dtype)
    scalars = np.empty(3, p.dtype)  # numpy is quicker with its own numbers than with Python's
    step, floor, kept = (scalars[i : i + 1].reshape(()) for i in range(3))
    small = np.empty_like(p) if p.size <= BLOCK else None

    def update(p: Array, m: Array, v: Array, g: Array) -> None:
        d = scratch(p.dtype, (p.shape,))[0] if small is None else small
        np.subtract(g, m, d)
        d *= slow
        m += d
        np.multiply(g, g, d)
        d -= v
        d *= slower
        v += d
        np.sqrt(v, d)
        d += floor
        np.divide(m, d, d)
        d *= step
        if weight_decay:
            p *= kept
        p -= d

    pieces = cut(p.size)
    run, updates = makes(pieces), [partial(update, p[i], m[i], v[i], g[i]) for i in pieces]

    def call() -> None:
        _scale(g, factor)
        if bad.item():
            return
        lr, c1, c2, t = state[:4].tolist()
        c1 += rate1 * (1 - c1)
        c2 += rate2 * (1 - c2)
        if last:
            after[:] = c1, c2, t + 1
        # lr / c1 and eps of m / (sqrt(v / c2) + eps), and what weight decay leaves of p
        scalars[:] = lr * sqrt(c2) / c1, eps * sqrt(c2), 1 - lr * weight_decay
        run(updates)

    return call


@primitive(outputs=0, updates=("p", "momentum", "state", "g"), scaling=(mul, "g", "factor"))
def sgd_update(
    p: Array, momentum: Array, state: Array, g: Array, factor: Array, bad: Array,
    *, mu: float, weight_decay: float, nesterov: bool, last: bool,
) -> None:
    # state = (lr, t).  The momentum b is 0 at first.
    _scale(g, factor)
    if bad.item():
        return
    lr, t = state[:2].tolist()
    if last:
        state[1] = t + 1
    d = g + weight_decay * p if weight_decay else g
    if mu:
        momentum *= mu
        momentum += d
        d = d + mu * momentum if nesterov else momentum
    p -= lr * d


def _scale(g: Array, factor: Array) -> None:
    if factor.item() != 1:
        np.multiply(g, factor, g)


def pieces(x: Shape, *_others: Shape, chunk: int) -> Shape:
    """Shape rule: one number for every `chunk` elements of a vector."""
    return (max(1, -(-x[0] // chunk)),)


def _pieces_layout(out: Shape, x: Shape, *_others: Shape, chunk: int) -> Layout:
    return {"pieces": out[0], "n": x[0]}


@primitive(pieces, layout=_pieces_layout, scaling=(mul, "x", "factor"))
def nonfinite(out: Array, x: Array, factor: Array, *, chunk: int) -> None:
    # How many elements of each piece of x times factor are infinite or NaN.
    for k in range(len(out)):
        part = x[k * chunk : (k + 1) * chunk] * factor
        out[k] = part.size - np.count_nonzero(np.isfinite(part))


@primitive(outputs=0, updates=("scaling",), layout=lambda scaling, bad, **_params: {})
def scale_update(scaling: Array, bad: Array, *, interval: int, largest: float) -> None:
    # scaling = (scale, 1 / scale, good steps in a row, skipped steps); a step is good if `bad` is 0.
    scale, _, good, skipped = scaling.tolist()
    if bad.reshape(()) > 0:
        scale, good, skipped = max(scale / 2, 1 / largest), 0, skipped + 1
    elif good + 1 < interval:
        good += 1
    else:
        scale, good = min(scale * 2, largest), 0
    scaling[:] = scale, 1 / scale, good, skipped


@primitive(pieces, layout=_pieces_layout)
def square_sums(out: Array, x: Array, *, chunk: int) -> None:
    # The sum of squares of each piece of x.
    for k in range(len(out)):
        part = x[k * chunk : (k + 1) * chunk]
        out[k] = part.dot(part)


@primitive()
def clip_factor(out: Array, x: Array, *, max_norm: float) -> None:
    # x is the square of the norm; out = min(1, max_norm / norm), and 1 if the norm is not finite.
    norm = np.sqrt(x)
    np.copyto(out, np.where(np.isfinite(norm) & (norm > max_norm), max_norm / norm, 1.0))
