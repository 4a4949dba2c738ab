"""Settings of optimizers and schedules: what is assigned takes effect at the next step, or is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.parameters import GRADS, START, gradients, parameters
from table.optimizers import OPTIMIZERS, Array, Optimizer

import ag

CHANGES = {
    "optimizer_adam": [{"beta1": 0.5}, {"beta2": 0.9}, {"eps": 1e-2}, {"lr": 0.01}, {"beta1": 0.0}, {"beta2": 0.0}],
    "optimizer_adamw": [{"weight_decay": 0.5}, {"beta1": 0.8, "weight_decay": 0.0}],
    "optimizer_sgd": [{"momentum": 0.9}, {"weight_decay": 0.3}, {"momentum": 0.5, "nesterov": True}, {"lr": 0.5}],
}
CASES = [(row, change) for row in OPTIMIZERS for change in CHANGES[row.name]]
IDS = [f"{row.name}-{','.join(change)}" for row, change in CASES]
BAD = [float("nan"), float("inf"), -1.0, None, "0.1", np.zeros(1), 1j, [0.1]]


def looped(name: str, p: Array, change: dict[str, Any], at: int, steps: int) -> Array:
    """The rules with settings that change after step `at`, in float64, as PyTorch has them."""
    s = {"lr": 0.05, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "momentum": 0.0, "nesterov": False,
         "weight_decay": 0.01 if name == "optimizer_adamw" else 0.0}
    m = v = b = np.zeros_like(p)
    for t in range(1, steps + 1):
        s |= change if t > at else {}
        g = GRADS[t - 1]["W"]
        if name == "optimizer_sgd":
            d = g + s["weight_decay"] * p
            b = s["momentum"] * b + d if s["momentum"] else b
            d = d if not s["momentum"] else d + s["momentum"] * b if s["nesterov"] else b
            p = p - s["lr"] * d
            continue
        m, v = s["beta1"] * m + (1 - s["beta1"]) * g, s["beta2"] * v + (1 - s["beta2"]) * g * g
        p = p - s["lr"] * s["weight_decay"] * p
        p = p - s["lr"] * m / (1 - s["beta1"] ** t) / (np.sqrt(v / (1 - s["beta2"] ** t)) + s["eps"])
    return p


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize(("row", "change"), CASES, ids=IDS)
def test_a_setting_takes_effect_at_the_next_step(device: str, row: Optimizer, change: dict[str, Any],
                                                 captured: bool) -> None:
    params = parameters()
    optimizer = row.make(params, lr=0.05)
    step = ag.ag_capture(lambda *grads: optimizer.step(dict(zip(params, grads, strict=True)))) if captured else (
        lambda *grads: optimizer.step(dict(zip(params, grads, strict=True))))
    for k in range(16):
        if k == 8:
            for name, value in change.items():
                setattr(optimizer, name, value)
        step(*gradients(k, params).values())
    assert all(getattr(optimizer, name) == value and f"{name}={value}" in repr(optimizer)
               for name, value in change.items())
    np.testing.assert_allclose(params["W"].numpy(), looped(row.name, START["W"], change, 8, 16), atol=2e-5)


@pytest.mark.parametrize(("row", "change"), CASES, ids=IDS)
def test_a_state_holds_settings_that_were_assigned(row: Optimizer, change: dict[str, Any]) -> None:
    def run(k: int, params: Any, optimizer: Any) -> None:
        for step in range(k, k + 5):
            optimizer.step(gradients(step, params))

    params = parameters()
    optimizer = row.make(params, lr=0.05)
    run(0, params, optimizer)
    fresh = optimizer.state_dict()
    for name, value in change.items():
        setattr(optimizer, name, value)
    state, weights = optimizer.state_dict(), {name: p.numpy() for name, p in params.items()}
    others = parameters(**weights)
    other = row.make(others, lr=0.05)
    other.load_state_dict(state)
    run(5, params, optimizer)
    run(5, others, other)
    assert all(np.array_equal(params[name].numpy(), others[name].numpy()) for name in params)
    other.load_state_dict(fresh)  # of before: as the optimizer was made
    made = row.make(parameters(), lr=0.05)
    assert all(getattr(other, name) == pytest.approx(getattr(made, name)) for name in change)


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
def test_bad_settings_are_refused_when_made_and_when_assigned(row: Optimizer, value: object) -> None:
    optimizer = row.make([ag.ag_param([[1.0]])])
    for name in optimizer.settings:
        before = getattr(optimizer, name)
        with expect_error(f"{name} = {value!r}", ValueError, row.name, name):
            setattr(optimizer, name, value)
        with expect_error(f"{row.name}({name}={value!r})", ValueError, row.name, name):
            row.make([ag.ag_param([[1.0]])], **{name: value})
        assert getattr(optimizer, name) == before


def test_settings_that_do_not_go_together() -> None:
    sgd = ag.optimizer_sgd([ag.ag_param([[1.0]])], momentum=0.9, nesterov=True)
    with expect_error("momentum off under Nesterov", ValueError, "nesterov needs momentum > 0"):
        sgd.momentum = 0
    assert sgd.momentum == 0.9
    schedule = ag.lr_scheduler_cosine(sgd, 10, lr_min=0.001)
    with expect_error("lr_min above lr", ValueError, "lr_min is 1.0"):
        schedule.lr_min = 1.0


def test_unknown_attributes_are_refused() -> None:
    optimizer = ag.optimizer_adamw([ag.ag_param([[1.0]])])
    for name, meant in (("learning_rate", ""), ("weightdecay", "Did you mean weight_decay?"), ("betas", "beta1")):
        with expect_error(f"opt.{name} = 1", AttributeError, repr(name), "weight_decay", meant):
            setattr(optimizer, name, 1)
    with expect_error("weight decay for Adam", AttributeError, "optimizer_adam", "weight_decay"):
        ag.optimizer_adam([ag.ag_param([[1.0]])]).weight_decay = 0.1
    with pytest.raises(TypeError):
        optimizer.params["new"] = ag.ag_param([[1.0]])
    with expect_error("a misspelt setting of a schedule", AttributeError, "'gama'", "gamma"):
        ag.lr_scheduler_step(optimizer, 2).gama = 0.5


def test_settings_of_schedules() -> None:
    optimizer = ag.optimizer_sgd([ag.ag_param([[1.0]])], lr=1.0)
    schedule = ag.lr_scheduler_step(optimizer, 2, gamma=0.5)
    schedule.step_size = 1
    assert [schedule.step() for _ in range(2)] == [0.5, 0.25]
    for name, value in (("gamma", 2.0), ("step_size", 0), ("step_size", 1.5), ("lr", float("nan")), ("steps", -1)):
        with expect_error(f"schedule.{name} = {value}", ValueError, "lr_scheduler_step", name):
            setattr(schedule, name, value)


def test_settings_of_zero() -> None:
    def trained(make: Any) -> Any:
        ag.ag_seed(1)
        model = ag.ag_linear(4, 4)
        optimizer, whole = make(model)
        for k in range(4):
            if k == 2:
                optimizer.weight_decay, optimizer.beta1 = 0.5, 0.5
            optimizer.step({"W": np.full((4, 4), k + 1.0), "b": np.ones((4, 1))})
        return whole.state_dict(), optimizer

    plain, adamw = trained(lambda m: (ag.optimizer_adamw(m, lr=0.1), m))
    for stage in (1, 2, 3):
        shared, zero = trained(lambda m, stage=stage: (lambda z: (z, z.model))(
            ag.ZeroOptimizer(m, ag.optimizer_adamw, ["cpu", "cpu:1"], stage, lr=0.1)))
        assert zero.weight_decay == 0.5 and all(np.array_equal(plain[name], shared[name]) for name in plain)
        state = zero.state_dict()
        assert state.keys() == adamw.state_dict().keys()
        adamw.load_state_dict(state)
        with expect_error("a misspelt setting of ZeRO", AttributeError, "'weightdecay'"):
            zero.weightdecay = 1
