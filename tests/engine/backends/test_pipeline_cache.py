"""Compiled kernels are kept: one pipeline per kernel and specialization, whatever segments operands lie in, and a file
that the next process reads.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.devices import run_code
from helpers.probe import slowness

import ag
from ag.engine.backends.vulkan import backend as vulkan_backend
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.pipelines import KeptPipelines
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import add, mul

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(3)

class Driver:
    """A manager whose driver notes what it is given."""

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
    backend = backend_of(lavapipe)
    assert isinstance(backend, VulkanBackend)
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
    """Operands in every combination of four segments, and two kernels."""
    monkeypatch.setattr(vulkan_backend, "_FIRST_BYTES", 1 << 16)
    shared = backend_of(lavapipe)
    assert isinstance(shared, VulkanBackend)
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
    backend = backend_of(lavapipe)
    assert isinstance(backend, VulkanBackend)
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
    """The pipelines of a captured GPT take 0.3 s at most then; lavapipe has a cache of its own for what it compiled."""
    code = f"DEVICE = {lavapipe!r}\n" + START.replace("TESTS", repr(str(Path(__file__).parents[2])))
    caches = {"XDG_CACHE_HOME": str(tmp_path), "MESA_SHADER_CACHE_DIR": str(tmp_path)}
    first, *others = (run_code(code, **caches) for _ in range(4))
    assert all(said["loss"] == first["loss"] and said["made"] == first["made"] for said in others)
    assert 0 < min(said["spent"] for said in others) < 0.3 * slowness()
