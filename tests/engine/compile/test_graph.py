"""The compiler's graph: readers, writers and private blocks, kept up to date by every change and every pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from curves.models import numbers, training
from helpers.programs import values

import ag
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.compile import pipeline
from ag.engine.compile.graph import Graph, Holders, take_over
from ag.engine.compile.memory_plan import plan_memory
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import add, copy, exp, mul
from ag.engine.kernels.reduce import sum_over
from ag.engine.program import Launch, Recording


@pytest.fixture
def backend() -> Backend:
    return backend_of("cpu")


def place(b: Buffer) -> int:
    return b.block.address


def example(backend: Backend) -> tuple[list[Launch], list[Buffer]]:
    """y = exp(x); z = y * y; s = z + x, as launches, and the buffers."""
    x, y, z, s = (backend.alloc((4,), F32) for _ in range(4))
    launches = [Launch(exp, (y, x), {}, True), Launch(mul, (z, y, y), {}, True), Launch(add, (s, z, x), {}, True)]
    return launches, [x, y, z, s]


def check(graph: Graph) -> None:
    """Raise if readers, writers or spans are not those of the launches."""
    fresh = Graph(graph.launches(), Holders(frozenset(graph._escaped), frozenset(graph._viewed)))
    numbers = [i for i, _ in graph]
    for kept, new in ((graph.readers, fresh.readers), (graph.writers, fresh.writers)):
        assert {place: where for place, where in kept.items() if where} == {
            place: [numbers[k] for k in where] for place, where in new.items() if where}
    assert numbers == sorted(numbers)
    assert {*graph.spans()} == {*fresh.spans()}


def test_who_reads_and_writes(backend: Backend) -> None:
    launches, (x, y, z, s) = example(backend)
    graph = Graph(launches, Holders(frozenset({place(x), place(s)})))
    assert (graph.readers[place(x)], graph.readers[place(y)]) == ([0, 2], [1])
    assert (graph.writers[place(x)], graph.writers[place(z)]) == ([], [1])
    assert graph.users(place(y)) == [0, 1] and graph.touching(z) == [1, 2]
    assert [graph.is_private(place(b)) for b in (x, y, z, s)] == [False, True, True, False]
    spans = graph.spans()
    assert {b: (spans[place(b)].first, spans[place(b)].last) for b in (y, z)} == {y: (0, 1), z: (1, 2)}
    assert set(spans) == {place(y), place(z)}


def test_positions_stay_the_same_while_others_go(backend: Backend) -> None:
    launches, (x, y, z, s) = example(backend)
    graph = Graph(launches)
    graph.remove(1)
    assert [i for i, _ in graph] == [0, 2] and graph.readers[place(y)] == []
    graph.replace(2, Launch(add, (s, y, x), {}, True))
    assert graph.readers[place(y)] == [2] and graph.readers[place(z)] == []
    check(graph)
    graph.compact()
    assert [i for i, _ in graph] == [0, 1] and graph.readers[place(y)] == [1]
    graph.insert({1: [launches[1]]})
    assert graph.launches() == [launches[0], launches[1], Launch(add, (s, y, x), {}, True)]
    check(graph)


def test_a_move_takes_all_views_along(backend: Backend) -> None:
    x, flat, made = values(backend, 1, 2), values(backend, 0, 0, 0, 0), backend.alloc((2,), F32)
    graph = Graph([Launch(exp, (made, x), {}, True),
                   Launch(exp, (backend.alloc((2, 1), F32), made.view((2, 1))), {}, True),
                   Launch(copy, (flat.view((2,), 2), made), {}, False)])
    graph.move(made, flat.view((2,), 2))
    graph.remove(2)
    assert made.block is flat.block and made.address == flat.address + 8
    assert graph.readers[place(flat)] == [1] and graph.writers[place(flat)] == [0]
    check(graph)


def test_a_written_part_of_a_block_with_many_users(backend: Backend) -> None:
    """Blocks of many users are looked up by their bytes, also after changes."""
    flat = backend.alloc((1000,), F32)
    x = backend.alloc((10,), F32)
    parts = [flat.view((10,), 10 * k) for k in range(100)]
    graph = Graph([Launch(copy, (part, x), {}, False) for part in parts])
    assert [graph.touching(part) for part in parts] == [[k] for k in range(100)]
    graph.remove(7)
    graph.replace(8, Launch(copy, (flat.view((20,), 70), flat.view((20,), 500)), {}, False))
    assert graph.touching(parts[7]) == [8] and graph.touching(parts[51]) == [8, 51]
    assert graph.is_written(parts[8], 0, 100) and not graph.is_written(parts[8], 9, 100)
    check(graph)


def test_a_wrong_graph_is_seen(backend: Backend) -> None:
    graph = Graph(example(backend)[0])
    next(iter(graph.readers.values())).append(2)
    with pytest.raises(AssertionError):
        check(graph)


@pytest.mark.parametrize("name", ["gpt", "resnet8"])
@pytest.mark.parametrize("recompute", [False, True])
def test_every_pass_keeps_the_graph_right(monkeypatch: pytest.MonkeyPatch, name: str, recompute: bool) -> None:
    checked = []

    def watched(run_pass: pipeline.Pass) -> pipeline.Pass:
        def run(graph: Graph, target: Any) -> None:
            run_pass(graph, target)
            if run_pass is not plan_memory:  # which lets blocks share memory, and is last for that
                check(graph)
            checked.append(run_pass)

        return run

    monkeypatch.setattr(pipeline, "PASSES", tuple((watched(p), wanted) for p, wanted in pipeline.PASSES))
    weights, batches = numbers(name, 2)
    captured = ag.ag_capture(training(name, weights), recompute=recompute)
    eager = training(name, weights)
    for batch in batches[:2]:
        np.testing.assert_array_equal(captured(*batch).numpy(), eager(*batch).numpy())
    assert len(checked) == len(pipeline.PASSES) - 1 - (not recompute)  # epilogues are for devices


# ---------------------------------------------------------------------------------------------- who holds memory


@contextmanager
def opened(recording: Recording) -> Iterator[None]:
    """Collect launches of this thread, and compile nothing."""
    with recording:
        yield


def recorded(backend: Backend, x: Buffer) -> tuple[Recording, dict[str, Buffer]]:
    """y = exp(x); z = y * y; w = z + x; the caller keeps x, y's view and w."""
    recording = pipeline.record(None)
    with opened(recording):
        y = backend.launch(exp, x)
        z = backend.launch(mul, y, y)
        w = backend.launch(add, z, x)
        return recording, {"x": x, "view of y": y.view((2, 1)), "w": w}


def test_what_others_hold_has_escaped(backend: Backend) -> None:
    recording, held = recorded(backend, values(backend, 1, 2))
    before = [(x.primitive, [(b.address, b.shape) for b in x.buffers]) for x in recording.launches]
    live = backend.arena.stats().live
    holders = take_over(recording)
    assert before == [(x.primitive, [(b.address, b.shape) for b in x.buffers]) for x in recording.launches]
    assert holders.escaped == {place(b) for b in held.values()}
    assert holders.viewed == {place(held["view of y"])}
    assert recording.launches[2].buffers[0] is held["w"]  # what is held is the same object
    assert backend.arena.stats().live == live
    assert len({id(b) for x in recording.launches for b in x.buffers}) == 4


def test_memory_that_the_recording_lets_go_of_is_free_afterwards(backend: Backend) -> None:
    x = values(backend, 1, 2)
    live = backend.arena.stats().live
    recording, held = recorded(backend, x)
    take_over(recording)
    recording.launches.clear()
    del held
    assert backend.arena.stats().live == live


def test_blocks_that_die_while_pinned_come_back_or_become_free(backend: Backend) -> None:
    arena = backend.arena
    live = arena.stats().live
    first, second = arena.alloc(1000), arena.alloc(1000)
    address, other = first.address, second.address
    with arena.pinning:
        arena.pinned = True
        del first, second
        taken = [arena.alloc(1000).address for _ in range(3)]
        (again,) = arena.revive([address])
        arena.pinned = False
    assert again.address == address and again.nbytes == 1024
    assert not {address, other} & set(taken)
    blocks = [arena.alloc(1000) for _ in range(4)]
    assert {*taken, other} <= {block.address for block in blocks} and address not in {b.address for b in blocks}
    del again, blocks
    assert arena.stats().live == live


def test_a_cycle_that_is_not_collected_holds_what_it_refers_to(backend: Backend) -> None:
    """As for any memory in Python; nothing of it is reused while it may be read."""
    x = values(backend, 1, 2)
    recording = pipeline.record(None)
    with opened(recording):
        cycle: list[Any] = [backend.launch(exp, x)]
        cycle.append(cycle)
        y = place(cycle[0])
    del cycle
    assert y in take_over(recording).escaped


def test_an_empty_recording(backend: Backend) -> None:
    assert take_over(pipeline.record(None)) == Holders()
    with pipeline.record(backend) as recording:
        pass
    assert recording.finished().launches == 0


def test_what_is_written_in_parts_is_private(backend: Backend) -> None:
    x, whole, s = values(backend, 1, 2), backend.alloc((4,), F32), []
    with pipeline.record(backend) as recording:
        backend.launch(copy, x, into=whole.view((2,), 2))
        backend.launch(copy, x, into=whole.view((2,), 0))
        s.append(sum_over(backend.launch, whole, (0,)))
        del whole
    backend.upload(np.array([3, 4], np.float32), x)
    recording.finished().run()
    assert backend.download(s[0]).tolist() == [14]
