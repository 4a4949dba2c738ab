"""Copies, products with 1, and arrays that are filled with a number are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine.compile.replays import Compute, check
from helpers.programs import replay
from helpers.programs import values as buffer

import ag
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.compile import pipeline
from ag.engine.compile.copy_elimination import keep_numbers
from ag.engine.compile.graph import Graph
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import abs_grad, add, copy, exp, scale
from ag.engine.kernels.reduce import expand, sum_over
from ag.engine.target import Target
from ag.ops.arithmetic import mul


@pytest.fixture
def backend(device: str) -> Backend:
    return backend_of(device)


def a_place(run: Any, x: Buffer, flat: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    run(copy, doubled, into=flat.view((4,), 4))
    return [doubled]  # what somebody holds reads as before


def views(run: Any, x: Buffer, target: Buffer) -> list[Buffer]:
    column = run(scale, x, factor=2.0).view((4, 1))
    halves = run(scale, column.view((2, 2)), factor=0.5)
    run(copy, column.view((4,)), into=target)
    return [halves]


def a_view_outside(run: Any, x: Buffer, target: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    run(copy, doubled, into=target)
    return [doubled.view((4, 1))]


def a_later_reader(run: Any, x: Buffer, target: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    run(copy, doubled, into=target)
    run(scale, target, factor=0.0, into=target)
    return [run(exp, doubled)]


def a_target_that_is_read(run: Any, x: Buffer, target: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    between = run(scale, target, factor=1.0)
    run(copy, doubled, into=target)
    return [between]


def a_target_that_is_written(run: Any, x: Buffer, target: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    run(scale, x, factor=3.0, into=target)
    run(copy, doubled, into=target)
    return []


def a_sum(run: Any, x: Buffer, target: Buffer) -> list[Buffer]:
    total = run(scale, x, factor=2.0)
    run(add, total, x, into=total)
    run(copy, total, into=target)
    return []


def a_state(run: Any, x: Buffer, state: Buffer, target: Buffer) -> list[Buffer]:
    run(scale, x, factor=2.0, into=state)  # memory that was there before
    run(copy, state, into=target)
    return []


def two_copies(run: Any, x: Buffer, first: Buffer, second: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    run(copy, doubled, into=first)
    run(copy, doubled, into=second)
    return []


def a_target_that_is_overwritten(run: Any, x: Buffer, target: Buffer) -> list[Buffer]:
    doubled = run(scale, x, factor=2.0)
    run(copy, doubled, into=target)
    run(copy, x, into=target)
    return [doubled]


COPIES: dict[Compute, tuple[tuple[int, ...], list[str]]] = {  # elements of the operands, and kernels of the program
    a_place: ((4, 8), ["scale"]), views: ((4, 4), ["scale", "scale"]), a_view_outside: ((4, 4), ["scale", "copy"]),
    a_later_reader: ((4, 4), ["scale", "copy", "scale", "exp"]),
    a_target_that_is_read: ((4, 4), ["scale", "scale", "copy"]),
    a_target_that_is_written: ((4, 4), ["scale", "scale", "copy"]), a_sum: ((4, 4), []),
    a_state: ((4, 4, 4), ["scale", "copy"]), two_copies: ((4, 4, 4), []), a_target_that_is_overwritten: ((4, 4), []),
}


@pytest.mark.parametrize("compute", COPIES, ids=lambda compute: compute.__name__)
def test_copies(backend: Backend, compute: Compute) -> None:
    sizes, expected = COPIES[compute]
    check(backend, compute, [(n,) for n in sizes], *expected)


def a_number_times(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    return [run(mul, run(expand, number, shape=x.shape, factor=0.1), x)]


def a_number_by_two(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    filled = run(expand, number, shape=x.shape, factor=1.0)
    return [run(add, run(mul, x, filled), x), run(add, filled.view((1, 8)).view((8,)), x)]


def a_number_that_changes(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    filled = run(expand, number, shape=x.shape, factor=1.0)
    run(scale, number, factor=2.0, into=number)
    return [run(mul, x, filled)]


def a_square(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    filled = run(expand, number, shape=x.shape, factor=3.0)
    return [run(mul, filled, filled)]


def a_held_array(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    filled = run(expand, number, shape=x.shape, factor=3.0)
    return [filled, run(mul, filled, x)]


def an_array_that_changes(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    filled = run(expand, number, shape=x.shape, factor=3.0)
    run(copy, x.view((2,)), into=filled.view((2,), 2))
    return [run(mul, filled, x)]


def a_sum_of_numbers(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    return [sum_over(run, run(expand, number, shape=x.shape, factor=3.0), (0,))]


def a_broadcast(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    return [run(mul, run(expand, number, shape=(3, 8), factor=3.0), x)]  # whose shape only the numbers have


def a_gradient(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    return [run(abs_grad, x, run(expand, number, shape=x.shape, factor=3.0))]  # whose kernel broadcasts nothing


def half_a_gradient(run: Any, x: Buffer, number: Buffer) -> list[Buffer]:
    filled = run(expand, number, shape=x.shape, factor=3.0)
    return [run(mul, x, filled), run(abs_grad, x, filled)]


NUMBERS: dict[Compute, int] = {  # elements that are written
    a_number_times: 1, a_number_by_two: 1, a_number_that_changes: 1, a_square: 8, a_held_array: 8,
    an_array_that_changes: 8, a_sum_of_numbers: 8, a_broadcast: 24, a_gradient: 8, half_a_gradient: 8,
}


@pytest.mark.parametrize("compute", NUMBERS, ids=lambda compute: compute.__name__)
def test_numbers(backend: Backend, compute: Compute, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noting(graph: Graph, target: Target) -> None:
        keep_numbers(graph, target)
        sizes.extend(launch.buffers[0].size for _, launch in graph if launch.primitive is expand)

    passes = [(noting if rule is keep_numbers else rule, wanted) for rule, wanted in pipeline.PASSES]
    monkeypatch.setattr(pipeline, "PASSES", passes)
    check(backend, compute, [(8,), (1,)])
    assert sizes == [NUMBERS[compute]]


def test_multiplying_with_the_constant_one_costs_nothing(backend: Backend) -> None:
    x = buffer(backend, 1, 2)
    one = ag.autograd.operands.lift(1.0, backend, F32, "test").buffer
    variable = buffer(backend, 1)
    with record(backend) as recording:
        first = backend.launch(mul, backend.launch(scale, x, factor=2.0), one)
        second = backend.launch(mul, backend.launch(scale, x, factor=3.0), variable)
    program = recording.finished()
    assert program.launches == (3 if backend.name == "cpu" else 2)  # short arrays make no chain on the CPU
    replay(backend, program, x=(x, [3, 4]), variable=(variable, [10]))
    assert backend.download(first).tolist() == [6, 8]
    assert backend.download(second).tolist() == [90, 120]


def test_a_captured_training_step_gathers_no_gradients(device: str) -> None:
    model = ag.ag_sequential(ag.ag_linear(4, 5, activation="relu"), ag.ag_linear(5, 3))
    optimizer = ag.optimizer_adam(model)

    def step(x: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
        optimizer.step(ag.backward(loss))
        return loss

    rng = np.random.default_rng(0)
    x, y = ag.ag_tensor(rng.normal(size=(4, 6))), ag.ag_tensor(np.eye(3)[:, rng.integers(0, 3, 6)])
    captured = ag.ag_capture(step)
    captured(x, y)
    assert captured.program is not None
    # 2 x (matmul, bias), relu, loss, mean; 2 x (dW with db), dh, relu's gradient; Adam.
    # On Vulkan biases, relu and its gradient are epilogues of the products.
    assert captured.program.launches <= (12 if device == "cpu" else 8)
    before = {name: p.grad.numpy() for name, p in model.parameters().items() if p.grad is not None}
    captured(x, y)
    for name, p in model.parameters().items():
        assert p.grad is not None
        assert not np.array_equal(p.grad.numpy(), before[name]), name  # .grad follows the replay
