"""Functions of images (channels, height, width, batch): resizing, moving pixels, windows as columns, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import floor, prod
from typing import cast

import numpy as np

from ag.autograd.create import as_tensor
from ag.autograd.op import Cotangents, Need, Result, Run, composed, part_of
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.kernels.indexing import part, spread
from ag.engine.primitive import Array
from ag.engine.shape import Shape, counts, per_axis, true_or_false
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add, ag_div, ag_mul, ag_pow, ag_scale
from ag.ops.functions import square
from ag.ops.indexing import ag_reshape, ag_transpose
from ag.ops.pooling import _adaptive, avg_pool1d, beside, taken
from ag.ops.shapes import pad, stack
from ag.ops.statistics import _wide

__all__ = ["fold", "interpolate", "local_response_norm", "pixel_shuffle", "pixel_unshuffle", "unfold"]

Sizes = int | Sequence[int]
_MODES = {"nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2, 3), "linear": (1,), "bilinear": (2,),
          "trilinear": (3,), "bicubic": (2,)}  # for how many axes


@composed
@_wide
def interpolate(x: TensorLike, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None,
                mode: str = "nearest", align_corners: bool = False) -> Tensor:
    """Resize images (channels, height, width, batch), sequences or volumes, to a `size` or by a `scale_factor`.

    Modes are "nearest", "nearest-exact", "area", and by the number of axes "linear", "bilinear", "bicubic",
    "trilinear".

    `align_corners` leaves the first and last pixels where they are, instead of the edges of the image.
    Reference: PyTorch ``interpolate``, whose coordinates these are.

    >>> ag.ops.interpolate([[[1.0], [3.0]]], scale_factor=2, mode="linear").numpy().ravel().tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    x = as_tensor(x)
    axes, image = x.ndim - 2, x.shape[1:-1]
    if axes not in _MODES.get(mode, ()) or 0 in image:
        fitting = ", ".join(repr(name) for name, fits in _MODES.items() if axes in fits)
        raise ShapeError(f"interpolate: x is {x.shape} and mode is {mode!r:.60}; (channels, ..., batch) with pixels is "
                         f"required, and a mode for it{f': {fitting}' if fitting else ''}.")
    corners = true_or_false("interpolate", "align_corners", align_corners)
    if (size is None) == (scale_factor is None) or (corners and not mode.endswith(("linear", "cubic"))):
        raise ValueError(f"interpolate: size is {size}, scale_factor is {scale_factor} and align_corners is {corners}; "
                         f"give one of the first two, and align_corners to linear and bicubic modes only.")
    scales: Sequence[float | None] = [None] * axes
    if scale_factor is None:
        sizes = per_axis(size, axes, 1, "size", "interpolate")
    else:
        given = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * axes
        factors = [number_given("interpolate", "scale_factor", factor) for factor in given]
        if len(factors) != axes or not all(1 <= f * n < 1 << 31 for f, n in zip(factors, image, strict=True)):
            raise ValueError(f"interpolate: scale_factor is {scale_factor} and x is {x.shape}; a positive number is "
                             f"required, or one for each of {axes} axes, that leaves a pixel.")
        sizes, scales = tuple([floor(f * n) for f, n in zip(factors, image, strict=True)]), factors
    if mode == "area":
        return _adaptive("interpolate", True, x, axes, sizes)
    for axis, (out, factor) in enumerate(zip(sizes, scales, strict=True), 1):
        x = _resized(x, axis, out, factor, mode, corners)
    return x


def _resized(x: Tensor, axis: int, out: int, factor: float | None, mode: str, corners: bool) -> Tensor:
    """Resize one axis: sums of pixels that are taken from it, times weights."""
    n, kind = x.shape[axis], np.dtype(x.buffer.dtype.numpy_name).type
    copied = mode.endswith("linear") or (mode == "nearest" and x.ndim == 4)  # by PyTorch, whatever the factor
    if out == n and (copied or corners or factor in (None, 1.0)):
        return x
    step = kind((n - 1) / max(out - 1, 1)) if corners else kind(1 / factor) if factor else kind(n) / kind(out)
    places = np.arange(out, dtype=kind)
    if mode.startswith("nearest"):
        middle = kind(0.5 if mode == "nearest-exact" else 0.0)
        return taken(x, axis, np.minimum(np.floor((places + middle) * step).astype(int), n - 1))
    at = places * step if corners else (places + kind(0.5)) * step - kind(0.5)
    at = at if mode == "bicubic" else np.maximum(at, 0)
    first = np.minimum(np.floor(at).astype(int), n - 1)
    t = np.clip(at - first, 0, 1).astype(kind)
    terms = [(0, 1 - t), (1, t)] if mode != "bicubic" else [(-1, _far(1 + t)), (0, _near(t)), (1, _near(1 - t)),
                                                           (2, _far(2 - t))]
    y = None
    for offset, weight in terms:
        term = ag_mul(taken(x, axis, np.clip(first + offset, 0, n - 1)), beside(x, axis, weight))
        y = term if y is None else ag_add(y, term)
    return cast(Tensor, y)


def _near(t: Array) -> Array:
    """Return Keys' cubic convolution, with a = -0.75, up to a distance of 1."""
    return (1.25 * t - 2.25) * t * t + 1


def _far(t: Array) -> Array:
    """Return the same from a distance of 1 to 2."""
    return ((-0.75 * t + 3.75) * t - 6) * t + 3


def _factor(function: str, name: str, value: int) -> int:
    if not counts(value):
        raise ValueError(f"{function}: {name} is {value!r:.60}; a whole number of at least 1 is required.")
    return int(value)


@composed
def pixel_shuffle(x: TensorLike, upscale_factor: int) -> Tensor:
    """Make images of (channels * r * r, height, width, batch) larger by r, channels becoming pixels side by side.

    Reference: Shi et al., "Real-Time Single Image and Video Super-Resolution", CVPR 2016; PyTorch ``pixel_shuffle``.

    >>> ag.ops.pixel_shuffle([[[[1.0]]], [[[2.0]]], [[[3.0]]], [[[4.0]]]], 2).numpy()[0, :, :, 0].tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    x, r = as_tensor(x), _factor("pixel_shuffle", "upscale_factor", upscale_factor)
    if x.ndim != 4 or x.shape[0] % (r * r):
        raise ShapeError(f"pixel_shuffle: x is {x.shape}; (channels * {r * r}, height, width, batch) is required.")
    channels, high, wide, batch = x.shape
    apart = ag_transpose(ag_reshape(x, channels // (r * r), r, r, high, wide, batch), 0, 3, 1, 4, 2, 5)
    return ag_reshape(apart, channels // (r * r), high * r, wide * r, batch)


@composed
def pixel_unshuffle(x: TensorLike, downscale_factor: int) -> Tensor:
    """Make images smaller, pixels side by side becoming channels: the inverse of `pixel_shuffle`.

    >>> ag.ops.pixel_unshuffle([[[[1.0], [2.0]], [[3.0], [4.0]]]], 2).numpy().ravel().tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    x, r = as_tensor(x), _factor("pixel_unshuffle", "downscale_factor", downscale_factor)
    if x.ndim != 4 or x.shape[1] % r or x.shape[2] % r:
        raise ShapeError(f"pixel_unshuffle: x is {x.shape} and downscale_factor is {r}; (channels, height, width, "
                         f"batch) is required, and it must divide height and width.")
    channels, high, wide, batch = x.shape
    apart = ag_transpose(ag_reshape(x, channels, high // r, r, wide // r, r, batch), 0, 2, 4, 1, 3, 5)
    return ag_reshape(apart, channels * r * r, high // r, wide // r, batch)


# ---------------------------------------------------------------------------------------------- windows


@part_of("fold")
def _spread(run: Run, x: Buffer, axis: int, start: int, step: int, length: int) -> Result[int]:
    """Put the places of an axis into zeros, so far apart: the gradient of a slice, as an op."""
    return run(spread, x, axis=axis, start=start, step=step, length=length), x.shape[axis]


@_spread.vjp
def _spread_vjp(run: Run, g: Buffer, count: int, need: Need, axis: int, start: int, step: int,
                length: int) -> Cotangents:
    return (run(part, g, axis=axis, start=start, step=step, count=count),)


def _windows(function: str, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes, image: Shape
             ) -> tuple[Shape, Shape, Shape, list[list[slice]]]:
    """The kernel, the padded image, the places, and what each tap sees, as slices along both axes."""
    size, apart, zeros, steps = (per_axis(value, 2, least, name, function) for value, least, name in (
        (kernel, 1, "kernel"), (dilation, 1, "dilation"), (padding, 0, "padding"), (stride, 1, "stride")))
    whole = tuple([n + 2 * p for n, p in zip(image, zeros, strict=True)])
    grid = tuple([(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(whole, apart, size, steps, strict=True)])
    if min(grid) < 1:
        raise ShapeError(f"{function}: the kernel is {size} with dilation {apart} and the padded image has {whole}; it "
                         f"must fit.")
    taps = [[slice(i * d, i * d + (m - 1) * s + 1, s) for i in range(k)]
            for k, d, m, s in zip(size, apart, grid, steps, strict=True)]
    return zeros, whole, grid, taps


@composed
def unfold(x: TensorLike, kernel: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """Return the windows of images as columns: (channels * taps, places, batch), as convolutions see them.

    Reference: PyTorch ``unfold`` of `torch.nn.functional`.

    >>> ag.ops.unfold([[[[1.0], [2.0], [3.0]]]], (1, 2)).numpy()[:, :, 0].tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    x = as_tensor(x)
    if x.ndim != 4:
        raise ShapeError(f"unfold: x is {x.shape}; (channels, height, width, batch) is required.")
    zeros, _, grid, (down, across) = _windows("unfold", kernel, dilation, padding, stride, x.shape[1:3])
    x = pad(x, (zeros[1], zeros[1], zeros[0], zeros[0]))
    seen = stack([x[:, rows, columns] for rows, columns in product(down, across)], 1)
    return ag_reshape(seen, x.shape[0] * len(down) * len(across), prod(grid), x.shape[3])


@composed
def fold(x: TensorLike, output_size: Sizes, kernel: Sizes, dilation: Sizes = 1, padding: Sizes = 0,
         stride: Sizes = 1) -> Tensor:
    """Add up windows, columns of (channels * taps, places, batch), where they are in images of `output_size`.

    >>> ag.ops.fold([[[1.0], [2.0]], [[2.0], [3.0]]], (1, 3), (1, 2)).numpy().ravel().tolist()
    [1.0, 4.0, 3.0]
    """
    x, image = as_tensor(x), per_axis(output_size, 2, 1, "output_size", "fold")
    zeros, whole, grid, (down, across) = _windows("fold", kernel, dilation, padding, stride, image)
    taps = len(down) * len(across)
    if x.ndim != 3 or x.shape[0] % taps or x.shape[1] != prod(grid):
        raise ShapeError(f"fold: x is {x.shape}; (channels * {taps}, {prod(grid)}, batch) is required, as the kernel "
                         f"has {taps} taps and {prod(grid)} places.")
    apart, y = ag_reshape(x, x.shape[0] // taps, taps, *grid, x.shape[2]), None
    for i, (rows, columns) in enumerate(product(down, across)):
        high = _spread(apart[:, i], 1, rows.start, rows.step, whole[0])
        seen = _spread(high, 2, columns.start, columns.step, whole[1])
        y = seen if y is None else ag_add(y, seen)
    return cast(Tensor, y)[:, zeros[0] : zeros[0] + image[0], zeros[1] : zeros[1] + image[1]]


@composed
@_wide
def local_response_norm(x: TensorLike, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divide by ``(k + alpha * m) ** beta``, where m is the mean square of `size` channels around each.

    Reference: Krizhevsky, Sutskever, Hinton, "ImageNet Classification", 2012; PyTorch ``local_response_norm``.

    >>> ag.ops.local_response_norm([[[2.0]]], 1, alpha=1.0, beta=0.5, k=0.0).item()
    1.0
    """
    x, size = as_tensor(x), _factor("local_response_norm", "size", size)
    alpha, beta, k = (number_given("local_response_norm", name, value) for name, value in (
        ("alpha", alpha), ("beta", beta), ("k", k)))
    if x.ndim < 3:
        raise ShapeError(f"local_response_norm: x is {x.shape}; (channels, ..., batch) is required.")
    squares = pad(ag_reshape(square(x), 1, x.shape[0], -1), (size // 2, (size - 1) // 2))
    mean = ag_reshape(avg_pool1d(squares, size, 1), *x.shape)
    return ag_div(x, ag_pow(ag_add(ag_scale(mean, alpha), k), beta))


delattr(Tensor, "unfold")  # PyTorch's method of this name takes windows along one axis
