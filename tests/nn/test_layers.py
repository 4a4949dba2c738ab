"""Layers: what they compute, what they are made of, and the modes and names that training relies on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.nn.mode import objects_in

RNG = np.random.default_rng(2)
X = RNG.standard_normal((4, 6)).astype(np.float32)


class Inner(ag.Layer):
    """An own layer with a parameter, a buffer and children of every kind."""

    def __init__(self) -> None:
        self.scale = ag.ag_param(np.ones((4, 1)))
        self.count = ag.ag_tensor(np.zeros((1, 1)))
        self.first = ag.ag_linear(4, 4)
        self.blocks = [ag.ag_linear(4, 4), ag.ag_dropout(0.5)]
        self.heads = {"a": ag.ag_linear(4, 2), "b": (ag.ag_dropout(0.25), ag.ag_param([[2.0]]))}

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        x = self.first(x * self.scale)
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](x)


class Plain:
    """A user's model that knows nothing of ag.Layer."""

    def __init__(self) -> None:
        self.W = ag.ag_param(np.ones((2, 4)))
        self.noise = ag.ag_dropout(0.5)
        self.parts = {"list": [ag.ag_dropout(0.5)], "own": Inner()}
        self.me = self  # a cycle must not hang

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.W @ self.noise(x)

    def parameters(self) -> dict[str, ag.Tensor]:
        return {"W": self.W}


def test_initial_weights_are_glorot_uniform_and_seeded(device: str) -> None:
    ag.ag_seed(1)
    W = ag.ag_linear(300, 200).W.numpy()
    limit = np.sqrt(6 / 500)
    assert W.min() >= -limit and W.max() <= limit and abs(W.mean()) < 0.02 * limit
    assert abs(W.std() - limit / np.sqrt(3)) < 0.01 * limit
    ag.ag_seed(1)
    assert np.array_equal(ag.ag_linear(300, 200).W.numpy(), W)
    assert not np.array_equal(ag.ag_linear(300, 200).W.numpy(), W)


def test_an_array_is_lifted(device: str) -> None:
    assert ag.ag_linear(4, 3)(X).device == device
    assert ag.ag_sequential(ag.ag_dropout(0.5), ag.ag_linear(4, 3))(X).shape == (3, 6)


def test_dropout(device: str) -> None:
    layer, x = ag.ag_dropout(0.25), ag.ag_tensor(np.ones((200, 50)))
    y = layer(x).numpy()
    assert set(np.unique(y)) == {np.float32(0.0), np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.02  # 4.6 standard deviations of 10,000 draws
    assert not np.array_equal(layer(x).numpy(), y)
    ag.ag_eval(layer)
    assert np.array_equal(layer(x).numpy(), x.numpy())
    assert np.array_equal(ag.ag_train(ag.ag_dropout(0.0))(x).numpy(), x.numpy())


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
def test_dropout_refuses(rate: float) -> None:
    with expect_error(f"ag_dropout({rate})", ValueError, f"rate is {rate}", "[0, 1)"):
        ag.ag_dropout(rate)


def test_sequential() -> None:
    a, b = ag.ag_linear(4, 3), ag.ag_linear(3, 2, activation="relu")
    for model in (ag.ag_sequential(a, b), ag.ag_sequential([a, b])):
        assert len(model) == 2 and list(model) == [a, b] and model[1] is b
        assert list(model.parameters()) == ["layer1_W", "layer1_b", "layer2_W", "layer2_b"]
        assert model.params().keys() == model.parameters().keys()
        assert np.array_equal(model(X).numpy(), b(a(X)).numpy())
    nested = ag.ag_sequential(ag.ag_sequential(a), b)
    assert list(nested.parameters()) == ["layer1_layer1_W", "layer1_layer1_b", "layer2_W", "layer2_b"]


def test_an_own_layer_finds_what_is_in_lists_and_dicts() -> None:
    model = Inner()
    assert list(model.parameters()) == ["scale", "heads_b2", "first_W", "first_b", "blocks1_W", "blocks1_b",
                                        "heads_a_W", "heads_a_b"]
    assert list(model.buffers()) == ["count"]
    assert set(model.state_dict()) == {*model.parameters(), "count"}
    assert model(ag.ag_tensor(X)).shape == (2, 6)


def test_training_an_own_layer_reaches_every_parameter(device: str) -> None:
    model = ag.ag_eval(Inner())
    before = model.state_dict()
    optimizer = ag.optimizer_sgd(model, lr=0.1)
    with ag.with_grad_tape():
        loss = ag.ag_mse_loss(model(ag.ag_tensor(X)), np.ones((2, 6)))
    optimizer.step(ag.backward(loss))
    changed = {name for name, value in model.state_dict().items() if not np.array_equal(value, before[name])}
    assert changed == set(model.parameters()) - {"heads_b2"}


def modes(model: Any, seen: set[int] | None = None) -> set[bool]:
    """The modes of every layer that can be reached from a model, found independently."""
    seen = set() if seen is None else seen
    if id(model) in seen:
        return set()
    seen.add(id(model))
    found = {model.training} if isinstance(model, ag.Layer) else set()
    inside = model.values() if isinstance(model, dict) else model if isinstance(model, (list, tuple)) else (
        vars(model).values() if hasattr(model, "__dict__") and not isinstance(model, type) else ())
    return found.union(*(modes(x, seen) for x in inside)) if inside else found


def test_modules_are_walked_depth_first() -> None:
    named = list(Inner().modules())
    assert [name for name, _ in named] == ["", "first", "blocks1", "blocks2", "heads_a", "heads_b1"]
    assert [type(layer).__name__ for _, layer in named] == ["Inner", "Linear", "Linear", "Dropout", "Linear", "Dropout"]


def test_what_begins_with_an_underscore_is_no_state() -> None:
    layer = ag.ag_linear(2, 1)
    layer._seen = [ag.ag_tensor([1.0])]
    layer._mask = ag.ag_tensor([1.0])
    assert list(layer.state_dict()) == ["W", "b"]
    layer._gain = ag.ag_param([[1.0]])
    with expect_error("a parameter in an attribute with an underscore", TypeError, "'_gain'", "call it 'gain'"):
        layer.parameters()
    del layer._gain
    layer._inner = ag.ag_linear(1, 1)
    with expect_error("a layer in an attribute with an underscore", TypeError, "'_inner'", "call it 'inner'"):
        layer.parameters()


@pytest.mark.parametrize("make", [
    Inner, Plain, lambda: ag.ag_sequential(ag.ag_sequential(Inner()), ag.ag_dropout(0.5)),
    lambda: [ag.ag_dropout(0.5), {"a": (ag.ag_dropout(0.5), Plain())}],
], ids=["own layer", "own class", "nested sequential", "list"])
def test_modes_reach_every_layer(make: Any) -> None:
    model = make()
    assert modes(model) == {True}
    assert ag.ag_eval(model) is model and modes(model) == {False}
    assert ag.ag_train(model) is model and modes(model) == {True}
    if isinstance(model, ag.Layer):
        assert model.eval() is model and modes(model) == {False}
        assert model.train() is model and modes(model) == {True}


def test_modes_are_not_looked_for_in_what_a_captured_step_recorded() -> None:
    dropout = ag.ag_dropout(0.5)
    step = ag.ag_capture(lambda x: ag.ag_exp(dropout(x)))
    model = {"step": step}
    ag.ag_eval(model)
    assert not dropout.training
    for _ in range(3):
        step(ag.ag_tensor(X))
    assert len(list(objects_in(model, functions=True))) < 100  # nor in the devices that it leads to


def test_state_dict_round_trip(device: str) -> None:
    model, other = Inner(), Inner()
    other.load_state_dict(model.state_dict())
    for name, value in model.state_dict().items():
        assert np.array_equal(other.state_dict()[name], value)
    other.load_state_dict({"scale": ag.ag_tensor(np.full((4, 1), 3.0))}, strict=False)
    assert other.scale.numpy().tolist() == [[3.0]] * 4


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    model = ag.ag_sequential(ag.ag_linear(4, 3))
    before = model.state_dict()
    with expect_error("a model's state that does not fit", ag.CheckpointError, "missing layer1_b", "unexpected extra",
                      "layer1_W is (2, 2) instead of (3, 4)"):
        model.load_state_dict({"layer1_W": np.zeros((2, 2)), "extra": np.zeros(1)})
    with expect_error("a model's state of another shape", ag.CheckpointError, "layer1_W is (4, 3)"):
        model.load_state_dict({"layer1_W": np.zeros((4, 3))}, strict=False)
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.vulkan
def test_to_moves_everything(lavapipe: str) -> None:
    model = Inner()
    expected = ag.ag_eval(model)(ag.ag_tensor(X)).numpy()
    before = model.state_dict()
    assert model.to(lavapipe) is model
    assert {x.device for x in {**model.parameters(), **model.buffers()}.values()} == {lavapipe}
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())
    assert np.allclose(model(ag.ag_tensor(X, device=lavapipe)).numpy(), expected, atol=1e-5)
    model.to("cpu")
    assert all(np.array_equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("place", ["cpu", "cpu:1"])
def test_gradients_move_along(place: str) -> None:
    """As in PyTorch; without them, the optimizer's next step would change nothing and say nothing."""
    layer = ag.ag_linear(4, 3)
    with ag.with_grad_tape():
        loss = ag.ag_sum(layer(X) ** 2)
    expected, before = ag.backward(loss)[layer.W].numpy(), layer.W.numpy()
    layer.to(place)
    assert layer.W.grad is not None and layer.W.grad.device == place
    ag.optimizer_sgd(layer, lr=0.5).step()
    np.testing.assert_allclose(layer.W.numpy(), before - 0.5 * expected, rtol=1e-6)


def test_to_an_unknown_device_changes_nothing() -> None:
    model = ag.ag_linear(4, 3)
    with expect_error("a model moved to an unknown device", ag.DeviceError, "'tpu'"):
        model.to("tpu")
    assert model.W.device == "cpu"


def test_repr() -> None:
    text = repr(ag.ag_sequential(ag.ag_linear(4, 300, activation="relu"), ag.ag_dropout(0.5), ag.ag_linear(300, 3)))
    lines = text.splitlines()
    assert len(lines) == 6 and max(map(len, lines)) <= 100
    assert "Sequential" in lines[0] and "2,403 parameters" in lines[0]
    for word in ("layer1", "Linear", "in_features=4", "'relu'", "(300, 4)"):
        assert word in lines[1]
    assert lines[2].strip() == "b (300, 1)  [1,500 parameters]" and "rate=0.5" in lines[3]


def test_a_layer_without_forward() -> None:
    class Empty(ag.Layer):
        pass

    with expect_error("a layer that defines no forward", NotImplementedError, "Empty", "forward(x)"):
        Empty()(X)


@pytest.mark.parametrize(("layer", "name", "here"), [
    (ag.ag_dropout(0.5), "p", "rate"), (ag.ag_linear(2, 2), "weight", "W"),
    (ag.ag_conv2d_layer(1, 1, 1), "weight", "W"),
    (ag.ag_batch_norm(2), "weight", "gamma"), (ag.ag_batch_norm(2), "bias", "beta"),
    (ag.ag_rms_norm(2), "weight", "gamma"),
    (ag.ag_embedding(3, 2), "W", "weight"),
])
def test_names_of_other_libraries_are_refused(layer: ag.Layer, name: str, here: str) -> None:
    with expect_error(f"{name} of {layer}", AttributeError, repr(name), repr(here)):
        setattr(layer, name, 0.9)


def test_a_parameter_is_not_replaced_by_numbers() -> None:
    layer = Inner()
    with expect_error("an array for a parameter", TypeError, "ndarray", "'scale'", "scale.data"):
        layer.scale = np.ones((4, 1))
    layer.scale = ag.ag_param(np.zeros((4, 1)))
    layer.count = 0  # no parameter: whatever the user likes
    assert "scale" in layer.parameters()
