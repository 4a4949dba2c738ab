"""Chains of elementwise launches: found where they may be, computed as one, and never another value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine.compile.replays import Compute, check, random_plan
from helpers.programs import buffer

from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.kernels.elementwise import MOST_STEPS, OPERANDS, add, copy, div, mul, scale, sub
from ag.engine.primitive import PRIMITIVES

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _chains_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, too, as on a device."""
    monkeypatch.setattr(NumpyBackend, "target", NumpyBackend.target._replace(fuse_from=1))


@pytest.fixture
def backend(device: str) -> Backend:
    return backend_of(device)


@pytest.mark.slow_on("lavapipe")
@pytest.mark.parametrize("name", [name for name, primitive in PRIMITIVES.items() if primitive.fusable])
def test_every_function_in_a_chain_is_its_launch(backend: Backend, name: str) -> None:
    """Between two others."""
    rule = PRIMITIVES[name]

    def compute(run: Any, x: Buffer, y: Buffer) -> list[Buffer]:
        first = run(mul, x, y)
        second = run(rule, *(first, y)[: len(rule.operands) - 1], **dict.fromkeys(rule.params, 0.25))
        return [run(add, second, x)]

    for shape in (1,), (3, 5), (100, 257):
        check(backend, compute, [shape, shape], "fused")


def a_result_that_is_read_later(run: Any, x: Buffer, _: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    return [run(add, doubled, x), run(PRIMITIVES["permute"], doubled, axes=(1, 0))]


def a_result_of_two_that_is_read_later(run: Any, x: Buffer, y: Buffer) -> list[Buffer]:
    both = run(add, run(scale, x, factor=2.0), y)
    return [run(mul, both, x), run(PRIMITIVES["permute"], both, axes=(1, 0))]


def a_result_that_is_held(run: Any, x: Buffer, _: Buffer) -> list[Buffer]:
    held = run(scale, x, factor=2.0)
    return [held, run(add, held, x)]


def a_change_of_an_operand(run: Any, x: Buffer, y: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    run(copy, y, into=x)  # the sum wants the x of before
    return [run(add, doubled, y)]


def a_result_that_is_overwritten(run: Any, x: Buffer, _: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    run(copy, x, into=doubled)
    return [run(scale, doubled, factor=3.0)]


def a_reshape(run: Any, x: Buffer, _: Buffer) -> list[Buffer]:
    y = run(scale, x, factor=2.0).view((2, 6))
    return [run(mul, y, y)]


def two_chains_that_meet(run: Any, x: Buffer, y: Buffer) -> list[Buffer]:
    left, right = run(scale, x, factor=2.0), run(mul, y, y)
    return [run(div, run(add, left, right), left)]


CHAINS: dict[Compute, list[str]] = {
    a_result_that_is_read_later: ["fused_pair", "permute"], a_result_that_is_held: ["scale", "add"],
    a_result_of_two_that_is_read_later: ["fused_pair", "permute"],
    a_change_of_an_operand: ["scale", "copy", "add"], a_result_that_is_overwritten: [], a_reshape: ["fused"],
    two_chains_that_meet: ["fused"],
}


@pytest.mark.parametrize("compute", CHAINS, ids=lambda compute: compute.__name__)
def test_chains(backend: Backend, compute: Compute) -> None:
    check(backend, compute, [(3, 4), (3, 4)], *CHAINS[compute])


@pytest.mark.parametrize("shapes", [
    ((4, 5), (4, 1), (1, 5)), ((2, 3, 4), (3, 1), (4,)), ((6,), (), (6,)), ((2, 1, 4, 3), (2, 1, 1, 3), (4, 1))],
    ids=str)
def test_operands_that_repeat(backend: Backend, shapes: tuple[tuple[int, ...], ...]) -> None:
    check(backend, lambda run, x, y, z: [run(sub, run(mul, run(add, x, y), z), y)], shapes, "fused")


def test_long_chains_and_many_operands_are_cut(backend: Backend) -> None:
    xs = [buffer(backend, np.full(5, float(i))) for i in range(12)]
    with record(backend) as recording:
        total = xs[0]
        for x in xs[1:]:
            total = backend.launch(add, total, x)
    program = recording.finished()
    assert program.launches == -(-11 // (OPERANDS - 1))
    program.run()
    assert backend.download(total).tolist() == [66.0] * 5
    with record(backend) as recording:
        y = xs[1]
        for _ in range(3 * MOST_STEPS):
            y = backend.launch(scale, y, factor=0.5)
    assert recording.finished().launches == 3


@pytest.mark.parametrize("seed", range(20))
def test_replays_of_random_launches(backend: Backend, seed: int) -> None:
    """Results that launches read soon, late, twice or in another shape are there in time, for new inputs too."""
    rng = np.random.default_rng(seed)
    plan = random_plan(rng, ["add", "mul", "sub", "relu", "view"], 2, 8)
    kept = {*rng.integers(2, 10, 2).tolist(), 9}

    def compute(run: Any, *inputs: Buffer) -> list[Buffer]:
        found = [*inputs]
        for name, i, j in plan:
            if name == "view":
                found.append(run(mul, found[i].view((3, 2)), found[j].view((3, 2))).view((2, 3)))
            else:
                rule = PRIMITIVES[name]
                found.append(run(rule, *(found[i], found[j])[: len(rule.operands) - 1]))
        return [found[k] for k in sorted(kept)]

    check(backend, compute, [(2, 3), (2, 3)])


def test_small_arrays_stay_apart_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    backend = backend_of("cpu")
    for size, expected in ((100, 2), (1 << 15, 1)):
        x = buffer(backend, np.ones(size))
        with record(backend) as recording:
            out = backend.launch(scale, backend.launch(scale, x, factor=2.0), factor=2.0)
        assert recording.finished().launches == expected
        assert out.size == size
