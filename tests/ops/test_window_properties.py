"""Random images and windows: convolution and pooling are the oracles', and gradients their exact adjoints.
Numbers are small integers (and sizes of average windows powers of two), so every sum is exact in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table import cases_images as oracle
from table.rows import Array, Shape

import ag
from ag.engine.kernels.conv import conv2d, conv2d_input_grad
from ag.engine.shape import Window

# One set of devices per test; shapes come from a fixed seed, so that a failure comes again.
examples = settings(max_examples=60, derandomize=True, deadline=None,
                    suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass
class Geometry:
    """Shapes of images and weights, and how the window moves."""

    x: Shape
    w: Shape
    moves: dict[str, Any]


def pairs(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(least, most), st.integers(least, most))


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Of convolutions."""
    return Window(*(draw(pairs(*ends)) for ends in ((1, 3), (1, 4), (0, 3), (1, 3))))


@st.composite
def pool_windows(draw: st.DrawFn) -> Window:
    """Of pools, without dilation."""
    size = (draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4])))
    stride = draw(st.sampled_from([size, draw(pairs(1, 4))]))
    return Window(size, stride, (draw(st.integers(0, size[0] // 2)), draw(st.integers(0, size[1] // 2))))


@st.composite
def images(draw: st.DrawFn, window: Window) -> tuple[int, int]:
    """Of up to 7 pixels each way, into which a window fits with its padding."""
    high, wide = (max(1, e - 2 * p) for e, p in zip(window.extent, window.padding, strict=True))
    return draw(st.integers(high, 7)), draw(st.integers(wide, 7))


@st.composite
def convolutions(draw: st.DrawFn, chosen: st.SearchStrategy[Window]) -> Geometry:
    groups, window = draw(st.integers(1, 3)), draw(chosen)
    channels, features = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    image = draw(images(window))
    moves = {"stride": window.stride, "padding": window.padding, "dilation": window.dilation, "groups": groups}
    w_shape = (features * groups, channels, *window.kernel)
    return Geometry((channels * groups, *image, draw(st.integers(0, 3))), w_shape, moves)


@st.composite
def pools(draw: st.DrawFn, chosen: st.SearchStrategy[Window]) -> Geometry:
    window = draw(chosen)
    image = draw(images(window))
    stride = None if window.stride == window.kernel else window.stride
    moves = {"size": window.kernel, "stride": stride, "padding": window.padding}
    return Geometry((draw(st.integers(0, 3)), *image, draw(st.integers(0, 3))), (), moves)


# A device compiles a kernel per window: the quick leg has few of them there, of every kind.
SOME = [Window((3, 3), (1, 1), (1, 1)), Window((1, 1), (2, 3), (0, 1)), Window((3, 2), (2, 1), (0, 3), (1, 3)),
        Window((2, 3), (1, 4), (3, 0), (3, 2))]
SOME_POOLS = [Window((2, 2), (2, 2)), Window((1, 1), (1, 1)), Window((4, 1), (4, 1), (2, 0)),
              Window((1, 2), (3, 1), (0, 1)), Window((4, 4), (1, 3), (1, 2)), Window((2, 4), (4, 2), (1, 0))]


def in_turn(some: list[Window], any_of: st.SearchStrategy[Window]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("chosen", [
        pytest.param(st.sampled_from(some), id="some", marks=pytest.mark.slow_on("swiftshader")),
        pytest.param(any_of, id="any", marks=pytest.mark.slow_on("lavapipe", "swiftshader"))])


def integers(shape: Shape, seed: int) -> Array:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def gradients(op: Callable[..., ag.Tensor], *operands: Array) -> tuple[Array, Array, list[Array]]:
    """Result, cotangent and gradients."""
    given = [ag.ag_param(x) for x in operands]
    with ag.with_grad_tape():
        y = op(*given)
        g = integers(y.shape, 9)
        loss = ag.ag_sum(y * ag.ag_tensor(g))
    found = ag.backward(loss)
    return y.numpy(), g, [found[x].numpy() for x in given]


@in_turn(SOME, windows())
@examples
@given(data=st.data())
def test_convolution(device: str, chosen: st.SearchStrategy[Window], data: st.DataObject) -> None:
    geometry = data.draw(convolutions(chosen))
    x, w = integers(geometry.x, 1), integers(geometry.w, 2)
    y, g, (dx, dw) = gradients(lambda x, w: ag.ag_conv2d(x, w, **geometry.moves), x, w)
    np.testing.assert_array_equal(y, oracle.conv2d(x, w, **geometry.moves))
    # Convolution is linear in either operand, so <y(x'), g> = <x', dx> for any x', and likewise for w.
    x_2, w_2 = integers(geometry.x, 3), integers(geometry.w, 4)
    assert np.sum(oracle.conv2d(x_2, w, **geometry.moves) * g) == np.sum(x_2 * dx)
    assert np.sum(oracle.conv2d(x, w_2, **geometry.moves) * g) == np.sum(w_2 * dw)


@in_turn(SOME_POOLS, pool_windows())
@examples
@given(data=st.data())
def test_average_pooling(device: str, chosen: st.SearchStrategy[Window], data: st.DataObject) -> None:
    geometry = data.draw(pools(chosen))
    x = integers(geometry.x, 1)
    y, g, (dx,) = gradients(lambda x: ag.ag_avg_pool2d(x, **geometry.moves), x)
    np.testing.assert_array_equal(y, oracle.avg_pool2d(x, **geometry.moves))
    x_2 = integers(geometry.x, 3)
    assert np.sum(oracle.avg_pool2d(x_2, **geometry.moves) * g) == np.sum(x_2 * dx)


@in_turn(SOME_POOLS, pool_windows())
@examples
@given(data=st.data())
def test_max_pooling_with_equal_maxima(device: str, chosen: st.SearchStrategy[Window], data: st.DataObject) -> None:
    geometry = data.draw(pools(chosen))
    x = integers(geometry.x, 1)
    y, g, (dx,) = gradients(lambda x: ag.ag_max_pool2d(x, **geometry.moves), x)
    np.testing.assert_array_equal(y, oracle.max_pool2d(x, **geometry.moves))
    # the first maximum is the one that stays if earlier pixels are made larger by less
    height, width = geometry.x[1:3]
    earlier = np.arange(height * width, 0, -1, dtype=np.float32).reshape(1, height, width, 1) / 128
    _, _, (first,) = gradients(lambda x: ag.ag_max_pool2d(x, **geometry.moves), x + earlier)
    np.testing.assert_array_equal(dx, first)
    assert np.sum(dx) == np.sum(g)


@pytest.mark.parametrize(("rule", "x", "w"), [
    (conv2d, (7300, 3, 3, 1), (1, 7300, 3, 3)), (conv2d_input_grad, (1, 3, 3, 1), (7300, 1, 3, 3)),
], ids=["forward", "gradient"])
def test_more_steps_than_a_kernel_can_make_are_refused(rule: Any, x: Shape, w: Shape) -> None:
    window, y = Window((3, 3)), (w[0], 1, 1, x[3])
    operands = (y, x, w) if rule is conv2d else (x, w, y)
    params = {} if rule is conv2d else {"image": x[1:3]}
    with pytest.raises(ag.ShapeError, match=r"window of \(3, 3\) over 7300 channels takes more than 65535 steps"):
        rule.layout(*operands, window=window, groups=1, **params)
