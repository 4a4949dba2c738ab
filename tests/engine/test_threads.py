"""Threads: each that trains a model of its own on a shared device gets the bits of its own single run."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.interrupts import in_threads

import ag
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import F32

THREADS = 8


def losses_and_weights(k: int, device: str, captured: bool, steps: int) -> bytes:
    """A training with dropout, seeded with `k` in the calling thread."""
    with ag.ag_device(device):
        ag.ag_seed(k)
        model = ag.ag_sequential(ag.ag_linear(5, 9 + k % 3, activation="relu"), ag.ag_dropout(0.3),
                                 ag.ag_linear(9 + k % 3, 2))
        optimizer = ag.optimizer_adam(model, lr=0.02)

        def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ag_mse_loss(model(x), y)
            optimizer.step(ag.backward(loss))
            return loss

        run = ag.ag_capture(step) if captured else step
        data = np.random.default_rng(k).standard_normal((steps, 5, 4)).astype(np.float32)
        losses = [run(ag.ag_tensor(x), ag.ag_tensor(x[:2])).item() for x in data]
        return np.array(losses).tobytes() + b"".join(p.numpy().tobytes() for p in model.parameters().values())


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_each_thread_trains_as_if_alone(device: str, captured: bool) -> None:
    steps = 12
    alone = [losses_and_weights(k, device, captured, steps) for k in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(lambda k: losses_and_weights(k, device, captured, steps), range(THREADS)))
    assert together == alone and len(set(alone)) == THREADS


def mask(device: str, size: int = 64) -> bytes:
    return ag.ag_dropout(0.5)(ag.ag_tensor(np.ones((size, 1)), device)).numpy().tobytes()


def test_threads_that_share_the_generator_get_other_masks(device: str) -> None:
    """Draw in threads, one after the other or all at once: together they get what one thread would.

    Whoever draws first after a seeding sets the device's stream back, once, however often threads are switched.
    """
    interval = sys.getswitchinterval()
    try:
        sys.setswitchinterval(1e-6)
        for _ in range(20):
            found: list[bytes] = []
            ag.ag_seed(5)
            in_threads(lambda _: found.extend([mask(device), mask(device)]), range(6))  # noqa: B023 - it ends here
            ag.ag_seed(5)
            assert len(set(found)) == 12 and set(found) == {mask(device) for _ in range(12)}
    finally:
        sys.setswitchinterval(interval)


def test_initial_weights_of_threads_differ() -> None:
    found: list[bytes] = []
    ag.ag_seed(5)
    in_threads(lambda _: found.extend([ag.ag_linear(3, 3).W.numpy().tobytes() for _ in range(10)]), range(6))
    assert len(set(found)) == 60


def test_a_seed_holds_for_threads_started_before_and_after(device: str) -> None:
    seeded, drawn, found = threading.Event(), threading.Event(), []

    def early() -> None:
        seeded.wait()
        found.append(mask(device))
        drawn.set()

    thread = threading.Thread(target=early)
    thread.start()
    ag.ag_seed(9)
    seeded.set()
    drawn.wait()
    thread.join()
    in_threads(lambda _: found.append(mask(device)), range(1))
    ag.ag_seed(9)
    assert found == [mask(device), mask(device)]


def test_a_thread_that_seeds_disturbs_nobody(device: str) -> None:
    ag.ag_seed(3)
    undisturbed = [mask(device) for _ in range(4)]
    ag.ag_seed(3)
    found, of_thread = [], []

    def other(_: int) -> None:
        ag.ag_seed(3)
        of_thread.extend([mask(device), mask(device)])

    for _ in range(4):
        found.append(mask(device))
        in_threads(other, range(1))
    assert found == undisturbed and of_thread == undisturbed[:2] * 4


def test_a_step_captured_with_another_generator_is_recorded_anew(device: str) -> None:
    x = ag.ag_tensor(np.ones((8, 8)), device)
    layer = ag.ag_dropout(0.5)
    step, found = ag.ag_capture(lambda x: layer(x)), []
    ag.ag_seed(1)
    step(x), step(x), step(x)

    def other(_: int) -> None:
        step(x)  # with the generator of the process
        for run in (step, layer):
            ag.ag_seed(7)
            found.append([run(x).numpy().tobytes() for _ in range(4)])

    in_threads(other, range(1))
    assert len(found) == 2 and found[0] == found[1]


def test_a_recording_holds_no_view_of_another_thread() -> None:
    """While it held one to look at it, the step of that thread was refused for a tensor that somebody keeps."""
    backend = backend_of("cpu")
    x, far = backend.zeros((2, 3), F32), []

    def elsewhere() -> None:
        with record(backend) as other:
            far.append(x.view((6,)))
            assert [view() for view in other.views] == far

    with record(backend) as recording:
        near = x.view((3, 2))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(elsewhere).result()
        nearer = x.view((1, 6))
        assert [view() for view in recording.views] == [near, nearer]
    x.view((6, 1))
    assert len(recording.views) == 2
