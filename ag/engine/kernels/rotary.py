"""Rotary positions: pairs of a head's features turn by an angle that grows with their position.

Frequencies are turns per position, in 64 bits behind the point.  A product with a position drops the whole turns, so
the angle of a large position is as exact as that of a small one.
"""

from __future__ import annotations

import numpy as np

from ag.engine.primitive import Array, primitive
from ag.engine.shape import Layout, Shape


def _layout(heads: int, x: Shape, positions: Shape, *, dim: int, rotary: int, more: int = 0) -> Layout:
    """Without `positions` of their own, times count; else these have an axis of times, and perhaps one of samples."""
    times, batch = x[1:]
    rows, columns = positions or (1, 1)
    return {"n": (heads + more) * (dim - rotary // 2) * times * batch, "heads": heads, "more": more, "times": times,
            "batch": batch, "counted": int(not positions), "time_step": columns if rows > 1 else 0,
            "batch_step": int(columns > 1)}


def _turned(out: Array, x: Array, cosine: Array, sine: Array, dim: int, rotary: int, interleaved: bool) -> None:
    shape = (x.shape[0] // dim, dim, *x.shape[1:])
    x, out = x.reshape(shape), out.reshape(shape)
    first, second = (slice(0, rotary, 2), slice(1, rotary, 2)) if interleaved else (
        slice(rotary // 2), slice(rotary // 2, rotary))
    a, b = x[:, first], x[:, second]
    out[:, rotary:] = x[:, rotary:]
    np.subtract(a * cosine, b * sine, out=out[:, first])
    np.add(a * sine, b * cosine, out=out[:, second])


def _cosine_sine(x: Array, positions: Array, frequencies: Array, offset: int, factor: float, way: float
                 ) -> tuple[Array, Array]:
    """Cosine and sine, [rotary / 2, times, batch or 1] each."""
    places = positions.astype(np.int64) if positions.ndim else int(positions) + np.arange(x.shape[1])[:, None]
    words = frequencies.astype(np.uint64)
    turns = (places + offset).astype(np.uint64) * (words[:, 0] | words[:, 1] << np.uint64(32))[:, None, None]
    angle = turns.view(np.int64) * (np.pi * 2.0**-63)  # the difference is a whole turn
    return (np.cos(angle) * factor).astype(x.dtype), (np.sin(angle) * (factor * way)).astype(x.dtype)


@primitive(layout=lambda _out, x, positions, _f, *, dim, rotary, **_params: _layout(
    x[0] // dim, x, positions, dim=dim, rotary=rotary))
def rope(
    out: Array, x: Array, positions: Array, frequencies: Array, *,
    dim: int, rotary: int, interleaved: bool, offset: int, factor: float, way: float,
) -> None:
    _turned(out, x, *_cosine_sine(x, positions, frequencies, offset, factor, way), dim, rotary, interleaved)


@primitive(lambda x, y, *_others, **_params: (x, y), outputs=2,
           layout=lambda _out, _also, x, y, positions, _f, *, dim, rotary, **_params: _layout(
               x[0] // dim, x, positions, dim=dim, rotary=rotary, more=y[0] // dim))
def rope_pair(
    out: Array, also: Array, x: Array, y: Array, positions: Array, frequencies: Array, *,
    dim: int, rotary: int, interleaved: bool, offset: int, factor: float, way: float,
) -> None:
    cosine, sine = _cosine_sine(x, positions, frequencies, offset, factor, way)
    _turned(out, x, cosine, sine, dim, rotary, interleaved)
    _turned(also, y, cosine, sine, dim, rotary, interleaved)
