"""Activation checkpointing: the same gradients to the bit, and less memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.programs import reset_peak

import ag
from ag.autograd.tape import Node
from ag.engine.device import backend_of
from ag.engine.random import draw_key, generator_snapshot

X = np.random.default_rng(3).standard_normal((6, 5)).astype(np.float32)


def call(fn: Callable[..., ag.Tensor], *args: Any) -> ag.Tensor:
    """Call a function, in place of `ag_checkpoint`."""
    return fn(*args)


def block() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(6, 6, activation="tanh"), ag.ag_dropout(0.4), ag.ag_linear(6, 6))


class Net(ag.Layer):
    """Blocks with residuals, of which one is used twice, and a weight that is used inside and outside of them."""

    def __init__(self) -> None:
        self.blocks = [block() for _ in range(3)]
        self.W = ag.ag_param(np.full((6, 6), 0.1))

    def run(self, x: ag.Tensor, wrap: Callable[..., ag.Tensor]) -> ag.Tensor:
        def inside(layer: ag.Layer, x: ag.Tensor) -> ag.Tensor:
            return layer(x) * x + self.W @ x + self.W @ (x * x)

        h = self.W @ x
        for layer in [*self.blocks, self.blocks[0]]:
            h = wrap(inside, layer, h) + h * h
        return ag.ag_mean((self.W @ h) ** 2)


def gradients(wrap: Callable[..., ag.Tensor], capture: bool, steps: int = 3) -> list[bytes]:
    """Losses, every gradient, and where the generator is in the end."""
    ag.ag_seed(11)
    net = Net()

    def step(x: ag.Tensor) -> list[ag.Tensor]:
        with ag.with_grad_tape():
            loss = net.run(x, wrap)
        grads = ag.backward(loss)
        return [loss, *(grads[p] for p in net.parameters().values())]

    run = ag.ag_capture(step) if capture else step
    found = []
    for k in range(steps):
        found += [t.numpy().tobytes() for t in run(ag.ag_tensor(X + k))]
        for p in net.parameters().values():
            p.grad = None
    return [*found, str(generator_snapshot()).encode()]


@pytest.mark.parametrize("capture", [False, True], ids=["eager", "captured"])
def test_gradients_are_the_same_to_the_bit(device: str, capture: bool) -> None:
    assert gradients(ag.ag_checkpoint, capture) == gradients(call, False)


def test_running_averages_are_updated_once(device: str) -> None:
    def averages(wrap: Callable[..., ag.Tensor]) -> list[bytes]:
        ag.ag_seed(1)
        layer = ag.ag_sequential(ag.ag_linear(6, 4), ag.ag_batch_norm(4))
        for k in range(3):
            with ag.with_grad_tape():
                loss = ag.ag_sum(wrap(lambda x: wrap(layer, x), ag.ag_tensor(X + k)) ** 2)
            ag.backward(loss)
        tensors = [*layer.buffers().values(), *(p.grad for p in layer.parameters().values())]
        return [t.numpy().tobytes() for t in tensors if t is not None]

    assert averages(ag.ag_checkpoint) == averages(call)


def test_arrays_and_other_arguments(device: str) -> None:
    layer = ag.ag_linear(6, 3)
    labels = np.array([0, 2, 1, 1, 0])

    def loss_of(x: ag.Tensor, factor: float, ids: np.ndarray) -> ag.Tensor:
        return ag.ag_softmax_cross_entropy_loss(layer(x) * factor, ids)

    def results(wrap: Callable[..., ag.Tensor], make: Callable[[Any], Any]) -> list[bytes]:
        def step(x: ag.Tensor, ids: np.ndarray) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = wrap(loss_of, x, 2.0, ids)
            return ag.backward(loss)[layer.W]

        run = make(step)
        return [run(ag.ag_tensor(X + k), (labels + k) % 3).numpy().tobytes() for k in range(3)]

    expected = results(call, lambda step: step)
    assert results(ag.ag_checkpoint, lambda step: step) == expected
    assert results(ag.ag_checkpoint, ag.ag_capture) == expected


def test_constants_that_the_first_call_makes(device: str) -> None:
    ids = [4, 5, 1, 0, 3]
    with ag.ag_device(device):
        backend_of(device).constants.clear()
        x = ag.ag_param(X)
        with ag.with_grad_tape():
            loss = ag.ag_checkpoint(lambda x: ag.ops.cross_entropy(x, ids, ignore_index=1), x)
        got = ag.backward(loss)[x].numpy()
        with ag.with_grad_tape():
            loss = ag.ops.cross_entropy(x, ids, ignore_index=1)
        assert np.array_equal(got, ag.backward(loss)[x].numpy())


def test_defaults_are_those_of_the_first_call() -> None:
    devices = []

    def fn(x: ag.Tensor) -> ag.Tensor:
        devices.append(ag.ag_default_device())
        return x * ag.ag_tensor(np.ones((2, 2)))

    W = ag.ag_param(np.ones((2, 2)), device="cpu:1")
    with ag.ag_device("cpu:1"), ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_checkpoint(fn, W))
    assert ag.backward(loss)[W].numpy().tolist() == [[1, 1], [1, 1]]
    assert devices == ["cpu:1", "cpu:1"] and ag.ag_default_device() == "cpu"


def test_the_function_is_called_again_in_backward_only() -> None:
    calls = []
    W = ag.ag_param([[2.0]])

    def fn(x: ag.Tensor) -> ag.Tensor:
        calls.append(1)
        return x * x

    assert not ag.ag_checkpoint(fn, W).requires_grad and len(calls) == 1
    with ag.with_grad_tape():
        loss = ag.ag_checkpoint(fn, W)
        assert len(calls) == 2
        assert ag.backward(loss, retain=True)[W].item() == 4 and len(calls) == 3
    assert ag.backward(loss)[W].item() == 4 and len(calls) == 4
    with expect_error("backward twice through a checkpoint", ag.TapeError, "ag_checkpoint was used up"):
        ag.backward(loss)


# ---------------------------------------------------------------------------------------------- memory


def peak_bytes(device: str, wrap: Callable[..., ag.Tensor]) -> int:
    """Most bytes in use during one step of a perceptron of 16 layers, above what was there before."""
    layers = [ag.ag_sequential(*(ag.ag_linear(16, 16, activation="tanh") for _ in range(2))) for _ in range(8)]
    x = ag.ag_tensor(np.ones((16, 512)))
    arena = backend_of(device).arena

    def step() -> None:
        with ag.with_grad_tape():
            h = x
            for first, second in zip(layers[::2], layers[1::2], strict=True):
                h = wrap(lambda h, first=first, second=second: wrap(second, wrap(first, h)), h)
            loss = ag.ag_mean(h * h)
        ag.backward(loss)
        for layer in layers:
            for p in layer.parameters().values():
                p.grad = None

    gc.disable()  # what is freed must be freed by reference counts, at once
    try:
        step()
        live = arena.stats().live
        reset_peak(arena)
        step()
        assert arena.stats().live == live
        return arena.stats().peak - live
    finally:
        gc.enable()


def test_the_peak_is_lower(device: str) -> None:
    """By checkpoints of four layers, and of two in each of them."""
    plain, checkpointed = peak_bytes(device, call), peak_bytes(device, ag.ag_checkpoint)
    assert checkpointed <= 0.4 * plain, (checkpointed, plain)


def test_a_checkpoint_that_is_dropped_leaves_nothing() -> None:
    gc.collect()
    before = sum(isinstance(x, Node) for x in gc.get_objects())
    W = ag.ag_param([[2.0]])
    gc.disable()
    try:
        with ag.with_grad_tape():
            y = ag.ag_checkpoint(block(), ag.ag_checkpoint(lambda x: ag.ag_tensor(X) * x, W))
        del y
        assert sum(isinstance(x, Node) for x in gc.get_objects()) == before
    finally:
        gc.enable()


# ---------------------------------------------------------------------------------------------- refused


def test_a_function_that_does_something_else_the_second_time() -> None:
    W = ag.ag_param(np.ones((2, 2)))
    layer = ag.ag_dropout(0.5)
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_checkpoint(layer, W))
    ag.ag_eval(layer)
    with expect_error("backward after dropout in a checkpoint was switched off", ag.TapeError,
                      "drew 1 times", "draws 0 times"):
        ag.backward(loss)
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_checkpoint(layer, W))
    ag.ag_train(layer)
    with expect_error("backward after dropout in a checkpoint was switched on", ag.TapeError,
                      "nothing more", "ag_dropout"):
        ag.backward(loss)
    draw_key(backend_of("cpu"))  # the generator is itself again

    rows = [2]
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_checkpoint(lambda x: ag.ag_tensor(np.ones((rows[0], 2))) @ x, W))
    rows[0] = 3
    with expect_error("backward through a checkpoint that gives another shape", ag.TapeError, "(2, 2)", "(3, 2)"):
        ag.backward(loss)


CHANGED = {
    "a rate": (lambda drop, bn, numbers, x: setattr(drop, "rate", 0.25), "ag_dropout", "other numbers"),
    "a mode": (lambda drop, bn, numbers, x: ag.ag_eval(bn), "ag_batch_norm", "ag_batch_norm_op"),
    "a number": (lambda drop, bn, numbers, x: numbers.update(factor=3.0), "ag_mul", "other numbers"),
    "an op": (lambda drop, bn, numbers, x: numbers.update(more=True), "nothing more", "ag_tanh"),
    "an op less": (lambda drop, bn, numbers, x: numbers.update(less=True), "ag_exp", "nothing more"),
    "an array": (lambda drop, bn, numbers, x: x.fill(0.0), "an array of shape (3, 5)", "other numbers"),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", CHANGED)
def test_what_changed_before_the_second_call(name: str, nested: bool) -> None:
    """Its gradient would be that of another function."""
    change, before, now = CHANGED[name]
    W, drop, bn, numbers = ag.ag_param(np.ones((3, 3))), ag.ag_dropout(0.5), ag.ag_batch_norm(3), {"factor": 2.0}
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)

    def inside(given: np.ndarray) -> ag.Tensor:
        y = bn(drop(W @ given)) * numbers["factor"]
        y = ag.ag_tanh(y) if "more" in numbers and "again" in numbers else y
        return y if "less" in numbers else ag.ag_exp(y)

    def fn(given: np.ndarray) -> ag.Tensor:
        y = ag.ag_checkpoint(inside, given) if nested else inside(given)
        return ag.ag_tanh(y) if "more" in numbers else y

    def loss() -> ag.Tensor:
        with ag.with_grad_tape():
            return ag.ag_sum(ag.ag_checkpoint(fn, x))

    ag.backward(loss())
    made = loss()
    change(drop, bn, numbers, x)
    with expect_error(f"{name} changed between a checkpoint's two calls", ag.TapeError, "ag_checkpoint: where a "
                      "function did ", before, now):
        ag.backward(made)
    ag.backward(loss())


def _optimizer_steps(model: ag.Layer) -> None:
    model.W.grad = ag.ag_tensor([[1.0]])
    ag.optimizer_sgd(model.parameters(), lr=1.0).step()
    model.W.grad = None


def _assigned_elsewhere(model: ag.Layer) -> None:
    ag.optimizer_sgd(model.parameters(), lr=1.0)
    model.W.data = [[7.0]]


def _moved_and_back(model: ag.Layer) -> None:
    model.to("cpu:1")
    model.W.data = [[7.0]]
    model.to("cpu")


@pytest.mark.parametrize("through", ["weight", "input"])
@pytest.mark.parametrize("change", [_optimizer_steps, _assigned_elsewhere, _moved_and_back,
                                    lambda model: setattr(model, "W", ag.ag_param([[9.0]])),
                                    lambda model: setattr(model, "W", model.other)])
def test_weights_that_lie_elsewhere_before_the_second_call(change: Callable[[Any], None], through: str) -> None:
    model = ag.Layer()
    model.W, model.other = ag.ag_param([[3.0]]), ag.ag_param([[4.0]])
    x = ag.ag_tensor([[2.0]])
    with ag.with_grad_tape():
        loss = ag.ag_checkpoint(lambda v: ag.ag_sum(model.W * model.W * v), model.W if through == "input" else x)
    change(model)
    with expect_error("weights that were moved or replaced between a checkpoint's two calls", ag.TapeError,
                      "when it is called again by backward", "after backward"):
        ag.backward(loss)


def test_one_tensor_is_required() -> None:
    with ag.with_grad_tape(), expect_error("a checkpoint that returns two tensors", TypeError, "tuple", "one tensor"):
        ag.ag_checkpoint(lambda x: (x, x), ag.ag_param([[1.0]]))  # type: ignore[arg-type,return-value]
