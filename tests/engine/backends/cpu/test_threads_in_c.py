"""The threads that share a launch of a kernel in C: many callers at once, children of fork, more threads than cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from helpers.guarded import Launch

from ag.engine.backends.cpu.library import library
from ag.engine.backends.cpu.native import NativeBackend
from ag.engine.dtype import as_dtype
from ag.engine.primitive import PRIMITIVES

KERNELS = library()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="no kernels in C: not built, or AG_CPU is numpy")
DEADLINE_S = 60


class Worker:
    def __init__(self, threads: int, length: int = 20_000) -> None:
        assert KERNELS is not None
        self.backend, self.threads = NativeBackend(KERNELS), threads
        rng = np.random.default_rng(0)
        x = rng.standard_normal((40, length // 40)).astype(np.float32)
        self.out = []
        self.words, self.launches = b"", 0
        for launch in (Launch(PRIMITIVES["softmax"], [x], {"axis": 0}),
                       Launch(PRIMITIVES["sum"], [x], {"axis": 1, "chunk": 100, "scale": 1.0}),
                       Launch(PRIMITIVES["exp"], [x], {})):
            shapes = launch.primitive.shape(*[y.shape for y in launch.operands], **launch.params)
            buffers = [self.backend.alloc(s, as_dtype("f32", "tests")) for s in (shapes, launch.operands[0].shape)]
            self.backend.upload(launch.operands[0], buffers[1])
            found = self.backend.words(launch.primitive, tuple(buffers), launch.params)
            assert found is not None
            row = np.frombuffer(found[0], np.int64).copy()
            row[2] = 1
            self.words += row.tobytes()
            self.launches += 1
            self.out.append(buffers[0])

    def run(self, times: int = 1, callers: int = 1) -> bytes:
        """Return what all launches make, after some runs; each run must make the bytes of the first."""
        assert KERNELS is not None
        first = None
        for _ in range(times):
            for buffer in self.out:
                buffer.native.fill(np.nan)
            KERNELS._run(self.words, self.launches, self.threads, callers)
            made = b"".join(buffer.native.tobytes() for buffer in self.out)
            assert first in (None, made)
            first = made
        assert first is not None
        return first


def test_callers_at_once_get_the_same_bits() -> None:
    want = Worker(1).run()
    results: list[bytes] = []
    workers = [Worker(threads) for threads in (1, 2, 3, 5)]
    callers = [threading.Thread(target=lambda w: results.append(w.run(60)), args=[w], daemon=True) for w in workers]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(DEADLINE_S)
        assert not caller.is_alive()
    assert results == [want] * len(workers)


def test_callers_who_share_the_cores_get_the_same_bits() -> None:
    want = Worker(1).run()
    results: list[bytes] = []

    def work(worker: Worker, callers: int) -> None:
        for threads in (4, 2, 3, 2):
            worker.threads = threads
            results.append(worker.run(20, callers))

    shared = [threading.Thread(target=work, args=(Worker(1), callers), daemon=True) for callers in (3, 3, 3, 1, 99)]
    for caller in shared:
        caller.start()
    for caller in shared:
        caller.join(DEADLINE_S)
        assert not caller.is_alive()
    assert results == [want] * 4 * len(shared)


POOLS = """
import os, sys, threading, time
from engine.backends.cpu.test_threads_in_c import Worker
callers, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
workers = [Worker(4, 400_000) for _ in range(2)]
before, most, expected = len(os.listdir("/proc/self/task")), 0, 3 * callers
def work(worker):
    while time.monotonic() < end and most < expected:
        worker.run(1, callers)
threads = [threading.Thread(target=work, args=[worker]) for worker in workers]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    most = max(most, len(os.listdir("/proc/self/task")) - before - 2)
    time.sleep(0.01)
print(most)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="nothing here tells of threads of C")
@pytest.mark.parametrize(("callers", "seconds", "helpers"), [(1, 1, 3), (2, 30, 6)])
def test_each_of_several_callers_has_helpers(callers: int, seconds: float, helpers: int) -> None:
    done = subprocess.run([sys.executable, "-c", POOLS, str(callers), str(seconds)], capture_output=True, text=True,
                          timeout=DEADLINE_S, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert int(done.stdout) == helpers


def test_a_sleeping_pool_wakes() -> None:
    worker = Worker(3)
    want = worker.run()
    for _ in range(5):
        time.sleep(0.01)  # far longer than it looks for work
        assert worker.run() == want


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_a_child_of_fork_computes(busy: bool) -> None:
    worker, other = Worker(3), Worker(3)
    want = worker.run()
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            other.run(10)

    thread = threading.Thread(target=go_on, daemon=True)
    if busy:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                signal.alarm(DEADLINE_S)
                os._exit(0 if worker.run(20) == want else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        if busy:
            thread.join(DEADLINE_S)
    assert worker.run() == want


@pytest.mark.parametrize("threads", [0, 1, 63, 1000])
def test_any_number_of_threads(threads: int) -> None:
    assert Worker(threads).run(3) == Worker(1).run()
