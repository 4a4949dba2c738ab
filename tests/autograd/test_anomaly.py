"""`detect_anomaly` names the op that first made a value that is not finite, and the line that called it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ag
from ag.engine.interpreter import current

BAD = np.array([[1.0, -1.0, 2.0]], np.float32)


def refused(call: Any) -> str:
    """Return the message of the error that a call raises inside the context."""
    with pytest.raises(FloatingPointError) as caught, ag.detect_anomaly():
        call()
    assert current() is None
    return str(caught.value)


def trained(x: ag.Tensor, op: Any) -> ag.Gradients:
    """Return the gradients of the sum of an op."""
    W = ag.ag_param(np.ones(x.shape))
    with ag.with_grad_tape():
        loss = ag.ag_sum(op(W * x))
    return ag.backward(loss)


def test_the_first_op_and_its_line(device: str) -> None:
    def call() -> None:
        x = ag.ag_tensor(BAD)
        ag.ag_exp(ag.ag_log(x))  # the line

    message = refused(call)
    assert message.startswith("ag_log: its result of shape (1, 3) is NaN at (0, 1) (1 of 3)")
    assert __file__ in message and "`ag.ag_exp(ag.ag_log(x))  # the line`" in message


def test_infinities(device: str) -> None:
    assert "is infinite at (0, 0)" in refused(lambda: ag.ag_tensor([[0.0]]) ** -1.0)
    x = ag.ag_tensor([[-np.inf, 1.0]])
    with ag.detect_anomaly():  # one that was given may stay, as in a mask
        assert (x + 1.0).numpy()[0, 0] == -np.inf
    assert "ag_sub: its result" in (found := refused(lambda: x - x)) and "made of a tensor of shape (1, 2)" in found


@pytest.mark.parametrize("where", ["data", "parameter"])
def test_a_nan_that_no_op_has_made(device: str, where: str) -> None:
    def call() -> None:
        W = ag.ag_param([[np.nan if where == "parameter" else 1.0]])
        W.name = "W"
        with ag.with_grad_tape():
            ag.ag_sum(W * ag.ag_tensor([[np.nan if where == "data" else 1.0]]))

    message, what = refused(call), "a tensor" if where == "data" else "parameter 'W'"
    assert message.startswith(f"ag_mul: {what} of shape (1, 1) is NaN")
    assert "which no op has made" in message


def test_the_backward_pass(device: str) -> None:
    """The square root of 0 is finite, and its gradient is not."""
    message = refused(lambda: trained(ag.ag_tensor([[0.0, 4.0]]), ag.ag_sqrt))
    assert message.startswith("backward: the gradient of ag_sqrt for a tensor of shape (1, 2) is infinite at (0, 0)")
    assert "loss = ag.ag_sum(op(W * x))" in message


def test_a_backward_pass_outside(device: str) -> None:
    W = ag.ag_param([[0.0]])
    with ag.detect_anomaly(), ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_sqrt(W))
    with pytest.raises(FloatingPointError, match="gradient of ag_sqrt"):
        ag.backward(loss)


def test_a_sum_of_gradients_that_overflows() -> None:
    def call() -> None:
        W = ag.ag_param([[1.0]])
        with ag.with_grad_tape():
            y = W * 1.0
            loss = ag.ag_sum(y * 3e38 + y * -1e-30) + ag.ag_sum((y - 1.0) * 3e38)
        ag.backward(loss)

    assert "the gradients of the result of ag_mul add up to what is infinite" in refused(call)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_sum_of_gradients_of_a_parameter_that_overflows(calls: int) -> None:
    """Of several uses, and of several calls of backward."""
    def call() -> None:
        W = ag.ag_param([[1.0]])
        for _ in range(calls):
            with ag.with_grad_tape():
                loss = ag.ag_sum(W * 3e38)
                if calls == 1:
                    loss = loss - ag.ag_sum((1.0 - W) * 3e38)
            ag.backward(loss)

    assert "the gradients of a parameter of shape (1, 1) add up to what is infinite" in refused(call)


def test_a_loss_scale_of_other_parameters_hides_nothing() -> None:
    with ag.ag_dtype("f16"):
        optimizer = ag.optimizer_adam({"W": ag.ag_param([[1.0]])})
    test_a_sum_of_gradients_that_overflows()
    assert optimizer.lr


def test_a_checkpoint_whose_backward_pass_is_outside() -> None:
    W = ag.ag_param([[0.0]])
    with ag.detect_anomaly(), ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_checkpoint(lambda x: ag.ag_sqrt(x * W), ag.ag_tensor([[1.0]])))
    with pytest.raises(FloatingPointError, match="gradient of ag_sqrt"):
        ag.backward(loss)


def test_gradients_are_the_same(device: str) -> None:
    x = ag.ag_tensor(np.arange(6.0).reshape(2, 3) + 1)
    with ag.detect_anomaly(), ag.detect_anomaly():
        (watched,) = trained(x, ag.ag_log).values()
    (plain,) = trained(x, ag.ag_log).values()
    np.testing.assert_array_equal(watched.numpy(), plain.numpy())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bits(device: str, dtype: str) -> None:
    with ag.ag_dtype(dtype):
        assert "ag_log: its result" in refused(lambda: ag.ag_log(ag.ag_tensor(BAD)))


def test_a_captured_step_runs_op_by_op(device: str) -> None:
    W = ag.ag_param([[1.0]])
    step = ag.ag_capture(lambda x: ag.ag_log(W * x))
    for _ in range(4):
        step(ag.ag_tensor([[2.0]]))
    assert "ag_log: its result" in refused(lambda: step(ag.ag_tensor([[-2.0]])))
    with ag.detect_anomaly():
        assert step(ag.ag_tensor([[1.0]])).item() == 0.0
    assert step(ag.ag_tensor([[1.0]])).item() == 0.0  # a replay again


def test_in_a_captured_step_it_is_refused(device: str) -> None:
    def step(x: ag.Tensor) -> ag.Tensor:
        with ag.detect_anomaly():
            return x * 2.0

    with pytest.raises(ag.CaptureError, match="detect_anomaly"):
        ag.ag_capture(step)(ag.ag_tensor([1.0]))


def test_a_checkpoint(device: str) -> None:
    def call() -> None:
        W = ag.ag_param([[0.0]])
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_checkpoint(lambda x: ag.ag_sqrt(x * W), ag.ag_tensor([[1.0]])))
        ag.backward(loss)

    assert "gradient of ag_sqrt" in refused(call)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu:1"]])
@pytest.mark.parametrize("capture", ["auto", True, False])
def test_dp_train(devices: list[str], capture: bool | str) -> None:
    """Threads of replicas are watched, too."""
    def broken(out: ag.Tensor, y: ag.Tensor) -> ag.Tensor:
        return ag.ag_mean(ag.ag_log(out - out))

    data = [(np.ones((2, 1), np.float32), np.ones((1, 1), np.float32))] * 4

    def train() -> None:
        ag.dp_train(lambda: ag.ag_linear(2, 1), data, broken, lambda model, s: model.forward(s[0]), lambda s: s[1],
                    n_iter=3, devices=devices, capture=capture, verbose=False)

    message = refused(train)
    assert message.startswith("ag_log: its result") and "return ag.ag_mean(ag.ag_log(out - out))" in message


def test_fit_trains_the_same() -> None:
    X, y = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32), np.arange(32) % 2
    losses = []
    for watched in (False, True):
        ag.ag_seed(1)
        model = ag.ag_sequential(ag.ag_linear(3, 4), ag.ag_dropout(0.2), ag.ag_linear(4, 2))
        if watched:
            with ag.detect_anomaly():
                losses.append(ag.fit(model, (X, y), epochs=2, verbose=False)["loss"])
        else:
            losses.append(ag.fit(model, (X, y), epochs=2, verbose=False)["loss"])
    assert losses[0] == losses[1]


def test_parallel_apply() -> None:
    with pytest.raises(FloatingPointError, match="ag_log: its result") as caught, ag.detect_anomaly():
        ag.parallel_apply([ag.ag_log, ag.ag_log], [ag.ag_tensor([[-1.0]]), ag.ag_tensor([[-1.0]], "cpu:1")],
                          devices=["cpu", "cpu:1"])
    assert isinstance(caught.value, ag.CommError) and "replica 0 on cpu" in str(caught.value)


def test_the_loss_scale_may_overflow() -> None:
    with ag.ag_dtype("f16"):
        W = ag.ag_param(np.ones((2, 2)))
        optimizer = ag.optimizer_adam({"W": W})  # with a loss scale
        with ag.detect_anomaly():
            with ag.with_grad_tape():
                loss = ag.ag_sum(W * W * 3.0)
            grads = ag.backward(loss)
        assert not np.isfinite(grads[W].numpy()).any() and optimizer.lr
