"""Frozen layers: their parameters stay as they are, in loops, captured steps, `fit` and `dp_train`."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(4, 24)).astype(np.float32), RNG.integers(0, 3, 24)


class Net(ag.Layer):
    """A model with layers and parameters in lists, tuples and dicts."""

    def __init__(self) -> None:
        self.body: list[Any] = [(ag.ag_linear(4, 8, activation="tanh"),), {"norm": ag.ag_batch_norm(8)}]
        self.scales = [ag.ag_param(np.ones((8, 1)))]
        self.head = ag.ag_linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.body[1]["norm"](self.body[0][0](x)) * self.scales[0])


def net() -> Net:
    ag.ag_seed(3)
    return Net()


def weights(model: Any) -> dict[str, Any]:
    return {name: x for name, x in model.state_dict().items() if "running" not in name}


def moved(model: Any, before: dict[str, Any]) -> set[str]:
    return {name for name, x in weights(model).items() if not np.array_equal(x, before[name])}


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "momentum": lambda params: ag.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda params: ag.optim.AdamW(params, lr=0.1, weight_decay=0.1)}
HEAD = {"head_W", "head_b"}


def step_of(model: Any, optimizer: Any) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    return step


def test_everything_inside_is_frozen_and_trained_again() -> None:
    model = net()
    names, before = [*model.parameters()], model.n_parameters
    assert model.requires_grad and model.freeze() is model and not model.requires_grad
    assert model.n_parameters == 0 and not model.parameters() and {*names} <= {*model.buffers()}
    assert model.unfreeze() is model
    assert [*model.parameters()] == names and model.n_parameters == before
    model.head.requires_grad = False
    assert model.requires_grad and not model.head.requires_grad
    assert {*names} - {*model.parameters()} == HEAD
    model.freeze()
    model.head.requires_grad = np.True_
    assert {*model.parameters()} == HEAD


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("captured", [False, True])
def test_frozen_before_a_loop_and_in_it(name: str, captured: bool) -> None:
    in_a_loop(name, captured, "cpu")


def test_frozen_in_a_captured_loop_on_vulkan(lavapipe: str) -> None:
    in_a_loop("adamw", True, lavapipe)


def in_a_loop(name: str, captured: bool, device: str) -> None:
    """Freeze before the optimizer is made, and when the step was captured."""
    with ag.ag_device(device):
        model = net()
        model.body[1]["norm"].freeze()
        before = weights(model)
        frozen_first = {"body2_norm_gamma", "body2_norm_beta"}
        optimizer = OPTIMIZERS[name](model)
        step = step_of(model, optimizer)
        step = ag.ag_capture(step) if captured else step
        for _ in range(3):
            step(X, Y)
        assert moved(model, before) == {*before} - frozen_first
        model.body[0][0].freeze()  # the captured step has seen it trained
        model.scales[0].requires_grad = False
        model.head.freeze().unfreeze()
        before = weights(model)
        for _ in range(3):
            step(X, Y)
        assert moved(model, before) == HEAD
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(X)), Y)
        assert set(ag.backward(loss)) == {model.head.W, model.head.b}


def test_captured_steps_are_as_eager_ones() -> None:
    found = []
    for captured in (False, True):
        model = net()
        step = step_of(model, ag.optim.SGD(model, lr=0.1, momentum=0.9))
        step = ag.ag_capture(step) if captured else step
        for frozen in (False, True, False):
            model.body[0][0].requires_grad = not frozen
            for _ in range(3):
                step(X, Y)
        found.append(weights(model))
    for name, x in found[0].items():
        np.testing.assert_array_equal(found[1][name], x)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu:1"]])
def test_fit_and_dp_train(devices: list[str]) -> None:
    model = net()
    for layer in (model.body[0][0], model.body[1]["norm"]):
        layer.freeze()
    before = weights(model)
    ag.fit(model, (X.T, Y), epochs=2, batch_size=8, devices=devices, verbose=False, optimizer=OPTIMIZERS["adamw"],
           callbacks=ag.training.BestWeights())
    assert moved(model, before) == HEAD | {"scales1"}

    def make() -> Net:
        made = net()
        made.body[0][0].requires_grad = False
        return made

    result = ag.dp_train(make, ag.ag_dataloader(X, Y), ag.ag_softmax_cross_entropy_loss, devices=devices, n_iter=4,
                         batch=8, stack=4, seed=0, verbose=False, optimizer=OPTIMIZERS["momentum"])
    assert moved(result.model, weights(net())) == {*before} - {"body11_W", "body11_b"}


def test_frozen_by_a_callback_on_all_devices() -> None:
    class Freezes(ag.training.Callback):
        def on_epoch_end(self, run: Any) -> None:
            if run.history.epochs == 1:
                run.model.body[0][0].freeze()
                self.then = weights(run.model)

    model, callback = net(), Freezes()
    ag.fit(model, (X.T, Y), epochs=3, batch_size=8, devices=["cpu", "cpu:1"], verbose=False, callbacks=callback)
    assert moved(model, callback.then) == {*callback.then} - {"body11_W", "body11_b"}
    assert not model.body[0][0].requires_grad
    model.unfreeze()
    assert model.body[0][0].requires_grad


def test_trained_again_in_the_middle() -> None:
    model = net()
    model.body[0][0].freeze()
    optimizer = ag.optim.SGD(model, lr=0.1)
    step = step_of(model, optimizer)
    step(X, Y)
    model.unfreeze()
    with expect_error("an optimizer without them", ValueError, "body11_W, body11_b of the model came after"):
        step(X, Y)
    before = weights(model)
    step_of(model, ag.optim.SGD(model, lr=0.1))(X, Y)
    assert moved(model, before) == {*before}


def test_a_gradient_from_before_is_forgotten() -> None:
    model = net()
    optimizer = ag.optim.SGD(model, lr=0.1)
    with ag.with_grad_tape():
        loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(X)), Y)
    ag.backward(loss)
    model.body[0][0].freeze()
    before = weights(model)
    optimizer.step()
    assert moved(model, before) == {*before} - {"body11_W", "body11_b"}


def test_copies_and_tied_layers() -> None:
    model = net()
    model.head.freeze()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert {*twin.parameters()} == {*model.parameters()}
        assert {*twin.unfreeze().parameters()} >= HEAD and not HEAD & {*model.parameters()}
    shared = ag.ag_linear(4, 4)
    tied = ag.ag_sequential(shared, ag.ag_linear(4, 4), shared)
    tied[2].freeze()
    assert [*tied.parameters()] == ["layer2_W", "layer2_b"]
    tied[0].unfreeze()
    assert len(tied.parameters()) == 4
    tied[1].W = shared.W
    tied.freeze()
    assert [*tied[1].unfreeze().parameters()] == ["W", "b"]


def test_gradients_from_before_move_nothing() -> None:
    model = ag.ag_linear(4, 3)
    optimizer = ag.optim.SGD(model, lr=0.1)
    with ag.with_grad_tape():
        loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(X)), Y)
    grads = ag.backward(loss)
    before = weights(model.freeze())
    optimizer.step(grads)
    optimizer.step({"b": np.ones((3, 1), np.float32)})
    assert moved(model, before) == set()


def test_wrappers_of_several_devices() -> None:
    model = ag.DataParallel(ag.ag_sequential(ag.ag_linear(4, 8), ag.ag_linear(8, 3)), device_ids=["cpu", "cpu:1"])
    model.module[0].freeze()
    before = weights(model.module)
    with ag.with_grad_tape():
        loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(X)), Y)
    ag.optim.SGD(model.parameters(), lr=0.1).step(ag.backward(loss))
    assert moved(model.module, before) == {"layer2_W", "layer2_b"}


def test_what_cannot_be_frozen() -> None:
    model = net()
    with expect_error("no truth value", TypeError, "Net: requires_grad is 0; True or False is required"):
        model.requires_grad = 0  # type: ignore[assignment]
    for x in model.parameters().values():
        x.requires_grad = False
    with expect_error("frozen one by one", ValueError, "freeze() has frozen nothing inside"):
        model.unfreeze()
    assert not ag.ag_dropout(0.5).unfreeze().requires_grad
    with expect_error("nothing to train", ValueError, "there are no parameters"):
        ag.optim.SGD(net().freeze(), lr=0.1)
