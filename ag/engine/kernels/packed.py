"""Products with packed matrices, and rows of packed tables; results have the bits of those of the float32 numbers.

The words of a matrix come behind the operand whose type the result has.
"""

from __future__ import annotations

import numpy as np

from ag.engine import shape as shapes
from ag.engine.kernels.elementwise import with_epilogue_pair
from ag.engine.kernels.indexing import NOTHING
from ag.engine.kernels.matmul import batched_matmul, matmul
from ag.engine.kernels.packing import PACKINGS
from ag.engine.primitive import Array, primitive
from ag.engine.shape import Layout, Shape
from ag.errors import ShapeError


def _planes(packing: str, rows: int, inner: int) -> Layout:
    """Return the number of the packing, and where the planes behind the first begin, 0 for those it does not have."""
    found = PACKINGS[packing]
    return {"type": found.number, "planes": (*found.starts(rows, inner)[1:-1], 0, 0, 0)[:3]}


def _of_packed(b: Shape, words: Shape, *, packing: str, rows: int, inner: int, ta: bool) -> Shape:
    held, wanted = PACKINGS[packing].starts(*((inner, rows) if ta else (rows, inner)))[-1:], words
    if held != wanted:
        raise ShapeError(f"a matrix in {packing} has {wanted} words; {held} are required.")
    return shapes.matmul((rows, inner), b, ta=False, tb=False)


def _layout(out: Shape, b: Shape, _words: Shape, *, packing: str, rows: int, inner: int, ta: bool) -> Layout:
    return {"cols": out[1], "tb": False, "vector": not out[1] & 3,
            **_planes(packing, *((inner, rows) if ta else (rows, inner)))}


def _unpacked(b: Array, words: Array, packing: str, rows: int, inner: int, ta: bool) -> Array:
    found = PACKINGS[packing].unpack(words, *((inner, rows) if ta else (rows, inner)))
    return found.astype(b.dtype, copy=False)


@with_epilogue_pair
@primitive(_of_packed, layout=_layout)
def packed_matmul(out: Array, b: Array, words: Array, *, packing: str, rows: int, inner: int, ta: bool) -> None:
    # out[rows, cols] = A b, of a packed matrix A[rows, inner], or of its transpose with `ta`
    matmul.reference(out, _unpacked(b, words, packing, rows, inner, ta), b, ta=ta, tb=False)


def _pieces(b: Shape, words: Shape, *, packing: str, rows: int, inner: int, ta: bool, chunk: int) -> Shape:
    one = _of_packed(b, words, packing=packing, rows=rows, inner=inner, ta=ta)
    return max(1, -(-inner // chunk)), *one


@primitive(_pieces, layout=lambda out, *given, chunk, **params: {"pieces": out[0],
                                                                 **_layout(out[1:], *given, **params)})
def packed_matmul_pieces(out: Array, b: Array, words: Array, *, packing: str, rows: int, inner: int, ta: bool,
                         chunk: int) -> None:
    # The product as one of each piece of the inner axis, of `chunk` places: a multiple of 32.
    a = _unpacked(b, words, packing, rows, inner, ta)
    batched_matmul.reference(out[:, None], a[None], b[None], ta=ta, tb=False, chunk=chunk)


def _rows_layout(out: Shape, _words: Shape, _ids: Shape, *, packing: str, length: int, features: int) -> Layout:
    return {"places": out[1], **_planes(packing, length, features)}


@primitive(lambda _words, ids, *, packing, length, features: (features, ids[0]), layout=_rows_layout)
def gather_rows(out: Array, words: Array, ids: Array, *, packing: str, length: int, features: int) -> None:
    # out[f, p] = the packed table[ids[p], f] of `length` rows; 0 for NOTHING, and NaN for other ids that are no place
    table = PACKINGS[packing].unpack(words, length, features)
    inside = (ids >= 0) & (ids < length)
    out[...] = np.where(ids == NOTHING, np.float32(0), np.float32(np.nan))
    if length:
        np.copyto(out, table[np.where(inside, ids, 0)].T, where=inside)
