"""Activations given as functions: ``activation=ag.ops.relu``, and a function among the layers of a sequence."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import ag
from ag import nn, ops
from ag.nn.layer import ACTIVATIONS

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def sequence() -> nn.Sequential:
    ag.ag_seed(0)
    return nn.Sequential(nn.Linear(3, 5), ops.relu, nn.Linear(5, 2), ops.softmax)


def with_names() -> nn.Sequential:
    ag.ag_seed(0)
    return nn.Sequential(nn.Linear(3, 5, activation="relu"), nn.Linear(5, 2, activation="softmax"))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_function_is_the_activation_of_its_name(name: str) -> None:
    function, results = getattr(ops, name), []
    for given in (name, function, ACTIVATIONS[name]):
        ag.ag_seed(0)
        layer = nn.Linear(3, 5, activation=given)
        assert layer.activation == name and f"activation={name!r}" in repr(layer)
        results.append(layer(X).numpy().tobytes())
    ag.ag_seed(0)
    results.append(nn.Sequential(nn.Linear(3, 5), function)(X).numpy().tobytes())
    assert len({*results}) == 1


def test_layers_of_every_kind_take_functions() -> None:
    assert nn.Conv2d(1, 2, 3, activation=ops.gelu).activation == "gelu"
    assert nn.Residual(nn.Linear(2, 2), activation=ops.tanh).activation == "tanh"
    assert ag.RowParallelLinear(2, 2, ["cpu"], activation=ops.silu).activation == "silu"
    with pytest.raises(ValueError, match="softmax needs all features of a sample"):
        ag.ColumnParallelLinear(2, 2, ["cpu", "cpu:1"], activation=ops.softmax)


@pytest.mark.parametrize("other", [ops.exp, abs, np.tanh, lambda x: x, "rellu", 3, nn.Linear])
def test_other_functions_are_refused(other: object) -> None:
    with pytest.raises(ValueError, match=r"ag_linear: unknown activation .* Call another function"):
        nn.Linear(2, 2, activation=other)  # type: ignore[arg-type]
    with pytest.raises(IndexError, match="ag_sequential: index is 5, and there are 1 layers"):
        ag.nn.Sequential(ag.nn.Linear(2, 1))[5]
    with pytest.raises(TypeError, match="ag_sequential: item 2 is"):
        nn.Sequential(nn.Linear(2, 2), other)  # type: ignore[arg-type]


def test_a_sequence_with_functions_is_saved_copied_and_moved(tmp_path: Path) -> None:
    model, path = sequence(), str(tmp_path / "model.safetensors")
    ag.ag_save_model(model, path)
    for twin in (ag.ag_load_model(path), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert repr(twin) == repr(model)
        assert twin(X).numpy().tobytes() == model(X).numpy().tobytes() == with_names()(X).numpy().tobytes()
    assert [*model.parameters()] == ["layer1_W", "layer1_b", "layer3_W", "layer3_b"]
    assert "layer2: Activation(activation='relu')  [0 parameters]" in repr(model) and len(model) == 4
    replicas = ag.DataParallel(model, ["cpu", "cpu:1"])
    np.testing.assert_allclose(replicas(ag.ag_tensor(X)).numpy(), model(X).numpy(), rtol=1e-6)


def test_a_sequence_with_functions_is_exported(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model, path = sequence(), str(tmp_path / "model.onnx")
    ag.export_onnx(model, path, X)
    session = runtime.InferenceSession(path)
    (result,) = session.run(None, {session.get_inputs()[0].name: X.T})
    np.testing.assert_allclose(result.T, model(X).numpy(), rtol=1e-5)


@pytest.mark.not_on("swiftshader")
def test_a_sequence_with_functions_is_trained_and_replayed(device: str) -> None:
    trained = []
    with ag.ag_device(device):
        for make, capture in ((sequence, False), (sequence, True), (with_names, True)):
            model = make()
            opt = ag.optim.SGD(model, lr=0.1)

            def step(x: ag.Tensor, model: nn.Sequential = model, opt: ag.optim.SGD = opt) -> ag.Tensor:
                with ag.with_grad_tape():
                    loss = ops.mean(model(x) ** 2)
                opt.step(ag.backward(loss))
                return loss

            run = ag.ag_capture(step) if capture else step
            for k in range(4):
                run(ag.ag_tensor(X + k))
            trained.append([x.tobytes() for x in model.state_dict().values()])
    assert trained[0] == trained[1] == trained[2]
