"""Compiled kernels are kept: one pipeline per kernel and specialization, whatever segments operands lie in, and a file
that the next process reads, which may be broken, foreign or not writable without anybody noticing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from os import environ
from pathlib import Path

import numpy as np
import pytest
from helpers.devices import run_code
from helpers.probe import slowness

import ag
from ag.engine.backends.vulkan import backend as vulkan_backend
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.pipeline_cache import KeptPipelines
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import add, mul

pytestmark = pytest.mark.vulkan
RNG = np.random.default_rng(3)

PROGRAM = """
import logging
import numpy as np
logging.basicConfig(level=logging.WARNING)
import ag
from ag.engine.device import backend_of
x = ag.ag_tensor([[1.0, 2.0]], "vulkan:0")
print("pipelines", backend_of("vulkan:0")._manager.pipelines())
print((x + x).numpy().tolist())
"""


@pytest.fixture
def run(tmp_path: Path, lavapipe: str) -> Callable[..., list[Path]]:
    """Run the program in a process of its own with a cache folder, in silence; the files in the folder."""

    def run(**environment: str) -> list[Path]:
        # Mesa has a cache of its own, and says where it cannot have one.
        env = {**environ, "XDG_CACHE_HOME": str(tmp_path), "MESA_SHADER_CACHE_DISABLE": "true", **environment}
        done = subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], text=True, timeout=300,
                              capture_output=True, env=env)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.splitlines() == ["pipelines 0", "[[2.0, 4.0]]"]
        return sorted((tmp_path / "ag").glob("*.bin"))

    return run


def test_a_file_per_device_whatever_is_in_it(run: Callable[..., list[Path]], tmp_path: Path) -> None:
    (path,) = run()
    whole = path.read_bytes()
    for content in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), whole):
        path.write_bytes(content)
        assert run() == [path]
        assert path.read_bytes()[:15] == whole[:15] and len(path.read_bytes()) >= len(whole)
    path.unlink()
    path.mkdir()  # which cannot be replaced by a file
    run()
    assert list((tmp_path / "ag").glob("tmp*")) == []


def test_a_folder_that_cannot_be_made(run: Callable[..., list[Path]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert run(XDG_CACHE_HOME=str(tmp_path / "file")) == []


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
        keeps._path().write_bytes(path.read_bytes())  # as if it had its name
        keeps.load()
        assert other.given == []


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
            W = ag.ag_param(np.ones((size, size)))
            optimizer = ag.optimizer_adam({"W": W})

            def step(x: ag.Tensor, W: ag.Tensor = W, optimizer: ag.Optimizer = optimizer) -> ag.Tensor:
                with ag.with_grad_tape():
                    loss = ag.ag_sum(ag.ag_relu(W @ x))
                optimizer.step(ag.backward(loss))
                return loss

            captured = ag.ag_capture(step)
            for _ in range(3):
                captured(ag.ag_tensor(np.ones((size, 3)))).item()
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
