"""Kernels that go over columns twice: whole in registers or read again, with few and many invocations to a column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.guarded import Launch, check, guarded, reference, run
from table.rows import Array

from ag.engine.backends.shader.tiles import Tiles
from ag.engine.primitive import PRIMITIVES

SLOW = pytest.mark.slow
RULES = {  # of devices
    "driver": None, "card": Tiles(4, (), threads=1024, kept=32), "some": Tiles(4, (), threads=256, kept=16),
    "few": Tiles(4, (), threads=128, kept=32),
}
Operands = Callable[[np.random.Generator, int, int], list[Array]]


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) * 3).astype(np.float32)


def weights(rng: np.random.Generator, n: int, m: int) -> Array:
    """Softmax of something."""
    x = rng.exponential(size=(n, m)) ** 3 + 1e-6
    return (x / x.sum(0)).astype(np.float32)


def given(rng: np.random.Generator, n: int, m: int) -> list[Array]:
    return [normal(rng, n, m), normal(rng, n, m), normal(rng, n, 1)]


def moments(x: Array) -> list[Array]:
    exact = x.astype(np.float64)
    return [exact.mean(0, keepdims=True).astype(np.float32), exact.var(0, keepdims=True).astype(np.float32)]


def of_layer_norm(rng: np.random.Generator, n: int, m: int) -> list[Array]:
    x, g, gamma = given(rng, n, m)
    return [x, g, gamma, *moments(x)]


def of_rms_norm(rng: np.random.Generator, n: int, m: int) -> list[Array]:
    x, g, gamma = given(rng, n, m)
    return [x, g, gamma, np.square(x.astype(np.float64)).mean(0, keepdims=True).astype(np.float32)]


def classes(rng: np.random.Generator, n: int, m: int) -> Array:
    """Those of each column, some of which stand for nothing."""
    return np.where(rng.random(m) < 0.1, -(1 << 31), rng.integers(0, n, m)).astype(np.int32)


KERNELS: dict[str, tuple[Operands, dict[str, Any]]] = {
    "softmax": (lambda rng, n, m: [normal(rng, n, m)], {"axis": 0}),
    "softmax_grad": (lambda rng, n, m: [weights(rng, n, m), normal(rng, n, m)], {"axis": 0}),
    "log_softmax": (lambda rng, n, m: [normal(rng, n, m)], {"axis": 0}),
    "log_softmax_grad": (lambda rng, n, m: [np.log(weights(rng, n, m)), normal(rng, n, m)], {"axis": 0}),
    "softmax_cross_entropy": (lambda rng, n, m: [normal(rng, n, m), weights(rng, n, m)], {"factor": 0.5}),
    "softmax_cross_entropy_ids": (lambda rng, n, m: [normal(rng, n, m), classes(rng, n, m)], {"factor": 0.5}),
    "layer_norm": (lambda rng, n, m: [*given(rng, n, m)[1:], normal(rng, n, 1)], {"eps": 1e-5}),
    "layer_norm_grad": (of_layer_norm, {"eps": 1e-5}),
    "rms_norm": (lambda rng, n, m: given(rng, n, m)[1:], {"eps": 1e-6}),
    "rms_norm_grad": (of_rms_norm, {"eps": 1e-6}),
}
ALONG = ["softmax", "softmax_grad", "log_softmax", "log_softmax_grad"]  # any axis
LENGTHS = [1, 7, 32, 33, 200, 517, 1025, 3000]  # one invocation has, several keep, or none can keep in some rule


@contextmanager
def ruled(device: str, rule: Tiles | None) -> Iterator[Any]:
    """The device's backend with guard words, which chooses by this rule meanwhile, as far as it has the invocations."""
    backend: Any = guarded(device)
    with pytest.MonkeyPatch.context() as patch:
        if rule is not None:
            most = backend._manager.get_device_properties()["max_work_group_invocations"]
            patch.setattr(backend._kernels, "tiles", replace(rule, threads=min(rule.threads, most)))
        yield backend


def launch_of(name: str, rng: np.random.Generator, n: int, m: int) -> Launch:
    operands, params = KERNELS[name]
    return Launch(PRIMITIVES[name], operands(rng, n, m), params)


@pytest.mark.parametrize("rule", ["driver", "card", pytest.param("some", marks=SLOW), pytest.param("few", marks=SLOW)])
@pytest.mark.parametrize("name", KERNELS)
def test_equals_float64_at_random_shapes(vulkan: str, name: str, rule: str) -> None:
    rng = np.random.default_rng([*name.encode(), len(rule)])
    with ruled(vulkan, RULES[rule]) as backend:
        for n in rng.choice(LENGTHS, 4, replace=False):
            check(backend, launch_of(name, rng, int(n), int(rng.integers(1, 45))), int(n))


@pytest.mark.parametrize("name", KERNELS)
def test_equals_float64_in_c(name: str) -> None:
    rng = np.random.default_rng([*name.encode()])
    for n in LENGTHS:
        check(guarded("cpu"), launch_of(name, rng, n, int(rng.integers(1, 45))), n)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ALONG)
def test_along_other_axes(lavapipe: str, name: str, rule: str) -> None:
    rng = np.random.default_rng([*name.encode(), len(rule)])
    with ruled(lavapipe, RULES[rule]) as backend:
        for shape, axis in (((5, 300), 1), ((3, 70, 2), 1), ((2, 40, 9), 1), ((2, 1200), 1)):
            n, m = shape[axis], int(np.prod(shape)) // shape[axis]
            operands = [np.ascontiguousarray(np.moveaxis(x.reshape(n, *shape[:axis], *shape[axis + 1 :]), 0, axis))
                        for x in KERNELS[name][0](rng, n, m)]
            check(backend, Launch(PRIMITIVES[name], operands, {"axis": axis}), n)


@pytest.mark.parametrize("rule", ["driver", "card", "few"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmax_cross_entropy_ids", "layer_norm"])
def test_special_values_stay_in_their_columns(vulkan: str, name: str, rule: str) -> None:
    rng = np.random.default_rng(3)
    for n in (40, 700):
        launch = launch_of(name, rng, n, 12)
        x = launch.operands[0]
        x[rng.integers(n), 1], x[rng.integers(n), 2], x[rng.integers(n), 3] = np.nan, np.inf, -np.inf
        x[:, 4], x[:, 5], x[:, 6] = -np.inf, 3e38, -3e38
        with ruled(vulkan, RULES[rule]) as backend, np.errstate(all="ignore"):
            got, want = run(backend, launch), reference(launch, np.float64)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            same = [0, 7, 8, 9, 10, 11] if name == "layer_norm" else [0, *range(3, 12)]  # sums of 3e38 overflow
            if a.ndim == 2 and a.shape[1] == 12:
                np.testing.assert_allclose(a[:, same], b[:, same], rtol=1e-4, atol=1e-5, err_msg=f"{name} {i}")
                assert np.isnan(a[:, 1:3]).all() or i >= launch.primitive.outputs or not np.isnan(b[:, 1:3]).all()


@pytest.mark.parametrize("name", ["layer_norm", "softmax_cross_entropy_ids"])
def test_a_vocabulary_of_151936(lavapipe: str, name: str) -> None:
    rng = np.random.default_rng(5)
    with ruled(lavapipe, RULES["card"]) as backend:
        check(backend, launch_of(name, rng, 151_936, 3), 4096)


def test_means_far_from_zero_cost_no_digits(lavapipe: str) -> None:
    rng = np.random.default_rng(6)
    for rule in RULES.values():
        for n in (100, 3000):
            x = (rng.standard_normal((n, 9)) + 1e4 * rng.random(9)).astype(np.float32)
            with ruled(lavapipe, rule) as backend:
                variance = run(backend, Launch(PRIMITIVES["layer_norm"], [
                    x, np.ones((n, 1), np.float32), np.zeros((n, 1), np.float32)], {"eps": 1e-5}))[2]
            np.testing.assert_allclose(variance[0], x.astype(np.float64).var(0), rtol=3e-5)


H100, RX_580 = Tiles(132, (), threads=1024, kept=32), Tiles(36, (), threads=1024, kept=32)


@pytest.mark.parametrize(("rule", "shape", "most", "chosen"), [
    (H100, (10, 65536), 32, (128, 1, 16, 1)), (H100, (512, 65536), 32, (32, 16, 32, 1)),
    (H100, (512, 65536), 16, (32, 32, 16, 1)), (H100, (4096, 8192), 32, (8, 128, 32, 1)),
    (H100, (4096, 8192), 16, (8, 128, 8, 0)), (H100, (50257, 2048), 32, (8, 128, 8, 0)),
    (H100, (151936, 64), 32, (2, 512, 8, 0)), (H100, (128, 1024), 32, (8, 32, 4, 1)),
    (RX_580, (512, 65536), 32, (32, 16, 32, 1)), (Tiles(132, (), kept=32), (512, 65536), 32, (8, 16, 32, 1)),
    (Tiles(132, (), kept=32), (513, 65536), 32, (8, 16, 8, 0)), (Tiles(1, ()), (1500, 70), 32, (8, 16, 4, 0)),
])
def test_who_shares_a_column(rule: Tiles, shape: tuple[int, int], most: int, chosen: tuple[int, ...]) -> None:
    found = rule.columns(*shape, 1, most)
    assert (found["columns"], found["shares"], found["loads"], found["whole"]) == chosen
    assert found["THREADS"] == found["columns"] * found["shares"] <= rule.threads


def test_columns_that_lie_in_one_piece_have_neighbours_beside_each_other() -> None:
    for rule in (H100, RX_580, Tiles(1, ())):
        for length in (33, 200, 4096, 50257):
            assert rule.columns(length, 1, 2048, 32)["shares"] >= 8
