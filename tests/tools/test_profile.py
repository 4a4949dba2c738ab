"""`ag.profile`: every launch is timed once, on every device, eager and replayed, and none outside."""

from __future__ import annotations

import json
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.probe import patience

import ag
from ag.engine.backend import Backend, Event
from ag.engine.backends.vulkan.stream import Counter as TickCounter
from ag.engine.device import backend_of


def kernels(profile: ag.tools.profile.Profile, device: str) -> list[str]:
    """List what ran on a device, in order, without copies between host and device, which only Vulkan has."""
    return [e.kernel for e in profile.events if e.device == device and e.kernel != "transfer"]


def assert_one_queue(events: list[Event]) -> None:
    """Events of one device: none ends before it begins, none begins before the one before it ended."""
    assert all(e.begin <= e.end for e in events)
    assert all(a.end <= b.begin for a, b in pairwise(events))


@pytest.mark.sync
def test_eager_launches(device: str) -> None:
    x = ag.ag_tensor(np.ones((64, 64)))
    ag.ag_exp(x)  # before the profile
    with ag.profile() as seen:
        y = ag.ag_exp(x + x)
        assert y.numpy()[0, 0] == pytest.approx(np.exp(2), rel=1e-5)
    ag.ag_exp(x)  # after it
    assert kernels(seen, device) == ["add", "exp"]
    assert_one_queue(seen.events)
    assert sum(e.end - e.begin for e in seen.events) > 0


def test_long_streams(device: str) -> None:
    x = ag.ag_tensor(np.zeros((8, 1)))
    with ag.profile() as seen:
        for k in range(700):
            x = x + 1.0
            if k % 300 == 299:
                x = ag.ag_tensor(x.numpy())
    assert x.numpy().ravel().tolist() == [700.0] * 8
    assert Counter(kernels(seen, device))["add"] == 700
    assert_one_queue(seen.events)


@pytest.mark.sync
def test_replays(device: str) -> None:
    W = ag.ag_param(np.full((8, 8), 0.1))
    optimizer = ag.optimizer_adam({"W": W})

    def step(x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(ag.ag_matmul(W, x), x)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    captured = ag.ag_capture(step)
    x = ag.ag_tensor(np.ones((8, 8)))
    captured(x), captured(x)  # recorded, and compared
    assert captured.program is not None
    for _ in range(2):  # sequences with timestamps are built once per profile
        with ag.profile() as seen:
            losses = [captured(x).item() for _ in range(2)]
        assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]
        names = kernels(seen, device)
        once = names[: captured.program.launches]
        assert once * 2 == names and "matmul" in "".join(once) and "adam_update" in once
        assert_one_queue(seen.events)
    before = losses[-1]
    assert captured(x).item() < before  # and without a profile


def test_the_table(device: str) -> None:
    x = ag.ag_tensor(np.ones((64, 64)))
    with ag.profile() as seen:
        for _ in range(5):
            ag.ag_exp(x)
        ag.ag_matmul(x, x)
    rows = [row for row in seen.table() if row.kernel != "transfer"]
    assert {(r.device, r.kernel): r.calls for r in rows}[device, "exp"] == 5 and len(rows) == 2
    assert sum(r.share for r in seen.table()) == pytest.approx(1)
    assert [r.total_ms for r in rows] == sorted((r.total_ms for r in rows), reverse=True)
    for row in rows:
        times = [e.end - e.begin for e in seen.events if e.kernel == row.kernel]
        assert row.total_ms == pytest.approx(sum(times) / 1e6)
        assert row.mean_us == pytest.approx(np.mean(times) / 1e3)
        assert f"{row.kernel} " in str(seen) and device in str(seen)
    assert str(seen).count("\n") == len(seen.table())


def test_an_empty_profile(tmp_path: Path) -> None:
    with ag.profile() as seen:
        pass
    seen.save_chrome_trace(tmp_path / "trace.json")
    assert seen.events == [] and seen.table() == [] and "kernel" in str(seen)
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == []


@pytest.mark.vulkan
def test_several_devices_in_one_trace(lavapipe: str, swiftshader: str, tmp_path: Path) -> None:
    devices = ["cpu", "cpu:1", lavapipe, swiftshader]
    with ag.profile() as seen:
        xs = [ag.ag_tensor(np.ones((32, 32)), device=d) for d in devices]
        for _ in range(3):
            xs = [ag.ag_exp(x) for x in xs]
        assert all(x.numpy()[0, 0] > 1e6 for x in xs)
    seen.save_chrome_trace(tmp_path / "trace.json")
    trace: dict[str, Any] = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert sorted(rows.values()) == sorted(devices)
    launches = [e for e in events if e["ph"] == "X"]
    assert len(rows) + len(launches) == len(events) and {e["pid"] for e in events} == {0}
    assert min(e["ts"] for e in launches) == 0
    for row, device in rows.items():
        here = [e for e in launches if e["tid"] == row]
        assert Counter(e["name"] for e in here)["exp"] == 3, device
        assert all(e["dur"] >= 0 for e in here)
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(here)), device  # rounding of a division


def test_a_device_that_is_opened_inside() -> None:
    device = "cpu:7"
    with ag.profile() as seen:
        x = ag.ag_tensor([[1.0]], device=device)
        assert (x + x).item() == 2
    assert kernels(seen, device) == ["add"]


@pytest.mark.vulkan
def test_device_times_lie_inside_the_host_times(lavapipe: str) -> None:
    """Kernels run while the host waits for them, so both clocks agree but for the time of one submission."""
    x = ag.ag_tensor(np.ones((64, 64)), device=lavapipe)
    ag.ag_matmul(x, x).numpy()  # compiles
    with ag.profile() as seen:
        begin = perf_counter_ns()
        for _ in range(20):
            y = ag.ag_matmul(x, x)
        y.numpy()
        end = perf_counter_ns()
    work = [e for e in seen.events if e.kernel != "transfer"]
    slack = int(patience(5e7))  # a busy machine may be slow to wake up the host when the clocks are compared
    assert begin - slack <= work[0].begin and work[-1].end <= end + slack
    assert sum(e.end - e.begin for e in work) <= end - begin + slack


def test_dp_train_is_seen_on_every_replica() -> None:
    with ag.profile() as seen:
        ag.dp_train(lambda: ag.ag_linear(3, 1), [np.ones((3, 1), np.float32)] * 4, ag.ag_mse_loss,
                    target_fn=lambda s: np.ones((1, 1), np.float32), forward_fn=lambda m, s: m(ag.ag_tensor(s)),
                    devices=["cpu", "cpu:1"], n_iter=2, verbose=False)
    assert kernels(seen, "cpu") and kernels(seen, "cpu:1")


def test_nesting_is_refused() -> None:
    with ag.profile() as outer:
        with expect_error("a profile inside a profile", ag.AgError, "profile:", "active already"), ag.profile():
            pass
        with expect_error("a profile entered twice", ag.AgError, "profile:", "active already"), outer:
            pass
        refused: list[ag.AgError] = []

        def in_another_thread() -> None:
            try:
                with ag.profile():
                    pass
            except ag.AgError as error:
                refused.append(error)

        thread = threading.Thread(target=in_another_thread)
        thread.start()
        thread.join()
        assert len(refused) == 1
        x = ag.ag_tensor([[1.0]])
        x + x
    assert kernels(outer, "cpu") == ["add"]  # the refused ones took nothing away
    assert Backend.settings.events is None


def test_an_error_inside_ends_the_profile() -> None:
    with pytest.raises(ZeroDivisionError), ag.profile() as seen:
        ag.ag_exp(ag.ag_tensor([[1.0]]))
        raise ZeroDivisionError
    assert kernels(seen, "cpu") == ["exp"] and Backend.settings.events is None
    with ag.profile():
        pass


@pytest.mark.vulkan
def test_a_device_without_timestamps_is_refused(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = backend_of(lavapipe)

    class OldCard:
        def get_device_properties(self) -> dict[str, Any]:
            return {"device_name": "old card"}

    with monkeypatch.context() as patch:
        patch.setattr(backend.recorder, "_counter", TickCounter(bits=0, period=1.0))
        patch.setattr(backend.recorder, "_manager", OldCard())
        with expect_error("a profile of a device without timestamps", ag.DeviceError, "old card"), ag.profile():
            pass
        assert Backend.settings.events is None
    with ag.profile() as seen:
        ag.ag_exp(ag.ag_tensor([[1.0]], device=lavapipe))
    assert kernels(seen, lavapipe) == ["exp"]
