"""Rows of the case table: Einstein's sums and products of matrices whose samples are the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from table.rows import Array, Bad, Row, case

import ag
from ag import ops

# An equation and its operands: in matrices' order, to be permuted, without matrices, with diagonals and sizes of 1
SUMS = [
    ("mkb,knb->mnb", (5, 4, 20), (4, 3, 20)), ("mkb,nkb->mnb", (5, 4, 3), (6, 4, 3)),
    ("kmb,knb->nmb", (4, 5, 9), (4, 3, 9)),
    ("hdtb,hdsb->htsb", (2, 3, 4, 9), (2, 3, 6, 9)), ("htsb,hdsb->hdtb", (2, 5, 6, 3), (2, 3, 6, 3)),
    ("bij,bjk->bik", (3, 4, 5), (3, 5, 6)), ("ijk,jl->il", (2, 3, 4), (3, 5)), ("ij,jk->ki", (3, 4), (4, 5)),
    ("abc,cbd->abd", (3, 4, 5), (5, 4, 6)), ("ijb,ijb->b", (5, 4, 7), (5, 4, 7)), ("ij,kl->ijkl", (2, 3), (4, 5)),
    ("ij,ij->", (3, 4), (3, 4)), ("ijb,kb->kb", (2, 3, 4), (5, 4)), ("...ij,...jk->...ik", (2, 3, 4, 5), (3, 5, 6)),
    ("iij,kj->ik", (3, 3, 4), (5, 4)), ("bij,bjk->bik", (3, 1, 5), (3, 5, 4)), ("bij,bjk->bik", (1, 2, 5), (3, 5, 4)),
    ("ab,bc->ac", (3, 0), (0, 2)), ("mkb,knb->mnb", (2, 3, 0), (3, 4, 0)), ("ij,jk", (3, 4), (4, 5))]


def magnitudes(equation: str, *xs: Array) -> Any:
    return np.einsum(equation, *map(np.abs, xs))


def row(equation: str, *shapes: tuple[int, ...], bad: Any = ()) -> Row:
    return Row("einsum", lambda *xs: np.einsum(equation, *xs), [case(*shapes)], ulps=1, bad=bad, label=f"({equation})",
               call=lambda *xs: ops.einsum(equation, *xs), terms=lambda *xs: 64,
               size=lambda *xs: magnitudes(equation, *xs))


def product(name: str, equation: str, *cases: Any, call: Any = None, bad: Any = ()) -> Row:
    return Row(name, lambda *xs, **_: np.einsum(equation, *xs), cases, ulps=1, call=call or getattr(ops, name), bad=bad,
               terms=lambda *_, **__: 64, size=lambda *xs, **_: magnitudes(equation, *xs))


BATCH = case((5, 4, 20), (4, 3, 20)), case((1, 1, 1), (1, 1, 1)), case((33, 17, 2), (17, 35, 2)), case(
    (7, 40, 33), (40, 6, 33)), case((100, 90, 3), (90, 95, 3))
unlike = Bad("sizes that differ", [(3, 4)], lambda x: ops.einsum("ij,jk->ik", x, x), ag.ShapeError,
             ["einsum: axis 'j' of 'ij,jk->ik' has 4 places and then 3"])
ROWS = [
    *(row(*given, bad=[unlike] if i == 0 else ()) for i, given in enumerate(dict.fromkeys(SUMS))),
    Row("einsum", lambda a, b, c: a @ b @ c, [case((3, 4), (4, 5), (5, 6))], ulps=1, label="(three)",
        size=lambda a, b, c: abs(a) @ abs(b) @ abs(c), terms=lambda *_: 64,
        call=lambda *xs: ops.einsum("ij,jk,kl->il", *xs), bad=[
            Bad("too few operands", [(3, 4)], lambda x: ops.einsum("ij,jk->ik", x), ValueError,
                ["einsum: ", "names 2 operands and 1 were given"]),
            Bad("letters for other axes", [(3, 4)], lambda x: ops.einsum("ijk->i", x), ag.ShapeError,
                ["einsum: 'ijk'", "3 axes", "(3, 4)"]),
            Bad("a letter from nowhere", [(3, 4)], lambda x: ops.einsum("ij->k", x), ValueError,
                ["einsum: the result of 'ij->k' is 'k'"]),
            Bad("no letters", [(3, 4)], lambda x: ops.einsum("i$", x), ValueError, ["einsum: equation is 'i$'"])]),
    product("bmm", "mkb,knb->mnb", *BATCH, bad=[
        Bad("matrices without a batch", [(3, 4)], lambda x: ops.bmm(x, x), ag.ShapeError,
            ["bmm: a is (3, 4)", "batch"]),
        Bad("matrices that do not fit", [(3, 4, 2)], lambda x: ops.bmm(x, x), ag.ShapeError,
            ["bmm: a is (3, 4, 2) and b is (3, 4, 2)"])]),
    Row("baddbmm", lambda x, a, b, beta=1.0, alpha=1.0: beta * x + alpha * np.einsum("mkb,knb->mnb", a, b),
        [case((5, 3, 20), (5, 4, 20), (4, 3, 20)), case((1, 3, 1), (5, 4, 2), (4, 3, 2), beta=0.5, alpha=-2.0)], ulps=4,
        terms=lambda *_, **__: 64, size=lambda x, a, b, **_: 2 * (abs(x) + np.einsum("mkb,knb->mnb", abs(a), abs(b))),
        call=ops.baddbmm),
    product("tensordot", "ijk,jkl->il", case((2, 3, 4), (3, 4, 5))),
    Row("tensordot", lambda a, b: np.tensordot(a, b, ([0, 1], [2, 1])), [case((2, 3, 4), (5, 3, 2))], ulps=1,
        label="_pairs",
        terms=lambda *_: 64, size=lambda a, b: np.tensordot(abs(a), abs(b), ([0, 1], [2, 1])),
        call=lambda a, b: ops.tensordot(a, b, ([0, 1], [2, 1])), bad=[
            Bad("more axes than there are", [(3, 4)], lambda x: ops.tensordot(x, x, 3), ValueError,
                ["tensordot: dims is 3", "from 0 to 2"])]),
    product("inner", "ijk,lk->ijl", case((2, 3, 4), (5, 4))), product("mv", "ij,j->i", case((3, 4), (4,))),
    Row("bilinear", lambda x1, x2, w, b: np.einsum("ib,oij,jb->ob", x1, w, x2) + b,
        [case((3, 5), (4, 5), (2, 3, 4), (2, 1))], ulps=4, terms=lambda *_: 64, call=ops.bilinear,
        size=lambda x1, x2, w, b: np.einsum("ib,oij,jb->ob", abs(x1), abs(w), abs(x2)) + abs(b)),
]
