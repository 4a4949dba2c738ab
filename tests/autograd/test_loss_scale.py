"""Training with 16-bit parameters: float32 masters, and a loss scale that follows what happens on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag
from ag.autograd import half
from ag.autograd.half import LossScale, scales_of
from ag.engine.device import backend_of

Array = np.ndarray[Any, Any]


def optimizers() -> list[Callable[..., Any]]:
    return [lambda p, **kw: ag.optimizer_sgd(p, momentum=0.9, **kw), ag.optimizer_adam, ag.optimizer_adamw]


def step_of(W: ag.Tensor, optimizer: Any) -> Callable[[ag.Tensor], ag.Tensor]:
    """A step whose gradient is x / 16."""

    def step(x: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_mul(W, x)) * 0.0625  # 65536 times a gradient of 1 would be too much for f16
        optimizer.step(ag.backward(loss))
        return loss

    return step


# ---------------------------------------------------------------------------------------------- masters


@pytest.mark.slow_on("lavapipe")
@pytest.mark.parametrize("make", optimizers())
def test_small_steps_add_up(device: str, dtype: str, make: Callable[..., Any]) -> None:
    """A thousand steps that are each too small for 16 bits arrive where float32 does."""
    ends = []
    for kind in ("f32", dtype):
        W = ag.ag_param([[1.0, -1.0]], dtype=kind)
        step = ag.ag_capture(step_of(W, make([W], lr=2e-5)))
        x = ag.ag_tensor([[1.0, -2.0]], dtype=kind)
        for _ in range(1000):
            step(x)
        ends.append(W.numpy())
    assert np.abs(ends[0] - [[1.0, -1.0]]).min() > 1e-3
    np.testing.assert_allclose(ends[1], ends[0], rtol=2.0**-11 if dtype == "f16" else 2.0**-8)


def test_a_parameter_that_was_assigned_is_taken_over(device: str, dtype: str) -> None:
    W = ag.ag_param([[1.0, 2.0]])
    optimizer = ag.optimizer_sgd([W], lr=1.6e-4)
    step = step_of(W, optimizer)
    x = ag.ag_tensor([[1.0, 1.0]])
    for _ in range(5):
        step(x)
    W.data = np.array([[5.0, 2.0]])
    step(x)
    master = optimizer.state_dict()["master.param1"]
    np.testing.assert_allclose(master, [[5 - 1e-5, 2 - 6e-5]], rtol=1e-7)


def test_gradients_given_by_the_user(device: str, dtype: str) -> None:
    W = ag.ag_param([[1.0, 2.0]])
    ag.optimizer_sgd([W], lr=0.5).step({"param1": np.array([[1.0, 2.0]])})
    np.testing.assert_array_equal(W.numpy(), [[0.5, 1.0]])
    with pytest.raises(ag.DtypeError, match=f"step: the gradient of 'param1' has type {dtype}; f32 is required"):
        ag.optimizer_sgd([W]).step({"param1": ag.ag_tensor([[1.0, 2.0]])})


def test_16_bit_and_float32_parameters_in_one_optimizer(device: str, dtype: str) -> None:
    V, W = ag.ag_param([[1.0]], dtype="f32"), ag.ag_param([[1.0]])
    optimizer = ag.optimizer_sgd({"V": V, "W": W}, lr=4.0)

    def step(x: Array) -> None:
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_cast(W * x, "f32") * V) * 0.0625
        optimizer.step(ag.backward(loss))

    step(np.array([[1.0]]))
    assert (V.item(), W.item()) == (0.75, 0.75)
    state = optimizer.state_dict()
    assert {"state", "state2"} <= state.keys()
    optimizer.load_state_dict(state)
    if dtype == "f16":
        step(np.array([[np.inf]]))
        assert (V.item(), W.item(), optimizer.skipped) == (0.75, 0.75, 1)  # both wait


# ---------------------------------------------------------------------------------------------- the scale


def test_a_gradient_too_small_for_f16_arrives(device: str, f16: None) -> None:
    W = ag.ag_param([[1.0]])

    def gradient() -> float:
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_cast(W * 1.0, "f32") * 2.0**-30)  # f16 ends at 2**-24
        return ag.backward(loss)[W].item()

    assert gradient() == 0.0
    optimizer = ag.optimizer_sgd([W])
    assert gradient() == 2.0**-30
    del optimizer  # and with it the scale
    assert gradient() == 0.0


@pytest.mark.parametrize("make", optimizers())
def test_an_overflow_skips_the_step_and_halves_the_scale(device: str, f16: None, make: Callable[..., Any]) -> None:
    W = ag.ag_param([[1.0, 2.0]])
    optimizer = make([W], lr=0.125)
    step = step_of(W, optimizer)
    good, bad = ag.ag_tensor([[0.25, 0.5]]), ag.ag_tensor([[1.0, 0.5]])
    step(good)
    before = optimizer.state_dict()
    assert (optimizer.loss_scale, optimizer.skipped, optimizer.t) == (65536.0, 0, 1)
    with ag.with_grad_tape():
        loss = ag.ag_sum(W * bad)  # the cotangent of W * bad is 1, stored in f16 as 65536
    grads = ag.backward(loss)
    assert not np.isfinite(grads[W].numpy()).all()
    assert not np.isfinite(ag.clip_grad_norm([W], grads, 1.0))  # returned, not raised
    optimizer.step(grads)
    assert (optimizer.loss_scale, optimizer.skipped, optimizer.t) == (32768.0, 1, 1)
    after = optimizer.state_dict()
    for name in before.keys() - {"loss_scale"}:
        np.testing.assert_array_equal(after[name], before[name], name)
    step(good)
    assert (optimizer.skipped, optimizer.t) == (1, 2)


def test_good_steps_double_it(device: str, f16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "INTERVAL", 3)
    W = ag.ag_param([[1.0]])
    optimizer = ag.optimizer_sgd([W], lr=1e-3)
    step = ag.ag_capture(step_of(W, optimizer))
    scales = []
    for _ in range(7):
        step(ag.ag_tensor([[0.0]]))
        scales.append(optimizer.loss_scale)
    assert scales == [2.0**16] * 2 + [2.0**17] * 3 + [2.0**18] * 2


def test_it_stays_within_limits(device: str, f16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half, "INTERVAL", 1)
    W = ag.ag_param([[1.0]])
    optimizer = ag.optimizer_sgd([W], lr=1e-3)
    grads = {value: {"param1": np.array([[value]])} for value in (0.0, np.nan)}
    for _ in range(12):
        optimizer.step(grads[0.0])
    assert optimizer.loss_scale == 2.0**24
    for _ in range(60):
        optimizer.step(grads[np.nan])
    assert (optimizer.loss_scale, optimizer.skipped, W.item()) == (2.0**-24, 60, 1.0)


def test_the_scale_changes_no_gradient(device: str, f16: None) -> None:
    model = ag.ag_sequential(ag.ag_linear(5, 7, "tanh"), ag.ag_batch_norm(7), ag.ag_linear(7, 3))
    x, y = ag.ag_tensor(np.random.default_rng(0).normal(size=(5, 8))), np.arange(8) % 3
    scaling, found = LossScale(model.parameters().values(), [backend_of(device)]), []
    for scale in (256.0, 1024.0):
        scaling.set(scale)
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
        grads = ag.backward(loss)
        assert scaling.read()[0] == scale
        found.append([g.numpy() for g in grads.values()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-6)  # only numbers below f16's normal range differ


def test_devices_skip_together(f16: None) -> None:
    """A model on two devices: an overflow on one is a skipped step on both."""
    V, W = ag.ag_param([[1.0]], device="cpu"), ag.ag_param([[1.0]], device="cpu:1")
    optimizer = ag.optimizer_sgd({"V": V, "W": W}, lr=0.25)
    optimizer.step({"V": np.array([[np.inf]]), "W": np.array([[1.0]])})
    assert (V.item(), W.item(), optimizer.skipped) == (1.0, 1.0, 1)
    (scale,) = scales_of([V.id, W.id])
    assert [device.download(state)[0] for device, state in scale.states.items()] == [2.0**15] * 2
    optimizer.step({"V": np.array([[1.0]]), "W": np.array([[1.0]])})
    assert (V.item(), W.item()) == (0.75, 0.75)


def test_bf16_and_float32_are_not_scaled(device: str) -> None:
    for dtype in ("bf16", "f32"):
        optimizer = ag.optimizer_sgd([ag.ag_param([[1.0]], dtype=dtype)])
        assert (optimizer.loss_scale, optimizer.skipped) == (None, 0)
        assert "loss_scale" not in optimizer.state_dict()


def test_float32_parameters_of_an_f16_graph_wait(device: str, f16: None) -> None:
    """An overflow may reach them through f16, but only if a scaled backward pass reaches them at all."""
    W, U, apart = ag.ag_param([[1.0]]), ag.ag_param([[1.0]], dtype="f32"), ag.ag_param([[1.0]], dtype="f32")
    first, wide, other = (ag.optimizer_sgd([p], lr=0.25) for p in (W, U, apart))
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_cast(U, "f16") * W)  # 1, stored as 65536
    wide.step(ag.backward(loss))
    assert (U.item(), first.loss_scale) == (1.0, 2.0**16)
    other.step({"param1": np.array([[np.inf]])})  # what is infinite here is the user's
    assert apart.item() == -np.inf
    del first
    wide.step({"param1": np.array([[np.inf]])})
    assert U.item() == -np.inf


def test_the_scale_reaches_elements_of_a_vector_once(f16: None) -> None:
    """A number cut from an f16 vector is float32 and not scaled; the vector's other gradients are f16 and scaled."""
    W = ag.ag_param([[1.0, 2.0], [3.0, 4.0]])
    scaling = LossScale([W], [W.buffer.backend])
    scaling.set(1024.0)
    with ag.with_grad_tape():
        sums = ag.ag_sum(W, dim=1)
        loss = ag.ag_sum(sums * sums) + sums[0] * 3.0
    assert ag.backward(loss)[W].numpy().tolist() == [[9.0, 9.0], [14.0, 14.0]]
    assert scaling.read()[0] == 1024.0
