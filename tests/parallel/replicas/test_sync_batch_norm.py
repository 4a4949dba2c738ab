"""Batch norm over several replicas: outputs, gradients and running statistics of one device with the whole batch."""

from __future__ import annotations

from random import random
from time import sleep
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

RNG = np.random.default_rng(23)


def normal(*shape: int) -> Any:
    return (3 + 2 * RNG.standard_normal(shape)).astype(np.float32)


CPUS = {"two": ["cpu", "cpu:1"], "twice": ["cpu", "cpu"], "three": ["cpu", "cpu:1", "cpu:2"],
        "three and twice": ["cpu", "cpu:1", "cpu", "cpu:2"], "eight": [f"cpu:{i}" for i in range(8)]}
VENDORS = [pytest.param(name, marks=pytest.mark.vulkan) for name in ("two vendors", "two vendors and cpu")]


@pytest.fixture(params=["two", "twice", "three and twice", VENDORS[0]])
def devices(request: pytest.FixtureRequest) -> list[str]:
    if request.param in CPUS:
        return CPUS[request.param]
    vendors = [request.getfixturevalue("lavapipe"), request.getfixturevalue("swiftshader")]
    return [*vendors, "cpu"] if request.param == "two vendors and cpu" else vendors


def layer_of(kind: Any, features: int) -> Any:
    layer = kind(features)
    layer.gamma.data = np.linspace(0.5, 2, features)[:, None]
    layer.beta.data = np.linspace(-1, 1, features)[:, None]
    return layer


def passed(layer: Any, call: Any, x: Any, w: Any) -> list[Any]:
    """Output, gradients of x, gamma and beta, and running statistics after one pass."""
    p = ag.ag_param(x)
    with ag.with_grad_tape():
        y = call(p)
        loss = ag.ag_sum(y * ag.ag_tensor(w))
    grads = ag.backward(loss)
    return [y.numpy(), grads[p].numpy(), grads[layer.gamma].numpy(), grads[layer.beta].numpy(),
            layer.running_mean.numpy(), layer.running_var.numpy()]


@pytest.mark.parametrize("shape", [(3, 9), (2, 4, 3, 7)])
def test_all_is_as_with_the_whole_batch(devices: list[str], shape: tuple[int, ...]) -> None:
    x, w = normal(*shape), RNG.standard_normal(shape).astype(np.float32)
    with ag.ag_device(devices[0]):
        one, several = layer_of(ag.ag_batch_norm, shape[0]), layer_of(ag.SyncBatchNorm, shape[0])
        expected = passed(one, one, x, w)
        for found, wanted in zip(passed(several, ag.DataParallel(several, devices), x, w), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("sizes", [(4, 0, 5), (0, 9, 0), (1, 7, 1)])
def test_unequal_and_empty_shards(sizes: tuple[int, ...]) -> None:
    x, w = normal(3, 9), RNG.standard_normal((3, 9)).astype(np.float32)
    one, several = layer_of(ag.ag_batch_norm, 3), layer_of(ag.SyncBatchNorm, 3)
    devices, ends = ["cpu", "cpu:1", "cpu"], np.cumsum(sizes)

    def call(p: ag.Tensor) -> ag.Tensor:
        shards = [ag.ag_to_device(p[:, end - n : end], d) for n, end, d in zip(sizes, ends, devices, strict=True)]
        return ag.gather(ag.parallel_apply(ag.replicate(several, devices), shards, devices=devices), "cpu")

    for found, wanted in zip(passed(several, call, x, w), passed(one, one, x, w), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * max(1, np.abs(wanted).max()))


class Late(ag.Layer):
    """Every replica comes at another time."""

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        sleep(random() / 200)
        return x


@pytest.mark.parametrize("devices", ["two", "three", "three and twice", "eight", VENDORS[1]], indirect=True)
def test_the_bits_do_not_depend_on_timing(devices: list[str]) -> None:
    """Output, gradients and running statistics, with two layers that wait for all replicas."""
    x, w = normal(4, 37), normal(3, 37)

    def bits() -> list[bytes]:
        with ag.ag_device(devices[0]):
            ag.ag_seed(7)
            model = ag.ag_sequential(ag.ag_linear(4, 8), Late(), ag.SyncBatchNorm(8), Late(), ag.ag_linear(8, 3),
                                     ag.SyncBatchNorm(3), Late())
            p = ag.ag_param(x)
            with ag.with_grad_tape():
                y = ag.DataParallel(model, devices)(p)
                loss = ag.ag_sum(y * ag.ag_tensor(w))
            grads = ag.backward(loss)
        found = [y, *(grads[q] for q in (p, *model.parameters().values())), *model.buffers().values()]
        return [t.numpy().tobytes() for t in found]

    first = bits()
    assert all(bits() == first for _ in range(4))


def test_without_replicas_it_is_a_batch_norm() -> None:
    x, w = normal(3, 9), normal(3, 9)
    one, several = layer_of(ag.ag_batch_norm, 3), layer_of(ag.SyncBatchNorm, 3)
    for found, wanted in zip(passed(several, several, x, w), passed(one, one, x, w), strict=True):
        assert (found == wanted).all()
    x = ag.ag_tensor(normal(3, 6))
    assert (ag.DataParallel(ag.ag_eval(several), ["cpu", "cpu:1"])(x).numpy() == ag.ag_eval(one)(x).numpy()).all()


def test_a_model_is_converted_in_place() -> None:
    model = ag.ag_sequential(ag.ag_linear(4, 3), ag.ag_batch_norm(3), ag.ag_residual(ag.ag_sequential(
        ag.ag_linear(3, 3), ag.ag_batch_norm(3))))
    state = model.state_dict()
    assert ag.SyncBatchNorm.convert(model) is model
    assert repr(model).count("SyncBatchNorm") == 2 and model.state_dict().keys() == state.keys()
    x, y = normal(4, 8), normal(3, 8)

    def gradients(call: Any) -> list[Any]:
        with ag.with_grad_tape():
            loss = ag.ag_mse_loss(call(ag.ag_tensor(x)), ag.ag_tensor(y))
        grads = ag.backward(loss)
        return [grads[p].numpy() for p in model.parameters().values()]

    for found, wanted in zip(gradients(ag.DataParallel(model, ["cpu", "cpu:1", "cpu:1"])), gradients(model),
                             strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_of_16_bits_the_statistics_are_exact() -> None:
    x = normal(2, 64) + 40
    layer = layer_of(ag.SyncBatchNorm, 2)
    y = ag.DataParallel(layer, ["cpu", "cpu:1"])(ag.ag_tensor(x, dtype="bf16"))
    assert y.dtype == "bf16"
    rounded = ag.ag_tensor(x, dtype="bf16").numpy()
    np.testing.assert_allclose(layer.running_mean.numpy()[:, 0], 0.1 * rounded.mean(1), rtol=1e-5)


def test_errors() -> None:
    several = ag.SyncBatchNorm(3)
    with pytest.raises(ag.CommError, match=r"SyncBatchNorm: x is \(2, 3\)"):
        ag.DataParallel(several, ["cpu", "cpu:1"])(ag.ag_tensor(normal(2, 6)))

    class OneLeaves(ag.Layer):
        """The second replica makes one call less."""

        def __init__(self) -> None:
            self.norm = ag.SyncBatchNorm(3)

        def forward(self, x: ag.Tensor) -> ag.Tensor:
            if x.device == "cpu:1":
                raise ValueError("no")
            out: ag.Tensor = self.norm(x)
            return out

    for devices in (["cpu", "cpu:1"], ["cpu:1", "cpu"], ["cpu", "cpu", "cpu:1"]):
        with pytest.raises(ag.CommError, match=r"on cpu:1 failed with ValueError: no"):
            ag.DataParallel(OneLeaves(), devices)(ag.ag_tensor(normal(3, 6)))


def test_it_cannot_be_computed_again_without_the_other_replicas() -> None:
    class Checkpointed(ag.Layer):
        def __init__(self) -> None:
            self.norm = ag.SyncBatchNorm(3)

        def forward(self, x: ag.Tensor) -> ag.Tensor:
            return ag.ag_checkpoint(self.norm, x)

    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.DataParallel(Checkpointed(), ["cpu", "cpu:1"])(ag.ag_tensor(normal(3, 6))))
    with expect_error("SyncBatchNorm in ag_checkpoint in DataParallel", ag.CommError, "2 replicas, which have ended"):
        ag.backward(loss)
