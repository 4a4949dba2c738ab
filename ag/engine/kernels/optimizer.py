"""The optimizers' primitives: one launch updates a flat run of parameters in place.

What may change from step to step is in device memory, so that a captured step can be replayed.  Gradients are first
multiplied with `factor`, in place.  If `bad`, the number of them that are not finite, is not 0, nothing else changes.
Parameters of 16 bits are `stored`, and p has all their digits.  Where p does not round to what is stored, somebody
changed that: it is the value from now on.  Others are their own `stored`, which is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import inf, sqrt

import numpy as np

from ag.engine.cpu_threads import BLOCK, cut, makes, scratch
from ag.engine.kernels.convert import narrow, reconcile
from ag.engine.kernels.elementwise import mul
from ag.engine.primitive import Array, Call, primitive
from ag.engine.shape import Shape

PLACE = 64  # elements per word of the second part of `places`


def places_of(ends: Sequence[int]) -> Array:
    """`places` of parameters that end at these elements of the flat buffer."""
    firsts = np.searchsorted(ends, np.arange(0, ends[-1], PLACE), side="right")
    places: Array = np.concatenate([[len(ends)], ends, firsts]).astype(np.int32)
    return places


# Adam:  m += (1 - beta1) (g - m)     v += (1 - beta2) (g^2 - v)     c1 = 1 - beta1^t     c2 = 1 - beta2^t
#        p = (1 - lr weight_decay) p - lr (m / c1) / (sqrt(v / c2) + eps)
#        A finite g whose square would not be finite counts as 2^64 less a digit, with its sign.
# SGD:   d = g + weight_decay p       b = mu b + d                   p -= lr (d + mu b  if nesterov  else b)
#
# `settings`: only the host writes them.  `state`: a word in which kernels count finished workgroups, and rows of
# counts.  The first row is the optimizer's, and moves on when `last` is set, as a step may take several launches.  Adam
# has a row (c1, c2, t) per parameter, too, so that a gradient that comes late is corrected as a first one.  `places`:
# N, the ends of parameters 0 ... N-1, and the parameters of element 0, of element 64, of element 128, ...


@primitive(outputs=0, layout=lambda p, *_others, **_params: {"n": p[0]},
           updates=("p", "m", "v", "state", "g", "stored"), bound=True, scaling=(mul, "g", "factor"))
def adam_update(
    p: Array, m: Array, v: Array, state: Array, settings: Array, places: Array, g: Array, factor: Array, bad: Array,
    stored: Array, *, start: int, first: int, count: int, last: bool,
) -> Call:
    # settings = (lr, 1 - beta1, 1 - beta2, eps, weight_decay, beta1, beta2), c = 1 - beta^t: complements keep their
    # digits where beta is near 1.  p begins at element `start` of the flat buffer and holds `count` parameters, which
    # have the rows from 1 + `first` on.
    rows = state[1:].reshape(-1, 3)
    own, mine = rows[0], rows[1 + first : 1 + first + count]
    scalars = np.empty(7, p.dtype)  # numpy is quicker with its own numbers than with Python's
    step, floor, kept, slow, slower, stays, stays2 = (scalars[i, ...] for i in range(7))
    most = np.nextafter(np.exp2(p.dtype.type(np.finfo(p.dtype).maxexp // 2)), p.dtype.type(0))
    small = np.empty_like(p) if p.size <= BLOCK else None
    known, near, near2, decays = b"", True, True, True  # the settings, and what follows from them
    lr = rate1 = rate2 = eps = weight_decay = 0.0

    def update(p: Array, m: Array, v: Array, g: Array, stored: Array) -> None:
        _follow(p, stored)
        d = scratch(p.dtype, (p.shape,))[0] if small is None else small[: p.size]
        np.multiply(g, g, d)
        if not d.max(initial=0) < inf:  # v would be infinite, and NaN a step later
            g = np.where((abs(g) > most) & np.isfinite(g), np.copysign(most, g), g)
            np.multiply(g, g, d)
        # x += rate (y - x), from the nearer end: a small y has no digits left in y - x
        if near2:
            d -= v
            d *= slower
            v += d
        else:
            v -= d
            v *= stays2
            v += d
        if near:
            np.subtract(g, m, d)
            d *= slow
            m += d
        else:
            m -= g
            m *= stays
            m += g
        np.sqrt(v, d)
        d += floor
        np.divide(m, d, d)
        d *= step
        if decays:
            p *= kept
        p -= d
        _keep(p, stored)

    def updates(part: slice) -> Call:
        whole, pieces = [x[part] for x in (p, m, v, g, stored)], cut(len(p[part]))
        return partial(makes(pieces), [partial(update, *(x[i] for x in whole)) for i in pieces])

    def counted(row: Array) -> tuple[float, float, float]:
        c1, c2, t = row.tolist()
        c1 += rate1 * (1 - c1)
        c2 += rate2 * (1 - c2)
        return c1, c2, t + 1

    def prepared(row: Array) -> tuple[float, float, float]:
        # lr / c1 and eps of m / (sqrt(v / c2) + eps), and what weight decay leaves of p
        c1, c2, t = counted(row)
        scalars[:3] = lr * sqrt(c2) / c1, eps * sqrt(c2), 1 - lr * weight_decay
        return c1, c2, t

    update_all = updates(slice(None))

    def call() -> None:
        nonlocal known, near, near2, decays, lr, rate1, rate2, eps, weight_decay
        _scale(g, factor)
        if bad.item():
            return
        if known != (bits := settings.tobytes()):
            lr, rate1, rate2, eps, weight_decay, *betas = settings.tolist()
            scalars[3:] = rate1, rate2, *betas
            near, near2, decays, known = bool(slow <= 0.5), bool(slower <= 0.5), weight_decay != 0, bits
        bits, row, own_row = mine.tobytes(), mine[0], own.tobytes()
        if bits == own_row * count:  # all have the same counts, as long as every parameter has gradients
            counts = prepared(row)
            update_all()
            row[:] = counts
            mine[1:] = row
            if last:
                own[:] = row
            return
        ends = np.append(0, places[1 : 1 + places[0]])[first : first + count + 1] - start
        changes = np.flatnonzero((mine[1:] != mine[:-1]).any(1)) + 1
        for low, high in pairwise([0, *changes.tolist(), count]):
            counts = prepared(mine[low])
            updates(slice(int(ends[low]), int(ends[high])))()
            mine[low:high] = counts
        if last:
            own[:] = counted(own)

    return call


@primitive(outputs=0, updates=("p", "momentum", "state", "g", "stored"), scaling=(mul, "g", "factor"))
def sgd_update(
    p: Array, momentum: Array, state: Array, settings: Array, g: Array, factor: Array, bad: Array, stored: Array, *,
    last: bool,
) -> None:
    # settings = (lr, mu, weight_decay, nesterov); the only row of the state is (t).  The momentum b is 0 at first.
    _scale(g, factor)
    if bad.item():
        return
    lr, mu, weight_decay, nesterov = settings.tolist()
    if last:
        state[1] += 1
    _follow(p, stored)
    d = g + weight_decay * p if weight_decay else g
    if mu:
        momentum *= mu
        momentum += d
        d = d + mu * momentum if nesterov else momentum
    p -= lr * d
    _keep(p, stored)


def _follow(p: Array, stored: Array) -> None:
    if stored.dtype.itemsize == 2:
        reconcile.reference(p, stored, bfloat=stored.dtype != np.float16)


def _keep(p: Array, stored: Array) -> None:
    if stored.dtype.itemsize == 2:
        narrow.reference(stored, p, bfloat=stored.dtype != np.float16)


def _scale(g: Array, factor: Array) -> None:
    if factor.item() != 1:
        g *= factor


def pieces(x: Shape, *_others: Shape, chunk: int) -> Shape:
    """Shape rule: one number for every `chunk` elements of a vector."""
    return (max(1, -(-x[0] // chunk)),)


@primitive(pieces, layout=lambda out, x, *_others, chunk: {"pieces": out[0], "n": x[0]}, scaling=(mul, "x", "factor"))
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


@primitive(lambda x, *, chunk: (pieces(x, chunk=chunk),) * 2, outputs=2,
           layout=lambda near, _far, x, *, chunk: {"pieces": near[0], "n": x[0]})
def square_sums(near: Array, far: Array, x: Array, *, chunk: int) -> None:
    # The sum of squares of each piece of x, and of x 2^-80, whose squares do not overflow.
    for k in range(len(near)):
        part = x[k * chunk : (k + 1) * chunk]
        near[k] = part.dot(part)
        less = part * part.dtype.type(2.0**-80)
        far[k] = less.dot(less)


@primitive(lambda near, far, *, max_norm: (near, near), outputs=2)
def clip_factor(factor: Array, norm: Array, near: Array, far: Array, *, max_norm: float) -> None:
    # The norm, given the sums of squares; factor = min(1, max_norm / norm), 1 if the norm is not finite, and NaN if
    # the quotient is too small.
    close = near < np.inf
    root, unit = np.sqrt(np.where(close, near, far)), np.where(close, 1, 2.0**80).astype(near.dtype)
    np.multiply(unit, root, out=norm)
    quotient = near.dtype.type(max_norm) / unit / root
    quotient = np.where(quotient < np.finfo(near.dtype).tiny, np.nan, quotient)
    np.copyto(factor, np.where((root < np.inf) & (norm > max_norm), quotient, 1))
