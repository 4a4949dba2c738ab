"""Pooling on [channels, height, width, batch]: the largest value or the mean under a window, and gradients.

The numpy functions go from tap to tap of the window, as each tap sees whole rows of memory.
"""

from __future__ import annotations

from math import inf, prod

import numpy as np

from ag.engine.primitive import Array, primitive
from ag.engine.shape import Layout, Pair, Shape, Window, places, taps, window_layout


def _pooled(x: Shape, window: Window) -> Shape:
    return (x[0], *places(x[1:3], window), x[3])


def _image(g: Shape, image: Pair) -> Shape:
    return (g[0], *image, g[3])


# `taps`: how many each invocation of a kernel looks at
def _pooled_layout(out: Shape, *others: Shape, window: Window) -> Layout:
    return {**window_layout(others[-1], out, window, prod(out)), "taps": prod(window.kernel)}


def _grad_layout(out: Shape, *seen: Shape, window: Window, image: Pair) -> Layout:
    rows = -(-window.kernel[0] // window.stride[0])  # of a window's, those that see the pixel from some place
    return {**window_layout(out, seen[-1], window, prod(out)), "taps": rows * window.kernel[1]}


@primitive(lambda x, *, window: (_pooled(x, window),) * 2, layout=_pooled_layout, outputs=2)
def max_pool2d(out: Array, tap: Array, x: Array, *, window: Window) -> None:
    # tap: from which tap the first maximum came, counted row by row; NaN is larger than any number
    out.fill(-inf)
    for _, (down, across), (rows, cols) in taps(x.shape[1:3], out.shape[1:3], window):
        best = out[:, down, across]
        np.maximum(best, x[:, rows, cols], out=best)
    none = prod(window.kernel)
    tap.fill(none)
    for (i, j), (down, across), (rows, cols) in taps(x.shape[1:3], out.shape[1:3], window):
        seen, first = x[:, rows, cols], tap[:, down, across]
        is_best = (seen == out[:, down, across]) | (seen != seen)
        np.minimum(first, i * window.kernel[1] + j + ~is_best * first.dtype.type(none), out=first)


def _only(chosen: Array, g: Array) -> Array:
    """`g`, and 0 elsewhere; np.where takes five times as long, as processors cannot guess what is chosen."""
    bits = np.dtype(f"i{g.itemsize}")
    only: Array = (g.view(bits) & -chosen.astype(bits)).view(g.dtype)
    return only


@primitive(lambda _tap, g, *, window, image: _image(g, image), layout=_grad_layout)
def max_pool2d_grad(out: Array, tap: Array, g: Array, *, window: Window, image: Pair) -> None:
    out.fill(0)
    for (i, j), (down, across), (rows, cols) in taps(image, g.shape[1:3], window):
        chosen = tap[:, down, across] == i * window.kernel[1] + j
        out[:, rows, cols] += _only(chosen, g[:, down, across])


@primitive(lambda x, *, window: _pooled(x, window), layout=_pooled_layout)
def avg_pool2d(out: Array, x: Array, *, window: Window) -> None:
    out.fill(0)
    for _, (down, across), (rows, cols) in taps(x.shape[1:3], out.shape[1:3], window):
        out[:, down, across] += x[:, rows, cols]
    out /= prod(window.kernel)


@primitive(lambda g, *, window, image: _image(g, image), layout=_grad_layout)
def avg_pool2d_grad(out: Array, g: Array, *, window: Window, image: Pair) -> None:
    out.fill(0)
    for _, (down, across), (rows, cols) in taps(image, g.shape[1:3], window):
        out[:, rows, cols] += g[:, down, across]
    out /= prod(window.kernel)
