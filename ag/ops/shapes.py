"""Functions that move, repeat, join and cut elements, composed of slices, reshapes, transposes and broadcasting.

Matrices are the first two axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import cast

import numpy as np

from ag.autograd.create import as_tensor, filled
from ag.autograd.op import Cotangents, Elements, Need, Result, Run, composed, part_of
from ag.autograd.operands import lift, number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.device import default_backend
from ag.engine.dtype import F32, F64
from ag.engine.kernels import reduce as kernels
from ag.engine.shape import Shape, broadcast, counts, is_whole, normalize_axes, normalize_axis, whole_number
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_mul
from ag.ops.functions import eq, ge, where
from ag.ops.indexing import ag_concat, ag_reshape, ag_transpose

__all__ = ["block_diag", "broadcast_to", "chunk", "diag", "diagonal", "expand", "flip", "hsplit", "kron", "meshgrid",
           "movedim", "one_hot", "outer", "pad", "permute", "repeat", "repeat_interleave", "roll", "rot90", "split",
           "squeeze", "stack", "swapaxes", "tile", "tril", "triu", "unbind", "unsqueeze", "vsplit"]

Dims = int | Sequence[int]


def _numbers(function: str, name: str, given: tuple[int | Sequence[int], ...], least: int = 0) -> Shape:
    """Return whole numbers that were given one by one, or as one sequence."""
    values = cast(Sequence[int], given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given)
    if not all(is_whole(x) and int(x) >= least for x in values):
        raise ValueError(f"{function}: {name} is {values!r:.60}; whole numbers of at least {least} are required.")
    return tuple(map(int, values))


def _count(function: str, name: str, value: object) -> int:
    if not counts(value):
        raise ValueError(f"{function}: {name} is {value!r:.60}; a whole number of at least 1 is required.")
    return int(cast(int, value))


def _cut(x: Tensor, axis: int, start: int | None, stop: int | None, step: int = 1) -> Tensor:
    return x[(*(slice(None),) * axis, slice(start, stop, step))]


@part_of("expand")
def _expanded(run: Run, x: Elements, shape: Shape) -> Result[None]:
    return run(kernels.expand, x, shape=shape, factor=1.0), None


@_expanded.vjp
def _expanded_vjp(run: Run, g: Buffer, saved: None, need: Need, shape: Shape) -> Cotangents:
    return (g,)  # the tape adds up what was repeated


@composed
def expand(x: TensorLike, *sizes: int | Sequence[int]) -> Tensor:
    """Repeat axes of size 1, and put new ones in front; -1 keeps a size.

    >>> ag.ops.expand([[1.0], [2.0]], 2, 3).numpy().tolist()
    [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
    """
    x, wanted = as_tensor(x), _numbers("expand", "sizes", sizes, -1)
    kept = (0,) * (len(wanted) - x.ndim) + x.shape
    shape = tuple([kept[i] if n == -1 and i < len(kept) else n for i, n in enumerate(wanted)])
    if len(wanted) < x.ndim or broadcast(x.shape, shape) != shape:
        raise ShapeError(f"expand: x is {x.shape} and sizes {wanted}; each axis, from the last, must be equal or 1.")
    return x if shape == x.shape else _expanded(x, shape)


@composed
def broadcast_to(x: TensorLike, shape: Sequence[int]) -> Tensor:
    """Repeat axes of size 1 up to a shape, as `expand`."""
    return expand(x, tuple(shape))


@composed
def tile(x: TensorLike, *times: int | Sequence[int]) -> Tensor:
    """Lay copies side by side, so many along each axis, counted from the last.

    >>> ag.ops.tile([[1.0, 2.0]], 2, 2).numpy().tolist()
    [[1.0, 2.0, 1.0, 2.0], [1.0, 2.0, 1.0, 2.0]]
    """
    x, counted = as_tensor(x), _numbers("tile", "times", times)
    ndim = max(x.ndim, len(counted))
    shape, counted = (1,) * (ndim - x.ndim) + x.shape, (1,) * (ndim - len(counted)) + counted
    pairs = [n for pair in zip(counted, shape, strict=True) for n in pair]
    apart = ag_reshape(x, *[n for size in shape for n in (1, size)])
    return ag_reshape(expand(apart, tuple(pairs)), *[n * m for n, m in zip(counted, shape, strict=True)])


@composed
def repeat(x: TensorLike, *times: int | Sequence[int]) -> Tensor:
    """Lay copies side by side, as `tile`.  Reference: PyTorch ``Tensor.repeat``."""
    return tile(x, *times)


@composed
def repeat_interleave(x: TensorLike, repeats: int, dim: int = 0) -> Tensor:
    """Repeat each place along an axis.

    >>> ag.ops.repeat_interleave([[1.0, 2.0]], 2, dim=1).numpy().tolist()
    [[1.0, 1.0, 2.0, 2.0]]
    """
    x, (n,) = as_tensor(x), _numbers("repeat_interleave", "repeats", (repeats,))
    axis = normalize_axis(dim, x.ndim, "repeat_interleave")
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    return ag_reshape(expand(ag_reshape(x, *before, 1, *after), (*before, n, *after)),
                      *before[:-1], before[-1] * n, *after)


@composed
def flip(x: TensorLike, *dims: int | Sequence[int]) -> Tensor:
    """Turn axes round.

    >>> ag.ops.flip([[1.0, 2.0, 3.0]], 1).numpy().tolist()
    [[3.0, 2.0, 1.0]]
    """
    x = as_tensor(x)
    axes = normalize_axes(_numbers("flip", "dims", dims, -x.ndim), x.ndim, "flip")
    return x[tuple([slice(None, None, -1 if i in axes else 1) for i in range(x.ndim)])]


@composed
def roll(x: TensorLike, shifts: int, dim: int) -> Tensor:
    """Move elements along an axis by so many places; those behind the end come first.

    >>> ag.ops.roll([[1.0, 2.0, 3.0]], 1, 1).numpy().tolist()
    [[3.0, 1.0, 2.0]]
    """
    x = as_tensor(x)
    axis = normalize_axis(dim, x.ndim, "roll")
    (places,) = _numbers("roll", "shifts", (shifts,), -(1 << 62))
    first = -places % x.shape[axis] if x.shape[axis] else 0
    return ag_concat([_cut(x, axis, first, None), _cut(x, axis, None, first)], axis) if first else x


@composed
def permute(x: TensorLike, *dims: int | Sequence[int]) -> Tensor:
    """Order axes anew, as `transpose`."""
    x = as_tensor(x)
    return ag_transpose(x, *_numbers("permute", "dims", dims, -x.ndim))


@composed
def movedim(x: TensorLike, source: Dims, destination: Dims) -> Tensor:
    """Move an axis, or several, to other places.

    >>> ag.ops.movedim([[[1.0], [2.0]]], 0, -1).shape
    (2, 1, 1)
    """
    x = as_tensor(x)
    moved, places = ([normalize_axis(a, x.ndim, "movedim") for a in (given if isinstance(given, (tuple, list)) else
                                                                     (given,))] for given in (source, destination))
    if len(moved) != len(places) or not len({*moved}) == len({*places}) == len(moved):
        raise ShapeError(f"movedim: source is {source} and destination {destination}; as many different axes are "
                         f"required.")
    order = [axis for axis in range(x.ndim) if axis not in moved]
    for place, axis in sorted(zip(places, moved, strict=True)):
        order.insert(place, axis)
    return ag_transpose(x, *order)


@composed
def swapaxes(x: TensorLike, axis0: int, axis1: int) -> Tensor:
    """Exchange two axes."""
    x = as_tensor(x)
    order = list(range(x.ndim))
    a, b = (normalize_axis(i, x.ndim, "swapaxes") for i in (axis0, axis1))
    order[a], order[b] = b, a
    return ag_transpose(x, *order)


@composed
def squeeze(x: TensorLike, dim: int | Sequence[int] | None = None) -> Tensor:
    """Leave out axes of size 1, or those of them that are named.

    >>> ag.ops.squeeze([[1.0, 2.0]]).shape
    (2,)
    """
    x = as_tensor(x)
    axes = normalize_axes(None if dim is None else dim if isinstance(dim, int) else tuple(dim), x.ndim, "squeeze")
    return ag_reshape(x, *[n for i, n in enumerate(x.shape) if n != 1 or i not in axes])


@composed
def unsqueeze(x: TensorLike, dim: int) -> Tensor:
    """Put in an axis of size 1.

    >>> ag.ops.unsqueeze([[1.0, 2.0]], 0).shape
    (1, 1, 2)
    """
    x = as_tensor(x)
    axis = normalize_axis(dim, x.ndim + 1, "unsqueeze")
    return ag_reshape(x, *x.shape[:axis], 1, *x.shape[axis:])


@composed
def stack(tensors: Sequence[TensorLike], dim: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis.

    >>> ag.ops.stack([[[1.0]], [[2.0]]]).shape
    (2, 1, 1)
    """
    return ag_concat([unsqueeze(x, dim) for x in tensors], dim)


@composed
def split(x: TensorLike, size: Dims, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut along an axis into parts of one size, of which the last may be less, or of several.

    >>> [part.shape for part in ag.ops.split([[1.0, 2.0, 3.0]], 2, dim=1)]
    [(1, 2), (1, 1)]
    """
    x = as_tensor(x)
    axis = normalize_axis(dim, x.ndim, "split")
    n = x.shape[axis]
    if isinstance(size, (tuple, list)):
        sizes = _numbers("split", "size", (size,))
        if sum(sizes) != n:
            raise ShapeError(f"split: size is {sizes} and the axis has {n} places; parts must make up all.")
    elif not counts(size):
        raise ValueError(f"split: size is {size!r:.60}; a whole number from 1 on is required, or one for each part.")
    else:
        sizes = (int(cast(int, size)),) * -(-n // int(cast(int, size)))
    ends = [0, *np.cumsum(sizes).tolist()]
    return tuple([_cut(x, axis, first, last) for first, last in pairwise(ends)])


@composed
def chunk(x: TensorLike, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Cut along an axis into at most so many parts of one size, of which the last may be less."""
    x, parts = as_tensor(x), _count("chunk", "chunks", chunks)
    return split(x, max(1, -(-x.shape[normalize_axis(dim, x.ndim, "chunk")] // parts)), dim)


@composed
def unbind(x: TensorLike, dim: int = 0) -> tuple[Tensor, ...]:
    """Return the parts along an axis, which they lack.

    >>> [part.numpy().tolist() for part in ag.ops.unbind([[1.0, 2.0]], 1)]
    [[1.0], [2.0]]
    """
    x = as_tensor(x)
    axis = normalize_axis(dim, x.ndim, "unbind")
    return tuple([x[(*(slice(None),) * axis, i)] for i in range(x.shape[axis])])


@composed
def pad(x: TensorLike, widths: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    """Put elements around, in pairs of widths from the axis before the batch, which is last, to the first.

    Of images (channels, height, width, batch) that is before and behind the width, then the height, and so on;
    negative widths cut off.  The `mode` puts a number there ("constant"), the image mirrored at its edge ("reflect"),
    the edge ("replicate") or the other side ("circular").
    Reference: PyTorch ``pad``, whose images have their width last, where the batch is here.

    >>> ag.ops.pad([[1.0], [2.0]], (1, 0)).numpy().tolist()
    [[0.0], [1.0], [2.0]]
    """
    x, numbers = as_tensor(x), _numbers("pad", "widths", (tuple(widths),), -(1 << 31))
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ValueError(f"pad: mode is {mode!r:.60}; use 'constant', 'reflect', 'replicate' or 'circular'.")
    if len(numbers) % 2 or len(numbers) > 2 * (x.ndim - 1):
        raise ShapeError(f"pad: widths has {len(numbers)} numbers and x is {x.shape}; two for each axis but the batch "
                         f"are possible.")
    number = number_given("pad", "value", value)
    for k in range(len(numbers) // 2):
        axis, before, behind = x.ndim - 2 - k, *numbers[2 * k : 2 * k + 2]
        n = x.shape[axis]
        if min(before, behind) < 0 <= n + min(before, 0) + min(behind, 0):
            x, before, behind = _cut(x, axis, max(-before, 0), n + min(behind, 0)), max(before, 0), max(behind, 0)
            n = x.shape[axis]
        most = {"constant": before + behind, "reflect": n - 1, "replicate": (before + behind) * min(n, 1)}.get(mode, n)
        if min(before, behind) < 0 or max(before, behind) > most:
            raise ShapeError(f"pad: widths {before} and {behind} of an axis of {n} places; mode {mode!r} has at most "
                             f"{most}.")
        cut = partial(_cut, x, axis)
        shapes = [(*x.shape[:axis], width, *x.shape[axis + 1 :]) for width in (before, behind)]
        if mode == "constant":
            ends = [filled(shape, number, x.buffer.backend, x.buffer.dtype) for shape in shapes]
        elif mode == "reflect":
            ends = [flip(cut(1, before + 1), axis), flip(cut(n - 1 - behind, n - 1), axis)]
        elif mode == "replicate":
            ends = [expand(cut(0, 1), shapes[0]), expand(cut(n - 1, n), shapes[1])]
        else:
            ends = [cut(n - before, n), cut(0, behind)]
        parts = [part for part in (ends[0], x, ends[1]) if part.shape[axis]]
        x = ag_concat(parts, axis) if len(parts) > 1 else x
    return x


def _places(x: Tensor, count: int, axis: int, ndim: int) -> Tensor:
    """Return 0, 1, ... along an axis, beside a tensor."""
    shape = (*(1,) * axis, count, *(1,) * (ndim - axis - 1))
    dtype = x.buffer.dtype.wide if x.buffer.dtype.is_float else F32
    return Tensor(x.buffer.backend.constant(np.arange(count, dtype=dtype.numpy_name).reshape(shape), dtype))


@composed
def one_hot(ids: TensorLike, classes: int) -> Tensor:
    """Return a first axis of so many classes, 1 at the class of each id and 0 elsewhere; all 0 for other ids.

    >>> ag.ops.one_hot([0, 2], 3).numpy().tolist()
    [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    """
    count = _count("one_hot", "classes", classes)
    if not isinstance(ids, Tensor):  # as they are: a vector is no column, and 257 is itself, whatever the default type
        ids = lift(ids, default_backend(), F32, "one_hot")
    ids = ids if ids.buffer.dtype in (F32, F64) else ids.astype("f32")
    return eq(_places(ids, count, 0, ids.ndim + 1), unsqueeze(ids, 0)).astype("f32")


@composed
def tril(x: TensorLike, diagonal: int = 0) -> Tensor:
    """Keep the lower triangle of matrices, which are the first two axes; 0 above the diagonal.

    >>> ag.ops.tril([[1.0, 2.0], [3.0, 4.0]]).numpy().tolist()
    [[1.0, 0.0], [3.0, 4.0]]
    """
    return _triangle("tril", as_tensor(x), diagonal, True)


@composed
def triu(x: TensorLike, diagonal: int = 0) -> Tensor:
    """Keep the upper triangle of matrices, as `tril`; 0 below the diagonal."""
    return _triangle("triu", as_tensor(x), diagonal, False)


def _triangle(function: str, x: Tensor, diagonal: int, lower: bool) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(f"{function}: x is {x.shape}; matrices along the first two axes are required.")
    if not is_whole(diagonal):
        raise ValueError(f"{function}: diagonal is {diagonal!r:.60}; a whole number is required.")
    rows, columns = _places(x, x.shape[0], 0, x.ndim), _places(x, x.shape[1], 1, x.ndim)
    kept = ge(rows + float(diagonal), columns) if lower else ge(columns, rows + float(diagonal))
    return where(kept, x, 0.0)


def _vector(function: str, x: TensorLike) -> Tensor:
    """Return a vector, also of a column."""
    x = as_tensor(x)
    if x.ndim != 1 and (x.ndim != 2 or x.shape[1] != 1):
        raise ShapeError(f"{function}: an operand is {x.shape}; a vector or a column is required.")
    return x if x.ndim == 1 else ag_reshape(x, x.size)


def _zeros(x: Tensor, shape: Shape) -> Tensor:
    return filled(shape, 0.0, x.buffer.backend, x.buffer.dtype)


@composed
def diagonal(x: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the diagonals of matrices along a first axis; with an offset those above, or below, the main one.

    >>> ag.ops.diagonal([[1.0, 2.0], [3.0, 4.0]]).numpy().tolist()
    [1.0, 4.0]
    """
    x, above = as_tensor(x), whole_number("diagonal", "offset", offset)
    down, across = (normalize_axis(dim, x.ndim, "diagonal") for dim in (dim1, dim2))
    normalize_axes((down, across), x.ndim, "diagonal")  # which differ
    others = [a for a in range(x.ndim) if a not in (down, across)]
    rows, columns = x.shape[down], x.shape[across]
    count = max(0, min(rows - max(0, -above), columns - max(0, above)))
    first, step = max(0, above) + max(0, -above) * columns, columns + 1
    apart = ag_reshape(ag_transpose(x, down, across, *others), rows * columns, *[x.shape[a] for a in others])
    return _cut(apart, 0, first, first + (count - 1) * step + 1, step) if count else apart[:0]


@composed
def diag(x: TensorLike, diagonal: int = 0) -> Tensor:
    """Make a matrix with a vector on its diagonal, or return the diagonal of a matrix.

    >>> ag.ops.diag([1.0, 2.0]).numpy().tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    x = x if isinstance(x, Tensor) or np.ndim(x) != 1 else _vector("diag", x)
    x, above = as_tensor(x), whole_number("diag", "diagonal", diagonal)
    if x.ndim == 2 and x.shape[1] == 1 < x.shape[0]:
        raise ShapeError(f"diag: x is {x.shape}, a column; reshape it to ({x.shape[0]},) for a matrix with this "
                         f"diagonal, or write diagonal(x) for its own.")
    if x.ndim != 1:
        return _diagonal(x, above)
    x = ag_concat([_zeros(x, (max(0, -above),)), x, _zeros(x, (max(0, above),))], 0)
    return where(eq(_places(x, x.size, 0, 2) + float(above), _places(x, x.size, 1, 2)), unsqueeze(x, 1), 0.0)


_diagonal = diagonal


@composed
def outer(a: TensorLike, b: TensorLike) -> Tensor:
    """Multiply every element of a vector, or a column, with every one of another."""
    return ag_mul(unsqueeze(_vector("outer", a), 1), unsqueeze(_vector("outer", b), 0))


@composed
def kron(a: TensorLike, b: TensorLike) -> Tensor:
    """Put, in place of each element of a tensor, the product of it with another tensor.

    >>> ag.ops.kron([[1.0, 10.0]], [[2.0, 3.0]]).numpy().tolist()
    [[2.0, 3.0, 20.0, 30.0]]
    """
    a, b = as_tensor(a), as_tensor(b)
    ndim = max(a.ndim, b.ndim)
    outside, inside = ((1,) * (ndim - x.ndim) + x.shape for x in (a, b))
    product = ag_mul(ag_reshape(a, *[n for size in outside for n in (size, 1)]),
                     ag_reshape(b, *[n for size in inside for n in (1, size)]))
    return ag_reshape(product, *[n * m for n, m in zip(outside, inside, strict=True)])


@composed
def block_diag(*tensors: TensorLike) -> Tensor:
    """Put matrices along a diagonal, with zeros beside them.

    >>> ag.ops.block_diag([[1.0, 2.0]], [[3.0]]).numpy().tolist()
    [[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]
    """
    if not tensors or any(np.ndim(x) != 2 for x in tensors):
        given = ", ".join(str(np.shape(x)) for x in tensors) or "none"
        raise ShapeError(f"block_diag: tensors are {given}; matrices are required.")
    blocks = [as_tensor(x) for x in tensors]
    ends = [0, *accumulate(x.shape[1] for x in blocks)]
    return ag_concat([ag_concat([_zeros(x, (x.shape[0], first)), x, _zeros(x, (x.shape[0], ends[-1] - last))], 1)
                      for x, (first, last) in zip(blocks, pairwise(ends), strict=True)], 0)


@composed
def meshgrid(*tensors: TensorLike, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Make of vectors the coordinates of a grid: a tensor for each, in which it runs along its axis.

    >>> [x.numpy().tolist() for x in ag.ops.meshgrid([1.0, 2.0], [3.0, 4.0])]
    [[[1.0, 1.0], [2.0, 2.0]], [[3.0, 4.0], [3.0, 4.0]]]
    """
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: indexing is {indexing!r:.60}; use 'ij' or 'xy'.")
    vectors = [_vector("meshgrid", ag_reshape(x, 1) if np.ndim(x) == 0 else x) for x in tensors]
    shape, last = [x.size for x in vectors], len(vectors) - 1
    grids = [expand(ag_reshape(x, *(1,) * i, -1, *(1,) * (last - i)), shape) for i, x in enumerate(vectors)]
    return tuple([swapaxes(x, 0, 1) for x in grids] if indexing == "xy" and last > 0 else grids)


@composed
def rot90(x: TensorLike, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Turn by k right angles, from the first of two axes towards the second.

    >>> ag.ops.rot90([[1.0, 2.0], [3.0, 4.0]]).numpy().tolist()
    [[2.0, 4.0], [1.0, 3.0]]
    """
    x, turns = as_tensor(x), whole_number("rot90", "k", k) % 4
    axes = tuple([normalize_axis(dim, x.ndim, "rot90") for dim in dims])
    if len({*axes}) != 2:
        raise ShapeError(f"rot90: dims are {tuple(dims)}; two axes are required.")
    for _ in range(turns):
        x = swapaxes(flip(x, axes[1]), *axes)
    return x


@composed
def hsplit(x: TensorLike, sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Cut along the second axis, or the only one, into so many equal parts, or before these places.

    >>> [part.shape for part in ag.ops.hsplit([[1.0, 2.0, 3.0]], [1])]
    [(1, 1), (1, 2)]
    """
    x = as_tensor(x)
    return _parted("hsplit", x, sections, 1 if x.ndim > 1 else 0)


@composed
def vsplit(x: TensorLike, sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Cut along the first axis, as `hsplit`."""
    return _parted("vsplit", as_tensor(x), sections, 0)


def _parted(function: str, x: Tensor, sections: int | Sequence[int], dim: int) -> tuple[Tensor, ...]:
    if x.ndim <= dim or (function == "vsplit" and x.ndim < 2):
        raise ShapeError(f"{function}: x is {x.shape}; it has too few axes.")
    if is_whole(sections):
        count, size = cast(int, sections), x.shape[dim]
        if count < 1 or size % count:
            raise ShapeError(f"{function}: sections is {count} and the axis has {size} places; a divisor is required.")
        sections = range(size // count, size // count * count, size // count) if size else [0] * (count - 1)
    places = [whole_number(function, "a place", i) for i in cast("Sequence[int]", sections)]
    return tuple([_cut(x, dim, *ends) for ends in pairwise([None, *places, None])])
