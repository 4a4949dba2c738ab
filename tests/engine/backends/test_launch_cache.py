"""Compiled code makes the same commands as Python, and leaves to it what is not ordinary."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine.backends import quick_launches

import ag
from ag.engine.backends.vulkan import pipelines
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.backends.vulkan.stream import Command
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import BF16, F32, I32
from ag.engine.primitive import PRIMITIVES

pytestmark = [pytest.mark.vulkan, pytest.mark.skipif(pipelines._code is None, reason="no compiler was here")]
RNG = np.random.default_rng(4)


class Device:
    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend: Any = backend_of(name)
        self.left: list[str] = []
        self.commands: list[Command] = []
        monkeypatch.setattr(self.backend._kernels, "launches", {})  # restored afterwards
        record_it = self.backend.recorder.record

        def noted(command: Command) -> None:
            self.commands.append(command)
            record_it(command)

        monkeypatch.setattr(self.backend.recorder, "record", noted)
        self.launch: Any = self.backend._kernels.quick(self.backend, self.slowly, self.backend._record)

    def slowly(self, primitive: Any, *operands: Buffer, **params: Any) -> Any:
        self.left.append(primitive.name)
        return VulkanBackend.launch(self.backend, primitive, *operands, **params)

    def of(self, *shape: int, dtype: Any = F32) -> Buffer:
        buffer: Buffer = self.backend.alloc(shape, dtype)
        self.backend.upload(RNG.standard_normal(shape, np.float32), buffer)
        return buffer

    def download(self, buffer: Buffer) -> Any:
        return self.backend.download(buffer)


@pytest.fixture
def device(vulkan: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device(vulkan, monkeypatch)
    yield made
    made.backend.synchronize()


CASES = {**quick_launches.CASES, "words of four": ("matmul", ((64, 64), (64, 64)), {"ta": True, "tb": False}),
         "long": ("exp", ((1 << 20,),), {})}


@pytest.mark.parametrize("case", CASES)
def test_the_same_commands(device: Device, case: str) -> None:
    name, shapes, params = CASES[case]
    primitive, whole = PRIMITIVES[name], [device.of(1 + int(np.prod(shape))) for shape in shapes]
    for offset in (0, 1):
        operands = [x.view(shape, offset) for x, shape in zip(whole, shapes, strict=True)]
        wanted = device.slowly(primitive, *operands, **params)
        (by_python,) = device.commands[-1:]
        for names in (params, dict(reversed(params.items()))):
            device.left.clear()
            found = device.launch(primitive, *operands, into=wanted, **names)
            assert not device.left and found is wanted
            command = device.commands[-1]
            assert type(command) is Command and command == by_python
            assert [type(x) for x in command] == [type(x) for x in by_python]
            fresh = device.launch(primitive, *operands, **names)  # perhaps in a segment to which nothing was bound yet
            assert fresh is not wanted and (fresh.shape, fresh.dtype) == (wanted.shape, F32)
            assert device.download(fresh).tobytes() == device.download(wanted).tobytes()


def test_what_python_makes(device: Device) -> None:
    x, y = device.of(3, 5), device.of(3, 5)
    half, nothing = device.of(4, dtype=BF16), device.of(0, 3)
    ids = device.backend.alloc((2,), I32)
    device.backend.upload(np.array([0, 1]), ids)
    table = device.of(1, 3, 2)
    for _ in range(2):
        for name, operands, params, left in (
                ("add", (nothing, nothing), {}, True), ("add", (x, y), {"into": device.of(5, 3).view((3, 5))}, False),
                ("matmul_sums", (x, y), {"ta": False, "tb": True}, True),
                ("take", (table, ids), {"wraps": True}, False)):
            device.slowly(PRIMITIVES[name], *operands, **params)
            device.left.clear()
            device.launch(PRIMITIVES[name], *operands, **params)
            assert device.left == ([name] if left else [])
    device.left.clear()
    with pytest.raises(ag.DtypeError):
        device.launch(PRIMITIVES["copy"], half)
    assert device.left == ["copy"]


def test_zeros_of_both_signs(device: Device) -> None:
    scale, x = PRIMITIVES["scale"], device.of(2)
    device.backend.upload(np.ones(2), x)
    for _ in range(2):
        for factor in (0, -0.0, 0.0, np.float32(-0.0), np.float32(0.0)):
            found = device.download(device.launch(scale, x, factor=factor))
            assert not found.any() and np.signbit(found).all() == np.signbit(factor)


def test_what_decides_is_looked_at(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    matmul, x = PRIMITIVES["matmul"], device.of(4, 4)
    named: Any = {"ta": False, "tb": False, "into": device.of(4, 4)}
    device.launch(matmul, x, x, **named)

    def left() -> bool:
        device.left.clear()
        device.launch(matmul, x, x, **named)
        return bool(device.left)

    assert not left()
    with ag.ag_matmul_precision("medium"):
        assert left()
    with ag.profile() as seen:
        assert left()
    assert [event.kernel for event in seen.events] == ["matmul"]
    with record(device.backend) as recording:
        assert left()
    assert [launch.primitive.name for launch in recording.launches] == ["matmul"]
    kernels = device.backend._kernels
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "tiles", replace(kernels.tiles, direct_rows=kernels.tiles.direct_rows + 1))
        assert left()
    assert not left()


def test_writes_and_threads(device: Device) -> None:
    quick_launches.check_writes(device)
    quick_launches.check_threads(device.launch, device.backend, 60)


def test_an_operand_of_another_device(device: Device) -> None:
    add, x, other = PRIMITIVES["add"], device.of(2), backend_of("cpu").alloc((2,), F32)
    device.launch(add, x, x)
    for named in ({}, {"into": other}):
        with pytest.raises(ag.DeviceError, match="is on cpu"):
            device.launch(add, x, x if named else other, **named)


def test_an_interrupt_while_a_command_is_recorded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    add, x = PRIMITIVES["add"], device.of(4)
    device.launch(add, x, x)

    def interrupted(command: Command) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(device.backend.recorder, "record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            device.launch(add, x, x)
    np.testing.assert_allclose(device.download(device.launch(add, x, x)), 2 * device.download(x))


@pytest.mark.parametrize("path", ["fresh", "into", "an error"])
def test_nothing_is_leaked(device: Device, path: str) -> None:
    add, x, out = PRIMITIVES["add"], device.of(4), device.of(4)
    other = backend_of("cpu").alloc((4,), F32)
    counts = []
    for _ in range(3):
        for _ in range(100):
            if path == "an error":
                with pytest.raises(ag.DeviceError):
                    device.launch(add, x, other)
            else:
                device.launch(add, x, x, **({"into": out} if path == "into" else {}))
        device.backend.synchronize()
        device.commands.clear()
        device.left.clear()
        gc.collect()
        counts.append([sys.getrefcount(each) for each in (x, x.shape, x.block, out, out.block, device.backend.arena)])
        counts[-1].append(device.backend.arena.stats().live)
    assert counts[1] == counts[2]
