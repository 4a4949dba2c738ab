"""The arena: blocks never overlap, everything freed comes back, limits hold, guard words tell of an overrun."""

from __future__ import annotations

import random
import threading
from collections import deque
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.programs import reset_peak

from ag.engine import arena as arena_module
from ag.engine.arena import Arena, Block
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.dtype import F32
from ag.errors import ArenaError

CODE = arena_module._code


@pytest.fixture(params=["compiled", "python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With compiled code, and as where there was no compiler."""
    way: str = request.param
    if way == "compiled" and CODE is None:
        pytest.skip("there was no compiler")
    monkeypatch.setattr(arena_module, "_code", CODE if way == "compiled" else None)
    return way


class Memory:
    """Stands for a device: notes the segments that were asked for, and may have no more."""

    def __init__(self, room: int | None = None) -> None:
        self.segments: list[int] = []
        self.room = room

    def grow(self, nbytes: int) -> None:
        if self.room is not None and sum(self.segments) + nbytes > self.room:
            raise MemoryError
        self.segments.append(nbytes)


def arena(memory: Memory | None = None, **options: Any) -> tuple[Arena, Memory]:
    memory = memory or Memory()
    return Arena(memory.grow, **{"first_bytes": 1 << 16, "align": 64, **options}), memory


def assert_apart(blocks: list[Block], guard: int, segments: list[int]) -> None:
    """No two blocks, with their guards, share a byte, and all lie inside their segments."""
    spans = sorted((b.segment, b.offset - guard, b.offset + b.nbytes + guard) for b in blocks)
    for (s, _, end), (t, start, _) in pairwise(spans):
        assert s != t or end <= start
    for s, start, end in spans:
        assert start >= 0 and end <= segments[s]


@pytest.mark.parametrize("guard", [0, 64])
@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand_random_blocks(seed: int, guard: int) -> None:
    random.seed(seed)
    a, memory = arena(guard=guard, max_segment_bytes=1 << 20)
    live: list[Block] = []
    reserved = peak = 0
    for step in range(10_000):
        if live and random.random() < (0.65 if step // 1000 % 2 else 0.45):  # fill, then drain, then fill
            gone = live.pop(random.randrange(len(live)))
            reserved -= gone.nbytes + 2 * guard
            del gone
        else:
            wanted = random.choice([0, 1, 63, 64, 65, 1000, 4096, random.randrange(1, 20_000)])
            block = a.alloc(wanted)
            assert block.nbytes >= max(wanted, 1) and block.nbytes - wanted <= 64
            assert block.offset % 64 == 0
            reserved += block.nbytes + 2 * guard
            live.append(block)
            del block
            peak = max(peak, reserved)
        if step % 500 == 0:
            assert_apart(live, guard, memory.segments)
            stats = a.stats()
            assert (stats.live, stats.peak, stats.segments) == (reserved, peak, len(memory.segments))
            assert stats.reserved == sum(memory.segments) >= reserved
            assert stats.largest_free <= stats.reserved - stats.live
    assert len(memory.segments) > 1
    live.clear()
    stats = a.stats()
    assert stats.live == 0 and stats.largest_free == max(memory.segments)
    assert a._free == sorted((n, s << 48) for s, n in enumerate(memory.segments))  # one run per segment, each whole


def test_segments_are_not_joined() -> None:
    a, memory = arena(first_bytes=256, max_segment_bytes=256)
    blocks = [a.alloc(256), a.alloc(256)]
    assert [b.segment for b in blocks] == [0, 1] and memory.segments == [256, 256]
    blocks.clear()
    assert a.stats().largest_free == 256
    with expect_error("a block larger than a segment may be", ArenaError, "512 bytes", "256"):
        a.alloc(512)


def test_best_fit() -> None:
    a, _ = arena(first_bytes=4096)
    blocks = {size: (a.alloc(size), a.alloc(64)) for size in (1024, 256, 512)}  # with walls between
    gaps = {size: block.address for size, (block, _) in blocks.items()}
    walls = [wall for _, wall in blocks.values()]
    rest = a.alloc(4096 - sum(gaps) - 3 * 64)
    blocks.clear()
    assert a.alloc(450).address == gaps[512]
    assert a.alloc(200).address == gaps[256]
    assert len(walls) == 3 and rest.nbytes > 0


def test_segments_double_and_a_large_block_gets_its_own() -> None:
    a, memory = arena(first_bytes=1024)
    kept = [a.alloc(1024) for _ in range(4)]
    kept.append(a.alloc(100_000))
    assert memory.segments[:3] == [1024, 2048, 4096] and memory.segments[3] == 100_032
    assert len(kept) == 5


def test_the_limit() -> None:
    a, memory = arena(first_bytes=1024, limit_bytes=4096)
    kept = [a.alloc(1024) for _ in range(4)]
    with expect_error("an arena at its limit", ArenaError, "1024 bytes", "4096 are reserved", "4096 in use",
                      "smaller batches"):
        a.alloc(1024)
    assert sum(memory.segments) == 4096
    kept.pop()
    kept.append(a.alloc(1000))  # what was freed serves again


def test_a_device_without_room_for_doubling_still_gets_the_block() -> None:
    a, memory = arena(Memory(room=1024 + 256), first_bytes=1024)
    kept = [a.alloc(1024), a.alloc(256)]
    assert memory.segments == [1024, 256]
    with expect_error("a device without memory", ArenaError, "no 64 bytes", "1280 are reserved"):
        a.alloc(64)
    kept.pop()
    assert a.alloc(64).segment == 1


class Picky(Memory):
    """A device that grants no more than `most` bytes at once, and notes what it refused."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.refused: list[int] = []

    def grow(self, nbytes: int) -> None:
        if nbytes > self.most:
            self.refused.append(nbytes)
            raise MemoryError
        super().grow(nbytes)


def test_what_a_device_granted_is_remembered() -> None:
    memory = Picky(8192)
    a, _ = arena(memory, first_bytes=1024, max_segment_bytes=1 << 20)
    kept = [a.alloc(512) for _ in range(400)]
    assert memory.segments[:5] == [1024, 2048, 4096, 8192, 8192]
    assert len(memory.segments) <= sum(memory.segments) // 8192 + 3  # the first three are smaller
    assert set(memory.refused) == {16384} and len(memory.refused) <= 1 + len(memory.segments) // 4
    memory.most = 1 << 20  # others have given memory back
    kept += [a.alloc(512) for _ in range(4000)]
    assert memory.segments[-1] >= 32768


def test_a_device_that_is_nearly_full_is_filled_in_few_segments() -> None:
    a, memory = arena(Memory(room=100_000), first_bytes=1024, max_segment_bytes=1 << 20)
    kept: list[Block] = []
    with expect_error("a device without memory", ArenaError, "no 512 bytes"):
        while True:
            kept.append(a.alloc(512))
    assert sum(memory.segments) > 98_000 and len(memory.segments) <= 12
    memory.room = 10_000_000
    while len(kept) < 4000:
        kept.append(a.alloc(512))
    assert len(memory.segments) < 60 and memory.segments[-1] >= 65_536


def test_segments_keep_to_the_budget_and_single_blocks_may_leave_it() -> None:
    a, memory = arena(first_bytes=1024, budget=lambda: 10_000 - sum(memory.segments))
    kept = [a.alloc(1024) for _ in range(7)]
    assert memory.segments == [1024, 2048, 4096]
    kept.append(a.alloc(1024))
    assert memory.segments[3:] == [2816]  # not 8192
    kept.append(a.alloc(8192))  # the device may give more than it has to spare, and does
    kept += [a.alloc(256) for _ in range(16)]
    assert memory.segments[4:] == [8192, 1024, 1024, 1024]


def test_peak_can_start_anew() -> None:
    a, _ = arena()
    big = a.alloc(10_000)
    del big
    assert a.stats().peak == 10_048
    reset_peak(a)
    small = a.alloc(64)
    assert a.stats().peak == small.nbytes == 64


def test_freeing_in_other_threads() -> None:
    """Blocks die wherever their last reference does; numbers and ranges stay exact."""
    a, memory = arena(max_segment_bytes=1 << 18)
    failures: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        mine: list[Block] = []
        for _ in range(3000):
            if mine and rng.random() < 0.5:
                mine.pop(rng.randrange(len(mine)))
            else:
                mine.append(a.alloc(rng.randrange(1, 3000)))
        if any(b.offset % 64 for b in mine):
            failures.append("alignment")
        handed_over.append(mine)

    handed_over: list[list[Block]] = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        a.stats()  # makes the index of free blocks anew
    assert failures == [] and len(handed_over) == 4
    blocks = [b for mine in handed_over for b in mine]
    assert_apart(blocks, 0, memory.segments)
    assert a.stats().live == sum(b.nbytes for b in blocks)
    del blocks
    sweeper = threading.Thread(target=handed_over.clear)
    sweeper.start()
    sweeper.join()
    assert a.stats().live == 0
    assert len(a._free) == len(memory.segments)


# ---------------------------------------------------------------------------------------------- guard words


@pytest.mark.parametrize(("side", "at"), [("before", -1), ("after", 0), ("after", 63)])
def test_guard_words_tell_of_an_overrun(side: str, at: int) -> None:
    backend = NumpyBackend(guard=64)
    buffers = [backend.alloc((5, 7), F32) for _ in range(3)]
    for buffer in buffers:
        backend.upload(np.ones((5, 7)), buffer)
    backend.check_guards()
    victim = buffers[1]
    address = victim.address + (at if side == "before" else victim.nbytes + at)
    backend._write_bytes(address, b"\x00")
    with expect_error("a kernel that wrote beside its buffer", ArenaError, f"memory {side} <Buffer (5, 7)",
                      "overwritten"):
        backend.check_guards()


def test_a_copy_that_takes_guard_words_along_is_found() -> None:
    backend = NumpyBackend(guard=64)
    x, y = backend.alloc((5,), F32), backend.alloc((5,), F32)
    backend._write_bytes(y.address, backend._read_bytes(x.address, 24))
    with pytest.raises(ArenaError, match=r"memory after <Buffer \(5,\)"):
        backend.check_guards()


@pytest.mark.filterwarnings("ignore:invalid value")
def test_who_computes_with_guard_words_is_found() -> None:
    """In place, where the result would be NaN again, and into something else, which becomes NaN."""
    backend = NumpyBackend(guard=64)
    buffer = backend.alloc((5,), F32)
    words = np.frombuffer(backend._read_bytes(buffer.address + buffer.nbytes, 64), np.float32)
    assert np.isnan(words).all()
    backend._write_bytes(buffer.address + buffer.nbytes, (words * np.float32(2)).tobytes())
    with pytest.raises(ArenaError, match=r"memory after <Buffer \(5,\)"):
        backend.check_guards()


def test_guards_must_have_been_asked_for() -> None:
    with expect_error("guard words of a device that keeps none", ArenaError, "cpu", "guard > 0"):
        NumpyBackend().check_guards()


def test_the_cpu_device_can_be_limited() -> None:
    backend = NumpyBackend(limit_bytes=20 << 20)
    kept = [backend.alloc((1 << 22,), F32)]
    with expect_error("a CPU device at its limit", ArenaError, "16777216 bytes", "in use"):
        kept.append(backend.alloc((1 << 22,), F32))
    kept.clear()
    backend.alloc((1 << 22,), F32)


def test_what_dies_between_another_threads_look_and_its_grasp_can_be_revived(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread has seen that nothing is pinned; before it takes a dead block, a second pins, and lets one die."""
    monkeypatch.setattr(arena_module, "_code", None)  # between whose looks nobody comes
    memory, _ = arena()
    blocks: list[Block] = []

    class Dead(deque[Any]):
        def popleft(self) -> Any:
            if blocks and not memory.pinned:
                memory.pinned = True
                blocks.clear()
            return self.pop() if memory.pinned else super().popleft()

    memory._dead = Dead(memory._dead)
    memory._died = memory._dead.append
    blocks.append(memory.alloc(64))
    memory.alloc(64)  # which dies at once
    place = blocks[0].address
    memory._take_back()
    (revived,) = memory.revive([place])
    memory.pinned = False
    others = [memory.alloc(64).address for _ in range(3)]
    assert revived.address == place and place not in others
