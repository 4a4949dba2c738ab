"""Copy elimination: a producer writes where its output would be copied, unless somebody else could see that."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.programs import replay
from helpers.programs import values as buffer

import ag
from ag.engine.backend import Backend
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import add, copy, exp, scale
from ag.ops.arithmetic import mul


@pytest.fixture
def backend(device: str) -> Backend:
    return backend_of(device)


def test_a_producer_writes_where_its_output_would_be_copied(backend: Backend) -> None:
    x, flat = buffer(backend, 1, 2), buffer(backend, 0, 0, 0, 0)
    target = flat.view((2,), 2)
    with record(backend) as recording:
        doubled = backend.launch(scale, x, factor=2.0)
        backend.launch(copy, doubled, into=target)
    program = recording.finished()
    assert program.launches == 1
    assert backend.download(doubled).tolist() == [2, 4]  # what somebody holds reads as before, after a replay too
    replay(backend, program, x=(x, [3, 4]))
    assert backend.download(flat).tolist() == [0, 0, 6, 8]
    assert backend.download(doubled).tolist() == [6, 8]


def test_views_of_the_moved_output_move_along(backend: Backend) -> None:
    x, target = buffer(backend, 1, 2, 3, 4), buffer(backend, 0, 0, 0, 0)
    with record(backend) as recording:
        column = backend.launch(scale, x, factor=2.0).view((4, 1))
        halves = backend.launch(scale, column.view((2, 2)), factor=0.5)
        backend.launch(copy, column.view((4,)), into=target)
    program = recording.finished()
    replay(backend, program, x=(x, [5, 6, 7, 8]))
    assert backend.download(target).tolist() == [10, 12, 14, 16]
    assert backend.download(halves).tolist() == [[5, 6], [7, 8]]


def test_a_view_outside_the_recording_keeps_the_copy(backend: Backend) -> None:
    x, target = buffer(backend, 1, 2), buffer(backend, 0, 0)
    with record(backend) as recording:
        doubled = backend.launch(scale, x, factor=2.0)
        outside = doubled.view((2, 1))
        backend.launch(copy, doubled, into=target)
    program = recording.finished()
    assert program.launches == 2
    replay(backend, program, x=(x, [3, 4]))
    assert backend.download(outside).tolist() == [[6], [8]]
    assert backend.download(target).tolist() == [6, 8]


def test_a_later_reader_of_the_source_keeps_the_copy(backend: Backend) -> None:
    x, target = buffer(backend, 1, 2), buffer(backend, 0, 0)
    with record(backend) as recording:
        doubled = backend.launch(scale, x, factor=2.0)
        backend.launch(copy, doubled, into=target)
        backend.launch(scale, target, factor=0.0, into=target)
        late = backend.launch(exp, doubled)
    program = recording.finished()
    assert program.launches == 4
    replay(backend, program, x=(x, [0, 1]))
    np.testing.assert_allclose(backend.download(late), np.exp([0, 2]), rtol=1e-5)


@pytest.mark.parametrize("reads", [True, False])
def test_a_target_in_use_keeps_the_copy(backend: Backend, reads: bool) -> None:
    x, target = buffer(backend, 1, 2), buffer(backend, 10, 20)
    with record(backend) as recording:
        doubled = backend.launch(scale, x, factor=2.0)
        if reads:
            between = backend.launch(scale, target, factor=1.0)
        else:
            between = backend.launch(scale, x, factor=3.0, into=target)
        backend.launch(copy, doubled, into=target)
    program = recording.finished()
    assert program.launches == 3
    replay(backend, program, target=(target, [10, 20]))
    assert backend.download(target).tolist() == [2, 4]
    assert backend.download(between).tolist() == ([10, 20] if reads else [2, 4])


def test_an_accumulated_source_keeps_its_copy(backend: Backend) -> None:
    x, target = buffer(backend, 1, 2), buffer(backend, 0, 0)
    with record(backend) as recording:
        total = backend.launch(scale, x, factor=2.0)
        backend.launch(add, total, x, into=total)
        backend.launch(copy, total, into=target)
    program = recording.finished()
    replay(backend, program, x=(x, [3, 4]))
    assert backend.download(target).tolist() == [9, 12]


def test_what_lives_on_between_replays_is_not_moved(backend: Backend) -> None:
    x, state, target = buffer(backend, 1, 2), buffer(backend, 0, 0), buffer(backend, 0, 0)
    with record(backend) as recording:
        backend.launch(scale, x, factor=2.0, into=state)  # written into memory that was there before
        backend.launch(copy, state, into=target)
    program = recording.finished()
    assert program.launches == 2
    replay(backend, program, x=(x, [3, 4]))
    assert backend.download(state).tolist() == backend.download(target).tolist() == [6, 8]


def test_one_output_copied_twice(backend: Backend) -> None:
    x, a, b = buffer(backend, 1, 2), buffer(backend, 0, 0), buffer(backend, 0, 0)
    with record(backend) as recording:
        doubled = backend.launch(scale, x, factor=2.0)
        backend.launch(copy, doubled, into=a)
        backend.launch(copy, doubled, into=b)
    program = recording.finished()
    replay(backend, program, x=(x, [3, 4]))
    assert backend.download(a).tolist() == backend.download(b).tolist() == [6, 8]


def test_a_target_that_is_overwritten_keeps_the_copy(backend: Backend) -> None:
    x, target = buffer(backend, 1, 2), buffer(backend, 0, 0)
    with record(backend) as recording:
        doubled = backend.launch(scale, x, factor=2.0)
        backend.launch(copy, doubled, into=target)
        backend.launch(copy, x, into=target)
    program = recording.finished()
    replay(backend, program, x=(x, [3, 4]))
    assert backend.download(doubled).tolist() == [6, 8]
    assert backend.download(target).tolist() == [3, 4]


def test_multiplying_with_the_constant_one_costs_nothing(backend: Backend) -> None:
    x = buffer(backend, 1, 2)
    one = ag.autograd.create.lift(1.0, backend, F32, "test").buffer
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
