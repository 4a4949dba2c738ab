"""Memory stays flat: thousands of steps leave neither the process nor the arena larger."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from time import sleep

import numpy as np
import pytest

import ag
from ag.engine.device import backend_of

software = pytest.mark.slow_on("lavapipe", "swiftshader")
RNG = np.random.default_rng(8)
X = RNG.standard_normal((4, 8)).astype(np.float32)
LABELS = RNG.integers(0, 3, 8)

# A leak grows in every part of a run, the tables and caches of Python, C and drivers only now and then: of three parts,
# the one that grows least is looked at. In short runs 24 KB are 160 bytes a step, and a tensor has more; in long runs
# they are 8 bytes, and no Python object is that small.
ROOM_BYTES = 24_000
PYTHON_BLOCK_BYTES = 32  # what a block of Python's own allocator is taken for; few are smaller


class MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = MallocInfo


def used_bytes() -> int:
    """Memory that this process has asked for and not given back. What the system counts as resident is no measure: a
    driver asks for aligned blocks of a megabyte again and again, and among what others keep each may lie elsewhere.
    """
    gc.collect()
    blocks = PYTHON_BLOCK_BYTES * sys.getallocatedblocks()
    if os.environ.get("AG_BARRIER_ALL") == "1":  # the leg with the validation layer, whose own tables grow
        return blocks
    info = mallinfo2()
    return info.uordblks + info.hblkhd + blocks


def training() -> Callable[[ag.Tensor, np.ndarray], ag.Tensor]:
    model = ag.ag_sequential(ag.ag_linear(4, 6, activation="relu"), ag.ag_dropout(0.1), ag.ag_linear(6, 3))
    optimizer = ag.optimizer_adam(model, lr=1e-3)

    def step(x: ag.Tensor, labels: np.ndarray) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(x), labels)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    return step


def assert_flat(device: str, step: Callable[[], object], warm: int, steps: int) -> None:
    """After a warm-up, neither the process nor the arena grows."""
    backend = backend_of(device)
    for _ in range(warm):
        step()
    backend.synchronize()
    sleep(0.05)  # a thread of `dp_train` lets go of its last call some milliseconds after the caller goes on
    gc.collect()  # what is left in circles
    sizes, arena = [used_bytes()], backend.arena.stats()
    for _ in range(3):
        for _ in range(steps // 3):
            step()
        backend.synchronize()
        sizes.append(used_bytes())
    sleep(0.05)
    gc.collect()
    after = backend.arena.stats()
    assert (after.live, after.segments, after.reserved) == (arena.live, arena.segments, arena.reserved)
    assert min(b - a for a, b in pairwise(sizes)) < ROOM_BYTES, sizes


either_length = pytest.mark.parametrize("long", [False, pytest.param(True, marks=[
    pytest.mark.slow, pytest.mark.not_on("swiftshader")])],
                                        ids=["short", "long"])


@pytest.mark.slow_on("lavapipe")
@either_length
def test_captured_steps(device: str, long: bool) -> None:
    """A hundred thousand on the CPU, ten thousand on a driver that is software; first a few on each."""
    step, x, rng = ag.ag_capture(training()), ag.ag_tensor(X), random.Random(0)

    def one() -> None:
        loss = step(x, LABELS)
        if rng.random() < 0.05:  # some steps are read, most only pile up in the queue
            loss.item()

    if long:
        assert_flat(device, one, 1_000, 99_000 if device == "cpu" else 9_000)
    else:
        assert_flat(device, one, 200, 500)


@software
@either_length
def test_eager_steps(device: str, long: bool) -> None:
    step = training()
    assert_flat(device, lambda: step(ag.ag_tensor(X), LABELS).item(), 100, 9_000 if long else 450)


@software
@either_length
def test_dp_train_gives_its_memory_back(device: str, long: bool) -> None:
    data = [(X[:, k : k + 1], LABELS[k : k + 1]) for k in range(8)]
    devices = ["cpu", "cpu:1"] if device == "cpu" else [device, device]

    def one() -> None:
        ag.dp_train(lambda: ag.ag_linear(4, 3), data, ag.ag_softmax_cross_entropy_loss, lambda m, s: m(s[0]),
                    lambda s: s[1], devices=devices, micro_batch=2, n_iter=3, verbose=False)

    one()  # tqdm starts a thread for the process
    threads = threading.active_count()
    assert_flat(device, one, *((10, 40) if long else (3, 9)))
    assert threading.active_count() <= threads


def test_epochs_of_a_loader() -> None:
    loader = ag.ag_dataloader(RNG.standard_normal((4, 64)), batch_size=8, prefetch=2)
    assert_flat("cpu", lambda: sum(batch.x.size for batch in loader), 50, 300)
