"""Captured steps: a replay computes what the eager step would, to the bit.  What is refused: test_capture_guards."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import py_object

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

pytestmark = pytest.mark.sync
CLASSES = 3
RNG = np.random.default_rng(5)
X = RNG.standard_normal((6, 4, 8)).astype(np.float32)  # six batches
LABELS = RNG.integers(0, CLASSES, (6, 8))


def training(seed: int = 1, dropout: float = 0.0) -> tuple[Callable[..., ag.Tensor], ag.Layer, ag.optimizer_adam]:
    """A step over (x, labels), its model and its optimizer, the same for the same seed."""
    ag.ag_seed(seed)
    model = ag.ag_sequential(ag.ag_linear(4, 9, activation="tanh"), ag.ag_dropout(dropout), ag.ag_linear(9, CLASSES))
    optimizer = ag.optimizer_adam(model, lr=0.02)

    def step(x: ag.Tensor, labels: np.ndarray) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(x), labels)
        optimizer.step(ag.backward(loss))
        return loss

    return step, model, optimizer


def run(step: Callable[..., ag.Tensor], optimizer: ag.optimizer_adam, steps: int) -> list[float]:
    """Losses of some steps, with another lr in the second half."""
    losses = []
    for k in range(steps):
        if k == steps // 2:
            optimizer.lr = 0.003
        losses.append(step(ag.ag_tensor(X[k % 6]), LABELS[k % 6]).item())
    return losses


def assert_same_training(one: tuple, other: tuple) -> None:
    for a, b in zip(one[0].state_dict().values(), other[0].state_dict().values(), strict=True):
        assert np.array_equal(a, b)
    for name, value in one[1].state_dict().items():
        assert np.array_equal(value, other[1].state_dict()[name]), name


# ---------------------------------------------------------------------------------------------- equal to eager


def test_80_steps_equal_eager_to_the_bit(device: str) -> None:
    step, model, optimizer = training()
    eager = run(step, optimizer, 80)
    step, other, other_optimizer = training()
    captured = ag.ag_capture(step)
    assert run(captured, other_optimizer, 80) == eager
    assert captured.program.launches > 5
    assert_same_training((model, optimizer), (other, other_optimizer))
    assert eager[-1] < 0.8 * eager[0]  # it did train, so equality says something


def test_dropout_draws_anew_in_every_replay_and_equals_eager(device: str) -> None:
    step, model, optimizer = training(dropout=0.5)
    eager = run(step, optimizer, 20)
    step, other, other_optimizer = training(dropout=0.5)
    assert run(ag.ag_capture(step), other_optimizer, 20) == eager
    assert_same_training((model, optimizer), (other, other_optimizer))


def stepping_by_grad(zero: str) -> tuple[Callable[[ag.Tensor], None], ag.Tensor, ag.optimizer_sgd]:
    """A step that leaves its gradients in ``.grad``; `zero` says where zero_grad is called."""
    W = ag.ag_param([[1.0, 2.0]])
    optimizer = ag.optimizer_sgd({"W": W}, lr=0.25)

    def step(x: ag.Tensor) -> None:
        if zero == "before":
            optimizer.zero_grad()
        with ag.with_grad_tape():
            loss = ag.ag_sum(W * W * x)
        ag.backward(loss)
        optimizer.step()
        if zero == "after":
            optimizer.zero_grad()

    return step, W, optimizer


@pytest.mark.parametrize("zero", ["before", "after", "between", "once"])
def test_gradients_left_in_grad(device: str, zero: str) -> None:
    results = []
    for captured in (False, True):
        step, W, optimizer = stepping_by_grad(zero)
        run = ag.ag_capture(step) if captured else step
        seen = []
        for k in range(9):
            if zero == "between" or (zero, k) == ("once", 5):
                optimizer.zero_grad()
            run(ag.ag_tensor([[1.0, k + 1.0]]))
            seen += [W.numpy().tolist(), None if W.grad is None else W.grad.numpy().tolist()]
        results.append(seen)
    assert results[0] == results[1]


def test_results_are_new_tensors_that_stay_as_they_are(device: str) -> None:
    step = ag.ag_capture(lambda x: {"double": x + x, "both": [x * x, (ag.ag_sum(x),)]})
    kept = [step(ag.ag_tensor([[k, k + 1.0]] * 3000)) for k in range(6)]
    views = [result["double"][:1] for result in kept]
    step(ag.ag_tensor([[9.0, 9.0]] * 3000))
    for k, (result, view) in enumerate(zip(kept, views, strict=True)):
        assert result["double"].numpy()[7].tolist() == view.numpy()[0].tolist() == [2.0 * k, 2.0 * k + 2]
        assert result["both"][0].numpy()[-1].tolist() == [k * k, (k + 1.0) ** 2]
        assert result["both"][1][0].item() == 3000 * (2 * k + 1)


def test_a_step_may_return_nothing(device: str) -> None:
    W = ag.ag_param([[1.0]])
    optimizer = ag.optimizer_sgd({"W": W}, lr=1.0)
    step = ag.ag_capture(lambda g: optimizer.step({"W": g}))
    assert step(ag.ag_tensor([[0.25]])) is None
    assert step(ag.ag_tensor([[0.5]])) is None
    assert W.item() == 0.25


def test_a_dropped_weight_changes_nothing(device: str) -> None:
    """The program holds its memory: without that, a replay reads whatever came to lie there."""
    kept = py_object(ag.ag_param(np.full((16, 16), 0.5)))  # which is not watched: the step of now could not run
    step = ag.ag_capture(lambda x: ag.ag_sum(kept.value @ x))
    x = ag.ag_tensor(np.ones((16, 1)))
    assert [step(x * float(k)).item() for k in range(3)] == [0.0, 128.0, 256.0]
    kept.value = None
    churn = [ag.ag_tensor(np.full((16, 16), 99.0)) for _ in range(50)]  # takes every block that is free
    del churn[::2]
    churn += [ag.ag_tensor(np.full((16, 1), 99.0)) for _ in range(50)]
    assert step(x).item() == 128.0


def test_close_gives_the_memory_back(device: str) -> None:
    arena = ag.ag_tensor(0.0).buffer.backend.arena
    ag.ag_sum(ag.ag_tensor(np.ones((100, 100))) + 1.0)  # constants and their like exist from now on
    before = arena.stats().live
    step = ag.ag_capture(lambda x: ag.ag_sum(x + 1.0))
    step(ag.ag_tensor(np.ones((100, 100))))
    assert step.program.nbytes >= 80_000
    assert arena.stats().live >= before + step.program.nbytes - 1024
    step.close()
    del step
    assert arena.stats().live == before


def test_arrays_and_tensors_fill_the_slots(device: str) -> None:
    step = ag.ag_capture(lambda a, b: a * b)
    a, b = np.array([[1.0, 2.0]], np.float32), np.array([[3.0, 4.0]], np.float32)
    step(a, ag.ag_tensor(b))
    for _ in range(3):
        assert step(b, ag.ag_tensor(b)).numpy().tolist() == [[9.0, 16.0]]
        assert step(b, ag.ag_tensor(a)).numpy().tolist() == [[3.0, 8.0]]


def test_one_array_given_twice_fills_two_slots(device: str) -> None:
    step = ag.ag_capture(lambda a, b: ag.ag_tensor(a) - ag.ag_tensor(b))
    a, b = np.array([[1.0, 2.0]], np.float32), np.array([[3.0, 5.0]], np.float32)
    assert step(a, a).numpy().tolist() == [[0.0, 0.0]]
    assert step(b, a).numpy().tolist() == [[2.0, 3.0]]


def test_an_array_may_be_used_in_two_shapes_and_types(device: str) -> None:
    def step(v: np.ndarray) -> ag.Tensor:
        return ag.ag_tensor(v) * ag.ag_tensor(v.reshape(1, 3))

    captured = ag.ag_capture(step)
    for v in (np.array([1, 2, 3]), np.array([4, 5, 6])):
        assert np.array_equal(captured(v).numpy(), np.outer(v, v))


# ---------------------------------------------------------------------------------------------- labels


def test_integer_labels_are_checked_before_anything_runs(device: str) -> None:
    step, model, optimizer = training()
    captured = ag.ag_capture(step)
    x = ag.ag_tensor(X[0])
    for k in range(3):  # the third one is a replay
        captured(x, LABELS[k])
    before = {**model.state_dict(), **optimizer.state_dict()}
    for wrong in (CLASSES, -1):
        labels = LABELS[1].copy()
        labels[3] = wrong
        with expect_error("a label out of range in a captured step", IndexError, str(wrong), "0..2"):
            captured(x, labels)
        after = {**model.state_dict(), **optimizer.state_dict()}
        assert all(np.array_equal(before[k], after[k]) for k in before)
    captured(x, LABELS[1])
    assert optimizer.t == 4
