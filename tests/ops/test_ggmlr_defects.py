"""What ggmlR gets wrong, and `ag` must not: one small test for each defect, named after it."""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ag
from ag.parallel.trainer.replica import Replica

RNG = np.random.default_rng(11)


def gradients(loss_of: Any, *arrays: Any) -> tuple[list[np.ndarray], float]:
    """Gradients of a loss with respect to parameters with these values, and the loss."""
    params = [ag.ag_param(a) for a in arrays]
    with ag.with_grad_tape():
        loss = loss_of(*params)
    grads = ag.backward(loss)
    return [grads[p].numpy() for p in params], loss.item()


def test_grad_of_a_shared_tensor_is_not_doubled(device: str) -> None:
    w = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(w * w + w)
    ag.backward(loss)
    assert w.grad is not None and w.grad.item() == 7


@pytest.mark.parametrize("make", [
    pytest.param(lambda x: ag.ag_batch_norm(3)(x), id="layer"),
    pytest.param(lambda x: ag.ag_batch_norm_op(x, np.ones((3, 1)), np.zeros((3, 1))), id="op"),
])
def test_batch_norm_has_a_gradient_through_mean_and_variance(device: str, make: Any) -> None:
    x, weight = RNG.standard_normal((2, 3, 8)).astype(np.float32)
    (g,), _ = gradients(lambda p: ag.ag_sum(make(p) * weight), x)
    centred = x - x.mean(1, keepdims=True)
    assert np.abs(g).max() > 0.1
    assert np.abs(g.sum(1)).max() < 1e-5, "the mean was taken for a constant"
    assert np.abs((g * centred).sum(1)).max() < 1e-3, "the variance was taken for a constant"


def test_softmax_cross_entropy_takes_soft_labels(device: str) -> None:
    logits = RNG.standard_normal((3, 4))
    target = RNG.random((3, 4)) + 0.1
    p = np.exp(logits) / np.exp(logits).sum(0)
    (g,), loss = gradients(lambda x: ag.ag_softmax_cross_entropy_loss(x, target), logits)
    assert abs(loss - -(target * np.log(p)).sum() / 4) < 1e-5
    assert np.abs(g - (p * target.sum(0) - target) / 4).max() < 1e-6


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, bool])
def test_one_hot_labels_of_whole_numbers(device: str, kind: type) -> None:
    logits = RNG.standard_normal((3, 3))
    (g,), loss = gradients(lambda x: ag.ag_softmax_cross_entropy_loss(x, np.eye(3, dtype=kind)), logits)
    (expected,), same = gradients(lambda x: ag.ag_softmax_cross_entropy_loss(x, [0, 1, 2]), logits)
    assert abs(loss - same) < 1e-6 and np.abs(g - expected).max() < 1e-6


def test_mse_has_a_gradient_for_the_target(device: str) -> None:
    (pred, target), _ = gradients(ag.ag_mse_loss, [[1.0], [2.0]], [[4.0], [0.0]])
    assert pred.tolist() == [[-3.0], [2.0]] and target.tolist() == [[3.0], [-2.0]]


@pytest.mark.parametrize("op", [ag.ag_add, ag.ag_sub, ag.ag_mul, ag.ag_div])
@pytest.mark.parametrize("shapes", [((2, 3), (2, 1)), ((2, 1), (2, 3)), ((1, 3), (2, 1)), ((1, 3), (4, 2, 3))], ids=str)
def test_broadcasting_goes_both_ways(device: str, op: Any, shapes: Any) -> None:
    a, b = (ag.ag_param(np.arange(1.0, 1 + np.prod(s)).reshape(s)) for s in shapes)
    numpy_op = {ag.ag_add: np.add, ag.ag_sub: np.subtract, ag.ag_mul: np.multiply, ag.ag_div: np.divide}[op]
    with ag.with_grad_tape():
        y = op(a, b)
        loss = ag.ag_sum(y)
    grads = ag.backward(loss)
    np.testing.assert_allclose(y.numpy(), numpy_op(a.numpy(), b.numpy()), rtol=1e-6)
    assert grads[a].shape == a.shape and grads[b].shape == b.shape


@pytest.mark.parametrize("p", [2, 3, -1, 3.0, 0])
def test_pow_of_negative_numbers(device: str, p: float) -> None:
    (g,), loss = gradients(lambda x: ag.ag_sum(ag.ag_pow(x, p)), [[-2.0]])
    assert abs(loss - (-2.0) ** p) < 1e-5 * abs((-2.0) ** p)
    assert abs(g.item() - p * (-2.0) ** (p - 1)) <= 1e-5 * abs(p * (-2.0) ** (p - 1))


@pytest.mark.parametrize("op", [ag.ag_sum, ag.ag_mean, ag.ag_max])
def test_keepdim_is_heard(device: str, op: Any) -> None:
    x = ag.ag_tensor(np.ones((2, 3)))
    assert op(x, dim=1, keepdim=True).shape == (2, 1)
    assert op(x, dim=1).shape == (2,)
    assert op(x, keepdim=True).shape == (1, 1)


class Nested(ag.Layer):
    """Layers in a list, in a dict and in a layer of their own."""

    def __init__(self) -> None:
        self.blocks = [ag.ag_dropout(0.5), ag.ag_sequential(ag.ag_linear(2, 2), ag.ag_batch_norm(2))]
        self.heads = {"a": ag.ag_residual(ag.ag_sequential(ag.ag_batch_norm(2), ag.ag_dropout(0.5)))}


def test_eval_mode_reaches_every_layer() -> None:
    model = Nested()
    layers = [model.blocks[0], model.blocks[1].layers[1], model.heads["a"].body.layers[1]]
    assert ag.ag_eval(model) is model and not any(layer.training for layer in layers)
    assert ag.ag_train(model) is model and all(layer.training for layer in layers)


def test_buffers_of_every_layer_are_found_and_saved(tmp_path: Path) -> None:
    model = Nested()
    assert [name.rpartition("running_")[2] for name in model.buffers()] == ["mean", "var"] * 2
    for number, buffer in enumerate(model.buffers().values()):
        buffer.data = np.full((2, 1), number + 5.0)
    ag.ag_save_model(model, tmp_path / "nested")
    loaded = ag.ag_load_model(tmp_path / "nested", model_fn=Nested)
    assert [b.numpy()[0, 0] for b in loaded.buffers().values()] == [5, 6, 7, 8]


def test_parameters_without_names_are_trained(device: str) -> None:
    params = [ag.ag_param([[1.0]]) for _ in range(3)]
    optimizer = ag.optimizer_sgd(params, lr=0.5)
    with ag.with_grad_tape():
        loss = ag.ag_sum(params[0] + params[1] + params[2])
    optimizer.step(ag.backward(loss))
    assert [p.item() for p in params] == [0.5] * 3


class TwoCalledAlike(ag.Layer):
    """A layer's parameter and one of the model's own come out under the same name."""

    def __init__(self) -> None:
        self.a = ag.ag_linear(2, 2, bias=False)
        self.a_W = ag.ag_param(np.ones((2, 2)))


def test_two_parameters_of_a_model_with_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="a_W"):
        ag.optimizer_sgd(TwoCalledAlike())


class Foreign:
    """A model of its own kind, inside a layer."""

    def __init__(self) -> None:
        self.W = ag.ag_param(np.ones((2, 2)))

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return ag.ag_matmul(self.W, x)

    def parameters(self) -> dict[str, ag.Tensor]:
        return {"W": self.W}


class HoldsForeign(ag.Layer):
    def __init__(self) -> None:
        self.inner = Foreign()


def test_a_model_inside_a_layer_that_would_not_be_trained_is_refused() -> None:
    with pytest.raises(TypeError, match="'inner' is a Foreign"):
        ag.optimizer_sgd(HoldsForeign())


def places(device: str) -> list[str]:
    return ["cpu", "cpu:1"] if device == "cpu" else [device] * 2


def train(data: Any, devices: Any, forward: Any = lambda model, x: model(x), **options: Any) -> ag.DPResult:
    return ag.dp_train(lambda: ag.ag_linear(2, 1), data, lambda y, _: ag.ag_sum(y * y), forward, devices=devices,
                       verbose=False, seed=1, shuffle=False, **options)


def test_a_nan_of_one_replica_shows_in_loss_history(device: str) -> None:
    data = [np.ones((2, 1), np.float32) for _ in range(6)]
    data[3][0] = np.nan  # replica 1, step 1
    history = train(data, places(device), n_iter=3, on_nonfinite="skip").loss_history
    assert np.isnan(history).tolist() == [False, True, False]
    with pytest.raises(FloatingPointError, match=r"replica 1\b.*step 1\b"):
        train(data, places(device), n_iter=3)


def test_replicas_on_the_cpu_work_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=30)  # breaks unless both replicas are in their steps at once
    met: list[int] = []
    calls = count()

    def forward(model: Any, x: Any) -> Any:
        if next(calls):  # one sample is tried beforehand
            met.append(together.wait())
        return model(x)

    train([np.ones((2, 1), np.float32)] * 4, ["cpu", "cpu:1"], forward, n_iter=2, capture=False)
    assert len(met) == 4


@pytest.mark.vulkan
def test_replicas_on_vulkan_work_at_the_same_time(lavapipe: str, swiftshader: str,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    start, meeting, met = Replica.start, threading.Barrier(2), []

    def together(self: Replica, *args: Any) -> None:
        meeting.wait(60)
        met.append(self.device)
        start(self, *args)

    monkeypatch.setattr(Replica, "start", together)
    train([np.ones((2, 1), np.float32)] * 4, [lavapipe, swiftshader], n_iter=3)
    assert sorted(met) == sorted([lavapipe, swiftshader] * 3)


def test_gpu_never_means_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ag.engine.device.preferred_devices", list)
    with pytest.raises(ag.DeviceError, match="no Vulkan device"):
        ag.ag_device("gpu")
    assert ag.ag_default_device() == "cpu"


def test_bf16_is_not_silently_f16(device: str) -> None:
    t = ag.ag_tensor([1e38, 1 + 2.0**-9], dtype="bf16")  # too large for f16, and a digit that only f16 has
    assert t.dtype == "bf16"
    np.testing.assert_allclose(t.numpy(), [[1e38], [1.0]], rtol=2.0**-8)
    assert (t * 2.0).numpy()[0, 0] > 1e38


def test_results_stay_on_their_device(device: str) -> None:
    x = ag.ag_param(RNG.standard_normal((3, 2)))
    for op in (ag.ag_exp, ag.ag_softmax, ag.ag_sum, ag.ag_max, ag.ag_abs, ag.ag_gelu, lambda t: t @ t.T):
        with ag.with_grad_tape():
            loss = ag.ag_sum(op(x))
        assert loss.device == ag.backward(loss)[x].device == device


def test_loading_runs_no_code_from_the_file(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "model"
    path.write_bytes(f"cos\nmkdir\n(V{trace}\ntR.".encode())  # a pickle that makes a folder
    for load in (ag.ag_load_model, lambda p: ag.ag_load_checkpoint(p, ag.ag_linear(1, 1))):
        with pytest.raises(ag.CheckpointError):
            load(path)
    assert not trace.exists()


def test_a_closure_is_not_stored(tmp_path: Path) -> None:
    calls = []

    def a_closure_of_mine() -> ag.Layer:
        calls.append(1)
        return ag.ag_linear(2, 1)

    ag.ag_save_model(ag.ag_linear(2, 1), tmp_path / "model", model_fn=a_closure_of_mine)
    calls.clear()
    assert ag.ag_load_model(tmp_path / "model").W.shape == (1, 2)
    assert not calls and b"a_closure_of_mine" not in (tmp_path / "model").read_bytes()


AT_EXIT = """
import sys
import numpy as np, ag
devices = [info.name for info in ag.ag_vulkan_devices()] + ["cpu", "cpu:1"]
sample = (np.ones((2, 1), np.float32), np.ones((1, 1), np.float32))
result = ag.dp_train(lambda: ag.ag_linear(2, 1), [sample] * 8, ag.ag_mse_loss, lambda model, s: model(s[0]),
                     lambda s: s[1], devices=devices, n_iter=2, verbose=False)
assert result.devices == devices
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_program_that_trained_on_all_devices_ends_well(code: int) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", AT_EXIT, str(code)], capture_output=True, text=True,
                          timeout=300, check=False)
    assert (done.returncode, done.stderr) == (code, "")
