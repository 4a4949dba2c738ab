"""Kernels are compiled once, several at a time, and kept in a file; whatever interrupts that."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.devices import expect_reported, run_code

import ag
from ag.engine.backends.vulkan import backend as vulkan_backend
from ag.engine.backends.vulkan import pipelines
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.kp import Algorithm, Asked, Manager
from ag.engine.backends.vulkan.pipelines import KeptPipelines
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.activation import relu
from ag.engine.kernels.elementwise import add, exp, mul

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(3)
Run = Callable[..., dict[str, Any]]


def test_a_driver_takes_what_it_wrote(lavapipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    backend: Any = backend_of(lavapipe)
    keeps = KeptPipelines(backend._manager)
    keeps._compiled = -1
    keeps.save()
    (path,) = (tmp_path / "ag").iterdir()
    before = path.read_bytes()
    keeps.load()
    keeps._compiled = -1
    keeps.save()
    assert path.read_bytes()[:15] == before[:15] and path.stat().st_size >= len(before) and not caplog.messages
    loaded: list[KeptPipelines] = []
    monkeypatch.setattr(KeptPipelines, "load", lambda self: loaded.append(self))
    VulkanBackend(backend._index)
    assert len(loaded) == 1


def test_a_pipeline_serves_all_segments(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vulkan_backend, "_FIRST_BYTES", 1 << 16)
    shared: Any = backend_of(lavapipe)
    backend = VulkanBackend(shared._index)
    before = backend._manager.pipelines()
    values = [RNG.standard_normal(20_000).astype(np.float32) for _ in range(4)]
    buffers = [backend.alloc((20_000,), F32) for _ in values]
    assert len({b.block.segment for b in buffers}) > 1
    for b, value in zip(buffers, values, strict=True):
        backend.upload(value, b)
    for a, x in zip(buffers, values, strict=True):
        for b, y in zip(buffers, values, strict=True):
            assert np.array_equal(backend.download(backend.launch(add, a, b)), x + y)
            assert np.array_equal(backend.download(backend.launch(mul, a, b)), x * y)
    algorithms = backend._kernels._algorithms
    assert backend._manager.pipelines() - before == len(algorithms) < sum(map(len, algorithms.values()))


def test_a_captured_step_makes_no_pipeline_twice(lavapipe: str) -> None:
    backend: Any = backend_of(lavapipe)
    with ag.ag_device(lavapipe):
        before, known = backend._manager.pipelines(), len(backend._kernels._algorithms)
        for size in (30, 40):
            captured = ag.ag_capture(lambda x: ag.ag_sum(ag.ag_relu(x * x)))
            for _ in range(3):
                assert captured(ag.ag_tensor(np.ones((size, 3)))).item() == 3 * size
    assert backend._manager.pipelines() - before == len(backend._kernels._algorithms) - known


# Chains differ in their numbers of functions, so the program has COUNT pipelines of its own.
STEP = """
import os, signal, threading
from time import perf_counter, sleep
from ag.engine.backends.vulkan import pipelines
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.activation import relu
from ag.engine.kernels.elementwise import add

COUNT, THREADS = 5, 3
pipelines.cores = lambda: THREADS
backend = backend_of(DEVICE)
kernels, manager = backend._kernels, backend._manager
x = backend.alloc((40,), F32)
value = np.arange(40, dtype=np.float32) - 20
backend.upload(value, x)
programs = []

def captured():
    '''A program of COUNT chains, and its results.'''
    with record(backend) as recording:
        results = []
        for count in range(COUNT):
            y = backend.launch(relu, x)
            for _ in range(count + 1):
                y = backend.launch(add, y, x)
            results.append(y)
        del y
    programs.append(recording.finished())
    return results

def right(results):
    return [bool((backend.download(y) == np.maximum(value, 0) + (k + 1) * value).all())
            for k, y in enumerate(results)]

captured()  # what is made when launches are recorded one by one
programs.clear()
for known in kernels._algorithms, kernels._pipelines:  # forget those of chains
    for key in [key for key in known if "fused" in str(key)]:
        del known[key]
os.environ.update(FAULTS)
before = manager.pipelines()

def differing():
    return sum("fused" in key[0] and bool(made) for key, made in kernels._algorithms.items())
"""


@pytest.fixture
def run(layer: dict[str, str], lavapipe: str) -> Run:
    def run(code: str, **faults: str) -> dict[str, Any]:
        return run_code(f"DEVICE, FAULTS = {lavapipe!r}, {faults!r}\n{STEP}{code}", **layer)

    return run


def at_once(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


def test_each_once_by_several_threads(run: Run, tmp_path: Path) -> None:
    said = run("said['right'] = right(captured())\nprograms[0].run()\n"
               "said['made'] = [manager.pipelines() - before, differing(), programs[0].launches]\n"
               "captured()\nsaid['again'] = manager.pipelines() - before",
               KPFAULT_PIPELINE_MS="100", KPFAULT_PIPELINES=str(tmp_path / "made"))
    assert said["made"] == [5, 5, 5] and said["again"] == 5 and said["right"] == [True] * 5
    assert len(at_once(tmp_path / "made")) == 5 and max(at_once(tmp_path / "made")) == 3
    assert said["err"] == ""


def test_a_program_asks_for_all_that_it_lacks(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared: Any = backend_of(lavapipe)
    start = shared._manager.pipelines()  # of the one manager of this device
    backend = VulkanBackend(shared._index)
    x = backend.alloc((4,), F32)
    backend.upload(np.arange(4, dtype=np.float32), x)
    asked: list[int] = []

    usual = pipelines.compiled

    def compiled(manager: Manager, wanted: list[Asked]) -> list[Algorithm | None]:
        asked.append(len(wanted))
        return usual(manager, wanted)

    monkeypatch.setattr(pipelines, "compiled", compiled)
    monkeypatch.setattr(pipelines, "cores", lambda: 4)
    for _ in range(2):
        with record(backend) as recording:
            results = [backend.launch(kernel, backend.launch(add, x, x)) for kernel in (relu, exp)]
        before = backend._manager.pipelines()
        recording.finished().run()
        assert [backend.download(y)[0] for y in results] == [0, 1]
    assert asked == [2, 0] and backend._manager.pipelines() == before
    assert before - start == len(backend._kernels._algorithms)  # none was made twice


def test_what_a_driver_does_not_compile_is_the_same_error(run: Run) -> None:
    said = run("said['error'] = error_of(captured)\nsaid['made'] = manager.pipelines() - before\n"
               "del os.environ['KPFAULT_NO_PIPELINES']\nsaid['right'] = right(captured())\n"
               "said['again'] = manager.pipelines() - before", KPFAULT_NO_PIPELINES="1")
    expect_reported("a driver that does not compile", said["error"], ag.KernelError, "does not compile kernel fused",
                    "storage buffers", "update the driver")
    assert said["made"] == 0 and said["again"] == 5 and said["right"] == [True] * 5


@pytest.mark.slow
def test_a_handler_that_uses_the_device_meanwhile(run: Run) -> None:
    said = run(f"""
heard = []

def handler(number, frame):
    heard.append(backend.download(backend.launch(relu, x)).tolist() == np.maximum(value, 0).tolist())

signal.signal(signal.{signal.SIGUSR1.name}, handler)
threading.Timer(0.25, os.kill, (os.getpid(), signal.SIGUSR1)).start()
said['right'] = right(captured())
said['heard'] = heard
said['made'] = manager.pipelines() - before
""", KPFAULT_PIPELINE_MS="200")
    assert said["heard"] == [True] and said["right"] == [True] * 5 and said["made"] == 5
