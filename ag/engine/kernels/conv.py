"""Convolution on ``[channels, height, width, batch]``, as matrix products of what the taps see, and pooling.

The batch is the last axis, so a tap of a window sees whole rows of memory and no layout is ever changed.
"""

from __future__ import annotations

from math import inf, prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ag.engine.kernels.elementwise import with_epilogue
from ag.engine.primitive import Array, primitive
from ag.engine.shape import Layout, Pair, Shape, Window, check_steps, places, taps, window_layout

NAME = "ag_conv2d"


def _layout(x: Shape, y: Shape, window: Window, groups: int, elements: int) -> Layout:
    sizes = {"channels": x[0] // groups, "features": y[0] // groups, "vector": not x[3] & 3}
    return {**window_layout(x, y, window, elements), **sizes}


def _forward_layout(out: Shape, x: Shape, w: Shape, *, window: Window, groups: int) -> Layout:
    check_steps(window, w[1], NAME)
    layout = _layout(x, out, window, groups, prod(out))
    return {**layout, "rows": layout["features"], "cols": prod(out[1:]), "inner": prod(w[1:])}


def _input_layout(out: Shape, w: Shape, g: Shape, *, window: Window, groups: int, image: Pair) -> Layout:
    check_steps(window, g[0] // groups, NAME)
    layout = _layout(out, g, window, groups, prod(out))
    inner = g[0] // groups * prod(window.kernel)
    return {**layout, "rows": layout["channels"], "cols": prod(out[1:]), "inner": inner}


def _weight_layout(out: Shape, x: Shape, g: Shape, *, window: Window, groups: int, chunk: int) -> Layout:
    layout = _layout(x, g, window, groups, prod(out))
    return {**layout, "rows": layout["features"], "cols": prod(out[2:]), "inner": prod(g[1:]), "pieces": out[0],
            "vector": layout["vector"] and not chunk & 3}


_LONG = 128  # elements; rows of memory from here on are worth a matrix product of their own


def _seen(x: Array, grid: Shape, window: Window, groups: int) -> Array:
    """Gather what the taps see of `x` from a grid: ``[groups, parts, channels * taps, places * batch]``."""
    # One part, or one for each row of places if rows are long; then only taps side by side are copied, as those one
    # below the other are whole rows of memory apart.  `_as_seen` gives weights the same order.
    (high, wide), (down, across), dilation = window.kernel, window.stride, window.dilation
    images = x.reshape(groups, len(x) // groups, *x.shape[1:])
    channels, *image, batch = images.shape[1:]
    if (high, wide) == (1, 1) and window.padding == (0, 0):
        return images[:, :, ::down, ::across].reshape(groups, 1, channels, prod(grid) * batch)
    if grid[0] == 1 or grid[1] * batch < _LONG:
        columns = np.zeros((groups, channels, high, wide, *grid, batch), x.dtype)
        for (i, j), (above, beside), (rows, cols) in taps(tuple(image), grid, window):
            columns[:, :, i, j, above, beside] = images[:, :, rows, cols]
        return columns.reshape(groups, 1, channels * high * wide, prod(grid) * batch)
    seen_rows = (grid[0] - 1) * down + window.extent[0]
    strips = np.zeros((groups, seen_rows, channels, wide, grid[1], batch), x.dtype)
    beside_only = Window((1, wide), (1, across), window.padding, (1, dilation[1]))
    for (_, j), (above, beside), (rows, cols) in taps(tuple(image), (seen_rows, grid[1]), beside_only):
        strips[:, above, :, j, beside] = images[:, :, rows, cols].swapaxes(1, 2)
    length, (group, row), pixel = grid[1] * batch, strips.strides[:2], strips.itemsize
    overlapping = as_strided(strips, (groups, grid[0], high, channels * wide, length),
                             (group, row * down, row * dilation[0], length * pixel, pixel))
    return overlapping.reshape(groups, grid[0], high * channels * wide, length)  # copies only if taps are dilated


def _as_seen(w: Array, parts: int) -> Array:
    """Weights in the order of `_seen`: channels and their taps, or rows of taps, channels, and the taps in a row."""
    return w if parts == 1 else w.swapaxes(1, 2)


def _parted(x: Array, groups: int, parts: int) -> Array:
    """Features at places as matrices ``[groups, parts, features, places * batch]``, without a copy."""
    return x.reshape(groups, len(x) // groups, parts, prod(x.shape[1:]) // parts).swapaxes(1, 2)


@with_epilogue
@primitive(lambda x, w, *, window, groups: (w[0], *places(x[1:3], window), x[3]), layout=_forward_layout)
def conv2d(out: Array, x: Array, w: Array, *, window: Window, groups: int) -> None:
    seen = _seen(x, out.shape[1:3], window, groups)
    _, parts, taps_seen, _ = seen.shape
    weights = _as_seen(w, parts).reshape(groups, 1, len(w) // groups, taps_seen)
    np.matmul(weights, seen, out=_parted(out, groups, parts))


@with_epilogue
@primitive(lambda w, g, *, window, groups, image: (w[1] * groups, *image, g[3]), layout=_input_layout)
def conv2d_input_grad(out: Array, w: Array, g: Array, *, window: Window, groups: int, image: Pair) -> None:
    above, beside = (e - 1 - p for e, p in zip(window.extent, window.padding, strict=True))
    if window.stride == (1, 1) and above >= 0 and beside >= 0:
        # a convolution of g with the weights mirrored, features and channels changing places
        features = len(w) // groups
        mirrored = w.reshape(groups, features, *w.shape[1:]).swapaxes(1, 2)[..., ::-1, ::-1]
        conv2d.reference(out, g, mirrored.reshape(len(out), features, *window.kernel), groups=groups,
                         window=window._replace(padding=(above, beside)))
        return
    grid, batch = g.shape[1:3], g.shape[3]
    kernels = w.reshape(groups, len(w) // groups, prod(w.shape[1:]))
    columns = np.matmul(kernels.swapaxes(1, 2), g.reshape(groups, len(w) // groups, prod(g.shape[1:])))
    columns = columns.reshape(len(out), *window.kernel, *grid, batch)
    out.fill(0)
    for (i, j), (down, across), (rows, cols) in taps(image, grid, window):
        out[:, rows, cols] += columns[:, i, j, down, across]


@primitive(lambda x, g, *, window, groups, chunk: (
    max(1, -(-prod(g[1:]) // chunk)), g[0], x[0] // groups, *window.kernel), layout=_weight_layout)
def conv2d_weight_grad(out: Array, x: Array, g: Array, *, window: Window, groups: int, chunk: int) -> None:
    seen = _seen(x, g.shape[1:3], window, groups).swapaxes(2, 3)
    _, parts, length, taps_seen = seen.shape
    cotangents = _parted(g, groups, parts)
    for i, piece in enumerate(out):  # the sum over `chunk` places and samples, which need not end where a part does
        total = np.zeros((groups, len(g) // groups, taps_seen), x.dtype)
        for part in range(parts):
            a, b = max(0, i * chunk - part * length), min(length, (i + 1) * chunk - part * length)
            if a < b:
                total += np.matmul(cotangents[:, part, :, a:b], seen[:, part, a:b])
        ordered = _as_seen(piece, parts)
        ordered[...] = total.reshape(ordered.shape)


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
