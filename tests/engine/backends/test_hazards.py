"""The hazard tracker: a barrier wherever a launch depends on one since the last barrier, and nowhere else."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ag
from ag.engine.backends.vulkan.stream import Command, Copy, HazardTracker, Range, Recorder
from ag.engine.device import backend_of

A, B, C = (0, 100), (100, 200), (200, 300)  # they only touch

CASES = {
    "read after write": (([], [A]), ([A], [B]), True),
    "write after read": (([A], [B]), ([C], [A]), True),
    "write after write": (([], [A]), ([], [A]), True),
    "read after read": (([A], [B]), ([A], [C]), False),
    "ranges that touch": (([A], [B]), ([], [C]), False),
    "one byte in common": (([], [(0, 101)]), ([B], [C]), True),
    "in place": (([A], [A]), ([B], [C]), False),
    "another segment": (([], [A]), ([(1 << 48, (1 << 48) + 100)], []), False),
    "one of several": (([], [A, B]), ([(500, 600), B], [C]), True),
}


@pytest.mark.parametrize("name", CASES)
def test_two_launches(name: str) -> None:
    first, second, expected = CASES[name]
    tracker = HazardTracker()
    assert tracker.launch(*first) is False
    assert tracker.launch(*second) is expected


def depend(one: tuple[list[Range], list[Range]], other: tuple[list[Range], list[Range]]) -> bool:
    """Return whether two launches touch a common byte and one of them writes it, byte by byte."""
    def touched(ranges: list[Range]) -> set[int]:
        return {byte for start, end in ranges for byte in range(start, end)}

    (r1, w1), (r2, w2) = (tuple(map(touched, launch)) for launch in (one, other))
    return bool(w1 & w2 or w1 & r2 or r1 & w2)


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)

    def some_range() -> Range:
        start = rng.randrange(60)
        return start, start + rng.randrange(1, 6)

    program = [([some_range() for _ in range(rng.randrange(3))], [some_range() for _ in range(rng.randrange(1, 3))])
               for _ in range(60)]
    tracker = HazardTracker()
    barriers = [i for i, launch in enumerate(program) if tracker.launch(*launch)]
    for j in range(len(program)):
        for i in range(j):
            if depend(program[i], program[j]):
                assert any(i < b <= j for b in barriers), f"no barrier between {program[i]} and {program[j]}"
    for before, b in pairwise([0, *barriers]):
        assert any(depend(program[i], program[b]) for i in range(before, b)), f"the barrier before {b} is needless"


def test_very_many_ranges_cost_one_barrier() -> None:
    tracker = HazardTracker()
    barriers = sum(tracker.launch([], [(i * 10, i * 10 + 5)]) for i in range(10_000))
    assert 10 < barriers < 100


@pytest.fixture
def recorder(vulkan: str) -> Iterator[Recorder]:
    """The recorder of a Vulkan device, which is the default device, with an open sequence that is not empty."""
    if os.environ.get("AG_BARRIER_ALL") == "1":
        pytest.skip("AG_BARRIER_ALL=1 asks for a barrier before every command, so there are none to save")
    backend = backend_of(vulkan)
    with ag.ag_device(backend.name):
        backend.synchronize()
        _ = ag.ag_tensor(np.ones(5)) * 1.0
        yield backend.recorder


@pytest.mark.vulkan
def test_independent_launches_have_no_barrier(recorder: Recorder) -> None:
    tensors = [ag.ag_tensor(np.full(8, k)) for k in range(6)]
    first = tensors[0] * 3.0  # now the constant 3 is there too
    recorder.submit()
    before = recorder.barriers
    results = [t * 3.0 for t in tensors]
    recorder.submit()
    assert recorder.barriers - before == 1  # at the start of the sequence
    chained = first
    before = recorder.barriers
    for _ in range(5):
        chained = chained * 3.0
    recorder.submit()
    assert recorder.barriers - before == 5
    assert [r.numpy()[0, 0] for r in results] == [3.0 * k for k in range(6)]
    assert chained.numpy()[0, 0] == 0.0


@pytest.mark.vulkan
def test_a_sequence_begins_with_a_barrier(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier submissions may still run, and the tracker knows the open sequence only; so does a program."""
    x, build, barriers = ag.ag_tensor(np.ones(8)), recorder.build, []
    recorder.wait()

    def counted(commands: list[Command], *unused: Any) -> object:
        before = recorder.barriers
        sequence = build(commands, *unused)
        barriers.append(recorder.barriers - before)
        return sequence

    monkeypatch.setattr(recorder, "build", counted)
    ag.ag_capture(ag.ag_softmax)(x)
    recorder.wait()
    _ = ag.ag_exp(x)
    recorder.wait()
    assert barriers[-1] == 1 and min(barriers) == 1  # of `ag_exp`, the step as it was recorded, and its program


class Noting:
    def __init__(self) -> None:
        self.barriers: list[str] = []
        self.ends: list[str] = []

    def dispatch(self, *arguments: Any) -> None:
        *_, barrier, _x, _y, copies = arguments
        self.barriers.append(("all" if copies else "launches") if barrier else "none")

    def copy(self, *arguments: Any) -> None:
        self.barriers.append("all" if arguments[-2] else "none")

    def clear(self) -> None:
        """Begin."""

    def to_host(self) -> None:
        self.ends.append("to the host")

    def end(self) -> None:
        self.ends.append("end")


@pytest.mark.vulkan
def test_a_barrier_is_for_copies_where_there_may_be_some(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_barrier_always", False)

    def built(*commands: Command | Copy) -> list[str]:
        noting: Any = Noting()
        recorder.build(commands, noting)
        assert noting.ends == ["to the host", "end"]  # which sees what was written
        barriers: list[str] = noting.barriers
        return barriers

    def launch(reads: int, writes: int) -> Command:
        nothing: Any = None
        return Command("add", nothing, b"", (1, 1, 1), [(reads, reads + 4)], [(writes, writes + 4)])

    nothing: Any = None
    copy = Copy(nothing, nothing, (0, 0, 4), [(8, 12)], [(16, 20)])
    assert built(launch(0, 4), launch(4, 8), launch(0, 12)) == ["all", "launches", "none"]
    assert built(launch(0, 4), launch(4, 8), copy, launch(16, 4)) == ["all", "all", "all", "all"]


@pytest.mark.vulkan
def test_a_program_has_barriers_only_where_they_are_needed(recorder: Recorder) -> None:
    xs = [ag.ag_tensor(np.arange(8.0)[:, None] / (k + 4)) for k in range(5)]

    def step(*xs: ag.Tensor) -> list[ag.Tensor]:
        return [ag.ag_softmax(ag.ag_exp(x)) for x in xs]  # no chain: a softmax is not elementwise

    captured = ag.ag_capture(step)
    before = recorder.barriers
    outputs = captured(*xs)
    while_recording = recorder.barriers - before
    assert captured.program.launches == 10
    # exp, softmax of one x depend on each other, and nothing else does; recorded x by x, each softmax needs a barrier,
    # which settles everything before it. That is five, and one at the start, for each of the two recordings.
    assert while_recording <= 2 * (5 + 1) + 5 + 5  # and the copies that fill the slots, and those of the results
    for x, y in zip(xs, outputs, strict=True):
        e = np.exp(np.exp(x.numpy()))
        assert np.allclose(y.numpy(), e / e.sum(), rtol=1e-4)
