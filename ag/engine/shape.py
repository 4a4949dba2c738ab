"""Arithmetic on shapes and windows: pure functions of sizes.

Layouts (`*_layout`) are the few numbers by which a kernel finds its elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import Any, NamedTuple, SupportsIndex, cast

from ag.engine.dtype import DType
from ag.errors import ShapeError

Shape = tuple[int, ...]
Layout = dict[str, int | tuple[int, ...]]

MAX_DIMS = 8  # axes left after merging; 3 x 8 stride words and 4 more fit the 32 push-constant words
_TOO_MANY = 1 << 63  # elements along an axis
CHAIN_DIMS = 3  # likewise of chains of functions, which have more operands
_WORKGROUP, _SHARES = 128, 16  # invocations, and how many of them add up a long piece together


def nbytes_of(shape: Shape, dtype: DType) -> int:
    """Return the bytes of a dense array, in whole words."""
    return (prod(shape) * dtype.itemsize + 3) & ~3


def row_major_strides(shape: Shape) -> Shape:
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def whole_number(function: str, argument: str, value: object) -> int:
    """`value` as an int, or an error that names the argument."""
    if isinstance(value, bool) or not is_whole(value):
        given = f"a {type(value).__name__} of shape {value.shape}" if hasattr(value, "shape") else f"{value!r:.80}"
        raise TypeError(f"{function}: {argument} is {given}; a whole number is required.")
    return index(cast(SupportsIndex, value))


def counts(*numbers: object, least: int = 1) -> bool:
    """Return whether all are whole numbers of at least `least`; True and False are none."""
    try:
        return all(is_whole(n) and not isinstance(n, bool) and least <= index(cast(SupportsIndex, n)) < _TOO_MANY
                   for n in numbers)
    except TypeError:  # numpy's arrays have the method, whatever they hold
        return False


def true_or_false(function: str, argument: str, value: Any) -> bool:
    """`value` as a bool, or an error that names the argument."""
    if type(value) is bool:  # first, as ops ask
        return value
    of_numpy = getattr(value, "dtype", None) == "bool" and value.shape == ()
    if not of_numpy and not (is_whole(value) and value in (0, 1)):
        raise TypeError(f"{function}: {argument} is a {type(value).__name__}; True or False is required.")
    return bool(value)


def is_whole(value: object) -> bool:
    """Return whether it is a whole number, numpy's or Python's; arrays have an __index__, too."""
    return type(value) is int or (  # asking a protocol takes microseconds
        isinstance(value, SupportsIndex) and not isinstance(value, type) and not (
            hasattr(value, "shape") and value.shape))


# ---------------------------------------------------------------------------------------------- axes


def normalize_axis(axis: int, ndim: int, function: str) -> int:
    """`axis` counted from the front; negative axes count from the end."""
    if type(axis) is not int:
        axis = whole_number(function, "dim", axis)
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{function}: dim {axis} of a tensor with {ndim} axes; dim must be in {-ndim}..{ndim - 1}. "
                         f"Dims count from 0.")
    return axis % ndim


def along(function: str, dim: int, axis: int | None) -> int:
    """The axis that is meant: `axis`, numpy's name, if it is given, else `dim`, whose default is -1."""
    if axis is not None and dim != -1:
        raise TypeError(f"{function}: dim is {dim} and axis {axis}, which mean the same; give one of them.")
    return dim if axis is None else axis


def normalize_axes(axes: int | Sequence[int] | None, ndim: int, function: str) -> Shape:
    """A sorted tuple of distinct axes; None means all of them."""
    if axes is None:
        return tuple(range(ndim))
    given = tuple(axes) if isinstance(axes, (tuple, list)) else (cast(int, axes),)
    if ndim == 0 and len(given) == 1 and type(given[0]) is int and given[0] in (0, -1):
        return ()  # one number has such an axis in NumPy and PyTorch, too
    found = sorted(normalize_axis(a, ndim, function) for a in given)
    if len(set(found)) != len(found):
        raise ShapeError(f"{function}: dim {given} names an axis twice; each axis may be given once.")
    return tuple(found)


# ---------------------------------------------------------------------------------------------- shape rules


def same(first: Shape, *_others: Shape, **_params: object) -> Shape:
    """The shape of the first operand."""
    return first


@lru_cache(maxsize=4096)
def broadcast(*shapes: Shape) -> Shape:
    """numpy's broadcasting rule, any rank, both ways; but two operands, a vector and a column, make no matrix."""
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    if len(shapes) == 2:
        _refuse_outer(*sorted(shapes, key=len))
    ndim = max(len(s) for s in shapes)
    out = []
    for column in zip(*[(1,) * (ndim - len(s)) + s for s in shapes], strict=True):
        sizes = {n for n in column if n != 1}
        if len(sizes) > 1:
            raise ShapeError(f"shapes {' and '.join(map(str, shapes))} do not broadcast; "
                             f"each axis, counted from the last, must be equal or 1.")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


def _refuse_outer(small: Shape, big: Shape) -> None:
    """Raise if a vector and columns are combined: one of both was meant to be of the other kind."""
    if len(small) == 1 < len(big) and small[0] > 1 == big[-1] and prod(big) > 1:
        raise ShapeError(f"shapes {small} and {big} do not broadcast, as one has one axis and the other is a column; "
                         f"reshape the first to {(*small, 1)}, or to {(1, *small)} if every pair is meant.")


@lru_cache(maxsize=4096)
def broadcast_axes(small: Shape, big: Shape) -> Shape:
    """The axes of `big` along which `small` was repeated."""
    lead = len(big) - len(small)
    return tuple(range(lead)) + tuple(i + lead for i, n in enumerate(small) if n == 1 and big[i + lead] != 1)


def summed(shape: Shape, *, axis: int, chunk: int, **_params: object) -> Shape:
    """`shape` with `axis` cut into pieces of `chunk` that each become one element."""
    return (*shape[:axis], -(-shape[axis] // chunk) if chunk else 1, *shape[axis + 1 :])


def permuted(shape: Shape, *, axes: Shape) -> Shape:
    return tuple(shape[a] for a in axes)


def matmul(a: Shape, b: Shape, *, ta: bool = False, tb: bool = False) -> Shape:
    """Shape of ``op(A) @ op(B)`` where op transposes if the flag is set."""
    return (a[1] if ta else a[0], b[0] if tb else b[1])


def reshaped(shape: Shape, new: Sequence[int], function: str) -> Shape:
    """`new` with its one -1, if any, filled in."""
    if not _INT.issuperset(map(type, new)):
        new = [whole_number(function, "a size", n) for n in new]
    return _reshaped(shape, tuple(new), function)


_INT = frozenset({int})


@lru_cache(maxsize=4096)
def _reshaped(shape: Shape, new: Shape, function: str) -> Shape:
    """`reshaped` of sizes that are known to be whole numbers."""
    size = prod(shape)
    unknown = [i for i, n in enumerate(new) if n == -1]
    known = prod(n for n in new if n != -1)
    if len(unknown) == 1 and known > 0 and size % known == 0:
        out = list(new)
        out[unknown[0]] = size // known
        return tuple(out)
    if unknown or known != size or any(n < 0 for n in new):
        raise ShapeError(f"{function}: {shape} holds {size} elements and cannot become {new}; "
                         f"the sizes must multiply to {size}, with at most one -1.")
    return new


# ---------------------------------------------------------------------------------------------- kernel layouts


def elementwise_layout(first: Shape, *_shapes: Shape, **_params: object) -> Layout:
    """One invocation per element of the first operand."""
    return {"n": prod(first)}


def axis_layout(_out: Shape, x: Shape, *_others: Shape, axis: int, **_params: object) -> Layout:
    """`x` seen as ``[outer, length, inner]`` with `axis` in the middle."""
    return {"outer": prod(x[:axis]), "length": x[axis], "inner": prod(x[axis + 1 :])}


def sum_layout(out: Shape, x: Shape, *, axis: int, chunk: int, **params: object) -> Layout:
    """`axis_layout`, the pieces of the axis, and the invocations that share one: short ones have one, for the order."""
    shares = 1 if min(chunk, x[axis]) <= _SHARES else _SHARES
    return {**axis_layout(out, x, axis=axis), "pieces": out[axis], **columns_of(shares)}


def columns_of(shares: int) -> Layout:
    """Give the invocations per column and the columns per workgroup, as in shaders/shares.glsl."""
    return {"shares": shares, "columns": _WORKGROUP // shares}


def broadcast_layout(out: Shape, a: Shape, b: Shape) -> Layout:
    """Element strides of `a` and `b` along the axes of `out`, adjacent axes merged where both allow it."""
    return _strided_layout(out, {"a": _strides_in(out, a), "b": _strides_in(out, b)})


def chain_axes(out: Shape, operands: Sequence[Shape]) -> tuple[Shape, list[Shape]] | None:
    """Sizes and each operand's strides along the merged axes of `out`; None if they are more than a chain can have."""
    if len(out) > MAX_DIMS:
        return None
    shape, strides = _merged(out, *[_strides_in(out, x) for x in operands])
    return (shape, strides) if len(shape) <= CHAIN_DIMS else None


def chain_layout(out: Shape, operands: dict[str, Shape]) -> Layout:
    if chain_axes(out, list(operands.values())) is None:
        raise ShapeError(f"shape {out} needs more than {CHAIN_DIMS} axes in a chain of functions.")
    return _strided_layout(out, {name: _strides_in(out, x) for name, x in operands.items()}, CHAIN_DIMS)


def expand_layout(out: Shape, x: Shape, **_params: object) -> Layout:
    """Element strides of `x` along the axes of `out`, 0 where `x` is repeated."""
    return _strided_layout(out, {"x": _strides_in(out, x)})


def permute_layout(out: Shape, x: Shape, *, axes: Shape) -> Layout:
    """Element strides of `x` in the order in which `out` walks it."""
    strides = row_major_strides(x)
    return _strided_layout(out, {"x": tuple(strides[a] for a in axes)})


def _strided_layout(out: Shape, operands: dict[str, Shape], length: int = MAX_DIMS) -> Layout:
    """The axes that are left of `out`, and along them the strides of named operands; rows are so long."""
    shape, strides = _merged(out, *operands.values())
    rows = {"shape": shape, **{f"{name}_stride": s for name, s in zip(operands, strides, strict=True)}}
    padded = {name: row + (0,) * (length - len(row)) for name, row in rows.items()}
    return {"n": prod(out), "ndim": len(shape), **padded}


def _strides_in(out: Shape, x: Shape) -> Shape:
    lead = len(out) - len(x)
    return (0,) * lead + tuple(0 if n == 1 else s for n, s in zip(x, row_major_strides(x), strict=True))


def _merged(out: Shape, *strides: Shape) -> tuple[Shape, list[Shape]]:
    """Drop axes of size 1 and merge neighbours that every operand walks as one."""
    axes: list[tuple[int, list[int]]] = []  # size and, per operand, stride; outermost first
    for i, n in enumerate(out):
        if n == 1:
            continue
        step = [s[i] for s in strides]
        if axes and all(before == after * n for before, after in zip(axes[-1][1], step, strict=True)):
            axes[-1] = (axes[-1][0] * n, step)
        else:
            axes.append((n, step))
    if len(axes) > MAX_DIMS:
        raise ShapeError(f"shape {out} needs {len(axes)} axes in a kernel and {MAX_DIMS} are supported; "
                         f"reshape neighbouring axes into one first.")
    return tuple(n for n, _ in axes), [tuple(step[k] for _, step in axes) for k in range(len(strides))]


Pair = tuple[int, int]
_MOST_STEPS = 65_535  # of all loops of an invocation together: one driver silently ends them there


class Window(NamedTuple):
    """A window and how it moves, each as (height, width)."""

    kernel: Pair
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    @property
    def extent(self) -> Pair:
        """Pixels from the first to the last tap."""
        high, wide = (d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        return high, wide


def per_axis(value: object, count: int, least: int, name: str, function: str) -> Shape:
    """An integer for all axes of an image, or one for each of the `count` axes, as a tuple."""
    try:
        values = value if isinstance(value, (tuple, list)) else (value,) * count
        given = [index(cast(SupportsIndex, n)) for n in values]
    except (TypeError, ValueError):
        given = []
    if len(given) != count or min(given) < least or max(given) >= 1 << 31:  # kernels count in 32 bits
        parts = {1: "", 2: ", or a pair (height, width) of them"}.get(count, f", or {count} of them")
        raise ValueError(f"{function}: {name} is {value!r:.80}; an integer of at least {least} is required{parts}.")
    return tuple(given)


def pair(value: object, least: int, name: str, function: str) -> Pair:
    """An integer for both directions, or a pair (height, width), as a pair."""
    high, wide = per_axis(value, 2, least, name, function)
    return high, wide


def places(image: Shape, window: Window) -> Pair:
    """Count the places that a window has on an image, down and across."""
    padded = tuple(n + 2 * p for n, p in zip(image, window.padding, strict=True))
    if 0 in image or any(e > n for e, n in zip(window.extent, padded, strict=True)):
        raise ShapeError(f"the window covers {window.extent} pixels and the image has {image}, with "
                         f"padding {padded}; the window must fit into the padded image, which must not be empty.")
    high, wide = ((n - e) // s + 1 for n, e, s in zip(padded, window.extent, window.stride, strict=True))
    return high, wide


def taps(image: Shape, grid: Shape, window: Window) -> Iterator[tuple[Pair, tuple[slice, slice], tuple[slice, slice]]]:
    """Each tap that sees pixels, with the places from which it does, and these pixels: slices of equal counts."""
    for i in range(window.kernel[0]):
        for j in range(window.kernel[1]):
            down, across = (_seen(image[a], grid[a], window, a, tap) for a, tap in enumerate((i, j)))
            if down and across:
                yield (i, j), (down[0], across[0]), (down[1], across[1])


def _seen(pixels: int, count: int, window: Window, axis: int, tap: int) -> tuple[slice, slice] | None:
    """Along one axis: the places from which a tap looks at pixels, and these pixels."""
    step, first = window.stride[axis], tap * window.dilation[axis] - window.padding[axis]  # seen from place 0
    start = max(0, -(first // step))
    stop = min(count, (pixels - 1 - first) // step + 1)
    if start >= stop:
        return None
    return slice(start, stop), slice(first + start * step, first + (stop - 1) * step + 1, step)


def window_layout(image: Shape, seen: Shape, window: Window, elements: int) -> Layout:
    """Give the sizes for kernels over windows; `image` and `seen` are the tensors under and above them."""
    return {"n": elements, "batch": image[3], "image": image[1:3], "places": seen[1:3], **window._asdict()}


def check_steps(window: Window, depth: int, function: str) -> None:
    """Refuse loops over all taps and, inside, `depth` channels that a kernel cannot finish."""
    if prod(window.kernel) * (depth + 2) > _MOST_STEPS:
        raise ShapeError(f"{function}: a window of {window.kernel} over {depth} channels takes more than {_MOST_STEPS} "
                         f"steps, the most that a kernel can make; use a smaller window or more groups.")
