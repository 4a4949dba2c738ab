"""Rows of the case table: convolution and pooling along any axes, norms of groups, resizing; oracles are loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np
from table.cases_images import distinct
from table.rows import Array, Bad, Row, Shape, case

import ag
from ag import ops


def each(value: Any, axes: int) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes


def places(n: int, k: int, s: int, p: int, d: int, more: bool = False) -> list[list[int]]:
    """The pixels that windows see along an axis, of which those below 0 and from `n` on are padding."""
    count = (ceil if more else floor)((n + 2 * p - d * (k - 1) - 1) / s) + 1
    first = [i * s - p for i in range(count)]
    return [[start + j * d for j in range(k)] for start in first if not more or start < n]


def windows(x: Array, size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
            ) -> tuple[Shape, Iterator[tuple[Shape, list[Shape]]]]:
    """The shape of all places, and each place with the pixels that its window sees."""
    axes = x.ndim - 2
    parts = [places(*of_axis, ceil_mode) for of_axis in zip(
        x.shape[1:-1], each(size, axes), each(size if stride is None else stride, axes), each(padding, axes),
        each(dilation, axes), strict=True)]
    grid = tuple(map(len, parts))
    return grid, ((at, [*product(*(part[i] for part, i in zip(parts, at, strict=True)))]) for at in np.ndindex(*grid))


def inside(x: Array, pixels: Sequence[Shape]) -> Array:
    """The pixels that are on the image, side by side."""
    there = [p for p in pixels if all(0 <= i < n for i, n in zip(p, x.shape[1:-1], strict=True))]
    return np.stack([x[(slice(None), *p)] for p in there], 1)


def pooled(x: Array, found: Callable[[Array, list[Shape]], Array], **window: Any) -> Array:
    grid, seen = windows(x, **window)
    out = np.zeros((len(x), *grid, x.shape[-1]))
    for at, pixels in seen:
        out[(slice(None), *at)] = found(inside(x, pixels), pixels)
    return out


def max_pool(x: Array, **window: Any) -> Array:
    return pooled(x, lambda seen, _: seen.max(1), **window)


def avg_pool(x: Array, count_include_pad: bool = True, **window: Any) -> Array:
    pads = each(window.get("padding", 0), x.ndim - 2)

    def mean(seen: Array, pixels: list[Shape]) -> Array:
        counted = sum(all(i < n + p for i, n, p in zip(at, x.shape[1:-1], pads, strict=True)) for at in pixels)
        return seen.sum(1) / (counted if count_include_pad else seen.shape[1])

    return pooled(x, mean, **window)


def adaptive(x: Array, output_size: Any, function: Callable[..., Array] = np.mean) -> Array:
    sizes = [n if out is None else out for n, out in zip(x.shape[1:-1], each(output_size, x.ndim - 2), strict=True)]
    out = np.zeros((len(x), *sizes, x.shape[-1]))
    for at in np.ndindex(*sizes):
        part = tuple(slice(i * n // m, ceil((i + 1) * n / m)) for i, n, m in zip(at, x.shape[1:-1], sizes, strict=True))
        out[(slice(None), *at)] = function(x[(slice(None), *part)], axis=tuple(range(1, x.ndim - 1)))
    return out


def convolved(x: Array, w: Array, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Array:
    if padding == "same":
        both = [d * (k - 1) for d, k in zip(each(dilation, x.ndim - 2), w.shape[2:], strict=True)]
        x, padding = np.pad(x, [(0, 0), *((n // 2, n - n // 2) for n in both), (0, 0)]), 0
    x = np.pad(x, [(0, 0), *((p, p) for p in each(padding, x.ndim - 2)), (0, 0)])
    grid, seen = windows(x, w.shape[2:], stride, 0, dilation)
    out = np.zeros((len(w), *grid, x.shape[-1]))
    for at, pixels in seen:
        parts = zip(np.split(w.reshape(*w.shape[:2], -1), groups), np.split(inside(x, pixels), groups), strict=True)
        out[(slice(None), *at)] = np.concatenate([np.einsum("ock,ckn->on", w_g, x_g) for w_g, x_g in parts])
    return out


def transposed(x: Array, w: Array, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1,
               dilation: Any = 1) -> Array:
    """Each pixel puts the kernel, times itself, into a larger image."""
    axes = x.ndim - 2
    s, p, more, d = (each(value, axes) for value in (stride, padding, output_padding, dilation))
    whole = [(n - 1) * s[i] + d[i] * (w.shape[2 + i] - 1) + 1 + more[i] for i, n in enumerate(x.shape[1:-1])]
    out = np.zeros((groups, w.shape[1], *whole, x.shape[-1]))
    for at, tap in product(np.ndindex(*x.shape[1:-1]), np.ndindex(*w.shape[2:])):
        to = tuple(i * s[a] + t * d[a] for a, (i, t) in enumerate(zip(at, tap, strict=True)))
        for group, (w_g, x_g) in enumerate(zip(np.split(w, groups), np.split(x, groups), strict=True)):
            out[(group, slice(None), *to)] += np.einsum("co,cn->on", w_g[(..., *tap)], x_g[(slice(None), *at)])
    cut = tuple(slice(p[i], n - p[i]) for i, n in enumerate(whole))
    return out.reshape(groups * w.shape[1], *whole, x.shape[-1])[(slice(None), *cut)]


def group_norm(x: Array, gamma: Array, beta: Array, num_groups: int, eps: float = 1e-5) -> Array:
    parts = x.reshape(num_groups, -1, x.shape[-1])
    parts = (parts - parts.mean(1, keepdims=True)) / np.sqrt(parts.var(1, keepdims=True) + eps)
    column = (len(x), *[1] * (x.ndim - 1))
    return parts.reshape(x.shape) * gamma.reshape(column) + beta.reshape(column)


def cubic(t: float) -> float:
    t = abs(t)
    return 1.25 * t**3 - 2.25 * t**2 + 1 if t <= 1 else -0.75 * t**3 + 3.75 * t**2 - 6 * t + 3 if t < 2 else 0.0


def weights_of(n: int, out: int, scale: float, mode: str, align_corners: bool) -> Array:
    """Weights of pixels in the pixels of the result, along an axis."""
    found = np.zeros((out, n))
    for i in range(out):
        at = i * (n - 1) / max(out - 1, 1) if align_corners else (i + 0.5) * scale - 0.5
        if mode.startswith("nearest"):
            found[i, min(floor(i * scale if mode == "nearest" else (i + 0.5) * scale), n - 1)] = 1
        elif mode == "bicubic":
            for j in range(floor(at) - 1, floor(at) + 3):
                found[i, min(max(j, 0), n - 1)] += cubic(at - j)
        else:
            at = max(at, 0)
            for j in (floor(at), floor(at) + 1):
                found[i, min(j, n - 1)] += 1 - abs(at - j)
    return found


def resized(x: Array, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool = False
            ) -> Array:
    axes = x.ndim - 2
    for axis in range(1, axes + 1):
        n = x.shape[axis]
        factor = None if scale_factor is None else each(scale_factor, axes)[axis - 1]
        out = each(size, axes)[axis - 1] if factor is None else floor(n * factor)
        weights = weights_of(n, out, n / out if factor is None else 1 / factor, mode, align_corners)
        x = np.moveaxis(np.tensordot(weights, x, (1, axis)), 0, axis)
    return x


def unfolded(x: Array, kernel: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Array:
    x = np.pad(x, [(0, 0), *((p, p) for p in each(padding, 2)), (0, 0)])
    _, seen = windows(x, kernel, stride, 0, dilation)
    return np.stack([inside(x, pixels).reshape(-1, x.shape[-1]) for _, pixels in seen], 1)


def folded(x: Array, output_size: Any, kernel: Any, **window: Any) -> Array:
    """The adjoint of `unfolded`, one pixel after the other."""
    channels = x.shape[0] // int(np.prod(each(kernel, 2)))
    shape = (channels, *each(output_size, 2), 1)
    units = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    return np.stack([(unfolded(unit, kernel, **window) * x).sum((0, 1)) for unit in units]).reshape(*shape[:-1], -1)


def shuffled(x: Array, upscale_factor: int) -> Array:
    r = upscale_factor
    out = np.zeros((len(x) // r**2, x.shape[1] * r, x.shape[2] * r, x.shape[3]))
    for i, j in product(range(r), range(r)):
        out[:, i::r, j::r] = x[i * r + j :: r * r]
    return out


def unshuffled(x: Array, downscale_factor: int) -> Array:
    r = downscale_factor
    return np.stack([x[:, i::r, j::r] for i, j in product(range(r), range(r))], 1).reshape(
        -1, x.shape[1] // r, x.shape[2] // r, x.shape[3])


def response(x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Array:
    squares = np.pad(x * x, [(size // 2, (size - 1) // 2), *[(0, 0)] * (x.ndim - 1)])
    return x / (k + alpha * sum(squares[i : i + len(x)] for i in range(size)) / size) ** beta


def row(name: str, oracle: Callable[..., Any], *cases: Any, terms: int = 32, bad: Sequence[Bad] = (),
        **params: Any) -> Row:
    return Row(name, oracle, cases, terms=lambda *_, **__: terms, size=lambda *xs, **_: 4 + max(
        abs(x).max(initial=0) for x in xs) ** 2, **{"call": getattr(ops, name), "bad": bad, **params})


def refused(name: str, situation: str, shapes: list[Shape], error: type[Exception], *fragments: str,
            **params: Any) -> Bad:
    return Bad(f"{name}: {situation}", shapes, lambda *xs: getattr(ops, name)(*xs, **params), error,
               [f"{name}: ", *fragments])


ROWS = [
    row("conv1d", convolved, case((2, 9, 3), (4, 2, 3)), case((4, 9, 2), (6, 2, 2), groups=2, padding="same"),
        case((3, 8, 5), (3, 1, 3), groups=3, stride=2, padding=1, dilation=2), bad=[
            refused("conv1d", "an image", [(2, 3, 4, 5), (2, 2, 3)], ag.ShapeError, "(channels, time, batch)"),
            refused("conv1d", "a padding that has no name", [(2, 9, 3), (4, 2, 3)], ValueError, "padding is 'full'",
                    padding="full"),
            refused("conv1d", "the same size with steps", [(2, 9, 3), (4, 2, 3)], ValueError, "stride must be 1",
                    padding="same", stride=2)]),
    row("conv3d", convolved, case((2, 4, 5, 3, 3), (4, 2, 2, 3, 1), padding=(1, 0, 1), stride=(2, 1, 1)),
        case((2, 5, 4, 4, 2), (2, 1, 2, 2, 2), groups=2, padding="same", dilation=(2, 1, 1)), bad=[
            refused("conv3d", "a kernel that is too deep", [(1, 2, 4, 4, 1), (1, 1, 3, 1, 1)], ag.ShapeError,
                    "covers 3 slices", "has 2")]),
    Row("ag_conv2d", lambda x, w, **p: convolved(x, w, **p), [case((2, 5, 4, 3), (3, 2, 2, 3), padding="same")],
        terms=lambda x, w, **_: w[0].size, size=lambda x, w, **p: convolved(abs(x), abs(w), **p), label="same"),
    row("conv_transpose1d", transposed, case((2, 5, 3), (2, 4, 3), stride=2, padding=1, output_padding=1)),
    row("conv_transpose2d", transposed, case((1, 1, 1, 1), (1, 1, 1, 1)), case((2, 3, 4, 3), (2, 3, 3, 2), stride=2),
        case((4, 3, 2, 2), (4, 3, 3, 3), stride=2, padding=1, output_padding=1, groups=2),
        case((2, 3, 3, 2), (2, 1, 2, 2), stride=(3, 1), dilation=(1, 2), output_padding=(2, 1)),
        case((2, 4, 3, 2), (2, 2, 1, 1), padding=1, dilation=2, output_padding=1), case((2, 3, 3, 0), (2, 1, 2, 2)),
        bad=[
            refused("conv_transpose2d", "weights of other channels", [(2, 3, 3, 1), (3, 2, 2, 2)], ag.ShapeError,
                    "x has 2 channels", "(3, 2, 2, 2)"),
            refused("conv_transpose2d", "more than a step behind", [(2, 3, 3, 1), (2, 2, 2, 2)], ValueError,
                    "output_padding is 2", output_padding=2, stride=2),
            refused("conv_transpose2d", "nothing that is left", [(1, 1, 1, 1), (1, 1, 2, 2)], ag.ShapeError,
                    "at least one", padding=1)]),
    row("max_pool1d", max_pool, case((2, 9, 3), size=3, stride=2, padding=1, ceil_mode=True), draw=[distinct]),
    row("max_pool3d", max_pool, case((2, 5, 4, 6, 3), size=(2, 3, 2), stride=(2, 1, 3), padding=(1, 1, 0)),
        case((2, 5, 5, 6, 2), size=2, dilation=(1, 2, 3), ceil_mode=True), draw=[distinct]),
    Row("ag_max_pool2d", max_pool, [case((2, 6, 7, 3), size=3, stride=2, ceil_mode=True), case(
        (2, 7, 8, 3), size=(2, 3), dilation=(3, 2), padding=(1, 0), stride=1)], [distinct], label="wider", bad=[
            Bad("a dilated window larger than the image", [(2, 3, 5, 2)], lambda x: ag.ag_max_pool2d(x, 3, dilation=2),
                ag.ShapeError, ["ag_max_pool2d: the window covers (5, 5) pixels", "must fit"])]),
    row("avg_pool1d", avg_pool, case((2, 9, 3), size=4, stride=3, padding=2, ceil_mode=True)),
    row("avg_pool3d", avg_pool, case((2, 5, 4, 6, 3), size=(2, 3, 2), stride=2, padding=1, count_include_pad=False)),
    Row("ag_avg_pool2d", avg_pool, [case((2, 6, 7, 3), size=(3, 2), stride=2, padding=1, **p) for p in (
        {"ceil_mode": True}, {"count_include_pad": False}, {"ceil_mode": True, "count_include_pad": False})],
        terms=lambda *_, **__: 9, label="wider"),
    *(row(f"adaptive_avg_pool{axes}d", adaptive, *(case((2, *image, 3), output_size=out) for out in sizes))
      for axes, image, sizes in ((1, (7,), (3, 9)), (2, (5, 6), ((2, 3), (None, 4), 1)), (3, (4, 5, 3), ((3, 2, 3),)))),
    *(row(f"adaptive_max_pool{axes}d", lambda x, output_size: adaptive(x, output_size, np.max), case(
        (2, *image, 3), output_size=out), draw=[distinct])
      for axes, image, out in ((1, (7,), 3), (2, (5, 6), (7, 4)), (3, (4, 5, 3), (3, 2, 1)))),
    row("group_norm", group_norm, case((6, 4), (6, 1), (6, 1), num_groups=2),
        case((6, 4, 5, 3), (6, 1), (6, 1), num_groups=3, eps=0.1), terms=256,
        call=lambda x, gamma, beta, num_groups, **p: ops.group_norm(x, num_groups, gamma, beta, **p), bad=[
            refused("group_norm", "groups that do not divide", [(6, 4)], ag.ShapeError, "(6, 4)", "num_groups is 4",
                    num_groups=4),
            refused("group_norm", "no eps", [(6, 4)], ValueError, "eps is 0.0", num_groups=2, eps=0.0)]),
    row("instance_norm", lambda x, gamma, beta: group_norm(x, gamma, beta, len(x)), case((3, 4, 5, 2), (3, 1), (3, 1)),
        terms=256, bad=[refused("instance_norm", "one value", [(3, 1, 2)], ag.ShapeError, "at least two values")]),
    row("interpolate", resized, case((2, 5, 3), scale_factor=2), case((2, 5, 6, 3), size=(7, 4)),
        case((2, 4, 3, 3), size=(6, 6), mode="nearest-exact"), case((2, 5, 2), scale_factor=1.7, mode="linear"),
        case((2, 3, 4, 2), size=(5, 7), mode="bilinear"), case((2, 3, 4, 2), scale_factor=(2.5, 0.5), mode="bilinear"),
        case((2, 3, 4, 2), size=(5, 1), mode="bilinear", align_corners=True),
        case((2, 3, 4, 2), scale_factor=2, mode="bicubic"), case((2, 3, 4, 2), size=5, mode="bicubic",
                                                                  align_corners=True),
        case((2, 3, 2, 2, 2), size=(2, 3, 5), mode="trilinear"), bad=[
            refused("interpolate", "a mode of images for sequences", [(2, 3, 2)], ag.ShapeError, "'bilinear'",
                    "'linear'", mode="bilinear", size=3),
            refused("interpolate", "no size", [(2, 3, 2)], ValueError, "size is None, scale_factor is None"),
            refused("interpolate", "corners of the nearest", [(2, 3, 2)], ValueError, "align_corners is True",
                    size=2, align_corners=True),
            refused("interpolate", "nothing that is left", [(2, 3, 2)], ValueError, "scale_factor is 0.1",
                    scale_factor=0.1)]),
    row("pixel_shuffle", shuffled, case((8, 2, 3, 3), upscale_factor=2), bad=[
        refused("pixel_shuffle", "too few channels", [(6, 2, 2, 1)], ag.ShapeError, "(6, 2, 2, 1)", "channels * 4",
                upscale_factor=2)]),
    row("pixel_unshuffle", unshuffled, case((2, 4, 6, 3), downscale_factor=2)),
    row("unfold", unfolded, case((2, 4, 5, 3), kernel=(2, 3), padding=1, stride=2), case((2, 5, 5, 2), kernel=2,
                                                                                     dilation=2), bad=[
        refused("unfold", "a kernel that is too large", [(1, 2, 2, 1)], ag.ShapeError, "must fit", kernel=3)]),
    row("fold", folded, case((12, 6, 3), output_size=(4, 5), kernel=(2, 3), padding=(1, 0), stride=(2, 2)), bad=[
        refused("fold", "other windows", [(12, 5, 3)], ag.ShapeError, "(12, 5, 3)", "6 places", output_size=(4, 5),
                kernel=(2, 3), padding=(1, 0), stride=2)]),
    row("local_response_norm", response, case((5, 2, 3, 2), size=3, alpha=0.5), case((4, 3, 2), size=2, beta=0.5)),
]
