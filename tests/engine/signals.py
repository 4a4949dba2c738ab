"""Real interrupts: a process that trains is sent one SIGINT after the other, and after each its devices must work and
its tensors be readable.

`python tests/engine/signals.py COUNT DEVICE eager|captured|dp_train` sends COUNT of them, and
`tests/engine/test_signals.py` a few.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import ag

SAMPLES = [(np.full((4, 1), i / 8, np.float32), np.ones((2, 1), np.float32)) for i in range(8)]


def loop(device: str, captured: bool) -> Callable[[], None]:
    """A training by hand that goes on for ever."""
    model = ag.ag_sequential(ag.ag_linear(4, 8, activation="tanh"), ag.ag_dropout(0.2), ag.ag_linear(8, 2))
    optimizer = ag.optimizer_adam(model)

    def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(model(x), y)
        optimizer.step(ag.backward(loss))
        return loss

    run = ag.ag_capture(step) if captured else step
    x, y = ag.ag_tensor(np.ones((4, 5)), device), ag.ag_tensor(np.ones((2, 5)), device)
    run(x, y)

    def for_ever() -> None:
        while True:
            assert np.isfinite(run(x, y).item())

    def check() -> None:
        before = {name: p.numpy() for name, p in model.parameters().items()}
        assert all(np.isfinite(value).all() for value in before.values())
        run(x, y)
        assert all(np.isfinite(p.numpy()).all() for p in model.parameters().values())

    for_ever.check = check  # type: ignore[attr-defined]
    return for_ever


def trainings(device: str) -> Callable[[], None]:
    """One short `dp_train` after the other, on two replicas."""
    devices = [device, "cpu:1"]

    def train(steps: int) -> bool:
        result = ag.dp_train(lambda: ag.ag_linear(4, 2), SAMPLES, ag.ag_mse_loss, lambda m, s: m(s[0]),
                             lambda s: s[1], devices=devices, n_iter=steps, verbose=False, seed=1, timeout=60)
        assert result.interrupted or np.isfinite(result.loss)
        return result.interrupted

    def for_ever() -> None:
        while True:
            if train(20):  # it returns what was trained so far
                raise KeyboardInterrupt

    for_ever.check = lambda: train(2)  # type: ignore[attr-defined]
    return for_ever


def interrupted(count: int, device: str, mode: str, seed: int = 0) -> int:
    """Send this process so many interrupts; how many of them arrived as a KeyboardInterrupt."""
    rng, arrived, go = random.Random(seed), 0, threading.Semaphore(0)

    def sender() -> None:
        for _ in range(count):
            go.acquire()
            time.sleep(rng.uniform(0.0005, 0.01))
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    x = ag.ag_tensor(np.ones((16, 16)), device)
    with ag.ag_device(device):
        for_ever = trainings(device) if mode == "dp_train" else loop(device, mode == "captured")
        thread = threading.Thread(target=sender, daemon=True)
        thread.start()
        for _ in range(count):
            try:
                go.release()
                for_ever()
            except KeyboardInterrupt:
                arrived += 1
            for_ever.check()  # type: ignore[attr-defined]
            assert ((x @ x).numpy() == 16).all()
    thread.join()
    return arrived


if __name__ == "__main__":
    print(interrupted(int(sys.argv[1]), sys.argv[2], sys.argv[3]), "interrupts, and every device works")
