"""Tied weights: one tensor under two names is trained once and stays one; looking at a model renames nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag


def one_layer_twice() -> ag.ag_sequential:
    layer = ag.ag_linear(3, 3, "tanh")
    return ag.ag_sequential(layer, ag.ag_residual(layer), ag.ag_batch_norm(3))


def one_weight_twice() -> ag.ag_sequential:
    model = ag.ag_sequential(ag.ag_linear(3, 3), ag.ag_linear(3, 3))
    model[1].W = model[0].W
    return model


def trained(model: Any, optimizer: Any, steps: int = 4) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((3, 8))
    for _ in range(steps):
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(model(ag.ag_tensor(x)), ag.ag_tensor(x * 2))
        ag.clip_grad_norm(model, ag.backward(loss), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    state: dict[str, np.ndarray] = model.state_dict()
    return state


@pytest.mark.parametrize("make", [one_layer_twice, one_weight_twice])
def test_tied_weights_are_trained_once(device: str, make: Any) -> None:
    model = make()
    names = list(model.parameters())
    assert len({p.id for p in model.parameters().values()}) == len(names) < len(model.named_tensors())
    assert f"[{sum(p.size for p in model.parameters().values())} parameters]" in repr(model)
    optimizer = ag.optimizer_sgd(model, lr=0.1)
    before = model[0].W.numpy()
    x = ag.ag_tensor(np.ones((3, 2)))
    with ag.with_grad_tape():
        loss = ag.ag_sum(model(x))
    grads = ag.backward(loss)
    optimizer.step(grads)
    np.testing.assert_allclose(model[0].W.numpy(), before - 0.1 * grads[model[0].W].numpy(), rtol=1e-6)


@pytest.mark.parametrize("make", [one_layer_twice, one_weight_twice])
def test_tied_weights_stay_tied_in_files(tmp_path: Path, make: Any) -> None:
    model = make()
    path = tmp_path / "model"
    ag.ag_save_model(model, path, model_fn=make)
    for loaded in (ag.ag_load_model(path), ag.ag_load_model(path, make)):
        assert list(loaded.parameters()) == list(model.parameters())
        assert loaded.named_tensors().keys() == model.named_tensors().keys()
        assert all(np.array_equal(x, loaded.state_dict()[name]) for name, x in model.state_dict().items())
        if make is one_layer_twice:
            assert loaded[1].body is loaded[0]
    optimizer = ag.optimizer_adam(model)
    trained(model, optimizer)
    ag.ag_save_checkpoint(path, model, optimizer)
    other = make()
    others = ag.optimizer_adam(other)
    ag.ag_load_checkpoint(path, other, others)
    a, b = trained(model, optimizer), trained(other, others)
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_a_file_of_tied_weights_for_a_model_without(tmp_path: Path) -> None:
    ag.ag_save_model(one_weight_twice(), tmp_path / "m")
    ag.ag_save_checkpoint(tmp_path / "c", one_weight_twice())
    free = ag.ag_sequential(ag.ag_linear(3, 3), ag.ag_linear(3, 3))
    with expect_error("loading tied weights as two", ag.CheckpointError, "layer1_W and layer2_W", "tie them first"):
        ag.ag_load_model(tmp_path / "m", lambda: free)
    with expect_error("loading a checkpoint of tied weights as two", ag.CheckpointError, "layer1_W and layer2_W"):
        ag.ag_load_checkpoint(tmp_path / "c", free)
    with expect_error("saving with a model_fn that does not tie", ag.CheckpointError, "layer1_W"):
        ag.ag_save_model(one_weight_twice(), tmp_path / "m", lambda: free)


def test_a_state_with_two_values_of_one_tensor() -> None:
    model = one_weight_twice()
    state = model.state_dict()
    with expect_error("two values for one tensor", ag.CheckpointError, "layer1_W and layer2_W", "different values"):
        model.load_state_dict({**state, "layer2_W": state["layer2_W"] + 1})
    assert np.array_equal(state["layer1_W"], model[0].W.numpy())
    one = {name: x + 1 for name, x in state.items() if name != "layer1_W"}
    model.load_state_dict(one)  # one of its names is enough
    assert np.array_equal(model[0].W.numpy(), state["layer1_W"] + 1)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_tied_weights_on_several_devices(stage: int) -> None:
    ag.ag_seed(3)
    alone = one_weight_twice()
    expected = trained(alone, ag.optimizer_sgd(alone, lr=0.1))
    ag.ag_seed(3)
    model = one_weight_twice()
    if stage:
        zero = ag.ZeroOptimizer(model, ag.optimizer_sgd, ["cpu", "cpu:1"], stage, lr=0.1)
        call, optimizer = zero.model, zero
    else:
        call = ag.DataParallel(model, ["cpu", "cpu:1"])
        optimizer = ag.optimizer_sgd(call, lr=0.1)
    x = np.random.default_rng(0).standard_normal((3, 8))
    for _ in range(4):
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(call(ag.ag_tensor(x)), ag.ag_tensor(x * 2))
        ag.backward(loss)
        zero.clip_grad_norm(1.0) if stage else ag.clip_grad_norm(model, None, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    state = call.state_dict()
    assert state.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(state[name], x, atol=1e-6)
    call.load_state_dict(expected)
    assert all(np.array_equal(call.state_dict()[name], expected[name]) for name in expected)


def test_dp_train_trains_tied_weights() -> None:
    data = [np.full((3, 1), k + 1.0) for k in range(4)]
    results = [ag.dp_train(one_weight_twice, data, ag.ag_mse_loss, devices=["cpu"] * n, n_iter=3, accumulate=4 // n,
                           verbose=False, seed=1) for n in (1, 2)]
    assert list(results[0].params) == ["layer1_W", "layer1_b", "layer2_b"]
    assert all(np.array_equal(x, results[1].params[name]) for name, x in results[0].params.items())
    assert results[0].model[0].W is results[0].model[1].W


def test_looking_renames_nothing() -> None:
    model = ag.ag_sequential(ag.ag_linear(2, 2), ag.ag_residual(ag.ag_linear(2, 2)), ag.ag_linear(2, 1))
    model.parameters()
    with ag.with_grad_tape():
        loss = ag.ag_sum(model(np.ones((2, 1))))
    grads = ag.backward(loss)
    for look in (repr, len, list, ag.ag_eval, lambda m: m.state_dict(), lambda m: m.buffers(), lambda m: m.to("cpu"),
                 lambda m: m[0].parameters(), lambda m: m[1].body.parameters(), lambda m: repr(m[1]),
                 lambda m: m[2].state_dict(), lambda m: m[2].params(), lambda m: list(m.modules())):
        look(model)
        assert sorted(str(p.name) for p in grads) == list(model.named_tensors())
        assert "layer1_W" in grads and grads["layer2_body_W"] is grads[model[1].body.W]
    both = ag.syncgrads([grads, grads])
    assert both.keys() == model.parameters().keys()
    assert ag.optimizer_sgd(list(model.parameters().values())).params.keys() == both.keys()


def test_a_layer_keeps_the_name_of_the_larger_model() -> None:
    inner = ag.ag_sequential(ag.ag_linear(2, 2, bias=False), ag.ag_linear(2, 2, bias=False))
    inner.parameters()
    outer = ag.ag_sequential(inner, ag.ag_linear(2, 1, bias=False))
    assert [p.name for p in outer.parameters().values()] == ["layer1_layer1_W", "layer1_layer2_W", "layer2_W"]
    assert list(inner.parameters()) == ["layer1_W", "layer2_W"]
    with ag.with_grad_tape():
        loss = ag.ag_sum(inner(np.ones((2, 1))))
    grads = ag.backward(loss)
    assert grads["layer1_W"] is grads[inner[0].W] and "W" in grads
    with pytest.raises(KeyError):
        grads["W"]


BROKEN: list[tuple[str, Any, str]] = [
    ("b", np.array([["a"], ["b"]]), "b is of type <U1"), ("b", np.ones((2, 1), complex), "b is of type complex128"),
    ("b", [[1.0], [1.0, 2.0]], "rows of different lengths"), ("b", np.array([[None], [1]]), "b is of type object"),
    ("b", np.full((2, 1), 1e300), "numbers that f32 cannot hold"), ("b", np.ones(2), "b is (2,)"),
    ("c", np.ones(2), "unexpected c")]


@pytest.mark.parametrize(("name", "value", "said"), BROKEN, ids=[said for _, _, said in BROKEN])
def test_a_broken_state_changes_nothing(device: str, name: str, value: Any, said: str) -> None:
    layer = ag.ag_linear(2, 2)
    before = layer.state_dict()
    with expect_error(f"a state with {name} = {value}", ag.CheckpointError, "load_state_dict", said):
        layer.load_state_dict({"W": np.ones((2, 2)), "b": np.ones((2, 1)), name: value})
    assert all(np.array_equal(x, layer.state_dict()[key]) for key, x in before.items())
    with expect_error("a state that is a list", ag.CheckpointError, "it is a list"):
        layer.load_state_dict([np.ones((2, 2))])


def test_an_interrupted_load_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ag.ag_sequential(ag.ag_linear(2, 2), ag.ag_linear(2, 2))
    before, backend, seen = model.state_dict(), model[0].W.buffer.backend, []
    upload = backend.upload

    def interrupted(array: Any, into: Any) -> None:
        seen.append(into)
        if len(seen) == 3:
            raise KeyboardInterrupt
        upload(array, into)

    monkeypatch.setattr(backend, "upload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.load_state_dict({name: x + 1 for name, x in before.items()})
    monkeypatch.undo()
    assert all(np.array_equal(x, model.state_dict()[name]) for name, x in before.items())


def test_settings_of_layers_are_checked_or_fixed(device: str) -> None:
    dropout, norm = ag.ag_dropout(0.5), ag.ag_batch_norm(2)
    dropout.rate = 0.0
    x = ag.ag_tensor(np.ones((2, 4)))
    assert np.array_equal(dropout(x).numpy(), x.numpy())
    for layer, name, values in ((dropout, "rate", [1.0, -0.1, float("nan"), None, "0.5"]),
                                (norm, "momentum", [None, 1.1, float("nan")]),
                                (norm, "eps", [0.0, None, float("inf")]), (ag.ag_layer_norm(2), "eps", [0.0]),
                                (ag.ag_rms_norm(2), "eps", [0.0, -1e-6, None, float("nan")]),
                                (ag.ag_multihead_attention(2, 1), "dropout", [1.0])):
        before = getattr(layer, name)
        for value in values:
            with expect_error(f"{name} = {value}", ValueError, name):
                setattr(layer, name, value)
        assert getattr(layer, name) == before
    for layer, name in ((ag.ag_linear(2, 2, "relu"), "activation"), (ag.ag_max_pool(2), "size"), (norm, "num_features"),
                        (ag.ag_conv2d_layer(1, 1, 1), "stride"), (ag.ag_multihead_attention(2, 1), "n_heads")):
        with expect_error(f"{name} assigned", AttributeError, name, "make another layer"):
            setattr(layer, name, 3)


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.6, 1.0])
def test_running_statistics(device: str, momentum: float) -> None:
    layer = ag.ag_batch_norm(2, momentum=momentum)
    mean, variance = np.zeros((2, 1)), np.ones((2, 1))
    for scale in (1e6, 1e-4, 1.0):
        x = (np.random.default_rng(1).standard_normal((2, 5)) * scale).astype(np.float32)
        layer(ag.ag_tensor(x))
        mean = (1 - momentum) * mean + momentum * x.astype(np.float64).mean(1, keepdims=True)
        variance = (1 - momentum) * variance + momentum * x.astype(np.float64).var(1, ddof=1, keepdims=True)
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(layer.running_var.numpy(), variance, rtol=1e-5)
