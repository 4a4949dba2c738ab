"""The host reads and writes memory of the device that it sees, if nothing on its way touches the place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from helpers.devices import run_code
from helpers.interrupts import at_place
from helpers.programs import buffer as made

import ag
from ag.engine.backends.vulkan import stream, transfers
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of
from ag.engine.kernels.elementwise import add

pytestmark = pytest.mark.vulkan
LARGE = 1 << 9  # elements; for two times as many, commands in flight are searched


@pytest.fixture
def backend(vulkan: str, seen: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    found: Any = backend_of(vulkan)
    found.synchronize()
    monkeypatch.setattr(transfers.Transfers, "_sees", seen)
    monkeypatch.setattr(transfers, "_LOOKED_THROUGH", 8 * LARGE)  # bytes
    return found


@pytest.fixture
def staged(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    counted: list[int] = []
    record = backend.recorder.record

    def counting(command: Any) -> None:
        if isinstance(command, stream.Copy) and (command.host or not command.reads):  # from the host, or to it
            counted.append(command.region[2] // 4)
        record(command)

    monkeypatch.setattr(backend.recorder, "record", counting)
    yield counted


def ramp(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("count", [1, 7, 1000, 3 * LARGE])
def test_nothing_is_copied_by_the_device(backend: Any, staged: list[int], count: int) -> None:
    values = ramp(count)
    x = made(backend, values)
    before = backend.recorder.submits
    assert np.array_equal(backend.download(x), values)
    assert backend.recorder.submits == before + 1  # which tells if the device is lost
    y = backend.launch(add, x, x)
    assert np.array_equal(backend.download(y), values + values)
    assert staged == []


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("count", [8, 2 * LARGE])
def test_what_is_on_its_way_comes_first(backend: Any, staged: list[int], count: int, started: bool) -> None:
    old, new = ramp(count), ramp(count, 1)
    x, y = made(backend, old), made(backend, np.zeros(count, np.float32))
    assert staged == []
    read = backend.launch(add, x, x)
    if started:
        backend.submit()
    backend.upload(new, x)
    backend.launch(add, y, x, into=y)
    backend.upload(old, y)
    assert sum(staged) == 2 * count
    assert np.array_equal(backend.download(read), old + old)
    assert np.array_equal(backend.download(x), new) and np.array_equal(backend.download(y), old)


def test_other_places_are_written_meanwhile(backend: Any, staged: list[int]) -> None:
    values = ramp(2 * LARGE)
    x = made(backend, values)
    y = backend.launch(add, x, x)
    backend.submit()
    z = made(backend, values)
    assert staged == []
    small = made(backend, values[:5])  # for which nobody looks
    assert staged == [5]
    assert all(np.array_equal(backend.download(b), v)
               for b, v in ((y, 2 * values), (z, values), (small, values[:5])))


def test_memory_that_is_used_again(backend: Any) -> None:
    for k in range(20):
        values = ramp(2 * LARGE, k)
        x = made(backend, values)
        y = backend.launch(add, x, x)
        backend.submit()
        del x
        z = made(backend, -values)  # often where x was
        assert np.array_equal(backend.download(y), 2 * values) and np.array_equal(backend.download(z), -values)


@pytest.mark.slow_on("swiftshader")
def test_a_captured_step(backend: Any) -> None:
    size = 40

    def trained(straight: bool) -> list[bytes]:
        with pytest.MonkeyPatch.context() as patch, ag.ag_device(backend.name):
            if not straight:
                patch.setattr(transfers.Transfers, "_sees", lambda self, address: (None, False))
            ag.ag_seed(3)
            W = ag.ag_param(ramp(size * size).reshape(size, size))
            optimizer = ag.optimizer_adam({"W": W}, lr=0.1)

            def step(x: ag.Tensor) -> ag.Tensor:
                with ag.with_grad_tape():
                    loss = ag.ag_mean(ag.ag_relu(W @ x) * x)
                optimizer.step(ag.backward(loss))
                return loss

            captured, kept = ag.ag_capture(step), []
            for k in range(12):
                kept.append(captured(ramp(4 * size, k).reshape(size, 4)))
                if k % 4 == 3:
                    W.data = W.numpy() + np.float32(0.5)  # while the step may run
                if k % 5 == 4:
                    kept.append(ag.ag_tensor(ramp(size * size, k)) + 0)
            return [t.numpy().tobytes() for t in (*kept, W)]

    assert trained(True) == trained(False)


def in_files(*modules: Any) -> Callable[[FrameType], bool]:
    files = {module.__file__ for module in modules}
    return lambda frame: frame.f_code.co_filename in files


@pytest.mark.parametrize("waits", ["for none", "for the first", "for both"])
def test_a_handler_in_the_middle(backend: Any, waits: str) -> None:
    """Wherever a handler launches what reads and writes the place, calls are in one order or the other."""
    count, within = 2 * LARGE, in_files(transfers, stream)
    old, new = ramp(count), ramp(count, 1)
    for at in range(1, 200, 3):
        x, seen = made(backend, old), []

        def handler(x: Buffer = x, seen: list[Buffer] = seen) -> None:
            seen.append(backend.launch(add, x, x))
            if waits == "for the first":
                backend.synchronize()
            backend.launch(add, x, x, into=x)
            if waits == "for both":
                backend.synchronize()
            elif waits == "for none":
                backend.submit()

        with at_place(at, handler, within) as places:
            backend.upload(new, x)
            found = backend.download(x)
        if not seen:
            assert places[0] < at and np.array_equal(found, new)
            return
        read, after = backend.download(seen[0]), backend.download(x)
        if np.array_equal(read, 2 * old):  # before the upload
            assert np.array_equal(found, new) and np.array_equal(after, new)
        else:
            assert np.array_equal(read, 2 * new) and np.array_equal(after, 2 * new)
            assert np.array_equal(found, new) or np.array_equal(found, 2 * new)
    pytest.fail("a transfer has more places than were tried")


def test_interrupted_anywhere(backend: Any) -> None:
    count, within = 2 * LARGE, in_files(transfers, stream)
    old, new = ramp(count), ramp(count, 1)
    x = made(backend, old)

    def interrupt() -> None:
        raise KeyboardInterrupt

    for at in range(1, 200):
        try:
            with at_place(at, interrupt, within):
                backend.upload(new, x)
        except KeyboardInterrupt:
            found = backend.download(x)
            assert np.array_equal(found, old) or np.array_equal(found, new)
            backend.upload(old, x)
            continue
        assert np.array_equal(backend.download(x), new)
        return
    pytest.fail("an upload has more places than were tried")


def test_what_is_launched_while_the_host_reads_is_read_again(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler's launch may have run meanwhile, so part of what was read may be older than the rest."""
    x = made(backend, np.ones(5, np.float32))
    sees, launched = transfers.Transfers._sees, []

    class View:
        def __init__(self, words: Any) -> None:
            self.words = words

        def __getitem__(self, place: slice) -> View:
            return View(self.words[place])

        def copy(self) -> Any:
            read = self.words.copy()
            if not launched:
                launched.append(backend.launch(add, x, x, into=x))
            return read

    monkeypatch.setattr(transfers.Transfers, "_sees", lambda self, address: (View(sees(self, address)[0]), True))
    assert backend.download(x).tolist() == [2.0] * 5


def test_a_place_between_two_words_is_staged(backend: Any) -> None:
    x = made(backend, ramp(8))
    assert backend.transfers._sees(x.address)[0] is not None
    assert backend.transfers._sees(x.address + 2) == (None, False)


UNSEEN = """
from ag.engine.device import backend_of
x = ag.ag_tensor(np.arange(100_000, dtype=np.float32), DEVICE)
backend = backend_of(DEVICE)
said["sees"] = [backend.transfers._sees(number << 48)[0] is not None for number in range(len(backend.arena.segments))]
said["sum"] = float((x + x).numpy().sum())
"""


def test_memory_that_cannot_be_mapped(layer: dict[str, str], lavapipe: str) -> None:
    said = run_code(f"DEVICE = {lavapipe!r}{UNSEEN}", **layer, KPFAULT_MAP_LIMIT=str(8 << 20))
    assert said["sees"] == [False] and said["sum"] == pytest.approx(9999900000.0)
