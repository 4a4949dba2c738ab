"""Replays get the arguments of their own call: of all types and sizes, at once, and inside another call."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from helpers.interrupts import at_place

import ag
from ag.engine.device import backend_of

RNG = np.random.default_rng(27)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("given", [np.float32, np.float64, np.int64, np.uint8, np.int32])
def test_arrays_of_all_types(device: str, dtype: str, given: type) -> None:
    """Odd sizes, too, which do not fill the last word in 16 bits; other numbers in each call."""
    step = ag.ag_capture(lambda x: ag.ag_tensor(x, dtype=dtype).astype("f32") * 2.0)
    for k in range(6):
        x = RNG.integers(0, 100, (3, 5)).astype(given)
        want = 2.0 * ag.ag_tensor(x, dtype=dtype).numpy()
        np.testing.assert_array_equal(step(x if k % 2 else np.asfortranarray(x)).numpy(), want)


@pytest.mark.parametrize("given", [np.float64, np.int64, np.uint8, np.int32])
def test_ids_of_all_types(device: str, given: type) -> None:
    table = ag.ag_tensor(np.arange(100.0)[None])
    step = ag.ag_capture(lambda ids: ag.ag_embedding_lookup(table, ids))
    for _ in range(6):
        ids = RNG.integers(0, 100, 7).astype(given)
        np.testing.assert_array_equal(step(ids).numpy()[0], ids)


def training(rows: int) -> tuple[Callable[..., ag.Tensor], ag.Tensor]:
    """A step whose result depends on its arguments, and on the order of the calls before."""
    W = ag.ag_param(np.zeros((rows, 512)))
    optimizer = ag.optimizer_sgd({"W": W}, lr=1.0)

    def step(x: np.ndarray, y: ag.Tensor, z: ag.Tensor) -> ag.Tensor:
        g = (ag.ag_tensor(x) - W * 0.25 + y) * z
        optimizer.step({"W": g})
        return g[0, :3]

    return step, W


@pytest.mark.parametrize("rows", [3, 700, pytest.param(
    4096, marks=[pytest.mark.slow, pytest.mark.not_on("swiftshader")])])  # 8 MiB go by the chunks
def test_many_calls_at_once(device: str, rows: int) -> None:
    """Nothing is read before the last call, and every array is overwritten as soon as it was given."""
    resident = ag.ag_tensor(np.full((rows, 512), 0.5))

    def trained(captured: bool) -> list[bytes]:
        step, W = training(rows)
        call = ag.ag_capture(step) if captured else step
        x, moving, found = np.empty((rows, 512), np.float32), [], []
        for k in range(9):
            x[:] = np.arange(512) % 7 + k
            moving.append(ag.ag_tensor(np.full((rows, 512), k / 8.0)))  # each lies elsewhere
            found.append(call(x, moving[-1], resident))
            x[:] = np.nan
        return [t.numpy().tobytes() for t in (*found, W)]

    assert trained(captured=True) == trained(captured=False)


def test_submissions_that_may_cost_little(vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split copies of arguments into parts, each with its own submission."""
    backend: Any = backend_of(vulkan)
    x = RNG.standard_normal((256, 1024)).astype(np.float32)
    y = ag.ag_tensor(-x, device=vulkan)
    step = ag.ag_capture(lambda x, y: ag.ag_tensor(x, device=vulkan) * 3.0 + y)
    for k in range(6):
        if k == 3:
            monkeypatch.setattr(backend.recorder.budget, "seconds", 2e-5)
        np.testing.assert_allclose(step(x + k, y).numpy(), 2 * x + 3 * k, rtol=1e-5, atol=1e-5)


def test_without_staging_memory(vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_of(vulkan).transfers, "place", lambda like: None)  # type: ignore[attr-defined]
    step = ag.ag_capture(lambda x: ag.ag_tensor(x, device=vulkan) * 3.0)
    for k in range(5):
        assert step(np.array([k, k + 1.0])).numpy()[:, 0].tolist() == [3.0 * k, 3.0 * k + 3]


def in_the_library(frame: FrameType) -> bool:
    return "/ag/" in frame.f_code.co_filename


def interrupted(captured: bool, every: int) -> set[str]:
    """Return what three calls and a fourth leave that calls the step in its middle, for many places in the fourth."""
    x, y = ([np.full((1, 512), value), *(ag.ag_tensor(np.full((1, 512), v)) for v in (value, 0.5))] for value in (1, 2))
    found = set()
    for at in range(1, 3000, every):
        step, W = training(1)
        call = ag.ag_capture(step) if captured else step
        results = [call(*args) for args in (x, y, x)]
        inside: list[ag.Tensor] = []
        with at_place(at, lambda: inside.append(call(*y)), in_the_library):  # noqa: B023
            results.append(call(*x))
        if not inside:
            break
        found.add(str([t.numpy().ravel()[:3].tolist() for t in (*results, *inside, W)]))
    return found


def test_whoever_calls_the_step_in_the_middle_of_a_call(device: str) -> None:
    """As a signal's handler may: that leaves nothing that it would not leave in the middle of the step itself."""
    every = 2 if device == "cpu" else 9  # a call has more places there
    found = interrupted(True, every)
    assert len(found) > 1
    assert found <= interrupted(False, every)


@pytest.mark.parametrize("kept", [0, 1, 3, 20], ids=lambda n: f"{n} kept")
def test_results_of_many_calls(device: str, kept: int) -> None:
    """However long they are held, whether they are read at once or much later, and while steps are timed."""
    step = ag.ag_capture(lambda x: (ag.ag_sum(x), x[0, :5] * 2.0))
    held: list[tuple[float, list[ag.Tensor]]] = []
    for k in range(60):
        results = [*step(ag.ag_tensor(np.full((2, 9), float(k)))), *step(ag.ag_tensor(np.full((2, 9), k + 0.5)))]
        if RNG.random() < 0.3:
            with ag.profile():
                results += step(ag.ag_tensor(np.full((2, 9), k + 0.25)))
        held.append((float(k), results))
        del results
        if len(held) > kept:
            number, (total, part, total2, part2, *timed) = held.pop(int(RNG.integers(len(held))))
            assert (total.item(), total2.item()) == (18 * number, 18 * (number + 0.5))
            for found, want in ((part, 2 * number), (part2, 2 * number + 1)):
                assert np.array_equal(found.numpy(), [want] * 5)
            assert not timed or timed[0].item() == 18 * (number + 0.25)
            del total, part, total2, part2, timed, found


@pytest.mark.vulkan
def test_a_loop_records_nothing(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for its arguments nor for its results, which come to the same places again and again."""
    recorder = backend_of(lavapipe).recorder
    built: list[object] = []
    build = type(recorder).build
    monkeypatch.setattr(type(recorder), "build", lambda self, *given: built.append(given) or build(self, *given))
    step, x = ag.ag_capture(lambda x: ag.ag_sum(x * 2.0)), ag.ag_tensor(np.ones((3, 3)), lavapipe)
    loss = None
    for k in range(100):
        if k == 40:  # after the call that is compared
            built.clear()
        loss = step(x)
    assert not built and loss is not None and loss.item() == 18.0
