"""Matrix multiplication."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from ag import shape as shapes
from ag.buffer import Buffer
from ag.errors import ShapeError
from ag.op import Cotangents, Need, Run, op
from ag.primitive import Call, primitive
from ag.tensor import Array, TensorLike

__all__ = ["ag_matmul"]


@primitive(shapes.matmul, layout=shapes.matmul_layout, bound=True)
def matmul(out: Array, a: Array, b: Array, *, ta: bool, tb: bool) -> Call:
    return partial(np.dot, a.T if ta else a, b.T if tb else b, out=out)


@op
def ag_matmul(run: Run, A: TensorLike, B: TensorLike) -> tuple[Any, Any]:
    """Matrix product.

    Parameters
    ----------
    A : Tensor or array_like of shape (m, k)
    B : Tensor or array_like of shape (k, ...)
        Further axes of `B` are columns side by side, as in a batch of sequences.

    Returns
    -------
    Tensor of shape (m, ...)

    Raises
    ------
    ShapeError
        If the columns of `A` are not the rows of `B`.

    Notes
    -----
    Sums are accumulated in the operands' type, float32 by default, whatever is stored.

    References
    ----------
    ggmlR ``ag_matmul``.

    Examples
    --------
    >>> import ag
    >>> ag.ag_matmul([[1.0, 2.0]], [[3.0], [4.0]]).item()
    11.0
    """
    a, b = A.shape, B.shape  # type: ignore[union-attr]
    if len(a) != 2 or len(b) < 1:
        raise ShapeError(f"ag_matmul: A is {a} and B is {b}; A must have two axes and B at least one.")
    if a[1] != b[0]:
        hint = ""
        if len(b) == 2 and a[1] == b[1]:
            hint = " Did you mean ag_transpose(B)?"
        elif a[0] == b[0]:
            hint = " Did you mean ag_transpose(A)?"
        raise ShapeError(f"ag_matmul: A is {a} and B is {b}; columns of A must equal rows of B.{hint}")
    columns = B if len(b) == 2 else B.view((b[0], prod(b[1:])))  # type: ignore[union-attr]
    out = run(matmul, A, columns, ta=False, tb=False)
    return out if len(b) == 2 else out.view((a[0], *b[1:])), (A, columns, b)


@ag_matmul.vjp
def _matmul_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer, shapes.Shape], need: Need) -> Cotangents:
    a, b, shape = saved
    if len(shape) != 2:
        g = g.view((a.shape[0], b.shape[1]))
    return (
        run(matmul, g, b, ta=False, tb=True) if need[0] else None,
        run(matmul, a, g, ta=True, tb=False).view(shape) if need[1] else None,
    )
