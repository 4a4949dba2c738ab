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
from ag.engine.backends.vulkan.kp_types import Algorithm, Asked, Manager
from ag.engine.backends.vulkan.pipelines import KeptPipelines
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.activation import relu
from ag.engine.kernels.elementwise import add, exp, mul

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(3)
Run = Callable[..., dict[str, Any]]


class Driver:
    def __init__(self, vendor: int = 1, device: int = 2, uuid: bytes = b"u" * 16) -> None:
        self.made_for, self.count, self.given = (vendor, device, uuid), 0, []

    def get_device_properties(self) -> dict[str, object]:
        vendor, device, uuid = self.made_for
        return {"vendor_id": vendor, "device_id": device, "pipeline_cache_uuid": uuid, "driver_version": 7}

    def pipelines(self) -> int:
        return self.count

    def pipeline_cache(self) -> bytes:
        vendor, device, uuid = self.made_for
        words = np.array([32, 1, vendor, device], np.uint32).tobytes()
        return words + uuid + b"compiled"

    def add_pipeline_cache(self, data: bytes) -> None:
        self.given.append(data)


def kept(driver: Driver) -> KeptPipelines:
    manager: object = driver
    return KeptPipelines(manager)  # type: ignore[arg-type]


def test_what_is_kept_comes_back_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, nothing = Driver(), Driver()
    kept(nothing).save()
    assert list(tmp_path.iterdir()) == []  # nothing was compiled
    keeps = kept(first)
    first.count = 1
    keeps.save()
    second = Driver()
    kept(second).load()
    assert second.given == [first.pipeline_cache()]
    (path,) = (tmp_path / "ag").iterdir()
    for other in (Driver(vendor=9), Driver(device=9), Driver(uuid=b"v" * 16)):
        keeps = kept(other)
        path.with_name(keeps._name).write_bytes(path.read_bytes())  # as if it had its name
        keeps.load()
        assert other.given == []


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


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_driver_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refuse(*_data: bytes) -> bytes:
        raise error("no")

    driver = Driver()
    keeps = kept(driver)
    driver.count = 1
    keeps.save()
    monkeypatch.setattr(driver, "add_pipeline_cache", refuse)
    keeps.load()
    monkeypatch.setattr(driver, "pipeline_cache", refuse)
    driver.count = 2
    keeps.save()


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


START = """
import sys
sys.path.insert(0, TESTS)
from time import perf_counter
from curves.models import numbers, training
from curves.workloads import SMALL_BATCH
from ag.engine.backends.vulkan import pipelines
from ag.engine.device import backend_of

spent = []

def timed(function):
    def call(*args):
        begin = perf_counter()
        try:
            return function(*args)
        finally:
            spent.append(perf_counter() - begin)
    return call

pipelines.compiled = timed(pipelines.compiled)
pipelines.Kernels._pipeline = timed(pipelines.Kernels._pipeline)
weights, batches = numbers("gpt", SMALL_BATCH["gpt"])
with ag.ag_device(DEVICE):
    step = ag.ag_capture(training("gpt", weights))
    said["loss"] = step(*batches[0]).item()
said["spent"], said["made"] = sum(spent), backend_of(DEVICE)._manager.pipelines()
ag.ag_shutdown()
"""


@pytest.mark.slow
def test_a_process_that_finds_what_another_one_compiled_starts_soon(lavapipe: str, tmp_path: Path) -> None:
    """The pipelines of a captured GPT take less time then; lavapipe has a cache of its own for what it compiled."""
    code = f"DEVICE = {lavapipe!r}\n" + START.replace("TESTS", repr(str(Path(__file__).parents[2])))
    caches = {"XDG_CACHE_HOME": str(tmp_path), "MESA_SHADER_CACHE_DIR": str(tmp_path)}
    first, *others = (run_code(code, **caches) for _ in range(4))
    assert all(said["loss"] == first["loss"] and said["made"] == first["made"] for said in others)
    assert 0 < min(said["spent"] for said in others) < first["spent"]


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


@pytest.mark.slow
@pytest.mark.parametrize(("code", "count"), [
    ("THREADS = 1\nassert all(right(captured()))", 5),
    ("kernels._algorithms.clear(); kernels._pipelines.clear()\nbackend.launch(add, backend.launch(relu, x), x)", 2)],
    ids=["one core", "eager launches"])
def test_one_at_a_time(run: Run, tmp_path: Path, code: str, count: int) -> None:
    said = run(f"{code}\nsaid['made'] = manager.pipelines() - before",
               KPFAULT_PIPELINE_MS="30", KPFAULT_PIPELINES=str(tmp_path / "made"))
    assert said["made"] == count and at_once(tmp_path / "made") == [1] * count


def test_what_a_driver_does_not_compile_is_the_same_error(run: Run) -> None:
    said = run("said['error'] = error_of(captured)\nsaid['made'] = manager.pipelines() - before\n"
               "del os.environ['KPFAULT_NO_PIPELINES']\nsaid['right'] = right(captured())\n"
               "said['again'] = manager.pipelines() - before", KPFAULT_NO_PIPELINES="1")
    expect_reported("a driver that does not compile", said["error"], ag.KernelError, "does not compile kernel fused",
                    "storage buffers", "update the driver")
    assert said["made"] == 0 and said["again"] == 5 and said["right"] == [True] * 5


INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it

def sender():
    sleep(0.25)
    os.kill(os.getpid(), signal.SIGINT)

def interrupted():
    began = perf_counter()
    threading.Thread(target=sender).start()
    try:
        captured()
    except KeyboardInterrupt:
        return perf_counter() - began
"""


@pytest.mark.slow
def test_interrupted(run: Run) -> None:
    said = run(f"{INTERRUPTED}\nsaid['seconds'] = interrupted()\nsaid['kept'] = differing()\n"
               "os.environ['KPFAULT_PIPELINE_MS'] = '0'\nsaid['right'] = right(captured())\n"
               "said['differ'] = differing()", KPFAULT_PIPELINE_MS="400")
    assert said["seconds"] is not None and said["seconds"] >= 0.3  # two turns would take 0.8 s
    assert said["kept"] == 0 and said["differ"] == 5 and said["right"] == [True] * 5


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


@pytest.mark.slow
def test_other_threads_run_meanwhile(run: Run) -> None:
    said = run("""
ticks, ended = [], threading.Event()

def tick():
    while not ended.wait(0.01):
        ticks.append(perf_counter())

thread = threading.Thread(target=tick)
thread.start()
began = perf_counter()
recorded = captured()
ended.set()
thread.join()
said['ticks'] = len(ticks)
said['took'] = perf_counter() - began
""", KPFAULT_PIPELINE_MS="500")
    assert said["took"] > 1 and said["ticks"] > 20, "Python's lock was held while pipelines were made"
