"""Convolution and its gradients as products in tiles: random geometries equal the references on both drivers, with
guard words, and are the same to the bit each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rows import EPS, Array
from tiled import blank, normal, on, tiled_backend

from ag.conv_shape import Pair, Window, places
from ag.errors import ShapeError
from ag.ops.conv import conv2d, conv2d_direct, conv2d_input_grad, conv2d_input_grad_direct, conv2d_weight_grad
from ag.primitive import Primitive

pytestmark = pytest.mark.vulkan
GEOMETRIES = 100  # per primitive, driver and kind of tiles: of the backend's choice, the largest, and the thinnest


@pytest.fixture(params=["", "L", "V"], ids=["chosen", "L", "V"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=["lavapipe", "swiftshader"])
def backend(request: pytest.FixtureRequest, kind: str) -> Iterator[Any]:
    with tiled_backend(request.getfixturevalue(request.param), kind) as found:
        yield found


def geometry(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...], Window, int]:
    """Shapes of images and weights, a window that fits, and groups."""
    while True:
        groups = int(rng.choice([1, 1, 2, 3]))
        channels, features = (int(n) for n in rng.integers(1, 10, 2))
        pairs: list[Pair] = [(int(a), int(b)) for a, b in (rng.integers(low, high, 2) for low, high in (
            (1, 5), (1, 4), (0, 3), (1, 3), (1, 10)))]
        *moves, image = pairs
        batch = int(rng.choice([1, 2, 3, 4, 5, 8, 12]))
        window = Window(*moves)
        try:
            places(image, window)
        except ShapeError:
            continue
        return (channels * groups, *image, batch), (features * groups, channels, *window.kernel), window, groups


def check(backend: Any, primitive: Primitive, operands: list[Array], params: dict[str, Any], rng: np.random.Generator,
          repeat: bool) -> None:
    skips = [int(n) for n in (rng.integers(0, 4, 3) if rng.random() < 0.2 else np.zeros(3))]
    shape = primitive.shape(*[x.shape for x in operands], **params)
    exact, size = np.zeros((2, *shape))
    primitive.reference(exact, *[x.astype(float) for x in operands], **params)
    primitive.reference(size, *[np.abs(x).astype(float) for x in operands], **params)
    buffers = [on(backend, x, skip) for x, skip in zip(operands, skips, strict=False)]
    got = backend.download(backend.launch(primitive, *buffers, into=blank(backend, shape, skips[2]), **params))
    terms = primitive.layout(shape, *[x.shape for x in operands], **params)["inner"]
    assert np.all(np.abs(got - exact) <= (terms + 1) * EPS["f32"] * size), f"{primitive} {shape} {params}"
    if repeat:
        again = backend.download(backend.launch(primitive, *buffers, **params))
        np.testing.assert_array_equal(again.view(np.uint32), got.view(np.uint32))
        backend.check_guards()


def check_geometries(backend: Any, primitives: list[Primitive], count: int) -> None:
    rng = np.random.default_rng(7)
    for i in range(count):
        x_shape, w_shape, window, groups = geometry(rng)
        g_shape = (w_shape[0], *places(x_shape[1:3], window), x_shape[3])
        x, w, g = (normal(rng, *shape) for shape in (x_shape, w_shape, g_shape))
        given: dict[str, tuple[list[Array], dict[str, Any]]] = {
            "conv2d": ([x, w], {}), "conv2d_input_grad": ([w, g], {"image": x_shape[1:3]}),
            "conv2d_weight_grad": ([x, g], {"chunk": int(rng.choice([4, 30, 64, 1000]))}),
        }
        for primitive in primitives:
            operands, params = given[primitive.name.removesuffix("_direct")]
            check(backend, primitive, operands, {"window": window, "groups": groups, **params}, rng, i % 10 == 0)


@pytest.mark.parametrize("primitive", [conv2d, conv2d_input_grad, conv2d_weight_grad], ids=lambda p: p.name)
def test_random_geometries(backend: Any, primitive: Primitive) -> None:
    check_geometries(backend, [primitive], GEOMETRIES)


@pytest.mark.parametrize("kind", [""], indirect=True)
def test_an_element_at_a_time(backend: Any) -> None:
    check_geometries(backend, [conv2d_direct, conv2d_input_grad_direct], 50)


@pytest.mark.parametrize("kind", [""], indirect=True)
def test_many_planes_and_samples(backend: Any) -> None:
    """Sizes of a small network's layer: several tiles each way, several pieces."""
    rng = np.random.default_rng(8)
    window = Window((3, 3), (2, 1), (1, 1))
    x, w, g = normal(rng, 24, 9, 8, 12), normal(rng, 70, 24, 3, 3), normal(rng, 70, 5, 8, 12)
    for primitive, operands, params in (
        (conv2d, [x, w], {}), (conv2d_input_grad, [w, g], {"image": (9, 8)}),
        (conv2d_weight_grad, [x, g], {"chunk": 128}),
    ):
        check(backend, primitive, operands, {"window": window, "groups": 1, **params}, rng, repeat=True)
