"""Random shapes, sizes 0 and 1 included: broadcasting, reductions, reshape and transpose are numpy's."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from helpers.properties import examples, gradients, numbers, param, shapes, weighted, with_axes
from hypothesis import given
from hypothesis import strategies as st
from table.rows import Array, Shape

import ag


@st.composite
def broadcastable(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """Two shapes that numpy broadcasts."""
    full = draw(shapes)
    pair = []
    for _ in range(2):
        kept = [n if draw(st.booleans()) else 1 for n in full]
        pair.append(tuple(kept[draw(st.integers(0, len(kept))):]))
    return pair[0], pair[1]


@st.composite
def reshaping(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """A shape, and another of as many elements, perhaps with a -1 in it."""
    shape = draw(shapes)
    new: list[int] = []
    rest = prod(shape)
    for _ in range(draw(st.integers(0, 3))):
        divisors = [d for d in range(1, rest + 1) if rest % d == 0] or [draw(st.integers(0, 3))]
        new.append(draw(st.sampled_from(divisors)))
        rest = rest // new[-1] if new[-1] else 0
    new.append(rest)
    if rest and draw(st.booleans()):
        new[-1] = -1
    return shape, tuple(new)


def summed_to(g: Array, shape: Shape) -> Array:
    lead = g.ndim - len(shape)
    g = g.sum(axis=tuple(range(lead)))
    return g.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1), keepdims=True)


@examples
@given(broadcastable(), st.sampled_from(["add", "sub", "mul"]))
def test_broadcasting(device: str, pair: tuple[Shape, Shape], name: str) -> None:
    a, b = numbers(pair[0]), numbers(pair[1], 1)
    want = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name](a, b)
    p, q = param(a), param(b)
    with ag.with_grad_tape():
        out = getattr(ag, f"ag_{name}")(p, q)
        loss = weighted(out, weights := numbers(want.shape, 2))
    np.testing.assert_array_equal(out.numpy(), want)
    da, db = gradients(loss, p, q)
    partials = {"add": (weights, weights), "sub": (weights, -weights), "mul": (weights * b, weights * a)}[name]
    for found, partial, shape in ((da, partials[0], pair[0]), (db, partials[1], pair[1])):
        np.testing.assert_allclose(found, summed_to(np.broadcast_to(partial, want.shape), shape), rtol=1e-5, atol=1e-5)


@examples
@given(with_axes(), st.booleans(), st.sampled_from(["sum", "mean"]))
def test_reductions(device: str, case: tuple[Shape, tuple[int, ...] | None], keepdim: bool, name: str) -> None:
    shape, axes = case
    x = numbers(shape)
    op = getattr(ag, f"ag_{name}")
    reduced = prod(shape[a] for a in (range(len(shape)) if axes is None else axes))
    if name == "mean" and reduced == 0:
        with pytest.raises(ag.ShapeError):
            op(param(x), axes, keepdim)
        return
    p = param(x)
    with ag.with_grad_tape():
        out = op(p, axes, keepdim)
        loss = weighted(out, weights := numbers(out.shape, 1))
    np.testing.assert_allclose(out.numpy(), getattr(np, name)(x, axis=axes, keepdims=keepdim), rtol=1e-5, atol=1e-5)
    kept = np.sum(x, axis=axes, keepdims=True).shape
    scale = 1 / reduced if name == "mean" else 1
    np.testing.assert_allclose(gradients(loss, p)[0], np.broadcast_to(weights.reshape(kept), shape) * scale,
                               rtol=1e-6, atol=1e-7)


@examples
@given(reshaping())
def test_reshape(device: str, case: tuple[Shape, Shape]) -> None:
    shape, new = case
    x = numbers(shape)
    p = param(x)
    with ag.with_grad_tape():
        out = ag.ag_reshape(p, *new)
        loss = weighted(out, weights := numbers(out.shape, 1))
    np.testing.assert_array_equal(out.numpy(), x.reshape(new))
    np.testing.assert_array_equal(gradients(loss, p)[0], weights.reshape(shape))


@examples
@given(shapes.flatmap(lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))))
def test_transpose(device: str, case: tuple[Shape, list[int]]) -> None:
    shape, axes = case
    x = numbers(shape)
    p = param(x)
    with ag.with_grad_tape():
        out = ag.ag_transpose(p, tuple(axes))
        loss = weighted(out, weights := numbers(out.shape, 1))
    np.testing.assert_array_equal(out.numpy(), x.transpose(axes))
    np.testing.assert_array_equal(gradients(loss, p)[0], weights.transpose(np.argsort(axes)))
