"""While a call is recorded nothing runs, unless values are asked for; it leaves what an eager call would leave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from ctypes import py_object
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.engine.arena import Block
from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.interpreter import current
from ag.engine.kernels.elementwise import add, mul
from ag.engine.program import Unallocated

MIB = 1 << 20
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def on(backend: Backend, *values: float) -> Buffer:
    buffer = backend.alloc((len(values),), F32)
    backend.upload(np.array(values, np.float32), buffer)
    return buffer


def hidden_counter() -> Callable[[], int]:
    """Count calls where no recording looks."""
    calls = py_object(0)

    def count() -> int:
        calls.value += 1
        return calls.value

    return count


class Trained:
    """A layer, an optimizer, and a step that does something before its end."""

    def __init__(self, device: str, act: Callable[[ag.Tensor], object] = id) -> None:
        self.w = ag.ag_param(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), device)
        self.optimizer = ag.optimizer_adam({"w": self.w}, lr=0.1)
        self.act = act

    def __call__(self, x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            hidden = x * self.w
            loss = ag.ag_sum(hidden * hidden)
        ag.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.act(hidden)
        return loss

    def left(self) -> list[object]:
        return [self.w.numpy().tolist(), None if self.w.grad is None else self.w.grad.numpy().tolist()]


def x_on(device: str) -> ag.Tensor:
    return ag.ag_tensor(ROWS, device=device)


# ---------------------------------------------------------------------------------------------- memory


def test_a_recorded_call_needs_the_memory_of_its_program(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = backend_of(device).arena
    x = ag.ag_tensor(np.ones((512, 512), np.float32), device=device)
    alloc, asked = arena.alloc, [0]

    def counted(nbytes: int) -> Block:
        asked[0] += nbytes if current() is not None else 0
        return alloc(nbytes)

    def chain(x: ag.Tensor) -> ag.Tensor:
        for _ in range(40):
            x = ag.ag_transpose(x) * 0.5
        return x

    step = ag.ag_capture(chain)
    monkeypatch.setattr(arena, "alloc", counted)
    for call in range(3):
        step(x)
        assert asked[0] <= 2 * MIB * min(call + 1, 2), call  # its argument, in two calls
    assert step.program is not None and step.program.nbytes < 8 * MIB


# ---------------------------------------------------------------------------------------------- who asks before


def test_an_upload_comes_after_what_was_noted(device: str) -> None:
    backend = backend_of(device)
    a, b = on(backend, 1, 2), on(backend, 10, 20)
    with record(backend, waits=True) as recording:
        total = backend.launch(add, a, b)
        backend.upload(np.array([5, 5], np.float32), a)
        assert not recording.waits
        later = backend.launch(add, a, b)
    assert backend.download(total).tolist() == [11, 22]
    assert backend.download(later).tolist() == [15, 25]


def test_an_assignment_comes_after_what_was_noted(device: str) -> None:
    backend = backend_of(device)
    a, b = on(backend, 1, 2), on(backend, 10, 20)
    with record(backend, waits=True):
        made = backend.launch(add, a, b)
        c = backend.launch(add, made, made)
        backend.assign(made, a)  # which the launch reads
        d = backend.launch(add, made, c)
    backend.assign(a, d)
    assert backend.download(c).tolist() == [22, 44]
    assert backend.download(d).tolist() == [23, 46]


@pytest.mark.parametrize("trial", [False, True])
def test_an_assignment_to_older_memory_is_refused(device: str, trial: bool) -> None:
    """It is no launch, so a replay would not make it again."""
    backend = backend_of(device)
    a, b = on(backend, 1, 2), on(backend, 10, 20)
    recording = record(backend, trial=trial)
    expected = nullcontext() if trial else pytest.raises(ag.CaptureError, match="copies into older memory")
    with expected, recording:
        backend.launch(add, a, b)
        backend.assign(b, a)
    assert "copies into older memory" in str(recording.failure)


def test_what_nobody_works_on_lets_it_wait(device: str) -> None:
    backend = backend_of(device)
    a, other = on(backend, 1, 2), on(backend, 3, 4)
    with record(backend, waits=True) as recording:
        backend.launch(add, a, a)
        backend.upload(np.array([5, 5], np.float32), other)
        backend.assign(backend.alloc((2,), F32), on(backend, 6, 7))
        assert recording.waits


def test_views_move_with_what_they_show(device: str) -> None:
    backend = backend_of(device)
    a = on(backend, 1, 2, 3)
    with record(backend, waits=True) as recording:
        total = backend.launch(add, a, a)
        view, last = total.view((2,), 1), total.view((1,), 2)
        product = backend.launch(mul, view, view)
        recording.catch_up()
    assert not any(isinstance(b.block, Unallocated) for b in (total, view, last, product))
    assert backend.download(view).tolist() == [4, 6] and backend.download(last).tolist() == [6]
    assert backend.download(product).tolist() == [16, 36]
    backend.upload(np.array([7, 7], np.float32), view)
    assert backend.download(total).tolist() == [2, 7, 7]


def test_another_thread_hears_that_it_is_too_early(device: str) -> None:
    found: list[object] = []

    def look(hidden: ag.Tensor) -> None:
        def elsewhere() -> None:
            try:
                found.append(hidden.numpy())
            except ag.CaptureError as error:
                found.append(str(error))
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    trained, plain = Trained(device, look), Trained(device)
    with expect_error("a tensor of a step in another thread", ag.CaptureError, "(2, 3)", "another one"):
        ag.ag_capture(trained)(x_on(device))
    plain(x_on(device))
    assert len(found) == 1 and "another one" in str(found[0])
    assert trained.left() == plain.left()


# ---------------------------------------------------------------------------------------------- what fails


def test_an_error_in_the_step_leaves_what_an_eager_call_leaves(device: str) -> None:
    kept: list[ag.Tensor] = []

    def fail(hidden: ag.Tensor) -> None:
        kept.append(hidden)
        raise LookupError("of the step")

    left = []
    for step in (lambda f: f, ag.ag_capture):
        trained = Trained(device, fail)
        with pytest.raises(LookupError, match="of the step"):
            step(trained)(x_on(device))
        left.append([*trained.left(), kept.pop().numpy().tolist()])
    assert left[0] == left[1]
    assert current() is None


def test_a_tensor_that_is_kept_has_its_values(device: str) -> None:
    kept: list[ag.Tensor] = []
    trained, plain = Trained(device, kept.append), Trained(device, kept.append)
    with expect_error("a kept tensor", ag.CaptureError, "keeps a tensor of shape (2, 3)"):
        ag.ag_capture(trained)(x_on(device))
    plain(x_on(device))
    assert kept[0].numpy().tolist() == kept[1].numpy().tolist()
    assert trained.left() == plain.left()


def test_a_tensor_that_the_compared_call_keeps_says_that_it_has_no_values(device: str) -> None:
    kept, calls = py_object([]), hidden_counter()

    def act(hidden: ag.Tensor) -> None:
        if calls() == 2:
            kept.value.append(hidden)

    trained, plain = Trained(device, act), Trained(device)
    step = ag.ag_capture(trained)
    for _ in range(3):
        assert step(x_on(device)).item() == plain(x_on(device)).item()
    assert trained.left() == plain.left()
    with expect_error("a tensor without values", ag.CaptureError, "shape (2, 3) has no values", "return"):
        kept.value[0].numpy()
    with expect_error("an op on it", ag.CaptureError, "has no values"):
        ag.ag_sum(kept.value[0])


def test_a_compared_call_that_does_something_else_is_made(device: str) -> None:
    calls = hidden_counter()
    w = ag.ag_param(ROWS, device=device)

    def step(x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_sum(x * w * float(calls()))
        ag.backward(loss)
        return loss

    captured = ag.ag_capture(step)
    captured(x_on(device))
    w.grad = None
    with expect_error("another step", ag.CaptureError, "did something else"):
        captured(x_on(device))
    assert w.grad is not None and w.grad.numpy().tolist() == (2 * ROWS).tolist()


@pytest.mark.parametrize("what", ["result", "gradient"])
def test_what_is_left_is_compared(device: str, what: str) -> None:
    """Two calls make the same launches, and the second returns, or leaves, another of their results."""
    calls = hidden_counter()
    w = ag.ag_param(ROWS, device=device)

    def step(x: ag.Tensor) -> ag.Tensor:
        first, second = x * 2.0, x * 3.0
        chosen = first if calls() == 1 else second
        if what == "gradient":
            w.grad = chosen
            return ag.ag_sum(first) + ag.ag_sum(second)
        return chosen

    captured = ag.ag_capture(step)
    captured(x_on(device))
    w.grad = None
    with expect_error("another result", ag.CaptureError, "did something else", what):
        captured(x_on(device))


def test_where_a_program_fails_the_results_have_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = NumpyBackend(index=9)
    x = backend.zeros((4,), F32)

    def fail(launches: object) -> None:
        raise ag.DeviceError("lost")

    with record(backend, waits=True) as recording:
        total = backend.launch(add, x, x)
        monkeypatch.setattr(backend, "program", fail)
        with expect_error("no program", ag.DeviceError, "lost"):
            recording.catch_up()
    with pytest.raises(Exception) as raised:
        backend.download(total)
    assert type(raised.value) is ag.CaptureError and "has no values" in str(raised.value)


def test_too_little_memory_for_a_program_loses_no_gradient(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, plain = Trained(device), Trained(device)
    gradients = []
    for each in (trained, plain):
        each.w.grad = ag.ag_tensor(ROWS, device=device)
        gradients.append(each.w.grad)

    def fail(launches: object) -> None:
        raise ag.ArenaError("full")

    backend = backend_of(device)
    step = ag.ag_capture(trained)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "program", fail)
        with expect_error("no memory for the program", ag.ArenaError, "full"):
            step(x_on(device))
    assert trained.w.grad is gradients[0]
    assert trained.left() == plain.left()
    for _ in range(3):
        assert step(x_on(device)).item() == plain(x_on(device)).item()
    assert trained.left() == plain.left()


def test_what_is_kept_has_no_values_if_the_call_cannot_be_made(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is refused as it keeps a tensor, which got memory when that was found out."""
    kept: list[ag.Tensor] = []
    trained, plain = Trained(device, kept.append), Trained(device)

    def fail(launches: object) -> None:
        raise ag.ArenaError("full")

    with monkeypatch.context() as patch:
        patch.setattr(backend_of(device), "program", fail)
        with expect_error("no memory for what is kept", ag.ArenaError, "full"):
            ag.ag_capture(trained)(x_on(device))
    with expect_error("a kept tensor of a step that failed", ag.CaptureError, "shape (2, 3) has no values"):
        kept[0].numpy()
    assert trained.left() == plain.left()


def test_an_interrupt_while_the_program_runs_loses_no_gradient(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained(device)
    trained.w.grad = gradient = ag.ag_tensor(ROWS, device=device)
    backend = backend_of(device)
    make = backend.program

    class Interrupted:
        def __init__(self, launches: list[Any]) -> None:
            self._program = make(launches)

        def run(self, given: object = ()) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backend, "program", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            ag.ag_capture(trained)(x_on(device))
    assert trained.w.grad is gradient and gradient.numpy().tolist() == ROWS.tolist()
    assert current() is None
