"""Raise an exception wherever Python looks for signals in the engine: all that was done before stays right.
Everything stays right, too, where a signal's handler uses the device in the middle of a call.

`python tests/engine/test_interrupts.py DEVICE MODE [EVERY]` tries every place, which takes minutes.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from helpers.interrupts import at_place

import ag
from ag.engine.arena import Arena, Block
from ag.engine.device import backend_of

ENGINE = Path(ag.__file__).parent / "engine"
FILES = {str(ENGINE / name) for name in (
    "arena.py", "backend.py", "buffer.py", "random.py", "cpu_threads.py", "backends/cpu/backend.py",
    "backends/vulkan/backend.py", "backends/vulkan/stream.py", "backends/vulkan/pipelines.py", "kernels/random.py")}
SAMPLES = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


class Here(KeyboardInterrupt):
    """The interrupt of a test."""


def in_engine(frame: FrameType) -> bool:
    return frame.f_code.co_filename in FILES


def interrupt() -> None:
    raise Here


class Training:
    """A small training on a device, whose weights after every step are known."""

    def __init__(self, device: str, captured: bool) -> None:
        self.backend = backend_of(device)
        with ag.ag_device(device):
            ag.ag_seed(1)
            self.model = ag.ag_sequential(ag.ag_linear(4, 3, activation="tanh"), ag.ag_dropout(0.2), ag.ag_linear(3, 2))
            self.optimizer = ag.optimizer_adam(self.model, lr=0.01)
            self.start = self.optimizer.state_dict(), {k: p.numpy() for k, p in self.model.parameters().items()}
            self.x, self.y = ag.ag_tensor(SAMPLES), ag.ag_tensor(SAMPLES[:2])
            self.step = ag.ag_capture(self._step) if captured else self._step
            if captured:
                self.step(self.x)
        self.reset()
        self.after = [self.weights()]
        for _ in range(3):
            self.step(self.x)
            self.after.append(self.weights())
        assert len(set(self.after)) == 4

    def _step(self, x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(self.model(x), self.y)
        self.optimizer.step(ag.backward(loss))
        return loss

    def reset(self) -> None:
        """Go back to the beginning."""
        state, weights = self.start
        self.optimizer.load_state_dict(state)
        for name, p in self.model.parameters().items():
            p.data = weights[name]
        ag.ag_seed(2)

    def weights(self) -> bytes:
        return b"".join(p.numpy().tobytes() for p in self.model.parameters().values())


def check_interrupt(training: Training, number: int) -> bool:
    """Interrupt the second step, which is made or not; return whether there was such a place."""
    training.reset()
    training.step(training.x)
    kept = training.x * 3.0
    with suppress(Here), at_place(number, interrupt, in_engine) as seen:
        training.step(training.x)
        training.weights()
    assert training.weights() in training.after[1:3], f"wrong weights after an interrupt at {number}"
    assert kept.numpy().tobytes() == (SAMPLES * 3).tobytes(), f"an earlier result was lost at {number}"
    training.reset()
    for wanted in training.after[1:]:
        training.step(training.x)
        assert training.weights() == wanted, f"other steps after an interrupt at {number}"
    return seen[0] >= number  # in the callback of a weak reference Python drops what is raised


def check_handler(training: Training, number: int) -> bool:
    """A handler reads, computes and uploads in the middle of a step, which is the same as without it."""
    found: list[Any] = []

    def handler() -> None:
        t = ag.ag_tensor(SAMPLES, training.backend.name)
        found.append((t + t).numpy())
        ag.ag_tensor(np.ones((5, number % 97 + 1)), training.backend.name) * 2.0

    training.reset()
    training.step(training.x)
    kept = training.x * 3.0
    with at_place(number, handler, in_engine):
        training.step(training.x)
        weights = training.weights()
    assert weights == training.after[2], f"another step because of a handler at {number}"
    assert kept.numpy().tobytes() == (SAMPLES * 3).tobytes()
    assert all(x.tobytes() == (SAMPLES * 2).tobytes() for x in found), f"the handler reads wrongly at {number}"
    return bool(found)


CHECKS = {"interrupt": check_interrupt, "handler": check_handler}


def check_many(device: str, captured: bool, check: str, every: int, first: int = 1) -> int:
    """Check at every so many places; at how many."""
    training = Training(device, captured)
    gc.collect()
    live, checked = training.backend.arena.stats().live, 0
    while CHECKS[check](training, first + checked * every):
        checked += 1
    gc.collect()
    grown = training.backend.arena.stats().live - live
    assert grown <= 1 << 16, f"{grown} bytes are not given back after {checked} interrupts"
    return checked


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_anywhere(device: str, captured: bool, check: str) -> None:
    assert check_many(device, captured, check, every=89, first=7) >= 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_everywhere(device: str, captured: bool, check: str) -> None:
    """On software drivers at every 13th place: all of them, as the command above tries, take minutes."""
    every = 1 if device == "cpu" else 13
    assert check_many(device, captured, check, every, first=5) >= 40 // every  # a replay is one call in C on the CPU


def blocks_apart(blocks: list[Block]) -> bool:
    spans = sorted((b.address, b.address + b.nbytes) for b in blocks)
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("handled", [False, True], ids=["interrupts", "handlers"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("compiled", [False, True], ids=["python", "compiled"])
def test_an_arena(seed: int, handled: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it grows: no two blocks share a byte, none is lost, and all is free in the end."""
    if not compiled:
        monkeypatch.setattr("ag.engine.arena._code", None)
    rng = random.Random(seed)
    arena = Arena(lambda nbytes: nbytes, first_bytes=1 << 12, align=64)
    blocks: list[Block] = []

    def sized() -> int:
        return rng.choice([64, 64, 256, rng.randrange(1, 3000)])

    def handler() -> None:
        for _ in range(3):
            blocks.append(arena.alloc(sized()))
            if rng.random() < 0.5:
                blocks.pop(rng.randrange(len(blocks)))
        if rng.random() < 0.2:
            arena.stats()

    for _ in range(1200):
        if len(blocks) > 40 or (blocks and rng.random() < 0.4):
            del blocks[: rng.randrange(1, 12)]
        try:
            with at_place(rng.randrange(1, 60), handler if handled else interrupt, in_engine):
                blocks.append(arena.alloc(sized()))
                if rng.random() < 0.1:
                    arena.stats()
        except Here:
            pass
        assert blocks_apart(blocks)
    stats = arena.stats()
    assert stats.live == sum(b.nbytes for b in blocks)
    blocks.clear()
    stats = arena.stats()
    assert stats.live == 0 and stats.largest_free == max(nbytes for nbytes, _ in arena.segments)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised where nobody can catch it
def test_an_exception_from_another_thread(device: str) -> None:
    """As debuggers and notebooks raise it: the devices work, and what was computed stays."""
    x, results = ag.ag_tensor(SAMPLES), []
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def work() -> None:
        try:
            y = x
            while True:
                y = y + 1.0
                results.append(y)
        except Here:
            return

    for _ in range(5):
        results.clear()
        thread = threading.Thread(target=work)
        thread.start()
        while not results:
            time.sleep(0.003)
        while thread.is_alive():  # Python drops an exception that comes while it tells a weak reference's owner
            raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Here))
            thread.join(0.2)
        for k in (0, len(results) // 2, len(results) - 1):
            wanted = SAMPLES.copy()
            for _ in range(k + 1):
                wanted = wanted + np.float32(1)
            assert results[k].numpy().tobytes() == wanted.tobytes()


if __name__ == "__main__":
    where, mode, kind, step = [*sys.argv[1:], "interrupt", "1"][:4]
    print(check_many(where, mode == "captured", kind, int(step)), "times")
