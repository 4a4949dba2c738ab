"""Matrix products: one, one with row sums, and a batch of them in pieces of the inner axis.

Ops ask the device's target how long the pieces are, and add them up.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ag.engine import shape as shapes
from ag.engine.cpu_threads import one_by_one
from ag.engine.kernels.elementwise import with_epilogue_pair
from ag.engine.kernels.reduce import sum
from ag.engine.primitive import Array, Call, primitive
from ag.engine.shape import Layout


def _layout(out: shapes.Shape, a: shapes.Shape, _b: shapes.Shape, *, ta: bool, tb: bool) -> Layout:
    (rows, cols), inner = out, a[0] if ta else a[1]
    lengths = (rows if ta else inner) | (inner if tb else cols) | cols  # of rows of both operands and of the product
    return {"rows": rows, "cols": cols, "inner": inner, "vector": not lengths & 3}


@with_epilogue_pair
@primitive(shapes.matmul, layout=_layout, bound=True)
def matmul(out: Array, a: Array, b: Array, *, ta: bool, tb: bool) -> Call:
    return partial(np.dot, a.T if ta else a, b.T if tb else b, out=out)


def _and_sums(a: shapes.Shape, b: shapes.Shape, *, ta: bool, tb: bool) -> tuple[shapes.Shape, shapes.Shape]:
    out = shapes.matmul(a, b, ta=ta, tb=tb)
    return out, (out[0], 1)


@primitive(_and_sums, outputs=2, bound=True, layout=lambda out, _sums, *xs, **flags: _layout(out, *xs, **flags))
def matmul_sums(out: Array, row_sums: Array, a: Array, b: Array, *, ta: bool, tb: bool) -> Call:
    # The product, and the sums of the rows of its first factor.
    multiply = matmul.bind(out, a, b, ta=ta, tb=tb)
    axis = 0 if ta else 1
    add_up = sum.bind(row_sums.T if ta else row_sums, a, axis=axis, chunk=a.shape[axis], scale=1.0)
    return partial(one_by_one, [multiply, add_up])


def _pieces(a: shapes.Shape, b: shapes.Shape, *, ta: bool, tb: bool, chunk: int) -> shapes.Shape:
    inner = a[1] if ta else a[2]
    return (max(1, -(-inner // chunk)), a[0], *shapes.matmul(a[1:], b[1:], ta=ta, tb=tb))


def _pieces_layout(out: shapes.Shape, a: shapes.Shape, b: shapes.Shape, *, ta: bool, tb: bool, chunk: int) -> Layout:
    one = _layout(out[2:], a[1:], b[1:], ta=ta, tb=tb)
    return {**one, "pieces": out[0], "batch": out[1], "vector": one["vector"] and not chunk & 3}


@primitive(_pieces, layout=_pieces_layout)
def batched_matmul(out: Array, a: Array, b: Array, *, ta: bool, tb: bool, chunk: int) -> None:
    # One product per matrix of the batch and piece of the inner axis.
    a, b = a.swapaxes(1, 2) if ta else a, b.swapaxes(1, 2) if tb else b
    for piece, first in zip(out, range(0, max(1, a.shape[2]), chunk), strict=True):
        np.matmul(a[:, :, first : first + chunk], b[:, first : first + chunk], out=piece)


def _of_samples_layout(out: shapes.Shape, a: shapes.Shape, _b: shapes.Shape, *, ta: bool, tb: bool) -> Layout:
    outer, rows, cols, samples = out
    return {"outer": outer, "rows": rows, "cols": cols, "inner": a[1] if ta else a[2], "samples": samples,
            "squares": outer * -(-rows // 4) * -(-cols // 4) * samples}


@primitive(lambda a, b, *, ta, tb: (a[0], *shapes.matmul(a[1:3], b[1:3], ta=ta, tb=tb), a[3]),
           layout=_of_samples_layout)
def sample_matmul(out: Array, a: Array, b: Array, *, ta: bool, tb: bool) -> None:
    # One product for each place of the first and the last axis.
    a, b = (x.transpose(0, 3, 2, 1) if t else x.transpose(0, 3, 1, 2) for x, t in ((a, ta), (b, tb)))
    out[...] = np.matmul(a, b).transpose(0, 2, 3, 1)
