"""Einstein's sums, and products of matrices whose samples are the last axis.

Two operands are one batched product.  An operand is permuted only where its axes are not in the order of a matrix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod

from ag.autograd.create import as_tensor
from ag.autograd.op import Cotangents, Need, Result, Run, composed, operands_on_one_device, part_of
from ag.autograd.operands import number_given
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.shape import Shape, normalize_axis, whole_number
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add, ag_mul, ag_scale
from ag.ops.indexing import ag_reshape, ag_transpose
from ag.ops.matmul import product, sample_products
from ag.ops.reduce import ag_sum
from ag.ops.shapes import diagonal, expand

__all__ = ["baddbmm", "bilinear", "bmm", "einsum", "inner", "mv", "tensordot"]


@part_of("einsum")
def _products(run: Run, a: Buffer, b: Buffer, a_groups: Shape, b_groups: Shape, ta: bool, tb: bool,
              shape: Shape) -> Result[tuple[Buffer, Buffer]]:
    """Products of matrices, as operands of four groups of axes (outer, rows, cols, samples), in a shape."""
    return _multiplied(run, a.view(a_groups), b.view(b_groups), ta, tb).view(shape), (a, b)


@_products.vjp
def _products_vjp(run: Run, g: Buffer, saved: tuple[Buffer, Buffer], need: Need, a_groups: Shape, b_groups: Shape,
                  ta: bool, tb: bool, shape: Shape) -> Cotangents:
    a, b = saved[0].view(a_groups), saved[1].view(b_groups)
    g = g.view((a_groups[0], a_groups[2 if ta else 1], b_groups[1 if tb else 2], a_groups[3]))
    da = db = None
    if need[0]:
        da = _multiplied(run, b, g, tb, True) if ta else _multiplied(run, g, b, False, not tb)
    if need[1]:
        db = _multiplied(run, g, a, True, ta) if tb else _multiplied(run, a, g, not ta, False)
    return None if da is None else da.view(saved[0].shape), None if db is None else db.view(saved[1].shape)


def _multiplied(run: Run, a: Buffer, b: Buffer, ta: bool, tb: bool) -> Buffer:
    if a.shape[0] == a.shape[3] == 1:
        out = product(run, a.view(a.shape[1:3]), b.view(b.shape[1:3]), ta, tb)
        return out.view((1, *out.shape, 1))
    return sample_products(run, a, b, ta, tb)


@composed
def einsum(equation: str, *operands: TensorLike) -> Tensor:
    """Multiply elements and add up, as letters of the axes say.

    The equation has a letter for each axis of each operand, and those of the result: ``"mkb,knb->mnb"``.  Letters that
    the result lacks are summed over, ``...`` stands for any axes, a letter twice in an operand for its diagonal.
    Without ``->`` the result has the letters that occur once, in alphabetical order.  Three and more operands are
    multiplied from the left.

    >>> ag.ops.einsum("ij,j->i", [[1.0, 2.0], [3.0, 4.0]], ag.ag_reshape([1.0, 10.0], 2)).numpy().tolist()
    [21.0, 43.0]
    """
    given = [as_tensor(x) for x in (operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple))
                                    else operands)]
    if not isinstance(equation, str):
        raise TypeError(f"einsum: equation is {equation!r:.60}; a text such as 'mkb,knb->mnb' is required.")
    inputs, output = _letters(equation, *[x.shape for x in given])
    size: dict[str, int] = {}
    for axes, x in zip(inputs, given, strict=True):
        for letter, n in zip(axes, x.shape, strict=True):
            if size.setdefault(letter, n) != n:
                if 1 not in (n, size[letter]):
                    name = f"{letter} before the last of '...'" if letter.isdigit() else repr(letter)
                    raise ShapeError(f"einsum: axis {name} of {equation!r} has {size[letter]} places and then "
                                     f"{n}; they must be equal, or 1.")
                size[letter] = max(n, size[letter])
    terms = [_plain(axes, x, size) for axes, x in zip(inputs, given, strict=True)]
    axes, x = terms[0]
    for i, (others, y) in enumerate(terms[1:], 2):
        wanted = {*output}.union(*[rest for rest, _ in terms[i:]])
        axes, x = _pair(axes, x, others, y, wanted, size, output)
    axes, x = _without(axes, x, {*output})
    if missing := [letter for letter in output if letter not in axes]:  # of size 1 in all operands
        x = ag_reshape(x, *x.shape, *(1,) * len(missing))
        axes += missing
    return _ordered(axes, x, output)


@lru_cache
def _letters(equation: str, *given: Shape) -> tuple[list[list[str]], list[str]]:
    """Return the letters of each operand and of the result; an ellipsis becomes digits, counted from its end."""
    text = equation.replace(" ", "")
    if not re.fullmatch(r"[A-Za-z.,]*(->[A-Za-z.]*)?", text) or text.replace("...", "").count("."):
        raise ValueError(f"einsum: equation is {equation!r:.60}; letters for the axes of each operand are required, "
                         f"such as 'mkb,knb->mnb'.")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(given):
        raise ValueError(f"einsum: {equation!r} names {len(parts)} operands and {len(given)} were given; give as many.")
    inputs, longest = [], 0
    for part, shape in zip(parts, given, strict=True):
        named = len(part.replace("...", ""))
        if part.count("...") > 1 or (named > len(shape) if "..." in part else named != len(shape)):
            raise ShapeError(f"einsum: {part!r} of {equation!r} is for {named} axes and the operand is {shape}; one "
                             f"letter for each axis is required.")
        longest = max(longest, len(shape) - named if "..." in part else 0)
        inputs.append(_spelt(part, len(shape) - named))
    if arrow:
        output = _spelt(right, longest)
    else:
        once = [letter for letter in sorted({*left} - {",", "."}) if left.count(letter) == 1]
        output = [*_spelt("...", longest), *once]
    if len({*output}) != len(output) or not {*output} <= {letter for axes in inputs for letter in axes}:
        raise ValueError(f"einsum: the result of {equation!r} is {right!r}; each of its letters must occur once there, "
                         f"and in an operand.")
    return inputs, output


def _spelt(part: str, count: int) -> list[str]:
    before, dots, behind = part.partition("...")
    return [*before, *(map(str, reversed(range(count))) if dots else ()), *behind]


def _plain(axes: list[str], x: Tensor, size: dict[str, int]) -> tuple[list[str], Tensor]:
    """Return an operand without axes that are repeated, as its diagonal, or broadcast."""
    for letter in [letter for letter in dict.fromkeys(axes) if axes.count(letter) > 1]:
        first, second = [i for i, other in enumerate(axes) if other == letter][:2]
        if x.shape[first] != x.shape[second]:
            raise ShapeError(f"einsum: axes {letter!r} of an operand have {x.shape[first]} and {x.shape[second]} "
                             f"places; a diagonal needs as many of both.")
        axes = [letter, *[axis for i, axis in enumerate(axes) if i not in (first, second)]]
        return _plain(axes, diagonal(x, 0, first, second), size)
    kept = [(letter, n) for letter, n in zip(axes, x.shape, strict=True) if n == size[letter]]
    return [letter for letter, _ in kept], ag_reshape(x, *[n for _, n in kept]) if len(kept) < len(axes) else x


def _without(axes: list[str], x: Tensor, wanted: set[str]) -> tuple[list[str], Tensor]:
    """Return the sum over axes that nothing wants."""
    gone = tuple([i for i, letter in enumerate(axes) if letter not in wanted])
    return [letter for letter in axes if letter in wanted], ag_sum(x, gone) if gone else x


def _ordered(axes: list[str], x: Tensor, wanted: Sequence[str]) -> Tensor:
    return x if [*axes] == [*wanted] else ag_transpose(x, *[axes.index(letter) for letter in wanted])


def _pair(p: list[str], x: Tensor, q: list[str], y: Tensor, wanted: set[str], size: dict[str, int],
          output: Sequence[str]) -> tuple[list[str], Tensor]:
    """Return the product of two operands, with the letters that are wanted of it."""
    p, x = _without(p, x, wanted | {*q})
    q, y = _without(q, y, wanted | {*p})
    batch = {letter for letter in p if letter in q and letter in wanted}
    samples: list[str] = []
    for a, b in zip(reversed(p), reversed(q), strict=False):
        if a != b or a not in batch:
            break
        samples.insert(0, a)
    outer = [letter for letter in p if letter in batch and letter not in samples]
    inner = [letter for letter in p if letter in q and letter not in batch]
    rows, cols = ([letter for letter in own if letter not in others] for own, others in ((p, q), (q, p)))
    if not inner and not (rows and cols):  # no matrix: elements are multiplied
        axes = list(p if len(p) >= len(q) else q)
        axes += [letter for letter in (*p, *q) if letter not in axes]
        x, y = (ag_reshape(_ordered(own, t, [letter for letter in axes if letter in own]),
                           *[size[letter] if letter in own else 1 for letter in axes]) for own, t in ((p, x), (q, y)))
        return axes, ag_mul(x, y)
    if [letter for letter in output if letter in cols + rows] == cols + rows:
        p, x, q, y, rows, cols = q, y, p, x, cols, rows

    def matrices(axes: list[str], t: Tensor, down: list[str], across: list[str]) -> tuple[Tensor, Shape, bool]:
        turned = axes != outer + down + across + samples and axes == outer + across + down + samples
        down, across = (across, down) if turned else (down, across)
        groups = (outer, down, across, samples)
        t = _ordered(axes, t, [letter for group in groups for letter in group])
        return t, tuple([prod([size[letter] for letter in group]) for group in groups]), turned

    (first, of_first, ta), (second, of_second, tb) = matrices(p, x, rows, inner), matrices(q, y, inner, cols)
    axes = outer + rows + cols + samples
    return axes, _products(first, second, of_first, of_second, ta, tb, tuple([size[letter] for letter in axes]))


@composed
def bmm(a: TensorLike, b: TensorLike) -> Tensor:
    """Multiply the matrices of a batch, which is the last axis: (m, k, batch) and (k, n, batch) give (m, n, batch).

    >>> ag.ops.bmm([[[1.0, 2.0]]], [[[3.0, 4.0]]]).numpy().tolist()
    [[[3.0, 8.0]]]
    """
    a, b = as_tensor(a), as_tensor(b)
    if not a.ndim == b.ndim == 3 or a.shape[1] != b.shape[0] or a.shape[2] != b.shape[2]:
        raise ShapeError(f"bmm: a is {a.shape} and b is {b.shape}; (m, k, batch) and (k, n, batch) are required.")
    return einsum("mkb,knb->mnb", a, b)


@composed
def baddbmm(x: TensorLike, a: TensorLike, b: TensorLike, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """``beta * x + alpha * bmm(a, b)``; what is in `x` does not count where `beta` is 0, be it NaN."""
    beta, alpha = number_given("baddbmm", "beta", beta), number_given("baddbmm", "alpha", alpha)
    found = bmm(a, b)
    found = found if alpha == 1.0 else ag_scale(found, alpha)
    if beta == 0.0:
        return found
    return ag_add(expand(x, found.shape) if beta == 1.0 else ag_scale(expand(x, found.shape), beta), found)


@composed
def tensordot(a: TensorLike, b: TensorLike, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """Multiply and add up over the last axes of `a` and the first of `b`, or over pairs of axes.

    >>> ag.ops.tensordot([[1.0, 2.0]], [[3.0, 4.0]], dims=([1], [1])).item()
    11.0
    """
    a, b = as_tensor(a), as_tensor(b)
    if isinstance(dims, (tuple, list)):
        if len(dims) != 2 or len(dims[0]) != len(dims[1]):
            raise ValueError(f"tensordot: dims is {dims!r:.60}; a number, or two lists of as many axes, are required.")
        of_a, of_b = ([normalize_axis(axis, t.ndim, "tensordot") for axis in axes]
                      for axes, t in zip(dims, (a, b), strict=True))
    else:
        count = whole_number("tensordot", "dims", dims)
        if not 0 <= count <= min(a.ndim, b.ndim):
            raise ValueError(f"tensordot: dims is {count} and the operands are {a.shape} and {b.shape}; from 0 to "
                             f"{min(a.ndim, b.ndim)} are possible.")
        of_a, of_b = list(range(a.ndim - count, a.ndim)), list(range(count))
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    first = [next(letters) for _ in range(a.ndim)]
    second = [first[of_a[of_b.index(i)]] if i in of_b else next(letters) for i in range(b.ndim)]
    out = [x for i, x in enumerate(first) if i not in of_a] + [x for i, x in enumerate(second) if i not in of_b]
    return einsum(f"{''.join(first)},{''.join(second)}->{''.join(out)}", a, b)


@composed
def inner(a: TensorLike, b: TensorLike) -> Tensor:
    """Multiply and add up over the last axis of both."""
    a, b = operands_on_one_device("inner", (a, b))[1]
    if a.ndim and b.ndim and a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"inner: the operands are {a.shape} and {b.shape}; the last axes must be equal.")
    return tensordot(a, b, ([-1], [-1]))


@composed
def mv(a: TensorLike, b: TensorLike) -> Tensor:
    """Multiply a matrix with a vector."""
    return einsum("ij,j->i", a, b)


@composed
def bilinear(x1: TensorLike, x2: TensorLike, weight: TensorLike, bias: TensorLike | None = None) -> Tensor:
    """Sum ``x1[i] * weight[o, i, j] * x2[j]`` for each output o and sample, plus a bias.

    >>> ag.ops.bilinear([[2.0]], [[3.0]], [[[10.0]]]).item()
    60.0
    """
    x1, x2, weight = operands_on_one_device("bilinear", (x1, x2, weight))[1]
    if x1.ndim < 2 or x1.shape[1:] != x2.shape[1:]:
        raise ShapeError(f"bilinear: x1 is {x1.shape} and x2 is {x2.shape}; (features, ...) with the same batch is "
                         f"required.")
    first, second = (ag_reshape(x, x.shape[0], prod(x.shape[1:])) for x in (x1, x2))
    found = einsum("oib,ib->ob", einsum("oij,jb->oib", weight, second), first)
    found = found if bias is None else ag_add(found, ag_reshape(bias, -1, 1))
    return ag_reshape(found, found.shape[0], *x1.shape[1:])
