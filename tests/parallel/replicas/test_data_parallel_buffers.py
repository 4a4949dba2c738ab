"""Find what replicas do to their buffers in the module after the pass, wherever the module is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag

RNG = np.random.default_rng(41)
PLACES = ["where the first replica is", "elsewhere", "three devices",
          pytest.param("two vendors and cpu", marks=pytest.mark.vulkan),
          pytest.param("cpu and two vendors", marks=pytest.mark.vulkan)]


@pytest.fixture(params=PLACES)
def devices(request: pytest.FixtureRequest) -> list[str]:
    """Devices of replicas of a module that is on ``cpu``."""
    vendors = [request.getfixturevalue(name) for name in ("lavapipe", "swiftshader") if "vendors" in request.param]
    return {"where the first replica is": ["cpu", "cpu:1"], "elsewhere": ["cpu:1", "cpu"],
            "three devices": ["cpu:1", "cpu:2", "cpu:3"], "two vendors and cpu": [*vendors, "cpu:1"],
            "cpu and two vendors": ["cpu:1", *vendors]}[request.param]


class Counting(ag.Layer):
    """Counts its batches and keeps what it has seen, in train mode."""

    def __init__(self) -> None:
        self.batches = ag.ag_tensor(np.zeros(()))  # changed in place
        self.samples = ag.ag_tensor(np.zeros(()))  # another tensor each time
        self.seen = ag.ag_tensor(np.zeros((4, 0)))  # of another shape each time

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        if self.training:
            self.batches.data = self.batches.data + 1
            self.samples = self.samples + x.shape[1]
            self.seen = ag.ag_concat([self.seen, x.detach()], -1) if self.seen.size else x.detach()
        return x


def network(norm: Callable[[int], ag.Layer]) -> Any:
    ag.ag_seed(9)
    return ag.ag_sequential(Counting(), norm(4), ag.ag_linear(4, 3))


def moved(statistics: tuple[Any, Any], x: Any) -> tuple[Any, Any]:
    """Running mean and variance after a batch."""
    mean, var = statistics
    return 0.9 * mean + 0.1 * x.mean(1, keepdims=True), 0.9 * var + 0.1 * x.var(1, ddof=1, keepdims=True)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("norm", [ag.ag_batch_norm, ag.SyncBatchNorm])
def test_the_module_has_the_first_replicas_buffers(devices: list[str], norm: Any, trained: bool) -> None:
    """Of a synchronous batch norm they are those of the whole batch; each pass begins with those of the last."""
    model = network(norm)
    parallel = ag.DataParallel(model, devices)
    optimizer = ag.optimizer_sgd(model.parameters(), lr=0.1)
    wanted, samples, firsts = (np.zeros((4, 1)), np.ones((4, 1))), 0, []
    for size in (12, 7):
        x = (2 + 3 * RNG.standard_normal((4, size))).astype(np.float32)
        first = ag.scatter(ag.ag_tensor(x), devices)[0].numpy()
        wanted = moved(wanted, x if norm is ag.SyncBatchNorm else first)
        samples, firsts = samples + first.shape[1], [*firsts, first]
        if trained:
            with ag.with_grad_tape():
                loss = ag.ag_sum(parallel(ag.ag_tensor(x)))
            optimizer.step(ag.backward(loss))
        else:
            parallel(ag.ag_tensor(x))
        state = model.state_dict()
        np.testing.assert_allclose(state["layer2_running_mean"], wanted[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state["layer2_running_var"], wanted[1], rtol=1e-5, atol=1e-6)
        assert state["layer1_batches"] == len(firsts) and state["layer1_samples"] == samples
        assert (state["layer1_seen"] == np.concatenate(firsts, -1)).all()
    assert {t.device for t in model.buffers().values()} == {"cpu"}

    before = {name: value.tobytes() for name, value in model.state_dict().items()}
    parallel.eval()
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    np.testing.assert_allclose(parallel(ag.ag_tensor(x)).numpy(), model(ag.ag_tensor(x)).numpy(), rtol=1e-4, atol=1e-5)
    assert {name: value.tobytes() for name, value in model.state_dict().items()} == before


def test_a_captured_step_of_the_module_sees_them() -> None:
    model = ag.ag_batch_norm(4)
    x = (2 + RNG.standard_normal((4, 8))).astype(np.float32)
    step = ag.ag_capture(lambda x: ag.ag_eval(model)(x))
    before = step(ag.ag_tensor(x)).numpy()
    ag.DataParallel(ag.ag_train(model), ["cpu:1", "cpu:2"])(ag.ag_tensor(x))
    expected = ag.ag_eval(model)(ag.ag_tensor(x)).numpy()
    assert (step(ag.ag_tensor(x)).numpy() == expected).all() and (before != expected).any()


KINDS: dict[str, Callable[[Any, list[str]], Any]] = {
    "compressed": lambda model, devices: ag.CompressedDataParallel(model, devices, 0.5),
    "zero 1": lambda model, devices: ag.ZeroOptimizer(model, devices=devices, stage=1).model,
    "zero 2": lambda model, devices: ag.ZeroOptimizer(model, devices=devices, stage=2).model,
    "zero 3": lambda model, devices: ag.ZeroOptimizer(model, devices=devices, stage=3).model,
}


@pytest.mark.parametrize("devices", ["where the first replica is", "elsewhere"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_so_it_is_in_every_kind_of_replicas(kind: str, devices: list[str]) -> None:
    """The batch norm is in a layer with parameters of its own, whose buffers stage 3 must find all the same."""
    model = ag.ag_sequential(ag.ag_residual(ag.ag_sequential(ag.ag_linear(4, 4, bias=False), ag.ag_batch_norm(4))),
                             ag.ag_batch_norm(4))
    weight = model.parameters()["layer1_body_layer1_W"].numpy()
    parallel = KINDS[kind](model, devices)
    x = RNG.standard_normal((4, 9)).astype(np.float32)
    with ag.with_grad_tape():
        loss = ag.ag_sum(parallel(ag.ag_tensor(x)))
    ag.backward(loss)
    mean, var = moved((np.zeros((4, 1)), np.ones((4, 1))), weight @ x[:, :5])
    state = parallel.state_dict()
    np.testing.assert_allclose(state["layer1_body_layer2_running_mean"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["layer1_body_layer2_running_var"], var, rtol=1e-5, atol=1e-6)
    assert (state["layer2_running_var"] != 1).all()


def test_of_a_model_on_two_devices_each_buffer_is_where_it_was() -> None:
    with ag.ag_device("cpu"):
        first = ag.ag_batch_norm(4)
    with ag.ag_device("cpu:1"):
        second = ag.ag_batch_norm(4)
    model = ag.ModelParallel([first, second], ["cpu", "cpu:1"])
    x = (5 + RNG.standard_normal((4, 8))).astype(np.float32)
    ag.DataParallel(model, [("cpu:2", "cpu:3"), ("cpu:4", "cpu:5")])(ag.ag_tensor(x))
    np.testing.assert_allclose(first.running_mean.numpy(), 0.1 * x[:, :4].mean(1, keepdims=True), rtol=1e-5)
    assert (second.running_var.numpy() != 1).all()
    assert (first.running_mean.device, second.running_mean.device) == ("cpu", "cpu:1")
