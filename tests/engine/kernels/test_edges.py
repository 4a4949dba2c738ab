"""Vulkan kernels where the case table does not go: far ends of functions, many elements, classes and axes, any bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.guarded import Launch, check, guarded, reference, run
from table.rows import EPS, Array

from ag.engine.backend import Backend
from ag.engine.backends.shader import plans
from ag.engine.backends.shader.plans import seconds_of
from ag.engine.backends.vulkan import stream
from ag.engine.dtype import F32, I32
from ag.engine.kernels.indexing import NOTHING
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


def test_large_whole_powers(backend: Backend) -> None:
    x = np.concatenate([SPECIAL, np.linspace(-1.5, 1.5, 30, dtype=np.float32)])
    for p in (65.0, 66.0, -67.0):
        compare(backend, "pow", x, p=p, ulp=300, atol=1e-37)  # smaller ones may be flushed to 0


def test_a_range_that_is_empty_or_has_one_end(backend: Backend) -> None:
    for lo, hi in ((1.0, -0.5), (0.0, np.inf)):
        compare(backend, "clamp", SPECIAL, lo=lo, hi=hi)


def test_copy_moves_any_bits(backend: Backend) -> None:
    x = np.array([1, 0x7F800001, 0x80000001, 0xFFFFFFFF], np.uint32)  # denormals and signalling NaN
    moved = run(backend, Launch(PRIMITIVES["copy"], [x.view(np.float32)], {}))[0]
    np.testing.assert_array_equal(moved.view(np.uint32), x)


def test_grids_are_folded_that_are_too_long_on_any_axis(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_GROUPS", 63)
    plans.planned.cache_clear()
    flags: dict[str, Any] = {"ta": False, "tb": False, "ulp": 8, "atol": 16 * E}
    try:
        compare(backend, "relu", normal(3 * 63 * 128 + 5))
        compare(backend, "matmul", normal(2148, 2), normal(2, 9, seed=1), **flags)  # tiles below each other
        compare(backend, "batched_matmul", normal(68, 4, 4), normal(68, 4, 4, seed=1), chunk=4, **flags)  # and behind
    finally:
        plans.planned.cache_clear()


def test_broadcasts_and_permutations_of_many_axes(backend: Backend) -> None:
    compare(backend, "sub", normal(*(2, 1) * 4), normal(*(1, 2) * 4, seed=1))
    compare(backend, "permute", normal(11, 13, 2, 3, 2, 3, 2, 3), axes=(7, 6, 5, 4, 3, 2, 1, 0))


def test_a_label_that_is_no_class_gives_nan(backend: Backend) -> None:
    for wrong in (-1, 3, 2**31 - 1):
        ids = np.array([0, wrong, 2], np.int32)
        launch = Launch(PRIMITIVES["softmax_cross_entropy_ids"], [normal(3, 3), ids], {"factor": 1.0})
        losses, dx, *_ = run(backend, launch)
        assert np.isnan(losses).ravel().tolist() == [False, True, False], wrong
        assert np.isnan(dx).tolist() == [[False, True, False]] * 3, wrong


def test_a_label_that_stands_for_nothing_gives_0(backend: Backend) -> None:
    x, ids = normal(3, 40), np.arange(40, dtype=np.int32) % 3
    x[:, 7], ids[[2, 7, 33]] = np.inf, NOTHING
    for columns in (slice(0, 40), slice(2, 3)):
        launch = Launch(PRIMITIVES["softmax_cross_entropy_ids"], [x[:, columns].copy(), ids[columns]], {"factor": 1.0})
        check(backend, launch)
        losses, dx, *_ = run(backend, launch)
        for none in (losses[0, ids[columns] == NOTHING], dx[:, ids[columns] == NOTHING]):
            assert none.size and not none.any()


def test_the_next_stream_carries(backend: Backend) -> None:
    for words in ((0, 0), (0xFFFFFFFF, 0), (0xFFFFFFFF, 0xFFFFFFFF)):
        check(backend, Launch(PRIMITIVES["rng_draw"], [np.array([1, 2, *words], np.uint32)], {}))


def test_dropout(backend: Backend) -> None:
    key = np.array([0x12345678, 0x9ABCDEF0, 7, 0x80000001], np.uint32)
    for n, rate in ((1, 0.3), (7, 0.0), (129, 0.9), (1000, 0.3)):
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


def test_draws_are_the_bits_of_philox(backend: Backend) -> None:
    key, bits = np.array([1, 2, 3, 4], np.uint32), philox((1, 2), (3, 4), 1001)
    for shape in ((1,), (7, 143), (0,), (4,)):
        n = int(np.prod(shape))
        drawn = run(backend, Launch(PRIMITIVES["uniform"], [key], {"shape": shape}, F32))[0]
        np.testing.assert_array_equal(drawn.ravel(), (bits[:n] >> np.uint32(8)) * 2.0**-24)
        for low, count in ((0, 1), (-5, 11), (-(2**31), 2**31 - 1), (0, 2**31 - 1)):
            params = {"shape": shape, "low": low, "count": count}
            drawn = run(backend, Launch(PRIMITIVES["randint"], [key], params, I32))[0]
            assert drawn.ravel().tolist() == [low + (int(word) * count >> 32) for word in bits[:n]]


def test_the_state_moves_on_once_per_launch(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where workgroups are folded, so that some are behind the end, and in parts, which are rows of workgroups."""
    for module in plans, stream:
        monkeypatch.setattr(module, "MOST_GROUPS", 97)
    plans.planned.cache_clear()
    n, steps = 98 * 128 * 3, 10
    ends = [4, 1000, 1000, 20000, n]  # of parameters, of which one is empty; the first is not in the launch
    counts = [[0.3, 0.004, 3], [0.4, 0.005, 4], [0, 0, 0], [0.1, 0.001, 1], [0.3, 0.004, 3], [0.3, 0.004, 3]]
    state = np.array([0, *np.ravel(counts)], np.float32)
    settings = np.array([1e-2, 0.1, 0.001, 1e-8, 0.01, 0.9, 0.999], np.float32)
    size = n - ends[0]
    start = [normal(size), normal(size, seed=1), np.exp(normal(size, seed=2)), state, settings, places_of(ends),
             normal(size, seed=3), np.ones(1, np.float32), np.zeros(1, np.float32), normal(size)]
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
