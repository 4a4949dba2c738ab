"""Vulkan kernels where the case table does not go: far ends of functions, many elements, classes and axes, any bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.guarded import Launch, check, guarded, reference, run
from table.rows import EPS, Array

from ag.engine.backend import Backend
from ag.engine.backends.vulkan import plans
from ag.engine.backends.vulkan.stream import commands
from ag.engine.backends.vulkan.stream.commands import seconds_of
from ag.engine.kernels.optimizer import places_of
from ag.engine.kernels.random import philox
from ag.engine.primitive import PRIMITIVES

E = EPS["f32"]
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5], np.float32)


@pytest.fixture
def backend(vulkan: str) -> Backend:
    return guarded(vulkan)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def compare(backend: Backend, name: str, *arrays: Array, ulp: float = 0, atol: float = 0, **params: Any) -> None:
    """All operands are the reference's, within `ulp` float32 eps."""
    launch = Launch(PRIMITIVES[name], list(arrays), params)
    for got, want in zip(run(backend, launch), reference(launch), strict=True):
        np.testing.assert_allclose(got, want, rtol=ulp * E, atol=atol, err_msg=name)


def test_tanh_and_sigmoid_over_the_whole_range(backend: Backend) -> None:
    x = np.concatenate([np.geomspace(1e-30, 100, 5000), -np.geomspace(1e-30, 100, 5000)]).astype(np.float32)
    compare(backend, "tanh", x, ulp=4)
    compare(backend, "sigmoid", x, atol=2 * E)


@pytest.mark.parametrize("p", [65.0, 66.0, -67.0])
def test_large_whole_powers(backend: Backend, p: float) -> None:
    x = np.concatenate([SPECIAL, np.linspace(-1.5, 1.5, 30, dtype=np.float32)])
    compare(backend, "pow", x, p=p, ulp=300, atol=1e-37)  # smaller ones may be flushed to 0


def test_a_range_that_is_empty_or_has_one_end(backend: Backend) -> None:
    for lo, hi in ((1.0, -0.5), (0.0, np.inf)):
        compare(backend, "clamp", SPECIAL, lo=lo, hi=hi)


def test_copy_moves_any_bits(backend: Backend) -> None:
    x = np.array([1, 0x7F800001, 0x80000001, 0xFFFFFFFF], np.uint32)  # denormals and signalling NaN
    moved = run(backend, Launch(PRIMITIVES["copy"], [x.view(np.float32)], {}))[0]
    np.testing.assert_array_equal(moved.view(np.uint32), x)


def test_more_than_65535_workgroups(backend: Backend) -> None:
    compare(backend, "relu", np.arange(65535 * 128 + 5, dtype=np.float32))


PRODUCTS = [("matmul", (2_200_000, 2), (2, 9), {}),  # 68,750 tiles below each other
            ("batched_matmul", (70_000, 4, 4), (70_000, 4, 4), {"chunk": 4})]  # as many tiles behind each other


@pytest.mark.slow
@pytest.mark.parametrize(("name", "a", "b", "params"), PRODUCTS)
def test_products_of_more_than_65535_tiles_along_an_axis(lavapipe: str, name: str, a: tuple[int, ...],
                                                         b: tuple[int, ...], params: dict[str, int]) -> None:
    compare(guarded(lavapipe), name, normal(*a), normal(*b, seed=1), ulp=8, atol=16 * E, ta=False, tb=False, **params)


@pytest.mark.parametrize(("name", "a", "b", "params"), PRODUCTS)
def test_grids_are_folded_that_are_too_long_on_any_axis(monkeypatch: pytest.MonkeyPatch, vulkan: str, name: str,
                                                        a: tuple[int, ...], b: tuple[int, ...],
                                                        params: dict[str, int]) -> None:
    monkeypatch.setattr(plans, "_MOST_GROUPS", 65535 >> 10)
    plans.planned.cache_clear()
    a, b = (a[0] >> 10, *a[1:]), (b[0] if len(b) == 2 else b[0] >> 10, *b[1:])
    try:
        compare(guarded(vulkan), name, normal(*a), normal(*b, seed=1), ulp=8, atol=16 * E, ta=False, tb=False, **params)
    finally:
        plans.planned.cache_clear()


@pytest.mark.parametrize(("a", "b"), [((2, 1, 4, 1), (3, 1, 129)), ((2, 1) * 4, (1, 2) * 4)])
def test_broadcasts_over_many_axes(backend: Backend, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    compare(backend, "sub", normal(*a), normal(*b, seed=1))


@pytest.mark.parametrize("axes", [(0, 2, 1, 3), (7, 6, 5, 4, 3, 2, 1, 0)])
def test_permutations_of_many_axes(backend: Backend, axes: tuple[int, ...]) -> None:
    compare(backend, "permute", normal(*(11, 13, 2, 3, 2, 3, 2, 3)[: len(axes)]), axes=axes)


def test_sum_keeps_digits(backend: Backend) -> None:
    n = 1 << 17
    x = np.full(n, 0.1, np.float32)
    out, _ = run(backend, Launch(PRIMITIVES["sum"], [x], {"axis": 0, "chunk": n, "scale": 1.0}))
    np.testing.assert_allclose(out, n * float(x[0]), rtol=16 * E)


def test_a_large_vocabulary(backend: Backend) -> None:
    classes = 50257  # three passes of one invocation would be more than lavapipe's 65,535 rounds
    x, t = normal(classes, 1), np.exp(normal(classes, 1, seed=1)) / classes
    compare(backend, "softmax_cross_entropy", x, t, factor=1.0, ulp=64, atol=E)


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1])
def test_a_label_that_is_no_class_gives_nan(backend: Backend, wrong: int) -> None:
    ids = np.array([0, wrong, 2], np.int32)
    launch = Launch(PRIMITIVES["softmax_cross_entropy_ids"], [normal(3, 3), ids], {"factor": 1.0})
    losses, dx, *_ = run(backend, launch)
    assert np.isnan(losses).ravel().tolist() == [False, True, False]
    assert np.isnan(dx).tolist() == [[False, True, False]] * 3


@pytest.mark.parametrize("stream", [(0, 0), (0xFFFFFFFF, 0), (0xFFFFFFFF, 0xFFFFFFFF)])
def test_the_next_stream_carries(backend: Backend, stream: tuple[int, int]) -> None:
    check(backend, Launch(PRIMITIVES["rng_draw"], [np.array([1, 2, *stream], np.uint32)], {}))


@pytest.mark.parametrize("n", [1, 7, 129, 1000])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
def test_dropout(backend: Backend, n: int, rate: float) -> None:
    key = np.array([0x12345678, 0x9ABCDEF0, 7, 0x80000001], np.uint32)
    x = np.append(normal(n - 1), np.float32(np.nan))
    compare(backend, "dropout", x, key, rate=rate, ulp=2 / (1 - rate))


def test_dropout_draws_the_bits_of_philox(backend: Backend) -> None:
    # With rate = u_i each element up to u_i vanishes: the mask locates every uniform number exactly.
    key, ones = np.array([1, 2, 3, 4], np.uint32), np.ones(64, np.float32)
    uniform = (philox((1, 2), (3, 4), 64) >> np.uint32(8)) * 2.0**-24
    for rate in np.sort(uniform)[::9]:
        for shift in (0.0, 2.0**-24):
            out = run(backend, Launch(PRIMITIVES["dropout"], [ones, key], {"rate": rate + shift}))[0]
            np.testing.assert_array_equal(out != 0, uniform >= rate + shift)


def test_the_state_moves_on_once_per_launch(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where workgroups are folded, so that some are behind the end, and in parts, which are rows of workgroups."""
    for module in plans, commands:
        monkeypatch.setattr(module, "_MOST_GROUPS", 97)
    plans.planned.cache_clear()
    n, steps = 98 * 128 * 3, 10
    ends = [4, 1000, 1000, 20000, n]  # of parameters, of which one is empty; the first is not in the launch
    counts = [[0.3, 0.004, 3], [0.4, 0.005, 4], [0, 0, 0], [0.1, 0.001, 1], [0.3, 0.004, 3], [0.3, 0.004, 3]]
    state = np.array([0, *np.ravel(counts)], np.float32)
    settings = np.array([1e-2, 0.1, 0.001, 1e-8, 0.01, 0.9, 0.999], np.float32)
    size = n - ends[0]
    start = [normal(size), normal(size, seed=1), np.exp(normal(size, seed=2)), state, settings, places_of(ends),
             normal(size, seed=3), np.ones(1, np.float32), np.zeros(1, np.float32)]
    params = {"start": ends[0], "first": 1, "count": 4, "last": True}

    def stepped(one: Any) -> list[Array]:
        arrays = start
        for _ in range(steps):
            arrays = one(Launch(PRIMITIVES["adam_update"], arrays, params))
        return arrays

    got, again, want = (stepped(one) for one in (lambda x: run(backend, x), lambda x: run(backend, x), reference))
    before = backend.recorder.submits
    monkeypatch.setattr(backend.recorder.budget, "seconds", seconds_of(0, 4 * 4 * size) / 20)
    in_parts = stepped(lambda x: run(backend, x))
    assert backend.recorder.submits - before >= 20 * steps
    plans.planned.cache_clear()
    assert got[3][0] == 0
    assert got[3][1:].reshape(-1, 3)[:, 2].tolist() == [13, 4, 10, 11, 13, 13]
    np.testing.assert_allclose(got[3], want[3], rtol=16 * E)
    for k in range(3):
        np.testing.assert_allclose(got[k], want[k], rtol=32 * E, atol=8 * E)
        for other in again, in_parts:
            np.testing.assert_array_equal(other[k], got[k])
    np.testing.assert_array_equal(in_parts[3], got[3])
