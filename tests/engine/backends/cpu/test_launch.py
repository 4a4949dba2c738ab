"""`launch.c` makes small launches as the method in Python does, to the bit, and leaves what is not ordinary to it."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from engine.backends import quick_launches
from helpers.errors import expect_error

import ag
from ag.engine.arena import Arena
from ag.engine.backends.cpu.backend import _memory
from ag.engine.backends.cpu.library import SHARED_FROM, library
from ag.engine.backends.cpu.native import NativeBackend, _code
from ag.engine.buffer import Buffer, copy_on_write
from ag.engine.compile.pipeline import record
from ag.engine.dtype import F32, F64, DType
from ag.engine.primitive import PRIMITIVES

pytestmark = pytest.mark.skipif(library() is None or _code is None, reason="no kernels in C: not built, or by wish")
RNG = np.random.default_rng(2)


class Counting(NativeBackend):
    def __init__(self, **limits: Any) -> None:
        kernels = library()
        assert kernels is not None
        super().__init__(kernels, index=8, **limits)
        self.left: list[str] = []
        make, self.method = type(self.launch), super().launch

        def slowly(primitive: Any, *operands: Buffer, **params: Any) -> Any:
            self.left.append(primitive.name)
            return self.method(primitive, *operands, **params)

        assert make is _code.Launch
        setattr(self, "launch", self._compiled_launch(slowly, kernels))  # noqa: B010

    def of(self, *shape: int, dtype: DType = F32) -> Buffer:
        buffer = self.alloc(shape, dtype)
        self.upload(RNG.standard_normal(shape, np.float32), buffer)
        return buffer


@pytest.fixture
def device() -> Iterator[Counting]:
    yield Counting()


CASES = {**quick_launches.CASES, "nothing": ("add", ((0, 3), (0, 3)), {})}


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits(device: Counting, case: str) -> None:
    name, shapes, params = CASES[case]
    primitive, operands = PRIMITIVES[name], [device.of(*shape) for shape in shapes]
    wanted = device.method(primitive, *operands, **params)
    device.left.clear()
    for names in (params, dict(reversed(params.items()))):
        found = device.launch(primitive, *operands, **names)
        assert type(found) is Buffer and (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert found.backend is device and found.constant is None and found.block.address == found.address
        assert device.download(found).tobytes() == device.download(wanted).tobytes()
    assert not device.left


def test_what_python_makes(device: Counting) -> None:
    add, x, y = PRIMITIVES["add"], device.of(3, 5), device.of(3, 5)
    large, wide = device.of(SHARED_FROM), device.of(3, dtype=F64)
    device.launch(add, x, y)  # notes where the memory begins
    for operands, named, left in (((x, y), {}, []), ((large, large), {}, []), ((wide, wide), {}, ["add"]),
                                  ((x, y), {"into": device.of(3, 5)}, []), ((x, y), {"into": None}, []),
                                  ((x, y), {"into": device.of(15).view((3, 5))}, []),
                                  ((x, y), {"into": device.of(3, 5, dtype=F64)}, ["add"])):
        for _ in range(2):  # new, and known
            device.left.clear()
            device.launch(add, *operands, **named)
            assert device.left == left, (operands, named)


def test_threads_share_a_large_launch(device: Counting) -> None:
    x, y = device.of(4 * SHARED_FROM), device.of(4 * SHARED_FROM)
    device.launch(PRIMITIVES["mul"], x, y)  # notes where the memory begins
    device.left.clear()
    for _ in range(2):
        found = device.launch(PRIMITIVES["mul"], x, y)
        assert np.array_equal(device.download(found), device.download(x) * device.download(y))
    assert not device.left


def test_zeros_of_either_sign_are_two_parameters(device: Counting) -> None:
    x = device.of(4, 3)
    for factor in (0.0, -0.0, 0.0):
        found = device.download(device.launch(PRIMITIVES["scale"], x, factor=factor))
        assert found.tobytes() == (device.download(x) * np.float32(factor)).tobytes()
    assert device.left == ["scale"] * 3  # by Python each time, as a key of a dict does not tell them apart


def test_an_axis_of_zero_is_no_zero(device: Counting) -> None:
    x = device.of(4, 3)
    for _ in range(3):
        device.launch(PRIMITIVES["sum"], x, axis=0, chunk=4, scale=1.0)
    assert len(device.left) <= 1


def test_a_plan_that_fails_is_left_to_python(device: Counting) -> None:
    fails_as_in_python(device, PRIMITIVES["add"], device.of(2, 3), device.of(4, 5))


def fails_as_in_python(device: Counting, *operands: Any, **params: object) -> None:
    errors = []
    for launch in (device.launch, device.method):
        with pytest.raises(Exception) as raised:
            launch(*operands, **params)
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]


def test_parameters_that_do_not_fit(device: Counting) -> None:
    scale, x = PRIMITIVES["scale"], device.of(2)
    device.launch(scale, x, factor=2.0)
    fails_as_in_python(device, scale, x)
    fails_as_in_python(device, scale, x, other=1.0)


def test_a_parameter_without_a_hash(device: Counting) -> None:
    x = device.of(3, 1)
    with pytest.raises(TypeError, match="unhashable"):
        device.launch(PRIMITIVES["expand"], x, shape=[3, 5], factor=1.0)


def test_what_is_no_buffer(device: Counting) -> None:
    x = device.of(2)
    device.launch(PRIMITIVES["add"], x, x)
    for wrong in (None, 1.0, ag.ag_tensor([1.0, 2.0])):
        fails_as_in_python(device, PRIMITIVES["add"], x, wrong)
    with pytest.raises(TypeError):
        device.launch()


def test_writes_and_threads(device: Counting) -> None:
    quick_launches.check_writes(device)
    quick_launches.check_threads(device.launch, device, 300)


def test_an_operand_of_another_device(device: Counting) -> None:
    add, x, other = PRIMITIVES["add"], device.of(2), Counting().of(2)
    for _ in range(2):
        with expect_error("an operand of another device", ag.DeviceError, "an operand is on cpu:8", "ag_to_device"):
            device.launch(add, x, other)
        with pytest.raises(ag.DeviceError, match="is on cpu:8"):
            device.launch(add, x, x, into=other)
        device.launch(add, x, x)


def test_what_is_lent_moves_out_first(device: Counting) -> None:
    exp, x = PRIMITIVES["exp"], device.of(4)
    device.launch(exp, x)
    device.left.clear()
    lent = copy_on_write(x, threading.get_ident() + 1)
    device.launch(exp, lent)
    assert device.left == ["exp"] and lent.address != x.address


def test_recordings_and_profiles_get_all_launches(device: Counting) -> None:
    exp, x = PRIMITIVES["exp"], device.of(4)
    device.launch(exp, x)
    with record(device) as recording:
        device.launch(exp, x)
    assert [launch.primitive.name for launch in recording.launches] == ["exp"]
    with ag.profile() as seen:
        device.launch(exp, x)
    assert [event.kernel for event in seen.events] == ["exp"]


def test_segments_that_come_later(device: Counting) -> None:
    device.arena = Arena(_memory, align=64, first_bytes=1 << 12, max_segment_bytes=1 << 12)
    add, kept = PRIMITIVES["add"], [device.of(64)]
    for k in range(2, 200):
        kept.append(device.launch(add, kept[-1], kept[0]))
        np.testing.assert_allclose(device.download(kept[-1]), k * device.download(kept[0]), rtol=1e-5)
    assert len(device.arena.segments) > 10


def test_memory_that_runs_out() -> None:
    device = Counting(limit_bytes=1 << 16)
    device.arena = Arena(_memory, align=64, first_bytes=1 << 12, max_segment_bytes=1 << 12, limit_bytes=1 << 16)
    add, kept = PRIMITIVES["add"], [device.of(256)]
    with expect_error("no memory", ag.ArenaError, "the device may give 0 more bytes"):
        while True:
            kept.append(device.launch(add, kept[-1], kept[0]))
    del kept[1:]
    device.launch(add, kept[0], kept[0])


def test_an_interrupt_while_memory_is_allocated(device: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    add, x = PRIMITIVES["add"], device.of(4)
    device.launch(add, x, x)

    def interrupted(nbytes: int) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(device.arena, "alloc", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.launch(add, x, x)
    device.launch(add, x, x)


def test_a_device_that_is_closed(device: Counting) -> None:
    exp, x, launch = PRIMITIVES["exp"], device.of(4), device.launch
    launch(exp, x)
    device.close()
    for late in (launch, device.launch):
        with expect_error("a launch after the end", ag.DeviceError, "closed"):
            late(exp, x)


def test_guard_words_are_painted_by_python() -> None:
    kernels = library()
    assert kernels is not None
    device = NativeBackend(kernels, guard=64)
    x = device.zeros((4,), F32)
    device.launch(PRIMITIVES["exp"], x)
    device.check_guards()
    assert type(device.launch) is not _code.Launch


def test_a_method_of_ones_own_is_called() -> None:
    class Own(NativeBackend):
        def launch(self, *args: Any, **params: Any) -> Any:
            return "mine"

    kernels = library()
    assert kernels is not None
    assert Own(kernels).launch(PRIMITIVES["exp"]) == "mine"


@pytest.mark.parametrize("path", ["quick", "left to Python", "into", "an error"])
def test_nothing_is_leaked(device: Counting, path: str) -> None:
    add, x = PRIMITIVES["add"], device.of(4)
    bad = Counting().of(4)

    def failing() -> None:
        with pytest.raises(ag.DeviceError):
            device.launch(add, x, bad)

    calls: dict[str, Callable[[], object]] = {
        "quick": lambda: device.launch(add, x, x), "an error": failing,
        "left to Python": lambda: device.method(add, x, x), "into": lambda: device.launch(add, x, x, into=x)}
    counts = []
    for _ in range(3):
        for _ in range(200):
            calls[path]()
        gc.collect()
        device.left.clear()
        counts.append([sys.getrefcount(each) for each in (
            x, x.shape, x.dtype, x.block, device, device.arena, add, None if sys.version_info >= (3, 12) else Buffer)])
        counts[-1].append(device.arena.stats().live)
    assert counts[1] == counts[2]


def test_a_device_may_go(device: Counting) -> None:
    gone = Counting()
    blocks = []
    for _ in range(3):
        gone = Counting()
        gone.launch(PRIMITIVES["exp"], gone.of(3))
        gc.collect()
        blocks.append(sum(type(x) is Counting for x in gc.get_objects()))
    assert blocks[1] == blocks[2]
