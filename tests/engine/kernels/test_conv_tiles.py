"""Convolution and its gradients in tiles of every kind equal the references, with guard words, the same each time.

AG_TEST_GEOMETRIES=300 tries as many geometries per primitive, driver and kind; the default is a share of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.random_operands import geometry, windows
from helpers.tiled import KINDS, blank, launched_twice, make_directly, normal, on, tiled_backend
from table.rows import EPS, Array

from ag.engine.kernels.conv import conv2d, conv2d_input_grad, conv2d_weight_grad
from ag.engine.primitive import Primitive
from ag.engine.shape import Window, places

pytestmark = pytest.mark.vulkan
GEOMETRIES = int(os.environ.get("AG_TEST_GEOMETRIES", "25"))
FIRST = [Window((2, 3), (1, 2), (0, 2), (3, 1)), Window((3, 3), (2, 1), (1, 1)), Window((1, 1))]
PRIMITIVES = [conv2d, conv2d_input_grad, conv2d_weight_grad]


class Case(NamedTuple):
    """A launch, and what it must give: to within `allowed` of `exact`."""

    operands: list[Array]
    params: dict[str, Any]
    exact: Array
    allowed: Array


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def backend(vulkan: str, kind: str) -> Iterator[Any]:
    with tiled_backend(vulkan, kind) as found:
        make_directly(found, 0)
        yield found


def case(primitive: Primitive, operands: list[Array], params: dict[str, Any]) -> Case:
    shape = primitive.shape(*[x.shape for x in operands], **params)
    exact, size = np.zeros((2, *shape))
    primitive.reference(exact, *[x.astype(float) for x in operands], **params)
    primitive.reference(size, *[np.abs(x).astype(float) for x in operands], **params)
    terms = primitive.layout(shape, *[x.shape for x in operands], **params)["inner"]
    return Case(operands, params, exact, (terms + 1) * EPS["f32"] * size)


@cache
def cases(primitive: Primitive, count: int) -> list[Case]:
    """The same for every kind of tiles and driver; so many windows."""
    rng, found = np.random.default_rng(7), []
    chosen = FIRST[:count] + windows(rng, count - len(FIRST) + GEOMETRIES // 50)
    for _ in range(GEOMETRIES):
        x_shape, w_shape, window, groups = geometry(rng, chosen)
        g_shape = (w_shape[0], *places(x_shape[1:3], window), x_shape[3])
        x, w, g = (normal(rng, *shape) for shape in (x_shape, w_shape, g_shape))
        chunk = int(rng.choice([4, 30, 64, 1000]))
        operands, params = {conv2d: ([x, w], {}), conv2d_input_grad: ([w, g], {"image": x_shape[1:3]}),
                            conv2d_weight_grad: ([x, g], {"chunk": chunk})}[primitive]
        found.append(case(primitive, operands, {"window": window, "groups": groups, **params}))
    return found


def check(backend: Any, primitive: Primitive, given: Case, skips: Array | tuple[int, ...] = (0, 0, 0)) -> None:
    operands = [on(backend, x, int(skip)) for x, skip in zip(given.operands, skips[:2], strict=True)]
    out = blank(backend, given.exact.shape, int(skips[2]))
    got = launched_twice(backend, primitive, operands, given.params, out)
    assert np.all(np.abs(got - given.exact) <= given.allowed), f"{primitive} {given.exact.shape} {given.params}"


def check_all(backend: Any, primitive: Primitive, given: list[Case]) -> None:
    rng = np.random.default_rng(9)
    for i, one in enumerate(given):
        check(backend, primitive, one, rng.integers(0, 4, 3) if rng.random() < 0.2 else (0, 0, 0))
        if i % 10 == 0:
            backend.check_guards()


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda p: p.name)
def test_random_geometries(backend: Any, primitive: Primitive, is_slow: bool) -> None:
    check_all(backend, primitive, cases(primitive, 2 if is_slow else 1))  # windows, each of which makes pipelines


@pytest.mark.parametrize("kind", [""], indirect=True)
@pytest.mark.parametrize("primitive", [conv2d, conv2d_input_grad], ids=lambda p: p.name)
def test_an_element_at_a_time(backend: Any, primitive: Primitive) -> None:
    make_directly(backend, sys.maxsize)
    check_all(backend, primitive, cases(primitive, 6))


@pytest.mark.parametrize("kind", [""], indirect=True)
def test_many_planes_and_samples(backend: Any) -> None:
    """Sizes of a small network's layer: several tiles each way, several pieces."""
    rng = np.random.default_rng(8)
    x, w, g = normal(rng, 24, 9, 8, 12), normal(rng, 70, 24, 3, 3), normal(rng, 70, 5, 8, 12)
    always: dict[str, Any] = {"window": FIRST[1], "groups": 1}
    for primitive, operands, params in (
        (conv2d, [x, w], {}), (conv2d_input_grad, [w, g], {"image": (9, 8)}),
        (conv2d_weight_grad, [x, g], {"chunk": 128}),
    ):
        check(backend, primitive, case(primitive, operands, {**always, **params}))
