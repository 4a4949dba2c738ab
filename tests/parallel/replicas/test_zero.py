"""ZeroOptimizer: the bits of an undivided optimizer, and a part of its memory on each device."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.programs import reset_peak

import ag
from ag.engine.device import backend_of

RNG = np.random.default_rng(23)
DEVICES = ["cpu", "cpu:1", "cpu:2", "cpu:3"]
STAGES = pytest.mark.parametrize("stage", [1, 2, 3])
X, Y = RNG.standard_normal((5, 11)).astype(np.float32), RNG.integers(0, 3, 11)


def network() -> ag.Layer:
    ag.ag_seed(4)
    return ag.ag_sequential(ag.ag_linear(5, 9, activation="tanh"), ag.ag_batch_norm(9),
                            ag.ag_residual(ag.ag_sequential(ag.ag_linear(9, 9), ag.ag_dropout(0.2))),
                            ag.ag_linear(9, 3))


def train(model: Any, step: Callable[[], None], steps: int, device: str = "cpu") -> list[float]:
    losses = []
    for k in range(steps):
        n = 11 - k % 3  # ragged
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(X[:, :n], device)), Y[:n])
        ag.backward(loss)
        step()
        losses.append(float(loss.item()))
    return losses


def plain_run(make: Any, devices: list[str], steps: int, clip: bool = False, **kwargs: Any) -> tuple[Any, Any, Any]:
    model = ag.DataParallel(network(), devices)
    optimizer = make(model, **kwargs)
    schedule = ag.lr_scheduler_cosine(optimizer, T_max=20)

    def step() -> None:
        if clip:
            ag.clip_grad_norm(model, None, 0.3)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    return train(model, step, steps), model, optimizer


def zero_run(zero: Any, steps: int, clip: bool = False, device: str = "cpu") -> list[float]:
    schedule = ag.lr_scheduler_cosine(zero.optimizer, T_max=20)

    def step() -> None:
        if clip:
            zero.clip_grad_norm(0.3)
        zero.step()
        zero.zero_grad()
        schedule.step()

    return train(zero.model, step, steps, device)


def assert_equal(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name], x, err_msg=name)


@STAGES
@pytest.mark.parametrize("count", [1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
@pytest.mark.parametrize(("make", "clip", "kwargs"), [
    (ag.optimizer_adam, True, {"lr": 0.02}), (ag.optimizer_adamw, False, {"lr": 0.02}),
    (ag.optimizer_sgd, True, {"lr": 0.1, "momentum": 0.9})])
def test_parameters_are_those_of_the_unsharded_optimizer(stage: int, count: int, make: Any, clip: bool,
                                                         kwargs: Any) -> None:
    losses, model, optimizer = plain_run(make, DEVICES[:count], 5, clip, **kwargs)
    zero = ag.ZeroOptimizer(network(), make, DEVICES[:count], stage, **kwargs)
    assert zero_run(zero, 5, clip) == losses
    assert_equal(zero.model.state_dict(), model.state_dict())
    assert_equal(zero.state_dict(), optimizer.state_dict())
    assert zero.t == 5 and zero.lr == optimizer.lr


@STAGES
def test_float64_and_eval_mode(stage: int) -> None:
    previous = ag.ag_dtype("f64")
    try:
        losses, model, optimizer = plain_run(ag.optimizer_adam, DEVICES[:2], 4, True, lr=0.02)
        zero = ag.ZeroOptimizer(network(), ag.optimizer_adam, DEVICES[:2], stage, lr=0.02)
        assert zero_run(zero, 4, True) == losses
        assert_equal(zero.state_dict(), optimizer.state_dict())
        x = ag.ag_tensor(X)
        np.testing.assert_array_equal(ag.ag_eval(zero.model)(x).numpy(), ag.ag_eval(model)(x).numpy())
    finally:
        ag.ag_dtype(previous)


@STAGES
def test_nested_layers_and_one_used_twice(stage: int) -> None:
    class Nested(ag.Layer):
        def __init__(self) -> None:
            self.embed = ag.ag_embedding(7, 8)
            self.attend = ag.ag_multihead_attention(8, 2)
            self.first = ag.ag_linear(8, 8)

        def forward(self, ids: Any) -> Any:
            x = self.embed(ids)
            return self.first(self.first(x + self.attend(x)))

    def run(zero: bool) -> Any:
        ag.ag_seed(6)
        inner: Any = Nested()
        optimizer: Any = ag.ZeroOptimizer(inner, ag.optimizer_sgd, DEVICES[:2], stage, lr=0.1) if zero else (
            ag.optimizer_sgd(inner, lr=0.1))
        model = optimizer.model if zero else ag.DataParallel(inner, DEVICES[:2])
        for _ in range(3):
            with ag.with_grad_tape():
                y = model(np.arange(6).reshape(3, 2))
                loss = ag.ag_mean(y * y)
            optimizer.step(ag.backward(loss))
        return model.state_dict()

    expected = run(False)
    for name, w in run(True).items():
        np.testing.assert_allclose(w, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


# ---------------------------------------------------------------------------------------------- memory


def live(device: str) -> int:
    gc.collect()  # with `little_to_collect`
    return backend_of(device).arena.stats().live


def wide() -> ag.Layer:
    return ag.ag_sequential(*(ag.ag_linear(96, 96, activation="tanh") for _ in range(8)))


def bytes_of(model: Any) -> int:
    return sum(4 * p.size for p in model.parameters().values())


@STAGES
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("little_to_collect")
def test_each_replica_keeps_its_part(stage: int, count: int) -> None:
    devices = DEVICES[:count]
    most = 1 / count + 0.05
    x = np.ones((96, count), np.float32)
    model = wide()
    before = {d: live(d) for d in devices}
    size = bytes_of(model)
    zero = ag.ZeroOptimizer(model, ag.optimizer_adam, devices, stage)
    for i, d in enumerate(devices):
        # two moments, the flat gradients and the values: an undivided optimizer has 4 times `size`
        whole = size if stage == 3 and i == 0 else 0  # the model is empty now
        assert live(d) - before[d] + whole <= 4 * size * most, d
    before = {d: live(d) for d in devices}
    with ag.with_grad_tape():
        loss = ag.ag_mean(zero.model(ag.ag_tensor(x)))
    grads = ag.backward(loss)
    del loss
    for d in devices[stage == 1 :]:  # at stage 1, gradients are whole, on the model's device
        assert live(d) - before[d] <= (size * most if stage > 1 else 0.05 * size), d
    zero.step()
    zero.zero_grad()
    del grads
    for d in devices:
        assert live(d) - before[d] <= 0.01 * size, d


def test_stage_3_has_the_weights_of_a_layer_while_it_runs() -> None:
    devices = DEVICES[:2]
    model = wide()
    size = bytes_of(model)
    zero = ag.ZeroOptimizer(model, devices=devices, stage=3)
    before = {d: live(d) for d in devices}
    for d in devices:
        reset_peak(backend_of(d).arena)
    with ag.with_grad_tape():
        loss = ag.ag_mean(zero.model(ag.ag_tensor(np.ones((96, 2), np.float32))))
    for d in devices:  # one layer of eight, and a few columns
        assert backend_of(d).arena.stats().peak - before[d] <= size / 8 * 1.3, d
    ag.backward(loss)
    for d in devices:  # its weights and their gradient on the way, and the part of all gradients that stays here
        assert backend_of(d).arena.stats().peak - before[d] <= size / 2 + size / 8 * 3.5, d


# ---------------------------------------------------------------------------------------------- state


@STAGES
def test_state_dict_does_not_depend_on_the_number_of_shards(stage: int) -> None:
    _, model, optimizer = plain_run(ag.optimizer_adam, ["cpu"], 4, lr=0.02)
    half = ag.ZeroOptimizer(network(), devices=["cpu"] * 3, stage=stage, lr=0.02)
    half.model.load_state_dict(model.state_dict())
    half.load_state_dict(optimizer.state_dict())
    assert_equal(half.state_dict(), optimizer.state_dict())
    other = ag.ZeroOptimizer(network(), devices=DEVICES[:2], stage=stage, lr=0.02)
    other.model.load_state_dict(half.model.state_dict())
    other.load_state_dict(half.state_dict())
    assert_equal(other.model.state_dict(), model.state_dict())
    back = ag.optimizer_adam(network(), lr=0.02)
    back.load_state_dict(other.state_dict())
    assert back.t == 4


@STAGES
def test_parameters_that_were_assigned_are_trained_on(stage: int) -> None:
    plain, zero = ag.ag_linear(3, 2), ag.ZeroOptimizer(ag.ag_linear(3, 2), ag.optimizer_sgd, ["cpu", "cpu:1"], stage)
    values = {name: np.full(p.shape, 0.25, np.float32) for name, p in plain.parameters().items()}
    optimizer = ag.optimizer_sgd(plain)
    plain.load_state_dict(values)
    zero.model.load_state_dict(values)
    for model, step in ((plain, optimizer.step), (zero.model, zero.step)):
        with ag.with_grad_tape():
            loss = ag.ag_sum(model(ag.ag_tensor(np.ones((3, 2), np.float32))))
        step(ag.backward(loss))
    assert_equal(zero.model.state_dict(), plain.state_dict())


@STAGES
def test_a_parameter_without_gradient_is_left_alone_and_the_step_counts(stage: int) -> None:
    class Half(ag.Layer):
        def __init__(self) -> None:
            self.used, self.idle = ag.ag_linear(4, 4), ag.ag_linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.idle(self.used(x)) if self.whole else self.used(x)

        whole = False

    def run(make: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any]:
        ag.ag_seed(2)
        inner = Half()
        model, optimizer = make(inner)
        for k in range(5):
            inner.whole = k > 2
            with ag.with_grad_tape():
                loss = ag.ag_mean(model(ag.ag_tensor(np.ones((4, 4), np.float32))))
            ag.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict(), optimizer.state_dict()

    def sharded(inner: Any) -> tuple[Any, Any]:
        zero = ag.ZeroOptimizer(inner, ag.optimizer_adam, DEVICES, stage, lr=0.1)
        return zero.model, zero

    expected = run(lambda inner: (ag.DataParallel(inner, DEVICES), ag.optimizer_adam(inner, lr=0.1)))
    found = run(sharded)
    assert_equal(found[0], expected[0])
    assert_equal(found[1], expected[1])


@pytest.mark.vulkan
@STAGES
def test_two_vendors(stage: int, lavapipe: str, swiftshader: str) -> None:
    def run(*devices: str) -> tuple[Any, Any]:
        ag.ag_seed(2)
        with ag.ag_device(devices[0]):
            zero = ag.ZeroOptimizer(ag.ag_linear(5, 3), ag.optimizer_adam, devices, stage, lr=0.1)
            return zero_run(zero, 3, True, devices[0]), zero.model.state_dict()

    found, expected = run(lavapipe, swiftshader), run("cpu", "cpu:1")
    np.testing.assert_allclose(found[0], expected[0], atol=1e-4)
    for name, w in expected[1].items():
        np.testing.assert_allclose(found[1][name], w, atol=1e-4, err_msg=name)


@STAGES
def test_f16_skips_everywhere_together(stage: int, f16: None) -> None:
    zero = ag.ZeroOptimizer(ag.ag_linear(64, 64), devices=["cpu", "cpu:1"], stage=stage, lr=0.1)
    x = np.ones((64, 2), np.float32)
    before = zero.model.state_dict()
    x[0, 1] = np.inf
    for k in range(2):
        with ag.with_grad_tape():
            loss = ag.ag_mean(zero.model(ag.ag_tensor(x)))
        ag.backward(loss)
        zero.step()
        zero.zero_grad()
        if k == 0:
            assert (zero.optimizer.skipped, zero.t) == (1, 0)
            assert_equal(zero.model.state_dict(), before)
        x[:] = 1
    assert zero.t == 1 and all(np.isfinite(w).all() for w in zero.model.state_dict().values())


@STAGES
def test_f16_gradients_are_scaled(stage: int, f16: None) -> None:
    """Those of the whole parameters, too, of which the optimizer's are shards."""
    zero = ag.ZeroOptimizer(ag.ag_linear(4, 4), ag.optimizer_sgd, devices=["cpu", "cpu:1"], stage=stage, lr=2.0**20)
    before = zero.model.state_dict()
    with ag.with_grad_tape():
        out = zero.model(ag.ag_tensor(np.ones((4, 2))))
        loss = ag.ag_sum(ag.ag_cast(out, "f32")) * 2.0**-26  # f16 ends at 2**-24
    ag.backward(loss)
    zero.step()
    np.testing.assert_allclose(zero.model.state_dict()["W"], before["W"] - 2.0**-5, atol=1e-3)


def test_syncgrads_by_name_can_be_stepped() -> None:
    zero = ag.ZeroOptimizer(ag.ag_linear(2, 2), ag.optimizer_sgd, ["cpu", "cpu:1"], 3, lr=1.0)
    before = zero.model.state_dict()
    zero.step(ag.syncgrads([{"W": ag.ag_tensor(np.ones((2, 2), np.float32))}]))
    np.testing.assert_allclose(zero.model.state_dict()["W"], before["W"] - 1, atol=1e-6)


def test_wrong_use_is_named() -> None:
    with pytest.raises(ValueError, match="stage is 4; use 1, 2 or 3"):
        ag.ZeroOptimizer(network(), stage=4)
    with pytest.raises(ValueError, match="has a SyncBatchNorm"):
        ag.ZeroOptimizer(ag.ag_sequential(ag.SyncBatchNorm(3)), stage=3)
    zero = ag.ZeroOptimizer(ag.ag_linear(2, 2), devices=["cpu", "cpu:1"], stage=2)
    with pytest.raises(ag.CheckpointError, match=r"missing v.b, unexpected x, m.W is \(1,\) instead of \(2, 2\)"):
        state = zero.state_dict()
        del state["v.b"]
        zero.load_state_dict(state | {"x": np.ones(1), "m.W": np.ones(1)})
    with pytest.raises(ValueError, match="max_norm is 0"):
        zero.clip_grad_norm(0)
    with ag.with_grad_tape():
        loss = ag.ag_mean(zero.model(ag.ag_tensor([[np.nan], [1.0]])))
    ag.backward(loss)
    with pytest.raises(FloatingPointError, match=r"the gradient of W\[0:.*\] has norm nan"):
        zero.clip_grad_norm(1.0)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_parameter_that_was_replaced_is_refused(stage: int) -> None:
    zero = ag.ZeroOptimizer(ag.ag_linear(2, 2), ag.optimizer_sgd, ["cpu", "cpu:1"], stage)
    zero.model.module.W = ag.ag_param(np.ones((2, 2)))
    with expect_error("replaced", ValueError, "ZeroOptimizer: W of the model", "would not train it"):
        with ag.with_grad_tape():
            loss = ag.ag_mean(zero.model(np.ones((2, 4))))
        ag.backward(loss)
        zero.step()


@STAGES
def test_a_layer_that_is_frozen_for_some_steps(stage: int) -> None:
    """And one that is frozen from the start, beside an ordinary optimizer."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 8)).astype("f"), np.arange(8) % 2

    def losses(devices: list[str]) -> list[float]:
        ag.ag_seed(1)
        model = ag.ag_sequential(ag.ag_linear(3, 8, activation="tanh"), ag.ag_linear(8, 4), ag.ag_linear(4, 2))
        optimizer: Any = ag.ZeroOptimizer(model, ag.optimizer_adam, devices, stage, lr=0.02) if devices else (
            ag.optimizer_adam(model, lr=0.02))
        network, found = optimizer.model if devices else model, []
        for i in range(8):
            model[0].W.requires_grad = not 3 <= i < 6
            model[1].b.requires_grad = i >= 5
            optimizer.zero_grad()
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(network(ag.ag_tensor(x)), y)
            ag.backward(loss)
            optimizer.step()
            found.append(loss.item())
        return found

    np.testing.assert_allclose(losses(DEVICES[:2]), losses([]), rtol=1e-5)
