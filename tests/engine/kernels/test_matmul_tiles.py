"""Products of matrices in every kind of tiles equal numpy's, with guard words; and which tiles are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.random_operands import assert_product, random_operands
from helpers.tiled import KINDS, blank, launched_twice, normal, on, tiled_backend

import ag
from ag.engine.backend import DeviceInfo
from ag.engine.backends.shader import plans
from ag.engine.backends.shader.tiles import TILES, Tile, Tiles, tiles_of, units_of
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.kernels.attention import attention, attention_grad
from ag.engine.kernels.matmul import batched_matmul, matmul
from ag.engine.target import Target
from ag.ops.matmul import product


@pytest.fixture
def backend(vulkan: str, kind: str) -> Iterator[Any]:
    with tiled_backend(vulkan, kind) as found:
        yield found


@pytest.fixture(params=[""], ids=["chosen"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.mark.vulkan
@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_random_products(backend: Any, kind: str, is_slow: bool) -> None:
    rng = np.random.default_rng(4)
    for i in range(150 if is_slow else 20):
        a, b, ta, tb = random_operands(rng, int(rng.integers(1, 3)), TILES[kind or "S"].depth)
        batched = len(a) > 1 and ta != tb  # the other two cases share the code, and pipelines take time
        a, b = (a, b) if batched else (a[:1], b[:1])
        skips = rng.integers(0, 4, 3) if rng.random() < 0.2 else (0, 0, 0)  # rows that do not start at quads
        operands: list[Buffer] = [on(backend, x, int(skip)) for x, skip in zip((a, b), skips[:2], strict=True)]
        params: dict[str, Any] = {"ta": ta, "tb": tb}
        if batched:
            params["chunk"] = int(rng.choice([4, 16, 33, 1000]))
        else:
            operands = [x.view(x.shape[1:]) for x in operands]
        primitive = batched_matmul if batched else matmul
        shape = primitive.shape(*[x.shape for x in operands], **params)
        got = launched_twice(backend, primitive, operands, params, blank(backend, shape, int(skips[2])))
        assert_product(got.sum(0) if batched else got[None], a, b, ta, tb)
        if i % 10 == 0:
            backend.check_guards()


@pytest.mark.vulkan
def test_nan_and_infinity_stay_where_they_belong(backend: Any) -> None:
    a, b = np.ones((1, 5, 3), np.float32), np.ones((1, 3, 7), np.float32)
    a[0, 2, 1], b[0, 0, 4] = np.nan, np.inf
    got = backend.download(product(backend.launch, on(backend, a[0]), on(backend, b[0]), False, False))
    np.testing.assert_array_equal(got, a[0] @ b[0])


@pytest.mark.vulkan
def test_pieces_of_the_inner_axis(backend: Any) -> None:
    """As on a device with many units: in pieces, added up in order, always to the same bits."""
    rng = np.random.default_rng(6)
    backend.target = backend.target._replace(units=132)
    for shape, cut in (((9, 2048, 70), 32), ((3, 1500, 5), 12), ((64, 600, 64), 1)):
        rows, inner, cols = shape
        a, b = normal(rng, 1, inner, rows), normal(rng, 1, inner, cols)
        assert -(-inner // backend.target.split_inner(inner, rows, cols, 1)) == cut
        x, y, found = on(backend, a[0]), on(backend, b[0]), []
        for _ in range(3):
            with record(backend) as recording:
                out = product(backend.launch, x, y, True, False)
            names = [launch.primitive.name for launch in recording.launches]
            assert names == (["matmul"] if cut == 1 else ["batched_matmul", "sum"])
            found.append(backend.download(out))
        assert_product(found[0][None], a, b, True, False)
        assert all(np.array_equal(found[0], again) for again in found[1:])


# ---------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_a_tile_fits_every_device(tile: Tile) -> None:
    for turned in (tile, tile.turned()):
        assert turned.threads <= 256 and turned.shared_bytes <= 32768
        assert turned.rows * turned.depth % (4 * turned.threads) == 0  # all load as many quads
        assert turned.cols * turned.depth % (4 * turned.threads) == 0
        assert turned.rows % turned.down == turned.cols % turned.across == turned.down % 4 == turned.across % 4 == 0
        assert turned.depth % (2 * turned.shares) == 0
        for wide in (turned.depth // 4, turned.rows // 4, turned.cols // 4, turned.depth, turned.cols):
            assert turned.threads % wide == 0  # all that an invocation loads lies in one line (shaders/slices.glsl)
        if turned.shares > 1:  # the shares meet where the slices were
            assert 4 * turned.threads * turned.down * turned.across <= turned.shared_bytes


def device(vendor: str, kind: str, gibibytes: int, units: int = 0, product: str = "", driver: str = "") -> DeviceInfo:
    return DeviceInfo("vulkan:0", product, vendor, driver, kind, gibibytes << 30, units=units)


LARGE = device("NVIDIA", "discrete", 140, product="NVIDIA H200")
H100 = device("NVIDIA", "discrete", 79, 132, "NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(("info", "rows", "cols", "count", "kind"), [
    (LARGE, 4096, 4096, 1, "L"), (LARGE, 2048, 2048, 1, "L"), (LARGE, 1024, 1024, 1, "M4"), (LARGE, 128, 128, 1, "S4"),
    (LARGE, 4096, 1, 1, "V"), (LARGE, 8, 512, 1, "V"), (LARGE, 64, 64, 1000, "M4"), (LARGE, 8192, 60, 8, "M1"),
    (device("NVIDIA", "discrete", 8), 1024, 1024, 1, "L"), (device("Apple", "integrated", 16), 4096, 4096, 1, "L2"),
    (device("Unheard of", "other", 0), 4096, 4096, 1, "L2"), (device("Mesa", "cpu", 4), 100, 3, 1, "S"),
    (device("Mesa", "cpu", 4), 20, 20, 1, "S"), (H100, 4096, 4096, 1, "L"), (H100, 512, 512, 1, "S4"),
    (device("NVIDIA", "discrete", 24, 128), 1024, 1024, 1, "M4"),  # the memory would have said 96
    (device("NVIDIA", "discrete", 8, 20), 1024, 1024, 1, "M1"),
    (device("AMD", "discrete", 24, 96, "(RADV NAVI31)", "25.0.7"), 1024, 1024, 1, "M"),  # L would leave 32 units idle
    (device("AMD", "discrete", 24, 96, "(RADV NAVI31)", "25.0.7"), 4096, 4096, 1, "L"),
])
def test_the_choice(info: DeviceInfo, rows: int, cols: int, count: int, kind: str) -> None:
    tiles = tiles_of(info)
    assert tiles.choose(rows, cols, count) in (TILES[kind], TILES[kind].turned())
    assert tiles.choose(cols, rows, count) in (TILES[kind], TILES[kind].turned())


def test_the_tiles_of_an_h100_are_those_that_were_measured() -> None:
    assert tiles_of(H100) == tiles_of(LARGE) == tiles_of(H100._replace(units=0))


@pytest.mark.parametrize(("info", "units"), [
    (device("NVIDIA", "discrete", 8, 24), 24), (device("AMD", "integrated", 4, 40), 40), (H100, 132),
    (device("AMD", "integrated", 1, 1), 2),  # 1 is for processors
    (device("Arm", "integrated", 8, 10), 10), (device("AMD", "virtual", 8, 60), 60),
    (device("NVIDIA", "discrete", 8), 32), (device("AMD", "discrete", 24), 96), (device("AMD", "discrete", 192), 304),
    (device("Intel", "discrete", 16), 32), (device("Apple", "integrated", 64), 12), (device("AMD", "virtual", 8), 12),
    (device("NVIDIA", "discrete", 0), 12),
])
def test_units_are_as_many_as_the_driver_says(info: DeviceInfo, units: int) -> None:
    assert units_of(info) == tiles_of(info).units == units


@pytest.mark.parametrize(("info", "held"), [  # of 32, 64, 96 and 128 features: queries; and rows of the gradient's two
    (H100, [1, 1, 1, 1, 2, 2, 1, 1]), (LARGE, [1, 1, 1, 1, 2, 2, 1, 1]),
    (device("NVIDIA", "discrete", 24, 128, "NVIDIA GeForce RTX 4090"), [1, 0, 0, 0, 2, 2, 1, 1]),
    (device("NVIDIA", "discrete", 48, 142, "NVIDIA RTX A6000"), [1, 0, 0, 0, 2, 2, 1, 1]),
    (device("AMD", "discrete", 24, 96, "(RADV NAVI31)", "25.0.7"), [0] * 8),
    (device("Apple", "integrated", 16), [0] * 8), (device("Intel", "discrete", 16), [0] * 8),
    (device("Mesa", "cpu", 4), [1, 1, 0, 0, 2, 1, 0, 0]),
])
def test_rows_are_held_where_that_leaves_workgroups(info: DeviceInfo, held: list[int]) -> None:
    """Give a workgroup the shared memory of the vendor's cards, or of lavapipe."""
    rule = tiles_of(info, shared={"NVIDIA": 48, "AMD": 64, "Intel": 64}.get(info.vendor, 32) << 10)
    found = []
    for primitive, wide in ((attention, 4), (attention_grad, 7)):
        names = [constant["name"] for constant in plans.manifest()["kernels"][primitive.name]["spec"]]
        for features in (32, 64, 96, 128):
            x, row, key = (features, 64, 1), (1, 64, 1), (4,)
            shapes = (x, row, x, x, x, key) if wide == 4 else (*[x] * wide, row, row, key)
            params = (("heads", 1), ("factor", 1.0), ("causal", False), ("rate", 0.0))
            plan = plans.planned(primitive, shapes, params, rule, True)
            found.append(plan.spec[names.index("held")])
            assert plan.needs.shared_bytes == 14848 + found[-1] * 256 * features <= rule.shared
    assert found == held


def test_a_skinny_product_has_its_tiles_along_the_long_side() -> None:
    assert Tiles(1, ()).choose(1000, 3, 1).cols == Tiles(1, ()).choose(3, 1000, 1).rows == 8


def test_an_unknown_kind_of_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AG_MATMUL_TILE", "XL")
    message = r"AG_MATMUL_TILE is 'XL'; it must be one of L, L2, L8, M1, M, M4, S, S4, V, or"
    with pytest.raises(ag.KernelError, match=message):
        tiles_of(LARGE)


@pytest.mark.parametrize(("inner", "rows", "cols", "units", "pieces"), [
    (1 << 15, 4096, 4096, 1, 1), ((1 << 15) + 1, 8, 8, 1, 2), (0, 8, 8, 1, 0), (1023, 8, 8, 132, 1),
    (8192, 512, 512, 132, 8), (8192, 4096, 4096, 132, 1), (65536, 64, 64, 132, 128), (1024, 64, 64, 132, 16),
])
def test_the_number_of_pieces(inner: int, rows: int, cols: int, units: int, pieces: int) -> None:
    length = Target(units=units).split_inner(inner, rows, cols, 1)
    assert length % 64 == 0 and (-(-inner // length) if inner else 0) == pieces


@pytest.mark.parametrize(("inner", "rows", "cols", "units", "pieces", "fill"), [  # images of 56 x 56, 14 x 14, 28 x 28
    (200_704, 64, 576, 132, 79, 0.99), (12_544, 256, 2304, 132, 11, 0.99), (50_176, 512, 256, 132, 33, 0.99),
    (12_544, 256, 2304, 60, 5, 0.99), (50_176, 512, 256, 36, 9, 0.99), (12_544, 256, 2304, 1, 1, 0),
    (900, 64, 64, 132, 1, 0), (0, 64, 64, 132, 0, 0)])
def test_pieces_of_weight_gradients_fill_all_units(inner: int, rows: int, cols: int, units: int, pieces: int,
                                                   fill: float) -> None:
    """In rounds of tiles of 128 x 128."""
    length = Target(units=units).split_places(inner, rows, cols, 1)
    tiles = -(-rows // 128) * -(-cols // 128) * pieces
    assert length % 64 == 0 and -(-inner // length) == pieces
    assert tiles / units >= fill * -(-tiles // units)
