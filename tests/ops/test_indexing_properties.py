"""Random shapes, sizes 0 and 1 included: slicing, concatenation and maximum are numpy's, with their gradients."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from helpers.properties import examples, gradients, numbers, param, shapes, weighted, with_axes
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from table.rows import Shape

import ag


@st.composite
def indexing(draw: st.DrawFn) -> tuple[Shape, Any]:
    """A shape and a basic index of it."""
    shape = draw(shapes)
    return shape, draw(basic_indices(shape, allow_newaxis=True)) if shape else (...,)


@st.composite
def joining(draw: st.DrawFn) -> tuple[list[Shape], int]:
    """Shapes that are equal along all axes but one, and that axis, counted from either end."""
    shape = draw(shapes.filter(len))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    at = axis % len(shape)
    return [(*shape[:at], n, *shape[at + 1 :]) for n in sizes], axis


@examples
@given(indexing())
def test_slicing(device: str, case: tuple[Shape, Any]) -> None:
    shape, key = case
    x = numbers(shape)
    p = param(x)
    with ag.with_grad_tape():
        out = p[key]
        loss = weighted(out, weights := numbers(out.shape, 1))
    np.testing.assert_array_equal(out.numpy(), x[key])
    want = np.zeros(shape, np.float32)
    want[key] = weights
    np.testing.assert_array_equal(gradients(loss, p)[0], want)


@examples
@given(joining())
def test_concatenation(device: str, case: tuple[list[Shape], int]) -> None:
    given_shapes, axis = case
    arrays = [numbers(shape, i) for i, shape in enumerate(given_shapes)]
    params = [param(x) for x in arrays]
    with ag.with_grad_tape():
        out = ag.ag_concat(params, axis)
        loss = weighted(out, weights := numbers(out.shape, 9))
    np.testing.assert_array_equal(out.numpy(), np.concatenate(arrays, axis))
    ends = np.cumsum([x.shape[axis] for x in arrays])[:-1]
    for found, want in zip(gradients(loss, *params), np.split(weights, ends, axis), strict=True):
        np.testing.assert_array_equal(found, want)


@examples
@given(with_axes(), st.booleans())
def test_maximum(device: str, case: tuple[Shape, tuple[int, ...] | None], keepdim: bool) -> None:
    shape, axes = case
    x = np.round(numbers(shape))  # with ties
    p = param(x)
    if prod(shape[a] for a in (range(len(shape)) if axes is None else axes)) == 0:
        with pytest.raises(ag.ShapeError):
            ag.ag_max(p, axes, keepdim)
        return
    with ag.with_grad_tape():
        out = ag.ag_max(p, axes, keepdim)
        loss = weighted(out, weights := numbers(out.shape, 1))
    np.testing.assert_array_equal(out.numpy(), x.max(axis=axes, keepdims=keepdim))
    largest = x == x.max(axis=axes, keepdims=True)
    ties = largest.sum(axis=axes, keepdims=True)
    np.testing.assert_allclose(gradients(loss, p)[0], largest * (weights.reshape(ties.shape) / ties), rtol=1e-6)
