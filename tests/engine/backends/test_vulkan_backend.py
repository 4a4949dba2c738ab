"""The Vulkan backend: segments, transfers, long command streams, threads, and kernels that are missing or wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.devices import expect_reported, run_code
from helpers.errors import expect_error

import ag
from ag.engine.backends.shader import manifest as kernels
from ag.engine.backends.shader.plans import planned
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.device import backend_of
from ag.engine.dtype import F32, I32, U32
from ag.engine.kernels.elementwise import copy, fused

pytestmark = [pytest.mark.vulkan, pytest.mark.sync]
RNG = np.random.default_rng(6)


@pytest.fixture
def gpu(vulkan: str) -> Iterator[str]:
    with ag.ag_device(vulkan):
        yield vulkan


@pytest.fixture
def backend(gpu: str) -> VulkanBackend:
    found: Any = backend_of(gpu)
    return found


def test_a_tensor_larger_than_the_device_allows(backend: VulkanBackend) -> None:
    before = backend.arena.stats()
    with expect_error("a tensor that is larger than a device can address", ag.ArenaError, "17179869184 bytes",
                      "may have"):
        backend.alloc((1 << 32,), F32)
    assert backend.arena.stats() == before
    assert ag.ag_sum(ag.ag_tensor([1.0, 2.0])).item() == 3.0


@pytest.mark.parametrize("dtype", [F32, I32, U32], ids=str)
def test_every_bit_survives_the_round_trip(backend: VulkanBackend, dtype: Any) -> None:
    bits = RNG.integers(0, 1 << 32, 100_003, dtype=np.uint32)
    bits[:4] = 0x7FC00001, 0xFF800000, 0x00000001, 0x80000000  # a NaN, an infinity, a denormal, minus zero
    buffer = backend.alloc((100_003,), dtype)
    backend.upload(bits.view(dtype.numpy_name), buffer)
    moved = backend.launch(copy, buffer)
    for b in (buffer, moved):
        found = backend.download(b)
        assert found.dtype == dtype.numpy_name and np.array_equal(found.view(np.uint32), bits)


def test_uploads_convert(backend: VulkanBackend) -> None:
    for array in (np.arange(6.0).reshape(2, 3), np.arange(6).reshape(2, 3), np.arange(12.0).reshape(2, 6)[:, ::2],
                  np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array([[True, False]])):
        assert np.array_equal(ag.ag_tensor(array).numpy(), array)
    assert ag.ag_tensor(np.arange(3), dtype="i32").numpy().dtype == np.int32


def test_very_many_launches_without_a_read(backend: VulkanBackend) -> None:
    before = backend.recorder.submits
    t = ag.ag_tensor(np.zeros((8, 1)))
    for _ in range(3000):
        t = t + 1.0
    assert backend.recorder.submits - before >= 3000 // 256
    assert backend.recorder.in_flight <= 8
    assert t.numpy().ravel().tolist() == [3000.0] * 8
    assert backend.recorder.in_flight == 0


@pytest.mark.slow_on("swiftshader")
def test_a_program_longer_than_one_sequence(gpu: str) -> None:
    def step(x: ag.Tensor) -> ag.Tensor:
        for _ in range(700):
            x = (x + 1.0).T  # a transpose is in no chain
        return x

    captured = ag.ag_capture(step)
    for k in range(4):
        assert captured(ag.ag_tensor([[float(k)]])).item() == k + 700.0
    assert captured.program.launches == 1400


def test_synchronize_waits(backend: VulkanBackend) -> None:
    t = ag.ag_tensor(np.ones((64, 64)))
    for _ in range(20):
        t = t @ t * (1 / 64)
    backend.submit()
    assert backend.recorder.in_flight > 0
    ag.ag_synchronize(backend.name)
    assert backend.recorder.in_flight == 0


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str) -> Iterator[Path]:
    backend: Any = backend_of(gpu)
    for kinds, _ in backend._kernels.launches.values():  # of launches that would not ask for kernels any more
        kinds.clear()
    folder = tmp_path / "spv"
    shutil.copytree(kernels._SPV, folder)
    monkeypatch.setattr(kernels, "_SPV", folder)
    caches = (kernels.manifest, planned)
    for cache in caches:
        cache.cache_clear()
    yield folder
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def edit(build: Path, change: Any) -> None:
    manifest = json.loads((build / "manifest.json").read_text())
    change(manifest["kernels"])
    (build / "manifest.json").write_text(json.dumps(manifest))


def test_stale_kernels(gpu: str, build: Path) -> None:
    edit(build, lambda known: known["exp"].update(sha256="0" * 64))
    with expect_error("kernels compiled from other shaders", ag.KernelError, "exp", "python kernels_build.py"):
        ag.ag_exp(ag.ag_tensor([1.0]))


def test_a_kernel_with_other_operands(gpu: str, build: Path) -> None:
    edit(build, lambda known: known["exp"]["operands"].reverse())
    with expect_error("a kernel whose operands are not its primitive's", ag.KernelError, "exp", "('x', 'out')"):
        ag.ag_exp(ag.ag_tensor([1.0]))


def test_a_primitive_without_a_kernel(gpu: str) -> None:
    lonely = copy._replace(name="lonely")
    with expect_error("a primitive without a kernel", ag.KernelError, "lonely", "shaders/lonely.comp"):
        backend_of(gpu).launch(lonely, ag.ag_tensor([1.0]).buffer)


def test_a_chain_with_a_function_that_has_no_kernel(gpu: str) -> None:
    x = ag.ag_tensor([1.0]).buffer
    with pytest.raises(ag.KernelError, match=r"lonely has no kernel; .* lonely_of in shaders/functions\.glsl"):
        backend_of(gpu).launch(fused, x, x, x, x, chain=(("add", 0, 1, 0.0), ("lonely", 4, 4, 0.0)))


SHADOW = """
ag.ag_device(DEVICE)
model = ag.ag_sequential(ag.ag_linear(4, 8, activation="relu"), ag.ag_dropout(0.5), ag.ag_linear(8, 3))
optimizer = ag.optimizer_adam(model)
for _ in range(2):
    with ag.with_grad_tape():
        loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(np.ones((4, 5)))), [0, 1, 2, 0, 1])
    optimizer.step(ag.backward(loss))
said["clean"] = True
from ag.engine.kernels import activation
from ag.engine.primitive import PRIMITIVES
right = PRIMITIVES["relu"].reference

def wrong(out, x):
    right(out, x)
    out[1, 2] += 0.5

activation.relu = PRIMITIVES["relu"]._replace(reference=wrong)
said["error"] = error_of(lambda: ag.ag_relu(ag.ag_tensor(np.ones((3, 4)))))
"""


@pytest.mark.slow_on("swiftshader")
def test_shadow_names_the_first_element_that_differs(gpu: str) -> None:
    said = run_code(f"DEVICE = {gpu!r}{SHADOW}", AG_SHADOW="1")
    assert said["clean"] and said["err"] == ""
    expect_reported("AG_SHADOW=1 finds a kernel that differs from its reference", said["error"], ag.KernelError, "relu",
                    "out[1, 2]", "(3, 4)", "is 1.0", "1.5 by the reference", gpu)


@pytest.mark.slow_on("swiftshader")
def test_trace_prints_launches(gpu: str) -> None:
    said = run_code(f"x = ag.ag_tensor([[1.0, 2.0]], device={gpu!r})\n(x * x).numpy()\n", AG_TRACE="1")
    (line,) = [line for line in said["out"].splitlines() if "mul" in line]
    assert line.startswith(f"ag: {gpu} mul") and "(1, 2)" in line and "grid" in line
