"""Threads for devices: who has one of its own, and what is made of errors and of calls that take long."""

from __future__ import annotations

import threading
import time

import pytest
from helpers.errors import expect_error

import ag
from ag.engine.cpu_threads import callers
from ag.parallel.comm import device_threads
from ag.parallel.comm.device_threads import DeviceThreads, Task


def threads_of(devices: list[str], alone: set[str], **how: bool) -> dict[str, int]:
    """The thread in which the calls of each device are made, as numbers in the order of devices."""
    found: dict[str, int] = {}
    threads = DeviceThreads(devices, alone, 10.0, **how)

    def called(device: str) -> None:
        found[device] = threading.get_ident()
        time.sleep(0.01)

    try:
        threads.run([Task(device, device, lambda device=device: called(device)) for device in devices], 0)
    finally:
        threads.close()
    numbers = list(dict.fromkeys(found[device] for device in devices))
    return {device: numbers.index(found[device]) for device in devices}


CPUS = [f"cpu:{i}" for i in range(5)]


@pytest.mark.parametrize("cores, expected", [
    (1, [0, 0, 0, 0, 0]), (2, [0, 0, 0, 1, 1]), (3, [0, 0, 1, 1, 2]), (4, [0, 0, 1, 1, 2]), (5, [0, 1, 2, 3, 4]),
    (16, [0, 1, 2, 3, 4])])
def test_more_cpu_devices_than_cores_share_threads(
        cores: int, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_threads, "threads", lambda: cores)
    assert list(threads_of(CPUS, set(CPUS)).values()) == expected
    cards = threads_of(["a", *CPUS, "b"], set(CPUS))
    assert len({cards["a"], cards["b"], cards["cpu:0"]}) == 3
    assert list(threads_of(CPUS, set(CPUS), wait=True).values()) == [0, 1, 2, 3, 4]


def test_errors_in_a_shared_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other calls are made, and the first error is raised."""
    monkeypatch.setattr(device_threads, "threads", lambda: 1)
    made: list[str] = []

    def call(device: str) -> None:
        made.append(device)
        if device in CPUS[1:3]:
            raise ValueError(device)

    threads = DeviceThreads(CPUS, set(CPUS), 10.0)
    with pytest.raises(ValueError, match="cpu:1"):
        threads.run([Task(device, device, lambda device=device: call(device)) for device in CPUS], 3)
    threads.close()
    assert made == CPUS


def test_a_call_that_hangs_in_a_shared_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_threads, "threads", lambda: 1)
    go = threading.Event()
    threads = DeviceThreads(CPUS, set(CPUS), 0.2)
    calls = [Task(device, f"replica {device}", go.wait if device == "cpu:1" else lambda: None) for device in CPUS]
    with expect_error("a call that hangs", ag.CommError, "replica cpu:1 did not finish its part of step 4"):
        threads.run(calls, 4)
    assert all(threads.hangs(device) for device in CPUS)
    threads.close()
    go.set()


# ---------------------------------------------------------------------------------------------- several steps


def test_each_thread_has_its_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_threads, "threads", lambda: 2)
    found: list[int] = []
    threads = DeviceThreads([*CPUS, "card"], set(CPUS), 10.0)
    for devices in (CPUS[::3], ["card"]):
        threads.run([Task(device, device, lambda: found.append(callers())) for device in devices], 0)
    threads.close()
    assert found == [2, 2, 1] and callers() == 1


def test_an_interrupt_waits_for_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_threads, "threads", lambda: 2)
    waits, ended = device_threads._DeviceThread.wait, list[str]()
    go = threading.Event()

    def interrupted(self: device_threads._DeviceThread, seconds: float) -> bool:
        if not go.is_set():
            go.set()
            raise KeyboardInterrupt
        return waits(self, seconds)

    def call(device: str) -> None:
        go.wait(10)
        ended.append(device)

    monkeypatch.setattr(device_threads._DeviceThread, "wait", interrupted)
    threads = DeviceThreads(CPUS[:2], set(CPUS[:2]), 10.0)
    with pytest.raises(KeyboardInterrupt):
        threads.run([Task(device, "", lambda device=device: call(device)) for device in CPUS[:2]], 0)
    assert sorted(ended) == CPUS[:2]
    threads.close()


def test_an_error_of_one_step_is_not_that_of_the_next() -> None:
    threads = DeviceThreads(CPUS[:1], set(CPUS[:1]), 10.0)
    with pytest.raises(ZeroDivisionError):
        threads.run([Task(CPUS[0], "", lambda: 1 // 0 and None)], 0)
    try:
        threads.run([Task(CPUS[0], "", lambda: None)], 1)
    except ZeroDivisionError as error:
        pytest.fail(f"{error.__notes__}")
    threads.close()


# ---------------------------------------------------------------------------------------------- cores for each
