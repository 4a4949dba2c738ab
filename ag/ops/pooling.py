"""Pooling: the largest or the mean value of each window, of images, sequences and volumes.

Kernels pool two axes.  A sequence is an image of one row, and a volume is pooled slice by slice, then along the depth.
Where windows are dilated, or of several lengths, their pixels are copied side by side first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import NamedTuple

import numpy as np

from ag.autograd.op import Cotangents, Need, Result, Run, composed, documented, operands_on_one_device, part_of
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, I32
from ag.engine.kernels.conv import avg_pool2d, avg_pool2d_grad, max_pool2d, max_pool2d_grad
from ag.engine.primitive import Array
from ag.engine.shape import Pair, Shape, Window, check_steps, per_axis, true_or_false
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_mul, ag_scale
from ag.ops.elementwise import ag_pow
from ag.ops.functions import ne, where
from ag.ops.indexing import _lookup, ag_reshape
from ag.ops.reduce import ag_mean
from ag.ops.shapes import movedim, pad, repeat_interleave

__all__ = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
           "adaptive_max_pool2d", "adaptive_max_pool3d", "ag_avg_pool2d", "ag_global_avg_pool", "ag_max_pool2d",
           "avg_pool1d", "avg_pool3d", "lp_pool1d", "lp_pool2d", "max_pool1d", "max_pool3d"]

Sizes = int | Sequence[int]
Places = int | None | Sequence[int | None]  # of adaptive pooling; None keeps a size
_AXES = {1: "time", 2: "height, width", 3: "depth, height, width"}


@part_of("ag_max_pool2d")
def _max_pool2d(run: Run, x: Buffer, window: Window) -> Result[tuple[Buffer, Shape]]:
    out, tap = run(max_pool2d, x, window=window)
    return out, (tap, x.shape[1:3])


@_max_pool2d.vjp
def _max_pool2d_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Shape], need: Need, window: Window) -> Cotangents:
    return (run(max_pool2d_grad, saved[0], g, window=window, image=saved[1]),)


@part_of("ag_avg_pool2d")
def _avg_pool2d(run: Run, x: Buffer, window: Window) -> Result[Shape]:
    return run(avg_pool2d, x, window=window), x.shape[1:3]


@_avg_pool2d.vjp
def _avg_pool2d_vjp(run: Run, g: Buffer, image: Shape, need: Need, window: Window) -> Cotangents:
    return (run(avg_pool2d_grad, g, window=window, image=image),)


Pool = Callable[[Tensor, Window], Tensor]


class Geometry(NamedTuple):
    """Windows of pooling along each axis."""

    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape

    @property
    def extent(self) -> Shape:
        """Pixels from the first to the last tap."""
        return tuple([d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True)])

    def missing(self, image: Shape) -> Shape:
        """Return the pixels behind an image that a last window needs which begins on it, or in the zeros before it."""
        rows = []
        for n, e, s, p in zip(image, self.extent, self.stride, self.padding, strict=True):
            steps = -(-(n + 2 * p - e) // s)
            steps -= steps * s >= n + p
            rows.append(max(0, steps * s + e - n - 2 * p))
        return tuple(rows)


def pool_geometry(function: str, axes: int, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                  dilation: Sizes = 1) -> Geometry:
    """Check the parameters of windows."""
    found = Geometry(*(per_axis(value, axes, least, name, function) for value, least, name in (
        (size, 1, "size"), (size if stride is None else stride, 1, "stride"), (padding, 0, "padding"),
        (dilation, 1, "dilation"))))
    if any(2 * p > n for p, n in zip(found.padding, found.extent, strict=True)):
        raise ValueError(f"{function}: padding is {padding} and size is {size}; padding may be at most half of the "
                         f"size, so that every window sees a pixel.")
    return found


def _images(function: str, x: TensorLike, axes: int) -> Tensor:
    (x,) = operands_on_one_device(function, (x,))[1]
    if x.ndim != axes + 2:
        raise ShapeError(f"{function}: x is {x.shape}; (channels, {_AXES[axes]}, batch) is required.")
    return x


def _viewed(x: Tensor, *shape: int) -> Tensor:
    return x if x.shape == shape else ag_reshape(x, *shape)


def _pooled(function: str, pool: Pool, x: Tensor, kernel: Shape, stride: Shape, padding: Shape) -> Tensor:
    """Pool the last two axes of images by one launch, and the depth, if there is one, by another."""
    channels, *image, batch = x.shape
    lead = 3 - len(image)
    slices, high, wide = (1,) * lead + tuple(image)
    deep, *others = zip((1,) * lead + kernel, (1,) * lead + stride, (0,) * lead + padding, strict=True)

    def launched(x: Tensor, rows: Shape, columns: Shape) -> Tensor:
        window = Window(*((a, b) for a, b in zip(rows, columns, strict=True)))
        check_steps(window, 0, function)
        return pool(x, window)

    y = launched(_viewed(x, channels * slices, high, wide, batch), *others)
    down, across = y.shape[1:3]
    if lead == 0:
        y = launched(_viewed(y, channels, slices, down * across, batch), deep, (1, 1, 0))
        slices = y.shape[1]
    return _viewed(y, channels, *(slices, down, across)[lead:], batch)


def _around(x: Tensor, before: Shape, behind: Shape, value: float) -> Tensor:
    """`x` with a number before and behind each axis of its images."""
    widths = [n for pair in zip(reversed(before), reversed(behind), strict=True) for n in pair]
    return pad(x, widths, value=value) if any(widths) else x


def beside(x: Tensor, axis: int, numbers: Array) -> Tensor:
    """Return constants along an axis of `x`."""
    shape = [1] * x.ndim
    shape[axis] = len(numbers)
    dtype = F32 if x.buffer.dtype.is_half else x.buffer.dtype
    made = Tensor(x.buffer.backend.constant(numbers.astype(dtype.numpy_name).reshape(shape), dtype))
    return made.astype(x.dtype) if x.buffer.dtype.is_half else made


def taken(x: Tensor, axis: int, ids: Array) -> Tensor:
    """The places `ids` along an axis of `x`, which are constants."""
    n, steps = x.shape[axis], {*np.diff(ids).tolist()} or {1}
    if n and len(ids) % n == 0 and np.array_equal(ids, np.repeat(np.arange(n), len(ids) // n)):
        return repeat_interleave(x, len(ids) // n, axis) if len(ids) > n else x
    if len(steps) == 1 and min(steps) > 0:
        return x[(*(slice(None),) * axis, slice(int(ids[0]), int(ids[-1]) + 1, min(steps)))]
    last = movedim(x, axis, -1)
    ids_there = Tensor(x.buffer.backend.constant(ids.astype(np.int32), I32))
    found = _lookup(ag_reshape(last, -1, n), ids_there)
    return movedim(ag_reshape(found, *last.shape[:-1], len(ids)), -1, axis)


def _largest(function: str, x: TensorLike, axes: int, size: Sizes, stride: Sizes | None, padding: Sizes,
             dilation: Sizes, ceil_mode: bool) -> Tensor:
    x, geometry = _images(function, x, axes), pool_geometry(function, axes, size, stride, padding, dilation)
    kernel, steps, zeros, apart = geometry
    more = geometry.missing(x.shape[1:-1]) if true_or_false(function, "ceil_mode", ceil_mode) else (0,) * axes
    if set(apart) == {1}:
        return _pooled(function, _max_pool2d, _around(x, (0,) * axes, more, -inf), kernel, steps, zeros)
    x = _around(x, zeros, tuple(map(sum, zip(zeros, more, strict=True))), -inf)
    for axis, (k, s, d, extent) in enumerate(zip(kernel, steps, apart, geometry.extent, strict=True), 1):
        if x.shape[axis] < extent:
            raise ShapeError(f"{function}: the window covers {geometry.extent} pixels and the padded image has "
                             f"{x.shape[1:-1]}; it must fit.")
        first = np.arange(0, x.shape[axis] - extent + 1, s)
        x = taken(x, axis, (first[:, None] + np.arange(k) * d).ravel())
    return _pooled(function, _max_pool2d, x, kernel, kernel, (0,) * axes)


def _averaged(function: str, x: TensorLike, axes: int, size: Sizes, stride: Sizes | None, padding: Sizes,
              ceil_mode: bool, count_include_pad: bool) -> Tensor:
    x, geometry = _images(function, x, axes), pool_geometry(function, axes, size, stride, padding)
    image, (kernel, steps, zeros, _) = x.shape[1:-1], geometry
    more = geometry.missing(image) if true_or_false(function, "ceil_mode", ceil_mode) else (0,) * axes
    counted = zeros if true_or_false(function, "count_include_pad", count_include_pad) else (0,) * axes
    y = _pooled(function, _avg_pool2d, _around(x, (0,) * axes, more, 0.0), kernel, steps, zeros)
    for axis, (n, k, s, p, c) in enumerate(zip(image, kernel, steps, zeros, counted, strict=True), 1):
        first = np.arange(y.shape[axis]) * s - p
        counts = np.minimum(first + k, n + c) - np.maximum(first, -c)
        y = y if (counts == k).all() else ag_mul(y, beside(y, axis, k / counts))
    return y


def _adaptive(function: str, x: TensorLike, axes: int, output_size: Places, largest: bool) -> Tensor:
    """Pool so that so many places are left: windows may overlap, and have two lengths."""
    x = _images(function, x, axes)
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * axes
    kept = [n if out is None else out for n, out in zip(x.shape[1:-1], given, strict=False)]
    sizes = per_axis((*kept, *given[axes:]), axes, 1, "output_size", function)
    if 0 in x.shape[1:-1]:
        raise ShapeError(f"{function}: x is {x.shape}; at least one pixel is required.")
    if not largest and set(sizes) == {1}:
        return ag_mean(x, dim=tuple(range(1, axes + 1)), keepdim=True)
    kernel, factors = [], {}
    for axis, out in enumerate(sizes, 1):
        n = x.shape[axis]
        first, last = np.arange(out) * n // out, -(-np.arange(1, out + 1) * n // out)
        counts = last - first
        kernel.append(int(counts.max()))
        if n % out:
            tap = np.arange(kernel[-1])
            within = tap < counts[:, None]
            outside = (counts - 1)[:, None] if largest else n - first[:, None]  # the window's last pixel, or a zero
            x = _around(x, (0,) * axes, tuple([int(a == axis and not (largest or within.all()))
                                               for a in range(1, axes + 1)]), 0.0)
            x = taken(x, axis, (first[:, None] + np.where(within, tap, outside)).ravel())
            factors[axis] = kernel[-1] / counts
    y = _pooled(function, _max_pool2d if largest else _avg_pool2d, x, tuple(kernel), tuple(kernel), (0,) * axes)
    for axis, factor in factors.items() if not largest else ():
        y = y if (factor == 1).all() else ag_mul(y, beside(y, axis, factor))
    return y


def _power_mean(function: str, x: TensorLike, axes: int, norm_type: float, size: Sizes, stride: Sizes | None,
                ceil_mode: bool) -> Tensor:
    p, count = number_given(function, "norm_type", norm_type), prod(per_axis(size, axes, 1, "size", function))
    if not 0 < p < inf:
        raise ValueError(f"{function}: norm_type is {p}; a positive number is required.")
    total = ag_scale(_averaged(function, ag_pow(x, p), axes, size, stride, 0, ceil_mode, True), float(count))
    some = ne(total, 0.0)  # or the root would send back infinity
    return where(some, ag_pow(where(some, total, 1.0), 1 / p), 0.0)


@documented
def ag_max_pool2d(x: TensorLike, size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
                  dilation: int | Pair = 1, ceil_mode: bool = False) -> Tensor:
    """Largest pixel of every window.

    The gradient goes to the first maximum of a window, row by row.  NaN is larger than any number.
    Reference: PyTorch ``max_pool2d``, whose layout is (batch, channels, height, width).

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)
    size : int or (int, int)
        Of the window; a pair is (height, width), here and below.
    stride : int or (int, int), optional
        Pixels from one place of the window to the next; default: `size`.
    padding : int or (int, int), optional
        Pixels around the image, on each side, that are smaller than any other; at most half of `size`.
    dilation : int or (int, int), optional
        Pixels from one tap of the window to the next.
    ceil_mode : bool, optional
        Also pool a last window that begins on the image and ends behind it.

    Returns
    -------
    Tensor of shape (channels, places down, places across, batch)
        ``places = (pixels + 2 * padding - dilation * (size - 1) - 1) // stride + 1``.

    >>> ag.ag_max_pool2d([[[[1.0], [2.0]], [[3.0], [4.0]]]], 2).item()
    4.0
    """
    return _largest("ag_max_pool2d", x, 2, size, stride, padding, dilation, ceil_mode)


@documented
def ag_avg_pool2d(x: TensorLike, size: int | Pair, stride: int | Pair | None = None, padding: int | Pair = 0,
                  ceil_mode: bool = False, count_include_pad: bool = True) -> Tensor:
    """Mean of every window.

    Reference: PyTorch ``avg_pool2d``, whose layout is (batch, channels, height, width).

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)
    size : int or (int, int)
    stride, padding, ceil_mode : optional
        All four as of `ag_max_pool2d`, but padding is zeros.
    count_include_pad : bool, optional
        Whether padding counts, so that sums are divided by the size of the window, or pixels alone.

    Returns
    -------
    Tensor of shape (channels, places down, places across, batch)

    >>> ag.ag_avg_pool2d([[[[1.0], [2.0]], [[3.0], [4.0]]]], 2).item()
    2.5
    """
    return _averaged("ag_avg_pool2d", x, 2, size, stride, padding, ceil_mode, count_include_pad)


@composed
def max_pool1d(x: TensorLike, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
               ceil_mode: bool = False) -> Tensor:
    """Largest value of every window of sequences (channels, time, batch), as `max_pool2d`.

    Reference: PyTorch ``max_pool1d``.

    Examples
    --------
    >>> ag.ops.max_pool1d([[[1.0], [3.0], [2.0], [4.0]]], 2).numpy().ravel().tolist()
    [3.0, 4.0]
    """
    return _largest("max_pool1d", x, 1, size, stride, padding, dilation, ceil_mode)


@composed
def max_pool3d(x: TensorLike, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
               ceil_mode: bool = False) -> Tensor:
    """Largest value of every window of volumes (channels, depth, height, width, batch), as `max_pool2d`.

    Reference: PyTorch ``max_pool3d``.
    """
    return _largest("max_pool3d", x, 3, size, stride, padding, dilation, ceil_mode)


@composed
def avg_pool1d(x: TensorLike, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Tensor:
    """Mean of every window of sequences (channels, time, batch), as `avg_pool2d`.

    Reference: PyTorch ``avg_pool1d``.

    Examples
    --------
    >>> ag.ops.avg_pool1d([[[1.0], [3.0], [2.0], [4.0]]], 2).numpy().ravel().tolist()
    [2.0, 3.0]
    """
    return _averaged("avg_pool1d", x, 1, size, stride, padding, ceil_mode, count_include_pad)


@composed
def avg_pool3d(x: TensorLike, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
               count_include_pad: bool = True) -> Tensor:
    """Mean of every window of volumes (channels, depth, height, width, batch), as `avg_pool2d`.

    Reference: PyTorch ``avg_pool3d``.
    """
    return _averaged("avg_pool3d", x, 3, size, stride, padding, ceil_mode, count_include_pad)


@composed
def adaptive_avg_pool1d(x: TensorLike, output_size: Places) -> Tensor:
    """Mean of windows of sequences (channels, time, batch), chosen so that so many places are left.

    Reference: PyTorch ``adaptive_avg_pool1d``.

    Examples
    --------
    >>> ag.ops.adaptive_avg_pool1d([[[1.0], [2.0], [6.0]]], 2).numpy().ravel().tolist()
    [1.5, 4.0]
    """
    return _adaptive("adaptive_avg_pool1d", x, 1, output_size, False)


@composed
def adaptive_avg_pool2d(x: TensorLike, output_size: Places) -> Tensor:
    """Mean of windows of images (channels, height, width, batch), so that (height, width) places are left.

    Reference: PyTorch ``adaptive_avg_pool2d``.

    Examples
    --------
    >>> import numpy as np
    >>> ag.ops.adaptive_avg_pool2d(np.ones((3, 7, 9, 2)), (2, None)).shape
    (3, 2, 9, 2)
    """
    return _adaptive("adaptive_avg_pool2d", x, 2, output_size, False)


@composed
def adaptive_avg_pool3d(x: TensorLike, output_size: Places) -> Tensor:
    """Mean of windows of volumes (channels, depth, height, width, batch), as `adaptive_avg_pool2d`.

    Reference: PyTorch ``adaptive_avg_pool3d``.
    """
    return _adaptive("adaptive_avg_pool3d", x, 3, output_size, False)


@composed
def adaptive_max_pool1d(x: TensorLike, output_size: Places) -> Tensor:
    """Largest value of windows of sequences (channels, time, batch), as `adaptive_avg_pool1d`.

    Reference: PyTorch ``adaptive_max_pool1d``.
    """
    return _adaptive("adaptive_max_pool1d", x, 1, output_size, True)


@composed
def adaptive_max_pool2d(x: TensorLike, output_size: Places) -> Tensor:
    """Largest value of windows of images (channels, height, width, batch), as `adaptive_avg_pool2d`.

    Reference: PyTorch ``adaptive_max_pool2d``.
    """
    return _adaptive("adaptive_max_pool2d", x, 2, output_size, True)


@composed
def adaptive_max_pool3d(x: TensorLike, output_size: Places) -> Tensor:
    """Largest value of windows of volumes (channels, depth, height, width, batch), as `adaptive_avg_pool2d`.

    Reference: PyTorch ``adaptive_max_pool3d``.
    """
    return _adaptive("adaptive_max_pool3d", x, 3, output_size, True)


@composed
def lp_pool1d(x: TensorLike, norm_type: float, size: Sizes, stride: Sizes | None = None,
              ceil_mode: bool = False) -> Tensor:
    """Root of the sum of powers `norm_type` in every window of sequences (channels, time, batch).

    Reference: PyTorch ``lp_pool1d``.

    Examples
    --------
    >>> ag.ops.lp_pool1d([[[3.0], [4.0]]], 2.0, 2).item()
    5.0
    """
    return _power_mean("lp_pool1d", x, 1, norm_type, size, stride, ceil_mode)


@composed
def lp_pool2d(x: TensorLike, norm_type: float, size: Sizes, stride: Sizes | None = None,
              ceil_mode: bool = False) -> Tensor:
    """Root of the sum of powers `norm_type` in every window of images (channels, height, width, batch).

    Reference: PyTorch ``lp_pool2d``.
    """
    return _power_mean("lp_pool2d", x, 2, norm_type, size, stride, ceil_mode)


@documented
def ag_global_avg_pool(x: TensorLike) -> Tensor:
    """Mean of every image: one number per channel and sample.

    Lin, Chen, Yan, "Network In Network", ICLR 2014; PyTorch ``adaptive_avg_pool2d(x, 1)``, which keeps the axes.

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)

    Returns
    -------
    Tensor of shape (channels, batch)

    >>> ag.ag_global_avg_pool([[[[1.0], [3.0]]]]).numpy().tolist()
    [[2.0]]
    """
    images = _images("ag_global_avg_pool", x, 2)
    if 0 in images.shape[1:3]:
        raise ShapeError(f"ag_global_avg_pool: x is {images.shape}; a mean needs at least one pixel.")
    return ag_mean(images, dim=(1, 2))
