"""Uploads and downloads in chunks: every word arrives, whatever the sizes and interrupts."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from helpers.interrupts import at_place

import ag
from ag.engine.backends.vulkan import transfers
from ag.engine.device import backend_of
from ag.engine.dtype import F32

CHUNK = 1 << 20  # words


@pytest.fixture(params=["straight", "staged"])
def either(vulkan: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
           seen: Callable[..., Any]) -> Any:
    """The backend; staged, as if the host did not see the memory of its device, which that of software always does."""
    backend: Any = backend_of(vulkan)
    ways: dict[str, Callable[..., Any]] = {"straight": seen, "staged": lambda *_: (None, False)}
    monkeypatch.setattr(transfers.Transfers, "_sees", ways[request.param])
    return backend


def in_transfers(frame: FrameType) -> bool:
    return frame.f_code.co_filename == transfers.__file__


@pytest.mark.parametrize("words", [1, CHUNK, CHUNK + 1, 9 * CHUNK // 2 + 3])
def test_every_word_arrives(either: Any, words: int) -> None:
    backend = either
    numbers = np.random.default_rng(words).integers(0, 1 << 30, words, np.uint32).view(np.float32)
    for before in (0, 3):  # the ring then begins elsewhere in a chunk
        backend.upload(np.ones(before, np.float32), backend.alloc((before,), F32))
        buffer = backend.alloc((words,), F32)
        backend.upload(numbers, buffer)
        assert backend.download(buffer).tobytes() == numbers.tobytes()


def test_a_ring_of_chunks_is_used_in_turn(either: Any) -> None:
    backend = either
    sizes = [CHUNK // 3, 2 * CHUNK, 5, CHUNK, 3 * CHUNK + 1, 7]
    made = []
    for k in range(18):
        numbers = np.full(sizes[k % len(sizes)], k, np.float32)
        made.append((backend.alloc(numbers.shape, F32), numbers))
        backend.upload(numbers, made[-1][0])
        numbers = np.zeros(1, np.float32)
    assert all(np.array_equal(backend.download(buffer), numbers) for buffer, numbers in made)


@pytest.mark.parametrize("at", [1, 20])
def test_a_handler_that_downloads_changes_nothing(either: Any, at: int) -> None:
    backend = either
    numbers = np.arange(5 * CHUNK // 2, dtype=np.float32)
    buffer, other = (backend.alloc(numbers.shape, F32) for _ in range(2))
    backend.upload(numbers, buffer)
    backend.upload(-numbers, other)
    found = []

    def handler() -> None:
        found.append(backend.download(other))

    with at_place(at, handler, in_transfers):
        downloaded = backend.download(buffer)
    assert np.array_equal(downloaded, numbers)
    assert all(np.array_equal(x, -numbers) for x in found)


def test_interrupted_transfers_leave_the_device_well(either: Any) -> None:
    backend = either
    numbers = np.arange(9 * CHUNK // 4, dtype=np.float32)
    buffer, other = (backend.alloc(numbers.shape, F32) for _ in range(2))
    backend.upload(numbers, buffer)

    def interrupt() -> None:
        raise KeyboardInterrupt

    for at in range(1, 60, 3):
        with pytest.raises(KeyboardInterrupt), at_place(at, interrupt, in_transfers):
            backend.download(buffer)
            backend.upload(-numbers, other)
            raise KeyboardInterrupt  # it was shorter than that
        assert np.array_equal(backend.download(buffer), numbers)
    backend.upload(-numbers, other)
    assert np.array_equal(backend.download(other), -numbers)


@pytest.mark.parametrize("nbytes", [transfers._LAUNCHED - 4, transfers._LAUNCHED, 3 * transfers._LAUNCHED + 4])
def test_a_card_copies_what_is_large_by_a_launch(vulkan: str, monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    backend: Any = backend_of(vulkan)
    launched: list[int] = []

    def moving(source: int, target: int, size: int) -> Any:
        launched.append(size)
        return backend._kernels.moving(source, target, size)

    monkeypatch.setattr(backend.transfers, "_launched", moving)
    words = nbytes // 4
    numbers = np.random.default_rng(nbytes).integers(0, 1 << 32, words, np.uint32, endpoint=False).view(np.float32)
    first, second, third = (backend.alloc((words,), F32) for _ in range(3))
    with ag.profile() as seen:
        backend.upload(numbers, first)
        backend.assign(second, first)
        backend.assign(third, second)
        backend.upload(np.zeros(words, np.float32), second)
        backend.synchronize()
    assert backend.download(third).tobytes() == numbers.tobytes()
    assert launched == ([nbytes] * 2 if nbytes >= transfers._LAUNCHED else [])
    assert {event.kernel for event in seen.events} <= {"transfer"}


def test_copies_of_arguments_are_recorded_once_for_each_place(vulkan: str) -> None:
    backend: Any = backend_of(vulkan)
    inputs, recorder = transfers.Inputs(), backend.recorder
    argument = backend.alloc((3,), F32)
    batches = [backend.alloc((3,), F32) for _ in range(transfers._ORIGINS + 1)]
    for k, batch in enumerate(batches):
        backend.upload(np.full(3, k, np.float32), batch)

    def given(k: int) -> Any:
        filled = inputs.fill([(argument.address, argument.nbytes, batches[k].address)], backend.transfers, recorder)
        recorder.play(filled)
        assert backend.download(argument).tolist() == [k] * 3
        return filled

    first = [given(k) for k in range(transfers._ORIGINS)]
    assert [given(k) for k in range(transfers._ORIGINS)] == first  # the same sequences
    last = given(transfers._ORIGINS)  # in the place of the first
    assert last not in first and given(1) == first[1]
    assert [given(k)[0].commands[0].reads[0][0] for k in (0, 5, 0)] == [batches[k].address for k in (0, 5, 0)]
