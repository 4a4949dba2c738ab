"""Matrix multiplication, and the affine map of a fully connected layer.

Split-K: the device's `Target` cuts a long inner axis into pieces, which are added in order.
"""

from __future__ import annotations

from math import prod

from ag.autograd.frozen import FrozenTensor
from ag.autograd.op import Cotangents, Matrix, Need, Result, Run, op, part_of
from ag.autograd.operands import as_input
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine import shape as shapes
from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import add
from ag.engine.kernels.indexing import permute
from ag.engine.kernels.matmul import batched_matmul, matmul, matmul_sums, sample_matmul
from ag.engine.kernels.packed import packed_matmul, packed_matmul_pieces
from ag.engine.kernels.reduce import sum_over, sum_to
from ag.engine.shape import Shape
from ag.engine.target import ONE_PIECE
from ag.errors import ShapeError

__all__ = ["ag_matmul"]

Factors = tuple[Buffer, Buffer, Shape]  # two matrices, and the shape that the second had


def added_up(run: Run, pieces: Buffer) -> Buffer:
    """The sum over the first axis, which goes."""
    return (sum_over(run, pieces, (0,)) if pieces.shape[0] > 1 else pieces).view(pieces.shape[1:])


def products(run: Run, a: Buffer, b: Buffer, ta: bool, tb: bool) -> Buffer:
    """Products of the matrices of two batches, [batch, rows, cols] each before `ta` and `tb` transpose them."""
    rows, cols = shapes.matmul(a.shape[1:], b.shape[1:], ta=ta, tb=tb)
    chunk = a.backend.target.split_inner(a.shape[1 if ta else 2], rows, cols, a.shape[0])
    return added_up(run, run(batched_matmul, a, b, ta=ta, tb=tb, chunk=chunk))


def _in_one_piece(a: Buffer, b: Buffer, ta: bool, tb: bool) -> bool:
    inner = a.shape[0 if ta else 1]
    if inner <= ONE_PIECE:
        return True
    rows, cols = shapes.matmul(a.shape, b.shape, ta=ta, tb=tb)
    return inner <= a.backend.target.split_inner(inner, rows, cols, 1)


def product(run: Run, a: Buffer, b: Buffer, ta: bool, tb: bool) -> Buffer:
    """Product of two matrices, after `ta` and `tb` transpose them."""
    if _in_one_piece(a, b, ta, tb):
        return run(matmul, a, b, ta=ta, tb=tb)
    out = products(run, a.view((1, *a.shape)), b.view((1, *b.shape)), ta, tb)
    return out.view(out.shape[1:])


_FEW, _SMALL = 8, 512  # samples, and numbers of a result: below both, moving the samples to the front pays


def sample_products(run: Run, a: Buffer, b: Buffer, ta: bool, tb: bool) -> Buffer:
    """Products of matrices [outer, rows, cols, samples], one for each place of the first and the last axis."""
    outer, rows, cols, samples = a.shape
    if samples > 1 and outer * rows * cols and (samples >= _FEW or rows * cols <= _SMALL):
        if b.shape[1] * b.shape[2] <= a.backend.target.sample_factor:
            return run(sample_matmul, a, b, ta=ta, tb=tb)
        if rows * cols <= a.backend.target.sample_factor:  # the transposed product, of the smaller one as second
            return run(permute, run(sample_matmul, b, a, ta=not tb, tb=not ta), axes=(0, 2, 1, 3))
    first, second = [(x if samples == 1 else run(permute, x, axes=(0, 3, 1, 2))).view((outer * samples, *x.shape[1:3]))
                     for x in (a, b)]
    out = products(run, first, second, ta, tb)
    if samples == 1:
        return out.view((*out.shape, 1))
    return run(permute, out.view((outer, samples, *out.shape[1:])), axes=(0, 2, 3, 1))


@op
def ag_matmul(run: Run, A: Matrix, B: Buffer) -> Result[Factors]:
    """Matrix product.

    A list or array of one axis as `B` is a column; as `A` it is refused.
    Sums are accumulated in the operands' type, float32 by default, whatever is stored.

    Parameters
    ----------
    A : Tensor, FrozenTensor or array_like of shape (m, k)
    B : Tensor or array_like of shape (k, ...)
        Further axes of `B` are columns side by side, as in a batch of sequences.

    Returns
    -------
    Tensor of shape (m, ...)

    >>> ag.ag_matmul([[1.0, 2.0]], [[3.0], [4.0]]).item()
    11.0
    """
    a, b = A.shape, B.shape
    if len(a) != 2 or len(b) < 1:
        raise ShapeError(f"ag_matmul: A is {a} and B is {b}; A must have two axes and B at least one.")
    if a[1] != b[0]:
        meant = "B" if len(b) == 2 and a[1] == b[1] else "A" if a[0] == b[0] else ""
        hint = f" Did you mean ag_transpose({meant})?" if meant else ""
        raise ShapeError(f"ag_matmul: A is {a} and B is {b}; columns of A must equal rows of B.{hint}")
    columns = B if len(b) == 2 else B.view((b[0], prod(b[1:])))
    out = product(run, A, columns, False, False)
    return out if len(b) == 2 else out.view((a[0], *b[1:])), (A, columns, b)


@ag_matmul.vjp
def _matmul_vjp(run: Run, g: Buffer, saved: Factors, need: Need) -> Cotangents:
    a, b, shape = saved
    if len(shape) != 2:
        g = g.view((a.shape[0], b.shape[1]))
    return (
        product(run, g, b, False, True) if need[0] else None,
        product(run, a, g, True, False).view(shape) if need[1] else None,
    )


@part_of("ag_matmul")
def product_of_frozen(run: Run, B: Buffer, A: FrozenTensor) -> Result[Shape]:
    shape = B.shape
    if not shape or A.shape[1] != shape[0]:
        raise ShapeError(f"ag_matmul: A is {A.shape} and B is {shape}; columns of A must equal rows of B.")
    return _packed_product(run, A, B).view((A.shape[0], *shape[1:])), shape


def _packed_product(run: Run, a: FrozenTensor, b: Buffer) -> Buffer:
    rows, inner = a.shape
    columns, words = b.view((inner, prod(b.shape[1:]))), a.memory.on(b.backend)
    chunk = b.backend.target.split_inner(inner, rows, columns.shape[1], 1)
    if inner <= ONE_PIECE or inner <= chunk:
        return run(packed_matmul, columns, words, packing=a.packing, rows=rows, inner=inner, ta=a.turned)
    return added_up(run, run(packed_matmul_pieces, columns, words, packing=a.packing, rows=rows, inner=inner,
                             ta=a.turned, chunk=chunk))


@product_of_frozen.vjp
def _product_of_frozen_vjp(run: Run, g: Buffer, saved: Shape, need: Need, A: FrozenTensor) -> Cotangents:
    return (_packed_product(run, A.T, g).view(saved),)


@ag_matmul.frozen
def _frozen_matmul(A: FrozenTensor, B: TensorLike) -> Tensor:
    return product_of_frozen(as_input(B, A), A)


@part_of("ag_linear")
def affine(run: Run, W: Buffer, x: Buffer, b: Buffer) -> Result[Factors]:
    """``W @ x + b`` for `W` of shape (m, k), `x` of shape (k, ...) and `b` of shape (m, 1)."""
    shape = x.shape
    columns = x if len(shape) == 2 else x.view((shape[0], prod(shape[1:])))
    out = run(add, product(run, W, columns, False, False), b)
    return out if len(shape) == 2 else out.view((out.shape[0], *shape[1:])), (W, columns, shape)


@affine.vjp
def _affine_vjp(run: Run, g: Buffer, saved: Factors, need: Need) -> Cotangents:
    w, x, shape = saved
    g = g.view((w.shape[0], x.shape[1]))
    dw = db = None
    if need[0] and need[2] and x.shape[1] > 1 and _in_one_piece(g, x, False, True):
        dw, db = run(matmul_sums, g, x, ta=False, tb=True)
    else:
        dw = product(run, g, x, False, True) if need[0] else None
        db = sum_to(run, g, (w.shape[0], 1)) if need[2] else None
    return dw, product(run, w, g, True, False).view(shape) if need[1] else None, db


@part_of("ag_linear")
def affine_of_frozen(run: Run, x: Buffer, b: Buffer, W: FrozenTensor) -> Result[tuple[Shape, Shape]]:
    out = run(add, _packed_product(run, W, x), b)
    return out.view((out.shape[0], *x.shape[1:])), (x.shape, b.shape)


@affine_of_frozen.vjp
def _affine_of_frozen_vjp(run: Run, g: Buffer, saved: tuple[Shape, Shape], need: Need, W: FrozenTensor) -> Cotangents:
    of_x, of_b = saved
    db = sum_to(run, g.view((g.shape[0], prod(g.shape[1:]))), of_b) if need[1] else None
    return _packed_product(run, W.T, g).view(of_x) if need[0] else None, db


@affine.frozen
def _frozen_affine(W: FrozenTensor, x: TensorLike, b: Tensor) -> Tensor:
    return affine_of_frozen(x, b, W)
