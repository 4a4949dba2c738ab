"""Products with an epilogue, or with sums of rows, give the bits of the launches that they replace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.programs import buffer
from helpers.random_operands import assert_product, geometry, random_operands, windows
from helpers.tiled import KINDS, ON_ONE, SLOW, blank, make_directly, normal, on, tiled_backend
from table.rows import EPS

from ag.engine.backends.shader.tiles import TILES
from ag.engine.device import backend_of
from ag.engine.kernels.elementwise import Chain, fused
from ag.engine.kernels.matmul import matmul, matmul_sums
from ag.engine.primitive import PRIMITIVES
from ag.engine.shape import Window, places

pytestmark = pytest.mark.vulkan

CHAINS: tuple[tuple[Chain, int | None], ...] = (  # and the register that is stored too
    ((("add", 0, 1, 0.0), ("relu", 4, 4, 0.0)), None),
    ((("add", 0, 1, 0.0), ("gelu", 4, 4, 0.0), ("add", 5, 2, 0.0)), 4),
    ((("sub", 1, 0, 0.0), ("scale", 4, 4, 0.3), ("mul", 5, 0, 0.0), ("tanh", 6, 6, 0.0), ("div", 7, 3, 0.0)), 0),
)


@pytest.fixture
def tiled(vulkan: str, kind: str) -> Iterator[Any]:
    with tiled_backend(vulkan, kind) as found:
        yield found


@pytest.fixture(params=[KINDS[0], pytest.param("L", marks=[SLOW, ON_ONE]), pytest.param("M", marks=[SLOW, ON_ONE]),
                        pytest.param("V", marks=SLOW)])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def rounds(is_slow: bool) -> int:
    """Return the number of random launches; each of them makes pipelines."""
    return 6 if is_slow else 4


def test_a_chain_gives_the_bits_of_separate_launches(tiled: Any, kind: str, rounds: int) -> None:
    rng = np.random.default_rng(7)
    for i in range(rounds):
        a, b, ta, tb = random_operands(rng, 1, TILES[kind or "S"].depth)
        a, b = (a[0], b[0]) if a.size else (normal(rng, 5, 3), normal(rng, 3, 7))
        ta, tb = (ta, tb) if a.size else (False, False)
        rows, cols = matmul.shape(a.shape, b.shape, ta=ta, tb=tb)
        shapes = [(rows, 1), (rows, cols), (1, 1), (1, cols)]
        others = [normal(rng, *shapes[(i + k) % 4]) for k in range(3)]
        skips = rng.integers(0, 4, 7) if rng.random() < 0.2 else np.zeros(7, int)
        x, y, *rest = (on(tiled, array, int(skip)) for array, skip in zip((a, b, *others), skips, strict=False))
        chain, kept = CHAINS[i % 3]
        product = tiled.launch(matmul, x, y, ta=ta, tb=tb)
        want = [tiled.launch(fused, product, *rest, chain=chain)]
        params: dict[str, Any] = {"ta": ta, "tb": tb, "chain": chain}
        got = [blank(tiled, (rows, cols), int(skips[5]))]
        if kept is None:
            tiled.launch(PRIMITIVES["matmul_chain"], x, y, *rest, into=got[0], **params)
        else:
            got.append(blank(tiled, (rows, cols), int(skips[6])))
            want.append(tiled.launch(fused, product, *rest, chain=chain[: kept - 3]) if kept else product)
            tiled.launch(PRIMITIVES["matmul_chain_pair"], x, y, *rest, into=tuple(got), **params, kept=kept)
        for one, other in zip(got, want, strict=True):
            assert tiled.download(one).tobytes() == tiled.download(other).tobytes(), (a.shape, b.shape, ta, tb, chain)
    tiled.check_guards()


def test_sums_of_rows_beside_a_product(tiled: Any, kind: str, rounds: int) -> None:
    rng = np.random.default_rng(8)
    for _ in range(rounds):
        a, b, ta, tb = random_operands(rng, 1, TILES[kind or "S"].depth)
        x, y = on(tiled, a[0]), on(tiled, b[0])
        out, sums = (blank(tiled, shape) for shape in matmul_sums.shape(x.shape, y.shape, ta=ta, tb=tb))
        tiled.launch(matmul_sums, x, y, into=(out, sums), ta=ta, tb=tb)
        want = tiled.download(tiled.launch(matmul, x, y, ta=ta, tb=tb))
        assert tiled.download(out).tobytes() == want.tobytes()
        ones = np.ones((1, a.shape[1] if ta else a.shape[2], 1))
        assert_product(tiled.download(sums)[None], a, ones, ta, False)
        again = tiled.launch(matmul_sums, x, y, ta=ta, tb=tb)[1]
        assert tiled.download(again).tobytes() == tiled.download(sums).tobytes()
    tiled.check_guards()


def test_long_sums_keep_their_digits(lavapipe: str, swiftshader: str) -> None:
    """Slices are added up before they are added: numbers of one size lose no more than those sums round."""
    length = 1 << 14
    for device in (lavapipe, swiftshader):
        backend = backend_of(device)
        x, y = (buffer(backend, np.full(shape, 1.1, np.float32)) for shape in ((3, length), (length, 2)))
        sums = backend.download(backend.launch(matmul_sums, x, y, ta=False, tb=False)[1])
        np.testing.assert_allclose(sums, length * np.float64(np.float32(1.1)), rtol=(length / 32) * EPS["f32"] / 4)


@pytest.mark.parametrize("direct_rows", [0, sys.maxsize], ids=["in_tiles", "direct"])
@pytest.mark.parametrize("name", ["conv2d", "conv2d_input_grad"])
def test_a_chain_behind_a_convolution(tiled: Any, name: str, direct_rows: int, rounds: int) -> None:
    make_directly(tiled, direct_rows)
    rng, rule = np.random.default_rng(9), PRIMITIVES[name]
    chosen = [Window((3, 2), (1, 2), (0, 1), (2, 1)), *windows(rng, 2)][: rounds // 3]
    for i in range(rounds):
        image, weights, window, groups = geometry(rng, chosen)
        params: dict[str, Any] = {"window": window, "groups": groups}
        x, w = normal(rng, *image), normal(rng, *weights)
        if "grad" in name:
            params["image"] = image[1:3]
            x, w = w, normal(rng, weights[0], *places(image[1:3], window), image[3])
        operands = [on(tiled, x), on(tiled, w)]
        product = tiled.launch(rule, *operands, **params)
        rows, cols = product.shape[0], product.size // product.shape[0]
        others = [on(tiled, normal(rng, *shape)) for shape in ((rows, 1), (rows, cols), (1, 1))]
        chain = CHAINS[i % 3][0]
        want = tiled.launch(fused, product.view((rows, cols)), *others, chain=chain)
        out = blank(tiled, product.shape)
        tiled.launch(PRIMITIVES[f"{name}_chain"], *operands, *others, into=out, **params, chain=chain)
        assert tiled.download(out).tobytes() == tiled.download(want).tobytes(), (image, weights, window, groups, chain)
    tiled.check_guards()
