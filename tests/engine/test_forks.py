"""Forked children: CPU devices work there, whatever the parent's threads were doing; Vulkan says that it does not."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from helpers.probe import patience

import ag
from ag.engine import cpu_threads
from ag.engine.device import backend_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
DATA = [np.full((3, 1), i / 4, np.float32) for i in range(4)]


def train(devices: list[str], **options: object) -> float:
    return ag.dp_train(lambda: ag.ag_linear(3, 3), DATA, ag.ag_mse_loss, devices=devices, verbose=False, seed=1,
                       timeout=20, **{"n_iter": 2, **options}).loss  # type: ignore[arg-type]


def in_child(call: Callable[[], object], seconds: float = 30.0) -> str:
    """Return as text what `call` returns in a forked child, or its error; fail if the child does not end."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            try:
                said = repr(call())
            except BaseException as error:  # noqa: BLE001 - told to the parent
                said = f"{type(error).__name__}: {error}"
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    end = time.monotonic() + patience(seconds)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            pytest.fail("the child waits for ever")
        time.sleep(0.002)
    with os.fdopen(reader) as pipe:
        return pipe.read()


@contextmanager
def busy(*calls: Callable[[], object]) -> Iterator[None]:
    """Threads that make these calls all the time."""
    ended = threading.Event()

    def work(call: Callable[[], object]) -> None:
        while not ended.is_set():
            call()

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def everything() -> float:
    """Draw, allocate, compute in blocks, train on two replicas and on one."""
    x = ag.ag_tensor(np.ones((700, 700), np.float32))
    total = ag.ag_sum(ag.ag_exp(ag.ag_dropout(0.5)(x) * 0.0)).item()
    model = ag.DataParallel(ag.ag_linear(3, 3), ["cpu", "cpu:1"])
    model(np.ones((3, 4), np.float32)).numpy()
    loader = ag.ag_dataloader(np.ones((2, 8)), batch_size=2, prefetch=2)
    assert len(list(loader)) == 4
    return total + train(["cpu", "cpu:1"])


def test_a_child_computes_as_the_parent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_threads, "threads", lambda: 3)
    wanted = everything()
    assert in_child(everything) == repr(wanted)


@pytest.mark.slow
def test_forks_while_threads_work() -> None:
    x = ag.ag_tensor(np.ones((300, 300), np.float32))
    wanted = repr(everything())
    with busy(lambda: ag.ag_exp(x + x), lambda: ag.ag_dropout(0.5)(x), lambda: train(["cpu", "cpu:1"]),
              lambda: [ag.ag_tensor(np.ones(n)) for n in range(1, 200, 7)]):
        for _ in range(20):
            assert in_child(everything) == wanted


@pytest.mark.parametrize("last", [0, 12])
def test_a_training_does_not_go_on_in_a_child(last: int) -> None:
    """Of a callback that forks, the child gets an error, and the parent goes on; also where steps are replayed."""
    said: list[str] = []
    statuses: list[int] = []

    def callback(step: ag.DPStep) -> None:
        if step.step == last:
            pid = os.fork()
            if not pid:
                said.append("child")
            else:
                statuses.append(os.waitpid(pid, 0)[1])

    try:
        loss = train(["cpu", "cpu:1"], callback=callback, n_iter=last + 2)
    except ag.CommError as error:
        os._exit(0 if said and "forked child" in str(error) else 1)
    if said:
        os._exit(2)
    assert np.isfinite(loss) and statuses == [0]


@pytest.mark.vulkan
def test_vulkan_is_refused_in_a_child_at_once(vulkan: str) -> None:
    x = ag.ag_tensor(np.ones((3, 3)), vulkan)
    step = ag.ag_capture(lambda x: x * 2.0)
    step(x)
    lock = backend_of(vulkan).lock  # type: ignore[attr-defined]
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        for use in (lambda: (x + x).numpy(), lambda: x.numpy(), lambda: step(x), lambda: ag.ag_tensor([1.0], vulkan),
                    lambda: setattr(x, "data", np.zeros((3, 3))),
                    lambda: ag.ag_shutdown() or ag.ag_tensor([1.0], vulkan)):
            said = in_child(use)
            assert said.startswith("DeviceError") and "forked child" in said and "spawn" in said, said
        assert in_child(lambda: (ag.ag_tensor([1.0]) + 1.0).item()) == "2.0"
    finally:
        go.set()
        thread.join()
    assert (x + x).numpy().tolist() == [[2.0] * 3] * 3
