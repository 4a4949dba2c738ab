"""Closing devices: what was on them says so when it is used, nothing of them stays, and a broken one is opened anew."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.devices import run_code
from helpers.errors import expect_error
from helpers.probe import patience

import ag
from ag.engine import device as devices
from ag.engine.backends.cpu.backend import NumpyBackend, quiet
from ag.engine.backends.vulkan.devices import DRIVERS
from ag.engine.device import backend_of


@pytest.fixture
def fresh(device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device of which only this test knows; the default device."""
    monkeypatch.setattr(devices, "_backends", {})
    ag.ag_device(device)
    return device


def test_tensors_of_before_say_that_they_are(fresh: str) -> None:
    x, p = ag.ag_tensor(np.ones((3, 3))), ag.ag_param(np.ones((3, 3)))
    captured = ag.ag_capture(lambda x: x @ x)
    captured(x)
    optimizer = ag.optimizer_sgd({"p": p})
    with ag.with_grad_tape():
        loss = ag.ag_sum(p @ x)
    ag.ag_shutdown()
    y = ag.ag_tensor(np.ones((3, 3)))
    uses: list[Callable[[], object]] = [
        lambda: x + x, lambda: x * 2.0, lambda: x + y, lambda: y @ x, x.numpy, x.sum, lambda: captured(x),
        lambda: ag.backward(loss), lambda: setattr(p, "data", np.zeros((3, 3))),
        lambda: optimizer.step({"p": y}), lambda: ag.ag_tensor(x, dtype="f16"), lambda: x[0, 0].item(),
        lambda: ag.ag_to_device(x, "cpu:3")]
    for use in uses:
        with expect_error("a tensor of a device that was closed", ag.DeviceError, fresh, "closed by ag_shutdown",
                          "anew"):
            use()
    ag.ag_synchronize()
    assert (y + y).numpy().tolist() == [[2.0] * 3] * 3


def test_nothing_stays_of_a_closed_device(fresh: str) -> None:
    """Without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        alive = []
        for _ in range(3):
            layer = ag.ag_dropout(0.5)
            (layer(ag.ag_tensor(np.ones((4, 4)))) @ ag.ag_tensor(np.ones((4, 4)))).numpy()
            backend: Any = backend_of(fresh)
            parts = [backend] if fresh == "cpu" else [backend, backend.recorder, backend._kernels]
            alive += [weakref.ref(part) for part in parts]
            del backend, parts
            ag.ag_shutdown()
        assert [part() for part in alive] == [None] * len(alive)
    finally:
        gc.enable()


@pytest.mark.vulkan
def test_what_was_on_a_closed_device_keeps_no_driver(vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Free the driver: else a forked child would wait for its threads, and all memory of the card would stay taken."""
    monkeypatch.setattr(devices, "_backends", {})
    monkeypatch.setattr(DRIVERS, "_managers", {})
    x, layer = ag.ag_tensor(np.ones((3, 3)), vulkan), ag.ag_linear(3, 3).to(vulkan)
    captured = ag.ag_capture(lambda x: layer(x) + x)
    kept = [x + x, *(captured(x) for _ in range(4))]
    backend: Any = backend_of(vulkan)
    parts = [weakref.ref(part) for part in (backend.recorder, backend._kernels, backend._manager.bare)]
    ag.ag_shutdown()
    assert [part() for part in parts] == [None] * 3
    with expect_error("a tensor of a closed device", ag.DeviceError, "closed by ag_shutdown"):
        kept[-1].numpy()


def test_a_broken_device_is_opened_anew(fresh: str, monkeypatch: pytest.MonkeyPatch,
                                        caplog: pytest.LogCaptureFixture) -> None:
    x = ag.ag_tensor(np.ones((3, 3)))
    broken = backend_of(fresh)

    def fail() -> None:
        raise RuntimeError("the driver says no")

    monkeypatch.setattr(broken, "synchronize", fail)
    with caplog.at_level(logging.WARNING, "ag"):
        ag.ag_shutdown()
    assert fresh == "cpu" or f"{fresh} did not end well (the driver says no)" in caplog.text
    assert ag.ag_sum(ag.ag_tensor(np.ones((3, 3)))).item() == 9.0 and backend_of(fresh) is not broken
    with expect_error("a tensor of a broken device", ag.DeviceError, "closed by ag_shutdown"):
        x.numpy()


# ---------------------------------------------------------------------------------------------- memory in use

AT_WORK = """
import threading, time
numbers = np.ones((SIZE, SIZE), np.float32)
with ag.ag_device(DEVICE):
    x, y = ag.ag_tensor(numbers), ag.ag_tensor(numbers)
    captured = ag.ag_capture(lambda: x + y)
    for _ in range(4):
        captured()
said["ends"] = []

def work(use):
    try:
        with ag.ag_device(DEVICE):
            while True:
                use()
    except ag.DeviceError as error:
        said["ends"].append(str(error))

threads = [threading.Thread(target=work, args=(use,), daemon=True)
           for use in (captured, lambda: x + y, lambda: x @ y)]
for thread in threads:
    thread.start()
time.sleep(0.3)
"""


def test_replays_without_arguments_say_that_the_device_was_closed(fresh: str) -> None:
    """Replay a small and a large step: neither asks for memory of the device first."""
    captured = []
    for size in (3, 1500):
        x = ag.ag_tensor(np.ones((size, size)))
        captured.append(ag.ag_capture(lambda x=x: x + x))
        for _ in range(4):
            captured[-1]()
    ag.ag_shutdown()
    for step in captured:
        with expect_error("a replay on a device that was closed", ag.DeviceError, fresh, "closed by ag_shutdown"):
            step()


def at_work(device: str) -> str:
    """Code in whose end three threads compute on a device; a software driver takes long for much."""
    return f"DEVICE, SIZE = {device!r}, {1500 if device == 'cpu' else 64}\n{AT_WORK}"


@pytest.mark.slow
def test_threads_at_work_hear_of_it(device: str) -> None:
    """Keep what the threads read and write until they are done; the shutdown waits for everything that they launch."""
    said = run_code(at_work(device) + "ag.ag_shutdown()\nfor thread in threads:\n    thread.join(30)\n")
    assert len(said["ends"]) == 3 and all("closed by ag_shutdown" in end for end in said["ends"])


@pytest.mark.slow
def test_a_process_ends_while_threads_are_at_work(device: str) -> None:
    assert run_code(at_work(device))["ends"] == []


@pytest.mark.slow
def test_a_process_ends_while_blas_is_at_work() -> None:
    """It takes the memory away that BLAS packs matrices into, when nobody waits."""
    assert run_code(at_work("cpu").replace("ag.ag_tensor(numbers)", "ag.ag_tensor(numbers, dtype='f64')"))["ends"] == []


def test_closing_a_device_does_not_wait_for_what_others_will_compute() -> None:
    """Only for what they are computing at that time."""
    with ag.ag_device("cpu"):
        x = ag.ag_tensor(np.ones((300, 300)), dtype="f64")
    going = True

    def work() -> None:
        while going:
            x @ x

    thread = threading.Thread(target=work)
    thread.start()
    try:
        begin = time.monotonic()
        for index in range(20, 24):
            NumpyBackend(index).close()
        assert time.monotonic() - begin < patience(5)
    finally:
        going = False
        thread.join()


def test_closing_a_device_does_not_wait_for_a_thread_that_was_ended_in_the_middle() -> None:
    """By an exception from another thread, say, that came when numpy was done and this was not yet noted."""
    def work() -> None:
        quiet().__enter__()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    begin = time.monotonic()
    NumpyBackend(20).close()
    assert time.monotonic() - begin < patience(5)


@pytest.mark.vulkan
def test_nobody_launches_what_closing_would_not_wait_for(vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver whose threads still compute as the process ends may take it down."""
    monkeypatch.setattr(devices, "_backends", {})
    x = ag.ag_tensor(np.ones((3, 3)), vulkan)
    backend: Any = backend_of(vulkan)
    ends: list[str] = []

    def launch() -> None:
        try:
            ends.append(str((x + x).numpy()))
        except ag.DeviceError as error:
            ends.append(str(error))

    thread = threading.Thread(target=launch)

    def save() -> None:  # after the wait
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()

    monkeypatch.setattr(backend._kept, "save", save)
    ag.ag_shutdown()
    thread.join(30)
    assert len(ends) == 1 and "closed by ag_shutdown" in ends[0]
