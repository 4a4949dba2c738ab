"""Diagonals, products of all pairs, grids and blocks of matrices, which are the first two axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import cast

import numpy as np

from ag.autograd.create import as_tensor, filled
from ag.autograd.op import composed
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.shape import Shape, is_whole, normalize_axes, normalize_axis, whole_number
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_mul, ag_sub
from ag.ops.functions import eq, where
from ag.ops.indexing import ag_concat, ag_reshape, ag_transpose
from ag.ops.shapes import _cut, _places, expand, flip, swapaxes, unsqueeze
from ag.ops.statistics import norm

__all__ = ["block_diag", "cdist", "diag", "diagonal", "hsplit", "kron", "meshgrid", "outer", "rot90", "vsplit"]


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

    Reference: PyTorch ``diagonal``, where they are along the last axis.

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
    """Make a matrix with a vector on its diagonal, or return the diagonal of a matrix.  Reference: PyTorch ``diag``.

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
    """Multiply every element of a vector, or a column, with every one of another.  Reference: PyTorch ``outer``.

    >>> ag.ops.outer([1.0, 2.0], [3.0, 4.0]).numpy().tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    return ag_mul(unsqueeze(_vector("outer", a), 1), unsqueeze(_vector("outer", b), 0))


@composed
def kron(a: TensorLike, b: TensorLike) -> Tensor:
    """Put, in place of each element of a tensor, the product of it with another tensor.  Reference: PyTorch ``kron``.

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
    """Put matrices along a diagonal, with zeros beside them.  Reference: PyTorch ``block_diag``.

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
    """Turn by k right angles, from the first of two axes towards the second.  Reference: PyTorch ``rot90``.

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
    """Cut along the first axis, as `hsplit`.  Reference: PyTorch ``vsplit``."""
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


@composed
def cdist(a: TensorLike, b: TensorLike, p: float = 2.0) -> Tensor:
    """Distance, a p-norm, of each point to each of others; points are columns of features, a batch may follow.

    The differences of all pairs are in memory at once.
    Reference: PyTorch ``cdist``, whose points are rows.

    >>> ag.ops.cdist([[0.0, 3.0], [0.0, 4.0]], [[0.0], [0.0]]).numpy().tolist()
    [[0.0], [5.0]]
    """
    a, b = as_tensor(a), as_tensor(b)
    if a.ndim < 2 or a.ndim != b.ndim or a.shape[0] != b.shape[0]:
        raise ShapeError(f"cdist: points are {a.shape} and {b.shape}; (features, points, ...) with as many features "
                         f"are required.")
    return norm(ag_sub(unsqueeze(a, 2), unsqueeze(b, 1)), number_given("cdist", "p", p), 0)
