"""ag_matmul_precision: what it accepts, that devices without matrix units say so, and which kernels pass the test."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.devices import NAMED, vulkan_device
from helpers.tiled import blank, normal, on

import ag
import kernels_build
from ag.engine.backends.shader import manifest as kernels
from ag.engine.backends.shader.autotune import choices_of
from ag.engine.backends.shader.plans import planned, product_of
from ag.engine.backends.shader.tiles import Tiles
from ag.engine.backends.vulkan import cooperative
from ag.engine.backends.vulkan.cooperative import CooperativeTile, CooperativeTiles, sizes_of
from ag.engine.compile.pipeline import record
from ag.engine.kernels.conv import conv2d
from ag.engine.kernels.elementwise import add
from ag.engine.kernels.matmul import batched_matmul, matmul
from ag.engine.shape import Window

SIZES = [(16, 16, 16), (8, 16, 16), (8, 8, 8)]  # NVIDIA and AMD, Intel, lavapipe
KERNELS = {"matmul_coop", "batched_matmul_coop"}
FLOAT16 = 0  # its VkComponentTypeKHR
BOUND = {"highest": 1e-6, "high": 1e-4, "medium": 1e-2}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choices_of.cache_clear()
    yield
    choices_of.cache_clear()
    assert ag.ag_matmul_precision() == "highest"


def opened(device: str) -> Any:
    from ag.engine.backends.vulkan.backend import VulkanBackend

    return VulkanBackend(int(device.split(":")[1]), guard=256)


def product(backend: Any, size: int = 40) -> Any:
    rng = np.random.default_rng(1)
    a, b = normal(rng, size, 30), normal(rng, 30, size)
    out = backend.launch(matmul, on(backend, a), on(backend, b), into=blank(backend, (size, size)), ta=False, tb=False)
    found = backend.download(out)
    assert np.all(abs(found - a @ b) <= BOUND[ag.ag_matmul_precision()] * (abs(a) @ abs(b)))
    backend.check_guards()
    return found


def grid(backend: Any) -> Any:
    buffers = tuple(blank(backend, shape) for shape in ((40, 40), (40, 8), (8, 40)))
    return backend.command(matmul, buffers, {"ta": False, "tb": False}).grid


def test_the_precision_before_is_returned_and_comes_back() -> None:
    assert ag.ag_matmul_precision("high") == "highest"
    with ag.ag_matmul_precision("medium") as before:
        assert before == "high" and ag.ag_matmul_precision() == "medium"
    assert ag.ag_matmul_precision() == "high" and ag.ag_matmul_precision("highest") == "high"


def test_an_unknown_precision() -> None:
    with pytest.raises(ag.DtypeError, match="there is no precision 'tf32'; use 'highest', 'high' or 'medium'"):
        ag.ag_matmul_precision("tf32")


def test_a_captured_step_cannot_change_it(device: str) -> None:
    @ag.ag_capture
    def step(x: Any) -> Any:
        ag.ag_matmul_precision("high")
        return ag.ag_matmul(x, x)

    with pytest.raises(ag.CaptureError, match="the step changes the precision of products on"):
        step(ag.ag_tensor([[1.0]]))


def test_the_cpu_stays_in_float32() -> None:
    x = ag.ag_tensor(np.random.default_rng(0).standard_normal((40, 40)))
    expected = ag.ag_matmul(x, x).numpy()
    with ag.ag_matmul_precision("medium"):
        np.testing.assert_array_equal(ag.ag_matmul(x, x).numpy(), expected)


def test_the_largest_matrices_of_bfloat16_are_taken() -> None:
    bfloat16, f32, subgroup = 1000141000, 1, 3
    assert sizes_of([]) is None
    assert sizes_of([(16, 16, 16, 0, 0, 1, 1, subgroup)]) is None  # of float16
    assert sizes_of([(16, 16, 16, bfloat16, bfloat16, bfloat16, bfloat16, subgroup)]) is None  # with rounded sums
    right = (bfloat16, bfloat16, f32, f32, subgroup)
    assert sizes_of([(16, 16, 16, FLOAT16, FLOAT16, f32, f32, subgroup)], FLOAT16) == (16, 16, 16)
    assert sizes_of([(16, 8, 16, *right), (16, 16, 16, *right), (64, 64, 16, *right)]) == (16, 16, 16)


@pytest.mark.parametrize(("precision", "terms"), [("high", 3), ("medium", 1)])
def test_tiles_fit(precision: str, terms: int) -> None:
    for sizes, subgroup in itertools.product(SIZES, (8, 16, 32, 64)):
        check_tiles(precision, terms, sizes, subgroup)


def check_tiles(precision: str, terms: int, sizes: tuple[int, int, int], subgroup: int) -> None:
    limits = {"subgroup_size": subgroup, "max_work_group_invocations": 1024, "max_shared_memory": 32768,
              "max_work_group_size": (1024, 1024, 64), "max_storage_buffers": 16, "driver_id": 0,
              "required_subgroup_sizes": (8, 64), "max_required_subgroups": 8}
    tiles = cooperative._tiles(precision, sizes, limits)
    assert [t.rows for t in tiles] == [128, 64]
    for tile in tiles:
        constants = tile.constants()
        assert constants["THREADS"] == tile.subgroups * subgroup
        assert (tile.rows // tile.down) * (tile.cols // tile.across) == tile.subgroups
        assert tile.fits and constants["TERMS"] == terms
    few = cooperative._tiles(precision, sizes, {**limits, "max_work_group_invocations": 4 * subgroup})
    assert [t.rows for t in few] == [64]
    few = cooperative._tiles(precision, sizes, {**limits, "max_required_subgroups": 4})
    assert [t.rows for t in few] == [64]
    assert not cooperative._tiles(precision, sizes, {**limits, "max_shared_memory": 4096})


def test_tiles_are_as_large_as_gives_all_units_work() -> None:
    large = CooperativeTile(128, 128, 32, 64, 32, 32, 1, (16, 16, 16))
    small = replace(large, rows=64, cols=64, down=32)
    rule = CooperativeTiles((large, small), 132)
    assert rule.choose(4096, 4096, 1) == large and rule.choose(512, 512, 1) == small
    assert rule.choose(512, 512, 16) == large and rule.choose(20, 20, 1) == small


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", [NAMED] if NAMED else ["lavapipe", "swiftshader"])
def test_a_device_without_matrix_units_says_so_once(driver: str, caplog: pytest.LogCaptureFixture) -> None:
    backend = opened(vulkan_device(driver))
    if backend._cooperative._sizes is not None and kernels.kernel_state("matmul_coop") == "compiled":
        pytest.skip("this device has them")
    expected = product(backend)
    assert not caplog.records
    with ag.ag_matmul_precision("high"):
        for _ in range(3):
            np.testing.assert_array_equal(product(backend), expected)
    (record,) = caplog.records
    assert "runs in float32 although the precision is 'high': " in record.message
    why = {"left out": "its kernel was left out of the build with ", "compiled": "has no cooperative matrices"}
    assert why[kernels.kernel_state("matmul_coop")] in record.message


@pytest.fixture
def injected(swiftshader: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Opens a backend on which the float32 kernels in tiles of kind V pass for those on cooperative matrices."""
    known = {*KERNELS, *(f"{name}_f16" for name in KERNELS)}
    monkeypatch.setattr(cooperative, "kernel_state", lambda name: "compiled" if name in known else "none")
    monkeypatch.setattr(cooperative, "_TIMED", 64)
    monkeypatch.setattr(cooperative, "_TESTED", ((20, 33, 20, 0, 0),))
    monkeypatch.setattr(cooperative, "CooperativeTiles", lambda tiles, units, suffix: Tiles(1, (), "V"))

    def open_one(right: bool = True, seconds: float = 0.5) -> Any:
        choices_of.cache_clear()
        backend = opened(swiftshader)
        backend._cooperative._sizes = (8, 8, 8)
        backend.tested = 0
        usual = backend.command

        def command(primitive: Any, buffers: Any, params: Any, tiles: Any = None) -> Any:
            made = usual(primitive, buffers, params, tiles)
            if not isinstance(tiles, Tiles) or tiles.forced != "V":
                return made
            backend.tested += 1
            words = np.frombuffer(made.push, np.uint32).copy()
            words[2] -= 0 if right else 1  # inner: one product is left out of every sum
            return made._replace(push=words.tobytes())

        times = itertools.cycle([seconds, 1.0])  # of this kernel, and of the usual one
        monkeypatch.setattr(backend, "command", command)
        monkeypatch.setattr(cooperative, "time_of", lambda recorder, command: next(times))
        monkeypatch.setattr(cooperative, "warm_up", lambda recorder, command: None)
        return backend

    return open_one


def verdicts(tmp_path: Path) -> dict[str, str]:
    (file,) = (tmp_path / "ag").iterdir()
    choices: dict[str, str] = json.loads(file.read_text())["choices"]
    return choices


@pytest.mark.slow
@pytest.mark.vulkan
def test_a_right_and_fast_kernel_is_used_and_not_tested_again(injected: Callable[..., Any], tmp_path: Path) -> None:
    first = injected()
    assert grid(first) == (2, 2, 1)
    with ag.ag_matmul_precision("high"):
        assert grid(first) == (5, 2, 1)
        product(first)
        assert verdicts(tmp_path) == {"matmul high in subgroups of 4": "used"} and first.tested == 3
        second = injected()
        assert grid(second) == (5, 2, 1) and second.tested == 0
    assert grid(first) == (2, 2, 1)


@pytest.mark.vulkan
@pytest.mark.parametrize(("right", "seconds", "verdict"), [
    (False, 0.5, "wrong"), pytest.param(True, 2.0, "slow", marks=pytest.mark.slow)])
def test_a_wrong_or_slow_kernel_is_not_used(injected: Callable[..., Any], tmp_path: Path,
                                            caplog: pytest.LogCaptureFixture, right: bool, seconds: float,
                                            verdict: str) -> None:
    backend = injected(right, seconds)
    with ag.ag_matmul_precision("medium"):
        assert grid(backend) == (2, 2, 1)
        product(backend)
    assert verdicts(tmp_path) == {"matmul medium in subgroups of 4": verdict}
    (record,) = caplog.records
    assert f"the kernel on cooperative matrices was {verdict} in a test" in record.message


@pytest.mark.vulkan
def test_float16_takes_the_place_of_bfloat16_for_medium_alone(
    injected: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooperative.Cooperative, "_verdict", lambda *_: "used")
    made = injected()._cooperative
    made._sizes, made._sizes_in_float16 = None, (8, 8, 8)
    given: Any = matmul, ((40, 40), (40, 8), (8, 40)), {"ta": False, "tb": False}
    assert made.rule(*given, "medium").forced == "V"
    assert verdicts(tmp_path) == {"matmul medium in subgroups of 4 in float16": "used"} and not caplog.records
    assert made.rule(*given, "high") is None
    assert "has no cooperative matrices of bfloat16 that are of use" in caplog.text


@pytest.mark.vulkan
def test_what_is_no_product_of_large_matrices_stays(injected: Callable[..., Any], tmp_path: Path) -> None:
    backend, rng = injected(), np.random.default_rng(2)
    image, weight = on(backend, normal(rng, 4, 6, 6, 2)), on(backend, normal(rng, 8, 4, 3, 3))
    with ag.ag_matmul_precision("high"):
        backend.launch(conv2d, image, weight, window=Window((3, 3)), groups=1)
        product(backend, 9)
    assert backend.tested == 0 and not (tmp_path / "ag").exists()


@pytest.mark.slow
@pytest.mark.vulkan
def test_a_captured_step_is_the_eager_one(injected: Callable[..., Any], tmp_path: Path) -> None:
    """Products keep their kernels: no epilogue is taken into one, as the kernels for lower precision have none."""
    backend, rng = injected(), np.random.default_rng(3)
    a, b, c = (on(backend, normal(rng, 40, 40)) for _ in range(3))
    for precision, names in (("highest", ["matmul_chain"]), ("high", ["matmul", "add"])):
        with ag.ag_matmul_precision(precision):
            with record(backend) as recording:
                out = backend.launch(add, backend.launch(matmul, a, b, ta=False, tb=False), c)
            eager = backend.download(out)
            recording.finished().run()
            np.testing.assert_array_equal(backend.download(out), eager)
            assert [launch.primitive.name for launch in recording.launches] == names
    assert verdicts(tmp_path) == {"matmul high in subgroups of 4": "used"}


@pytest.fixture
def matrix_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A backend whose kernels on cooperative matrices are compiled; with float16 if the device has no bfloat16."""
    backend = opened(NAMED or vulkan_device("lavapipe"))
    matrices = backend._manager.cooperative_matrices()
    if sizes_of(matrices) is None and not any(types == (0, 0, 1, 1, 3) for *_, types in
                                              [(m[:3], tuple(m[3:])) for m in matrices]):
        pytest.skip(f"{backend.info.description} ({backend.info.driver}) has no cooperative matrices")
    if sizes_of(matrices) is None:
        if kernels_build.missing_tools() or not kernels_build.knows_cooperative():
            pytest.skip("the tools here cannot compile the shader for float16")
        folder = tmp_path / "spv"
        shutil.copytree(kernels._SPV, folder)
        manifest = kernels_build.read_manifest(folder)
        for name in KERNELS:
            shader, spv = kernels_build.SHADERS / f"{name}.comp", folder / f"{name}.spv"
            manifest["kernels"][name] = kernels_build.compile_shader(shader, spv)
            kernels_build._to_spirv(shader, spv, kernels_build.COOPERATIVE_TARGET, "-DFLOAT16")
        (folder / "manifest.json").write_text(json.dumps(manifest))
        monkeypatch.setattr(kernels, "_SPV", folder)
        backend._cooperative._sizes = sizes_of(matrices, FLOAT16)
    elif kernels.kernel_state("matmul_coop") != "compiled":
        pytest.skip("the kernels were compiled by tools that do not know cooperative matrices")
    for cache in (kernels.manifest, planned, product_of):
        cache.cache_clear()
    yield backend
    backend.synchronize()
    for cache in (kernels.manifest, planned, product_of):
        cache.cache_clear()


@pytest.mark.vulkan
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_the_kernels_are_right(matrix_device: Any, precision: str, monkeypatch: pytest.MonkeyPatch,
                               caplog: pytest.LogCaptureFixture) -> None:
    times = itertools.cycle([0.5, 1.0])
    monkeypatch.setattr(cooperative, "time_of", lambda recorder, command: next(times))
    monkeypatch.setattr(cooperative, "warm_up", lambda recorder, command: None)
    backend, rng = matrix_device, np.random.default_rng(5)
    with ag.ag_matmul_precision(precision), caplog.at_level(logging.WARNING, "ag"):
        product(backend)
        for _ in range(5):  # a pipeline takes a software driver seconds
            rows, cols, inner, ta, tb = *rng.integers(16, 200, 2), rng.integers(1, 100), *rng.integers(0, 2, 2)
            a = normal(rng, 2, *((inner, rows) if ta else (rows, inner)))
            b = normal(rng, 2, *((cols, inner) if tb else (inner, cols)))
            x, y, out = on(backend, a), on(backend, b), blank(backend, (-(-int(inner) // 64), 2, int(rows), int(cols)))
            backend.launch(batched_matmul, x, y, into=out, ta=bool(ta), tb=bool(tb), chunk=64)
            a, b = a.swapaxes(1, 2) if ta else a, b.swapaxes(1, 2) if tb else b
            found = backend.download(out).sum(0)
            assert np.all(abs(found - a @ b) <= BOUND[precision] * (abs(a) @ abs(b)))
    backend.check_guards()
    assert not caplog.records


def spread(rng: Any, exponents: int, *shape: int) -> Any:
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-exponents, exponents + 1, shape)).astype(np.float32)


RANGES: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "normal": lambda rng: (spread(rng, 0, 50, 40), spread(rng, 0, 40, 45)),
    "too small and too large for float16": lambda rng: (
        np.float32(1e-30) * spread(rng, 0, 50, 40), np.float32(1e30) * spread(rng, 0, 40, 45)),
    "several bands in both": lambda rng: (spread(rng, 60, 50, 40), spread(rng, 60, 40, 45)),
    "nearly all of float32": lambda rng: (spread(rng, 115, 50, 40), spread(rng, 5, 40, 45)),
    "zeros": lambda rng: (np.zeros((50, 40), np.float32), spread(rng, 0, 40, 45)),
}


@pytest.fixture
def float16_device() -> Iterator[Callable[[Any, Any], Any]]:
    """Multiplies matrices on a device with matrices of float16, in small tiles, which software compiles in a second."""
    backend = opened(NAMED or vulkan_device("lavapipe"))
    sizes = backend._cooperative._sizes_in_float16
    if sizes is None or kernels.kernel_state("matmul_coop_f16") != "compiled":
        pytest.skip(f"{backend.info.description} ({backend.info.driver}) has no cooperative matrices of float16")
    m, n, k = sizes
    subgroup = backend._cooperative._limits["subgroup_size"]
    tile = CooperativeTile(4 * m, 4 * n, max(k, subgroup // m), 2 * m, 2 * n, subgroup, 1, sizes)
    assert tile.fits

    def multiply(a: Any, b: Any) -> Any:
        out = blank(backend, (len(a), b.shape[1]))
        backend.recorder.record(backend.command(matmul, (out, on(backend, a), on(backend, b)),
                                                {"ta": False, "tb": False}, CooperativeTiles((tile,), 1, "_coop_f16")))
        return backend.download(out)

    yield multiply
    backend.check_guards()


@pytest.mark.vulkan
@pytest.mark.parametrize("name", RANGES)
def test_float16_has_the_range_of_float32(float16_device: Callable[[Any, Any], Any], name: str) -> None:
    a, b = RANGES[name](np.random.default_rng(7))
    exact, magnitudes = a.astype(float) @ b, abs(a.astype(float)) @ abs(b)
    assert np.all(abs(float16_device(a, b) - exact) <= 2.0**-10 * 1.01 * magnitudes)


@pytest.mark.vulkan
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_float16_hides_nothing_that_is_not_finite(float16_device: Callable[[Any, Any], Any], value: float) -> None:
    rng = np.random.default_rng(8)
    for a in (spread(rng, 60, 50, 40), np.zeros((50, 40), np.float32)):
        a[3, 5] = value
        found = np.isfinite(float16_device(a, spread(rng, 0, 40, 45)))
        assert not found[3].any() and found[[*range(3), *range(4, 50)]].all()
