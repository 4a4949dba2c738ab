"""Arithmetic on shapes, against numpy and against walking every element."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from helpers.errors import expect_error

from ag.engine import shape as shapes
from ag.errors import ShapeError


def padded(values: tuple[int, ...]) -> tuple[int, ...]:
    return values + (0,) * (shapes.MAX_DIMS - len(values))


def some_shape(rng: random.Random, most: int = 5) -> tuple[int, ...]:
    return tuple(rng.choice([1, 1, 2, 3, 4]) for _ in range(rng.randrange(most + 1)))


def walk(layout: dict[str, object], stride: str) -> list[int]:
    """Element offsets in the order of the output, computed as a kernel does from the layout."""
    shape, strides = layout["shape"], layout[stride]
    offsets = []
    for i in range(layout["n"]):
        offset, rest = 0, i
        for axis in reversed(range(layout["ndim"])):
            offset += rest % shape[axis] * strides[axis]
            rest //= shape[axis]
        offsets.append(offset)
    return offsets


def check_broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with expect_error("shapes that do not broadcast", ShapeError, str(a), str(b), "equal or 1"):
            shapes.broadcast(a, b)
        return
    small, big = sorted((a, b), key=len)
    if len(small) == 1 < len(big) and small[0] > 1 == big[-1] and np.prod(big) > 1:
        with expect_error("a vector of one axis and a column", ShapeError, str(a), str(b), "one axis", "column"):
            shapes.broadcast(a, b)
        return
    assert shapes.broadcast(a, b) == expected
    layout = shapes.broadcast_layout(expected, a, b)
    for x, stride in ((a, "a_stride"), (b, "b_stride")):
        numbered = np.arange(np.prod(x, dtype=int)).reshape(x)
        assert walk(layout, stride) == np.broadcast_to(numbered, expected).ravel().tolist(), (a, b)
        axes = shapes.broadcast_axes(x, expected)
        assert np.add.reduce(np.ones(expected), axes, keepdims=True).size == np.prod(x), (a, b)


def test_broadcasting_permuting_and_expanding_are_numpys() -> None:
    rng = random.Random(0)
    for _ in range(200):
        check_broadcast(some_shape(rng), some_shape(rng))
    for _ in range(50):
        shape = some_shape(rng)
        axes = tuple(rng.sample(range(len(shape)), len(shape)))
        numbered = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        moved = numbered.transpose(axes)
        assert shapes.permuted(shape, axes=axes) == moved.shape
        assert walk(shapes.permute_layout(moved.shape, shape, axes=axes), "x_stride") == moved.ravel().tolist(), shape
        out = tuple(rng.choice([1, 2, 3]) if n == 1 else n for n in shape)
        out = tuple(rng.choice([1, 2]) for _ in range(rng.randrange(3))) + out
        assert walk(shapes.expand_layout(out, shape), "x_stride") == np.broadcast_to(numbered, out).ravel().tolist()


def test_neighbouring_axes_are_merged() -> None:
    assert shapes.broadcast_layout((2, 3, 4), (2, 3, 4), (2, 3, 4))["ndim"] == 1
    assert shapes.broadcast_layout((2, 3, 4), (2, 3, 4), ())["ndim"] == 1
    assert shapes.broadcast_layout((2, 3, 4), (2, 1, 1), (2, 3, 4))["ndim"] == 2
    assert shapes.broadcast_layout((1, 1, 1), (1, 1, 1), ())["ndim"] == 0
    layout = shapes.permute_layout((4, 2, 3), (2, 3, 4), axes=(2, 0, 1))
    assert layout["shape"] == padded((4, 6)) and layout["x_stride"] == padded((1, 4))


def test_more_axes_than_a_kernel_walks() -> None:
    big = (2, 3) * 5
    with expect_error("a broadcast over more axes than kernels walk", ShapeError, "10 axes", "8 are supported"):
        shapes.broadcast_layout(big, (1, 3) * 5, (2, 1) * 5)
    assert shapes.broadcast_layout(big, big, big)["ndim"] == 1


@pytest.mark.parametrize(("shape", "new", "expected"), [
    ((6,), (2, 3), (2, 3)), ((6,), (-1, 2), (3, 2)), ((2, 3, 4), (2, -1), (2, 12)), ((), (1, 1), (1, 1)),
    ((1,), (), ()), ((0, 3), (3, 0), (3, 0)), ((0, 3), (-1, 3), (0, 3)), ((4,), (-1,), (4,)),
])
def test_reshaped(shape: tuple[int, ...], new: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert shapes.reshaped(shape, new, "f") == expected == np.zeros(shape).reshape(new).shape


@pytest.mark.parametrize(("shape", "new"), [
    ((6,), (4,)), ((6,), (-1, 4)), ((6,), (-1, -1)), ((6,), (-2, -3)), ((0, 3), (-1, 0)), ((6,), (-2, 3)), ((6,), ()),
])
def test_what_cannot_be_reshaped(shape: tuple[int, ...], new: tuple[int, ...]) -> None:
    with expect_error(f"a reshape of {shape} to {new}", ShapeError, "f: ", str(shape), str(new), "at most one -1"):
        shapes.reshaped(shape, new, "f")


def test_axes() -> None:
    for ndim in range(1, 5):
        for axis in range(-ndim, ndim):
            assert shapes.normalize_axis(axis, ndim, "f") == axis % ndim
        assert shapes.normalize_axes(None, ndim, "f") == tuple(range(ndim))
        for pair in product(range(-ndim, ndim), repeat=2):
            if pair[0] % ndim != pair[1] % ndim:
                assert shapes.normalize_axes(pair, ndim, "f") == tuple(sorted(a % ndim for a in pair))
    assert shapes.normalize_axes(-1, 3, "f") == (2,) and shapes.normalize_axes((), 3, "f") == ()
    for axis, ndim in ((3, 3), (-4, 3), (0, 0)):
        with expect_error(f"dim {axis} of {ndim} axes", ShapeError, f"f: dim {axis}", f"{ndim} axes"):
            shapes.normalize_axis(axis, ndim, "f")
    with expect_error("an axis named twice", ShapeError, "(0, -2)", "twice"):
        shapes.normalize_axes((0, -2), 2, "f")


def test_strides() -> None:
    for shape in ((), (5,), (2, 3, 4), (2, 1, 4)):
        expected = tuple(s // 8 for s in np.zeros(shape).strides)
        assert shapes.row_major_strides(shape) == expected


def test_matmul() -> None:
    for ta, tb in product([False, True], repeat=2):
        assert shapes.matmul((3, 2) if ta else (2, 3), (4, 3) if tb else (3, 4), ta=ta, tb=tb) == (2, 4)


def test_sums_in_pieces() -> None:
    assert shapes.summed((2, 10, 3), axis=1, chunk=10) == (2, 1, 3)
    assert shapes.summed((2, 10, 3), axis=1, chunk=4) == (2, 3, 3)
    layout = shapes.sum_layout((2, 3, 3), (2, 10, 3), axis=1, chunk=4, scale=1.0)
    assert layout == {"outer": 2, "length": 10, "inner": 3, "pieces": 3, "shares": 1, "columns": 128}
    long = shapes.sum_layout((2, 1, 3), (2, 17, 3), axis=1, chunk=17, scale=1.0)
    assert (long["shares"], long["columns"]) == (16, 8)  # more than one invocation adds up alone
