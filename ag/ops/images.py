"""Functions of images (channels, height, width, batch): pooling, resizing, moving pixels, windows as columns.

Kernels pool two axes.  A sequence is an image of one row, and a volume is pooled slice by slice, then along the depth.
Windows that no kernel has are copied side by side first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from itertools import product
from math import ceil, floor, inf, prod
from typing import cast

import numpy as np

from ag.autograd.create import as_tensor
from ag.autograd.op import Cotangents, Need, Result, Run, composed, documented, operands_on_one_device, part_of
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.dtype import I32
from ag.engine.kernels.conv import avg_pool2d, avg_pool2d_grad, max_pool2d, max_pool2d_grad
from ag.engine.kernels.indexing import part, spread
from ag.engine.primitive import Array
from ag.engine.shape import Shape, Window, check_steps, per_axis, true_or_false
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add, ag_div, ag_mul, ag_pow, ag_scale
from ag.ops.compositions import _wide
from ag.ops.functions import square
from ag.ops.indexing import ag_reshape, ag_transpose
from ag.ops.reduce import ag_mean, argmax
from ag.ops.selection import chosen_by, gathered_by
from ag.ops.shapes import _count, expand, pad, repeat_interleave, stack

__all__ = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
           "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices",
           "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "ag_avg_pool2d", "ag_global_avg_pool",
           "ag_max_pool2d", "avg_pool1d", "avg_pool3d", "fold", "interpolate", "local_response_norm", "max_pool1d",
           "max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d", "max_pool3d_with_indices",
           "pixel_shuffle", "pixel_unshuffle", "unfold"]

Sizes = int | Sequence[int]
Places = int | None | Sequence[int | None]  # None keeps a size
Pooled = tuple[Tensor, Tensor, Sequence[Array]]  # the result, the images, and the pixels that each window sees
AXES = {1: "time", 2: "height, width", 3: "depth, height, width"}
_MODES = {"nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2, 3), "linear": (1,), "bilinear": (2,),
          "trilinear": (3,), "bicubic": (2,)}  # for how many axes


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


def beside(x: Tensor, axis: int, numbers: Array) -> Tensor:
    """Return constants along an axis of `x`."""
    dtype = x.buffer.dtype.wide
    shape = [len(numbers) if i == axis else 1 for i in range(x.ndim)]
    made = Tensor(x.buffer.backend.constant(numbers.astype(dtype.numpy_name).reshape(shape), dtype))
    return made if x.buffer.dtype is dtype else made.astype(x.dtype)


def taken(x: Tensor, axis: int, ids: Array) -> Tensor:
    """The places `ids` along an axis of `x`, which are constants."""
    n, steps = x.shape[axis], {*np.diff(ids).tolist()} or {1}
    if n and len(ids) % n == 0 and np.array_equal(ids, np.repeat(np.arange(n), len(ids) // n)):
        return repeat_interleave(x, len(ids) // n, axis) if len(ids) > n else x
    if len(steps) == 1 and min(steps) > 0:
        return x[(*(slice(None),) * axis, slice(int(ids[0]), int(ids[-1]) + 1, min(steps)))]
    return chosen_by(x, Tensor(x.buffer.backend.constant(ids.astype(np.int32), I32)), (axis, 1))


def _images(function: str, x: TensorLike, axes: int) -> Tensor:
    (x,) = operands_on_one_device(function, (x,))[1]
    if x.ndim != axes + 2:
        raise ShapeError(f"{function}: x is {x.shape}; (channels, {AXES[axes]}, batch) is required.")
    return x


def pool_window(function: str, axes: int, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
                dilation: Sizes = 1) -> list[Shape]:
    """Check the parameters of windows; return the size, stride, padding and dilation along each axis."""
    found = [per_axis(value, axes, least, name, function) for value, least, name in (
        (size, 1, "size"), (size if stride is None else stride, 1, "stride"), (padding, 0, "padding"),
        (dilation, 1, "dilation"))]
    if any(2 * p > d * (k - 1) + 1 for k, _, p, d in zip(*found, strict=True)):
        raise ValueError(f"{function}: padding is {padding} and size is {size}; padding may be at most half of the "
                         f"size, so that every window sees a pixel.")
    return found


def _seen(n: int, size: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> Array:
    """Return the pixels that each window sees along an axis; those below 0 and from `n` on are padding."""
    steps = (n + 2 * padding - dilation * (size - 1) - 1) / stride
    first = np.arange((ceil if ceil_mode else floor)(steps) + 1) * stride - padding
    return first[first < n][:, None] + np.arange(size) * dilation


def _windows(function: str, kernel: Shape, stride: Shape, padding: Shape) -> list[Window]:
    """Return the window along the last two axes, and that along the depth, if there is one."""
    lead = 3 - len(kernel)
    deep, rows, columns = zip((1,) * lead + kernel, (1,) * lead + stride, (0,) * lead + padding, strict=True)
    made = [Window(*zip(rows, columns, strict=True)), Window(*zip(deep, (1, 1, 0), strict=True))]
    for window in made:
        check_steps(window, 0, function)
    return made[: 2 if lead == 0 else 1]


def _launched(mean: bool, x: Tensor, windows: Sequence[Window]) -> Tensor:
    """Pool the last two axes of images by one launch, and the depth by another."""
    pool, (channels, *image, batch) = _avg_pool2d if mean else _max_pool2d, x.shape
    if len(image) == 2:
        return pool(x, windows[0])
    slices, high, wide = (1, 1, *image)[-3:]
    x = pool(ag_reshape(x, channels * slices, high, wide, batch), windows[0])
    _, down, across, _ = x.shape
    if len(image) == 1:
        return ag_reshape(x, channels, across, batch)
    x = pool(ag_reshape(x, channels, slices, down * across, batch), windows[1])
    return ag_reshape(x, channels, x.shape[1], down, across, batch)


def _by_taps(function: str, mean: bool, x: Tensor, seen: Sequence[Array]) -> Tensor:
    """Pool pixels that are copied side by side."""
    kernel = tuple([w.shape[1] for w in seen])
    windows = _windows(function, kernel, kernel, (0,) * len(kernel))
    return _launched(mean, _side_by_side(x, seen, 0.0 if mean else -inf), windows)


def _side_by_side(x: Tensor, seen: Sequence[Array], value: float) -> Tensor:
    """Copy the pixels of each window side by side, with a number for each that is outside of the image."""
    image = x.shape[1:-1]
    for axis, (w, n) in enumerate(zip(seen, image, strict=True), 1):
        outside = (w < 0) | (w >= n)
        if outside.any():
            x = pad(x, (0, 0) * (len(image) - axis) + (0, 1), value=value)
        x = taken(x, axis, np.where(outside, n, w).ravel())
    return x


def _divided(y: Tensor, image: Shape, seen: Sequence[Array], counted: Shape) -> Tensor:
    """Make means over the size of a window ones over its pixels, with so much padding around the image."""
    for axis, (w, n, p) in enumerate(zip(seen, image, counted, strict=True), 1):
        counts = ((w >= -p) & (w < n + p)).sum(1)
        y = y if (counts == w.shape[1]).all() else ag_mul(y, beside(y, axis, w.shape[1] / counts))
    return y


@lru_cache(maxsize=1024)
def _plan(function: str, image: Shape, size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes,
          ceil_mode: bool, counted: bool) -> tuple[list[Window], list[Array], Shape | None]:
    """Return the windows of a kernel, if one has them, the pixels that they see, and the padding that means count."""
    window = pool_window(function, len(image), size, stride, padding, dilation)
    more, counted = (true_or_false(function, name, value) for name, value in (
        ("ceil_mode", ceil_mode), ("count_include_pad", counted)))
    seen = [_seen(n, k, s, p, d, more) for n, k, s, p, d in zip(image, *window, strict=True)]
    if 0 in image or not all(map(len, seen)):
        covered = tuple([d * (k - 1) + 1 for k, _, _, d in zip(*window, strict=True)])
        raise ShapeError(f"{function}: the window covers {covered} pixels and the image has {image}, with padding "
                         f"{window[2]} on each side; the window must fit into the padded image, which must not be "
                         f"empty.")
    fits = set(window[3]) == {1} and all(w[-1, -1] < n + p for w, n, p in zip(seen, image, window[2], strict=True))
    pads = window[2] if counted else (0,) * len(image)
    return _windows(function, *window[:3]) if fits else [], seen, pads if more or not counted else None


def _pooled(function: str, mean: bool, x: TensorLike, axes: int, size: Sizes, stride: Sizes | None, padding: Sizes,
            dilation: Sizes, ceil_mode: bool, count_include_pad: bool = True) -> Pooled:
    x = _images(function, x, axes)
    given = function, x.shape[1:-1], size, stride, padding, dilation, ceil_mode, count_include_pad
    try:
        windows, seen, counted = _plan(*given)
    except TypeError:  # lists have no hash
        windows, seen, counted = _plan.__wrapped__(*given)
    y = _launched(mean, x, windows) if windows else _by_taps(function, mean, x, seen)
    return y if counted is None or not mean else _divided(y, x.shape[1:-1], seen, counted), x, seen


def _adaptive(function: str, mean: bool, x: TensorLike, axes: int, output_size: Places) -> Pooled:
    """Pool so that so many places are left: windows may overlap, and have two lengths."""
    x = _images(function, x, axes)
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * axes
    kept = [n if out is None else out for n, out in zip(x.shape[1:-1], given, strict=False)]
    sizes = per_axis((*kept, *given[axes:]), axes, 1, "output_size", function)
    if 0 in x.shape[1:-1]:
        raise ShapeError(f"{function}: x is {x.shape}; at least one pixel is required.")
    if mean and set(sizes) == {1}:
        return ag_mean(x, dim=tuple(range(1, axes + 1)), keepdim=True), x, ()
    seen = []
    for n, out in zip(x.shape[1:-1], sizes, strict=True):
        first, last = np.arange(out) * n // out, -(-np.arange(1, out + 1) * n // out)
        tap = np.arange((last - first).max())
        seen.append(np.where(tap < (last - first)[:, None], first[:, None] + tap, n))  # n: no pixel
    y = _by_taps(function, mean, x, seen)
    return _divided(y, x.shape[1:-1], seen, (0,) * axes) if mean else y, x, seen


def _places(x: Tensor, seen: Sequence[Array]) -> Tensor:
    """Return where the first maximum of each window is, counted row by row through the image."""
    axes, grid, place = len(seen), [n for w in seen for n in w.shape], np.zeros((), dtype=np.int32)
    for w, n in zip(seen, x.shape[1:-1], strict=True):
        place = place[..., None, None] * n + np.clip(w, 0, n - 1)
    out, taps = grid[::2], prod(grid[1::2])
    apart = ag_reshape(_side_by_side(x.detach(), seen, -inf), x.shape[0], *grid, x.shape[-1])
    order = [*range(2, 2 * axes + 1, 2), 0, *range(1, 2 * axes, 2), 2 * axes + 1]
    pixels = ag_reshape(ag_transpose(apart, *order), taps, x.shape[0], *out, x.shape[-1])
    first = argmax(pixels, 0, True)
    place = place.transpose([*range(1, 2 * axes, 2), *range(0, 2 * axes, 2)]).reshape(taps, 1, *out, 1)
    table = expand(Tensor(x.buffer.backend.constant(place.astype(np.int32), I32)), pixels.shape)
    return ag_reshape(gathered_by(table, first, 0), *first.shape[1:])


_WHAT = {"max_pool": "Largest value of every window, as `max_pool2d`",
         "avg_pool": "Mean of every window, as `avg_pool2d`",
         "adaptive_max_pool": "Largest value of windows that leave `output_size` places",
         "adaptive_avg_pool": "Mean of windows that leave `output_size` places"}


def _pooling(kind: str, axes: int, places: bool = False) -> Callable[..., Tensor]:
    """Make a public function of so many axes; its results may be beside their places in the image."""
    name = f"{kind}{axes}d{'_with_indices' if places else ''}"

    def found(y: Tensor, x: Tensor, seen: Sequence[Array]) -> object:
        return (y, _places(x, seen)) if places else y

    def max_pool(x: TensorLike, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
                 ceil_mode: bool = False) -> object:
        return found(*_pooled(name, False, x, axes, size, stride, padding, dilation, ceil_mode))

    def avg_pool(x: TensorLike, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True) -> object:
        return found(*_pooled(name, True, x, axes, size, stride, padding, 1, ceil_mode, count_include_pad))

    def adaptive_pool(x: TensorLike, output_size: Places) -> object:
        return found(*_adaptive(name, kind == "adaptive_avg_pool", x, axes, output_size))

    function: Callable[..., object] = {"max_pool": max_pool, "avg_pool": avg_pool}.get(kind, adaptive_pool)
    function.__name__ = function.__qualname__ = name
    function.__annotations__["return"] = "tuple[Tensor, Tensor]" if places else "Tensor"
    place = ", and its place in the image" if places else ""
    function.__doc__ = f"{_WHAT[kind]}{place}, of (channels, {AXES[axes]}, batch)."
    return cast("Callable[..., Tensor]", composed(function))


def _with_places(kind: str, axes: int) -> Callable[..., tuple[Tensor, Tensor]]:
    return cast("Callable[..., tuple[Tensor, Tensor]]", _pooling(kind, axes, places=True))


avg_pool1d, avg_pool3d = (_pooling("avg_pool", n) for n in (1, 3))
max_pool1d, max_pool3d = (_pooling("max_pool", n) for n in (1, 3))
max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = (
    _with_places("max_pool", n) for n in (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (_pooling("adaptive_avg_pool", n) for n in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (_pooling("adaptive_max_pool", n) for n in (1, 2, 3))
adaptive_max_pool1d_with_indices, adaptive_max_pool2d_with_indices, adaptive_max_pool3d_with_indices = (
    _with_places("adaptive_max_pool", n) for n in (1, 2, 3))


@documented
def ag_max_pool2d(x: TensorLike, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
                  ceil_mode: bool = False) -> Tensor:
    """Largest pixel of every window.

    The gradient goes to the first maximum of a window, row by row.  NaN is larger than any number.
    Reference: PyTorch ``max_pool2d``, whose layout is (batch, channels, height, width).

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)
    size : int or (int, int)
        Of the window; a pair is (height, width), here and below.
    stride, padding, dilation : int or (int, int), optional
        As of `ag_conv2d`; default stride: `size`.  Padding is at most half of `size`, and smaller than any pixel.
    ceil_mode : bool, optional
        Also pool a last window that begins on the image and ends behind it.

    Returns
    -------
    Tensor of shape (channels, places down, places across, batch), as of `ag_conv2d`

    >>> ag.ag_max_pool2d([[[[1.0], [2.0]], [[3.0], [4.0]]]], 2).item()
    4.0
    """
    return _pooled("ag_max_pool2d", False, x, 2, size, stride, padding, dilation, ceil_mode)[0]


@documented
def ag_avg_pool2d(x: TensorLike, size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
                  count_include_pad: bool = True) -> Tensor:
    """Mean of every window.

    Parameters
    ----------
    x : Tensor or array_like of shape (channels, height, width, batch)
    size : int or (int, int)
    stride, padding, ceil_mode : optional
        All four as of `ag_max_pool2d`, but padding is zeros.
    count_include_pad : bool, optional
        Divide every sum by the size of the window, or by how many pixels of the image it sees.

    Returns
    -------
    Tensor of shape (channels, places down, places across, batch)

    >>> ag.ag_avg_pool2d([[[[1.0], [2.0]], [[3.0], [4.0]]]], 2).item()
    2.5
    """
    return _pooled("ag_avg_pool2d", True, x, 2, size, stride, padding, 1, ceil_mode, count_include_pad)[0]


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


@composed
@_wide
def interpolate(x: TensorLike, size: Sizes | None = None, scale_factor: float | Sequence[float] | None = None,
                mode: str = "nearest", align_corners: bool = False) -> Tensor:
    """Resize images (channels, height, width, batch), sequences or volumes, to a `size` or by a `scale_factor`.

    Modes are "nearest", "nearest-exact", "area", and by the number of axes "linear", "bilinear", "bicubic",
    "trilinear".  With `align_corners` the first and last pixels stay where they are, instead of the image's edges.
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
        return _adaptive("interpolate", True, x, axes, sizes)[0]
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
    terms = [(k, _cubic(abs(t - k))) for k in range(-1, 3)] if mode == "bicubic" else [(0, 1 - t), (1, t)]
    return reduce(ag_add, (ag_mul(taken(x, axis, np.clip(first + offset, 0, n - 1)), beside(x, axis, weight))
                           for offset, weight in terms))


def _cubic(t: Array) -> Array:
    """Return Keys' cubic convolution, with a = -0.75, at distances up to 2."""
    return np.where(t <= 1, (1.25 * t - 2.25) * t * t + 1, ((-0.75 * t + 3.75) * t - 6) * t + 3)


@composed
def pixel_shuffle(x: TensorLike, upscale_factor: int) -> Tensor:
    """Make images of (channels * r * r, height, width, batch) larger by r, channels becoming pixels side by side.

    Reference: Shi et al., "Real-Time Single Image and Video Super-Resolution", CVPR 2016; PyTorch ``pixel_shuffle``.

    >>> ag.ops.pixel_shuffle([[[[1.0]]], [[[2.0]]], [[[3.0]]], [[[4.0]]]], 2).numpy()[0, :, :, 0].tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    x, r = as_tensor(x), _count("pixel_shuffle", "upscale_factor", upscale_factor)
    if x.ndim != 4 or x.shape[0] % (r * r):
        raise ShapeError(f"pixel_shuffle: x is {x.shape}; (channels * {r * r}, height, width, batch) is required.")
    channels, high, wide, batch = x.shape
    apart = ag_transpose(ag_reshape(x, channels // (r * r), r, r, high, wide, batch), 0, 3, 1, 4, 2, 5)
    return ag_reshape(apart, channels // (r * r), high * r, wide * r, batch)


@composed
def pixel_unshuffle(x: TensorLike, downscale_factor: int) -> Tensor:
    """Make images smaller, pixels side by side becoming channels: the inverse of `pixel_shuffle`."""
    x, r = as_tensor(x), _count("pixel_unshuffle", "downscale_factor", downscale_factor)
    if x.ndim != 4 or x.shape[1] % r or x.shape[2] % r:
        raise ShapeError(f"pixel_unshuffle: x is {x.shape} and downscale_factor is {r}; (channels, height, width, "
                         f"batch) is required, and it must divide height and width.")
    channels, high, wide, batch = x.shape
    apart = ag_transpose(ag_reshape(x, channels, high // r, r, wide // r, r, batch), 0, 2, 4, 1, 3, 5)
    return ag_reshape(apart, channels * r * r, high // r, wide // r, batch)


@part_of("fold")
def _spread(run: Run, x: Buffer, axis: int, start: int, step: int, length: int) -> Result[int]:
    """Put the places of an axis into zeros, so far apart: the gradient of a slice, as an op."""
    return run(spread, x, axis=axis, start=start, step=step, length=length), x.shape[axis]


@_spread.vjp
def _spread_vjp(run: Run, g: Buffer, count: int, need: Need, axis: int, start: int, step: int,
                length: int) -> Cotangents:
    return (run(part, g, axis=axis, start=start, step=step, count=count),)


def _taps(function: str, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes, image: Shape
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
    zeros, _, grid, (down, across) = _taps("unfold", kernel, dilation, padding, stride, x.shape[1:3])
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
    zeros, whole, grid, (down, across) = _taps("fold", kernel, dilation, padding, stride, image)
    taps = len(down) * len(across)
    if x.ndim != 3 or x.shape[0] % taps or x.shape[1] != prod(grid):
        raise ShapeError(f"fold: x is {x.shape}; (channels * {taps}, {prod(grid)}, batch) is required, as the kernel "
                         f"has {taps} taps and {prod(grid)} places.")
    apart = ag_reshape(x, x.shape[0] // taps, taps, *grid, x.shape[2])
    y = reduce(ag_add, (
        _spread(_spread(apart[:, i], 1, rows.start, rows.step, whole[0]), 2, columns.start, columns.step, whole[1])
        for i, (rows, columns) in enumerate(product(down, across))))
    return y[:, zeros[0] : zeros[0] + image[0], zeros[1] : zeros[1] + image[1]]


@composed
@_wide
def local_response_norm(x: TensorLike, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divide by ``(k + alpha * m) ** beta``, where m is the mean square of `size` channels around each.

    Reference: Krizhevsky, Sutskever, Hinton, "ImageNet Classification", 2012; PyTorch ``local_response_norm``.

    >>> ag.ops.local_response_norm([[[2.0]]], 1, alpha=1.0, beta=0.5, k=0.0).item()
    1.0
    """
    x, size = as_tensor(x), _count("local_response_norm", "size", size)
    alpha, beta, k = (number_given("local_response_norm", name, value) for name, value in (
        ("alpha", alpha), ("beta", beta), ("k", k)))
    if x.ndim < 3:
        raise ShapeError(f"local_response_norm: x is {x.shape}; (channels, ..., batch) is required.")
    squares = pad(ag_reshape(square(x), 1, x.shape[0], -1), (size // 2, (size - 1) // 2))
    mean = ag_reshape(avg_pool1d(squares, size, 1), *x.shape)
    return ag_div(x, ag_pow(ag_add(ag_scale(mean, alpha), k), beta))


delattr(Tensor, "unfold")  # PyTorch's method of this name takes windows along one axis
