"""The optimizers' primitives: one launch updates a flat run of parameters in place.

Everything that changes from step to step (learning rate, step count, bias corrections) is in the `state` operand,
in device memory, so a captured step can be replayed.  `state` moves on when `last` is set: a step whose parameters
are not contiguous takes several launches with the same state.  The buffer has `STATE_WORDS` words; those after the
named ones belong to the kernels, which count finished workgroups there to know who advances the state.

Gradients are multiplied with `factor` first, in place; `bad` is how many of them are not finite: if any, neither
parameters nor state change.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from ag.core_primitives import mul
from ag.primitive import Call, primitive
from ag.tensor import Array

__all__ = ["STATE_WORDS", "adam_update", "sgd_update"]

STATE_WORDS = 8
_BLOCK = 1 << 14  # elements: five arrays of 64 KiB stay in the second-level cache


@primitive(outputs=0, updates=("p", "m", "v", "state", "g"), bound=True, scaling=(mul, "g", "factor"))
def adam_update(
    p: Array, m: Array, v: Array, state: Array, g: Array, factor: Array, bad: Array,
    *, rate1: float, rate2: float, eps: float, weight_decay: float, last: bool,
) -> Call:
    # state = (lr, c1, c2, t), rate = 1 - beta, c = 1 - beta^t: complements keep their digits where beta is near 1.
    after = state[1:4]
    slow, slower = np.asarray(rate1, p.dtype), np.asarray(rate2, p.dtype)
    scalars = np.empty(2, p.dtype)  # numpy is quicker with its own numbers than with Python's
    step, floor = scalars[:1].reshape(()), scalars[1:].reshape(())
    parts = [slice(i, i + _BLOCK) for i in range(0, p.size, _BLOCK)]
    blocks = [(p[part], m[part], v[part], g[part], np.empty_like(p[part])) for part in parts]

    def call() -> None:
        _scale(g, factor)
        if bad.item():
            return
        lr, c1, c2, t = state[:4].tolist()
        c1 += rate1 * (1 - c1)
        c2 += rate2 * (1 - c2)
        if last:
            after[:] = c1, c2, t + 1
        scalars[:] = lr * sqrt(c2) / c1, eps * sqrt(c2)  # = lr / c1 and eps of m / (sqrt(v / c2) + eps)
        for part, mean, square, grad, d in blocks:
            np.subtract(grad, mean, d)
            d *= slow
            mean += d
            np.multiply(grad, grad, d)
            d -= square
            d *= slower
            square += d
            np.sqrt(square, d)
            d += floor
            np.divide(mean, d, d)
            d *= step
            if weight_decay:
                part *= 1 - lr * weight_decay
            part -= d

    return call


@primitive(outputs=0, updates=("p", "momentum", "state", "g"), scaling=(mul, "g", "factor"))
def sgd_update(
    p: Array, momentum: Array, state: Array, g: Array, factor: Array, bad: Array,
    *, mu: float, weight_decay: float, nesterov: bool, last: bool,
) -> None:
    # state = (lr, t).  d = g + weight_decay p;  b = mu b + d (b = d at first);  p -= lr (d + mu b if nesterov else b)
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
