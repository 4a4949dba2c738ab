"""`look`: what `download` returns, without a copy where the host has the device's memory, and not to be written to."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.engine.arena import OFFSET_BITS
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.device import backend_of
from ag.engine.dtype import BF16, F16, F32, F64, I32, DType
from ag.engine.kernels.elementwise import add


def test_it_is_what_download_returns(device: str) -> None:
    backend = backend_of(device)
    x = backend.alloc((2, 3), F32)
    backend.upload(np.arange(6, dtype=np.float32).reshape(2, 3), x)
    for buffer in (x, x.view((3,), 2), backend.launch(add, x, x)):
        assert np.array_equal(backend.look(buffer), backend.download(buffer))


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, I32], ids=str)
def test_of_every_type(dtype: DType) -> None:
    backend = NumpyBackend()
    x = backend.alloc((3,), dtype)
    backend.upload(np.array([0, 1, 3]), x)
    assert backend.look(x).dtype == backend.download(x).dtype and backend.look(x).tolist() == [0, 1, 3]


def test_on_the_cpu_it_is_the_memory_itself() -> None:
    backend = backend_of("cpu")
    x = backend.zeros((3,), F32)
    seen, kept = backend.look(x), backend.download(x)
    backend.upload(np.ones(3), x)
    assert seen.tolist() == [1, 1, 1] and kept.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 2.0
    assert x.native.flags.writeable


def test_not_while_a_step_is_captured() -> None:
    def step(x: ag.Tensor) -> ag.Tensor:
        backend_of("cpu").look(x.buffer)
        return x

    with expect_error("a look at memory in a captured step", ag.CaptureError, "reads a tensor on the host"):
        ag.ag_capture(step)(ag.ag_tensor([1.0]))


def test_not_after_the_device_was_closed() -> None:
    backend = NumpyBackend()
    x = backend.zeros((3,), F32)
    backend.close()
    with expect_error("a look at memory of a closed device", ag.DeviceError, "closed"):
        backend.look(x)


# ---------------------------------------------------------------------------------------------- of another device


def test_cpu_devices_reach_each_others_memory() -> None:
    """Without handing it out; what the other device does there later is seen, and its memory goes back to it alone."""
    one, other = NumpyBackend(1), NumpyBackend(2)
    x = other.zeros((70,), F32)
    before = one.arena.stats()
    there = one.reached(x.view((2, 3), 5))
    assert there is not None and there.backend is one and (there.shape, there.dtype) == ((2, 3), F32)
    one.launch(add, there, there, into=there)
    other.upload(np.arange(70), x)
    assert np.array_equal(one.look(there), np.arange(5, 11).reshape(2, 3))
    one.launch(add, there, there, into=there)
    assert other.look(x).tolist() == [*range(5), *range(10, 22, 2), *range(11, 70)]
    again = one.reached(x)
    assert again is not None and again.address >> OFFSET_BITS == there.address >> OFFSET_BITS
    del again, there
    blocks = [one.alloc((1000,), F32) for _ in range(4)]
    assert len({b.address >> OFFSET_BITS for b in blocks}) == 1 and one.arena.segments[0][0] == 0
    del blocks
    assert before.segments == 0 and one.arena.stats().segments == 1 and one.arena.stats().live == before.live == 0


def test_a_device_reaches_its_own_memory(device: str) -> None:
    backend, elsewhere = backend_of(device), NumpyBackend(3)
    x = backend.zeros((3,), F32)
    assert backend.reached(x) is x
    assert (elsewhere.reached(x) is not None) is (device == "cpu")
    y = elsewhere.zeros((3,), F32)
    assert (backend.reached(y) is not None) is (device == "cpu")


def test_memory_of_a_closed_device_is_not_reached() -> None:
    """Refuse to reach it; memory that was reached before stays there for its holder."""
    one, other = NumpyBackend(1), NumpyBackend(2)
    x = other.zeros((3,), F32)
    there = one.reached(x)
    other.close()
    with expect_error("memory of a closed device", ag.DeviceError, "cpu:2", "closed"):
        one.reached(x)
    assert there is not None and one.look(there).tolist() == [0, 0, 0]
