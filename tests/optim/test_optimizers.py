"""Optimizers: the formulas against loops in float64, one launch per step, state that continues exactly."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.parameters import GRADS, START, gradients, parameters
from table.optimizers import OPTIMIZERS, RULES, Optimizer

import ag
from ag.engine.device import backend_of

# Sixty steps of about ten roundings each, of numbers up to 4, in float32: 60 * 10 * 4 * 2**-24 = 1.4e-4 if they all
# went the same way; they do not, and a fifth of that is still a hundred times less than any wrong formula gives.
ATOL = {"f32": 3e-5, "f64": 1e-12}


@pytest.mark.parametrize("rule", RULES)
def test_formula(device: str, rule: str) -> None:
    row, settings = RULES[rule]
    for dtype in ("f32", "f64") if device == "cpu" else ("f32",):
        params = parameters(dtype)
        optimizer = row.make(params, **settings)
        for k in range(len(GRADS)):
            if k == 30:
                optimizer.lr /= 2
            optimizer.step(gradients(k, params))
        rule_settings = {**settings, "lr": lambda t: settings["lr"] * (0.5 if t > 30 else 1.0)}
        for name, p in params.items():
            expected = row.rule(START[name], [grads[name] for grads in GRADS], **rule_settings)
            assert np.abs(p.numpy() - expected).max() < ATOL[dtype], f"{name} in {dtype}"
        assert optimizer.t == len(GRADS)
        assert optimizer.lr == settings["lr"] / 2


@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
def test_one_update_launch_per_step(device: str, row: Optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # optimizers of other tests, whose 16-bit parameters ask for a loss scale
    params = parameters()
    optimizer = row.make(params)
    backend, launched = backend_of(device), []
    launch = backend.launch
    monkeypatch.setattr(backend, "launch", lambda primitive, *a, **k: launched.append(primitive.name) or launch(
        primitive, *a, **k))
    optimizer.step(gradients(0, params))
    assert len([name for name in launched if name.endswith("_update")]) == 1
    assert sorted(set(launched)) == sorted({"copy", next(n for n in launched if n.endswith("_update"))})
    assert launched.count("copy") == len(params)  # each gradient into the flat buffer


def test_parameters_are_views_of_one_buffer(device: str) -> None:
    params = parameters()
    before = {name: p.numpy() for name, p in params.items()}
    ag.optimizer_adam(params)
    assert len({p.buffer.block.address for p in params.values()}) == 1
    assert all(p.buffer.address % 16 == 0 for p in params.values())
    assert all(np.array_equal(p.numpy(), before[name]) for name, p in params.items())


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("make", [ag.optimizer_adam, ag.optimizer_adamw])
def test_a_gradient_whose_square_is_infinite_leaves_adam_as_a_large_one_does(
    device: str, make: Callable[..., Any], dtype: str,
) -> None:
    """In PyTorch, too; what is not finite stays so, and smaller ones have all their bits."""
    if dtype == "f64" and device != "cpu":
        pytest.skip("f64 is the CPU's")

    def steps(*grads: float) -> list[float]:
        W, found = ag.ag_param(np.ones((3, 1)), device=device, dtype=dtype), []
        opt = make([W], lr=0.1)
        for g in grads:
            opt.step({"param1": np.array([0.5, g, -0.5])})
            found.append(W.numpy()[1, 0])
        return found

    limit = 2.0 ** (64 if dtype == "f32" else 512)
    large = steps(1.0, limit * 0.99, 1.0, -1.0)
    assert np.isfinite(large).all()
    for g in (limit, limit * 1e5):
        np.testing.assert_allclose(steps(1.0, g, 1.0, -1.0), large, rtol=1e-5)
    for g in (np.inf, np.nan):
        assert np.isnan(steps(1.0, g, 1.0)[2])


def test_a_missing_gradient_skips_the_parameter(device: str) -> None:
    params = parameters()
    optimizer = ag.optimizer_adam(params, lr=0.1)
    optimizer.step(gradients(0, params))
    before = {**optimizer.state_dict(), **{n: p.numpy() for n, p in params.items()}}
    some = gradients(1, params)
    del some["b"], some["long"]
    optimizer.step(some)
    after = {**optimizer.state_dict(), **{n: p.numpy() for n, p in params.items()}}
    unchanged = {name for name in before if np.array_equal(before[name], after[name])}
    assert unchanged == {"settings", *(f"{part}{name}" for part in ("", "m.", "v.") for name in ("b", "long"))}
    assert optimizer.t == 2


def test_neighbours_in_the_flat_buffer_are_updated_together(device: str) -> None:
    params = {name: ag.ag_param(np.ones(5)) for name in "abcd"}
    optimizer = ag.optimizer_sgd(params, lr=1.0)
    optimizer.step({name: ag.ag_tensor(np.ones(5)) for name in "bcd"})
    assert [p.numpy().sum() for p in params.values()] == [5.0, 0.0, 0.0, 0.0]


def test_no_gradient_at_all_is_no_step(device: str) -> None:
    params = parameters()
    optimizer = ag.optimizer_adam(params)
    optimizer.step({})
    optimizer.step()
    assert optimizer.t == 0 and np.array_equal(params["W"].numpy(), START["W"].astype(np.float32))


def test_ways_to_give_gradients(device: str) -> None:
    def trained(step: Callable[[ag.optimizer_sgd, ag.Tensor, ag.Gradients], None]) -> list[float]:
        W = ag.ag_param([[1.0, 2.0]])
        optimizer = ag.optimizer_sgd({"W": W}, lr=0.5)
        with ag.with_grad_tape():
            loss = ag.ag_sum(W * W)
        step(optimizer, W, ag.backward(loss))
        return W.numpy().ravel().tolist()

    assert trained(lambda optimizer, W, grads: optimizer.step(grads)) == [0.0, 0.0]
    assert trained(lambda optimizer, W, grads: optimizer.step()) == [0.0, 0.0]
    assert trained(lambda optimizer, W, grads: optimizer.step({"W": grads[W]})) == [0.0, 0.0]
    assert trained(lambda optimizer, W, grads: optimizer.step({W: grads[W]})) == [0.0, 0.0]
    assert trained(lambda optimizer, W, grads: optimizer.step({"W": np.array([[2.0, 4.0]])})) == [0.0, 0.0]


def test_a_gradient_of_another_shape() -> None:
    params = parameters()
    optimizer = ag.optimizer_adam(params)
    with expect_error("an optimizer given a gradient of another shape", ag.ShapeError, "'W'", "(3, 5)", "(5, 3)"):
        optimizer.step({"W": ag.ag_tensor(np.ones((3, 5)))})


def test_a_gradient_on_another_device() -> None:
    W = ag.ag_param([[1.0]], device="cpu:1")
    optimizer = ag.optimizer_sgd({"W": W})
    for give in (lambda g: optimizer.step({"W": g}), lambda g: (setattr(W, "grad", g), optimizer.step())):
        with expect_error("elsewhere", ag.DeviceError, "gradient of 'W'", "cpu and", "cpu:1", "to_device"):
            give(ag.ag_tensor([[1.0]], device="cpu"))


@pytest.mark.parametrize(("row", "settings", "fragments"), [(row, *bad) for row in OPTIMIZERS for bad in row.bad],
                         ids=lambda x: x.name if isinstance(x, Optimizer) else str(x))
def test_bad_numbers(row: Optimizer, settings: dict[str, Any], fragments: list[str]) -> None:
    said = ", ".join(f"{k}={v}" for k, v in settings.items())
    with expect_error(f"{row.name}({said})", ValueError, row.name, *fragments):
        row.make([ag.ag_param([[1.0]])], **settings)


def test_one_optimizer_of_two_networks(device: str) -> None:
    """A list may have parameters of the same name; a state goes back to the same ones."""
    with ag.ag_device(device):
        one, two = [ag.nn.Linear(2, 1) for _ in range(2)]
        listed = [*one.parameters().values(), *two.parameters().values()]
        optimizer = ag.optim.Adam(listed, lr=0.1)
    assert list(optimizer.params) == ["W_1", "b_2", "W_3", "b_4"]
    optimizer.step({p: np.full(p.shape, k, np.float32) for k, p in enumerate(listed)})
    again = ag.optim.Adam(listed, lr=0.1)
    again.load_state_dict(optimizer.state_dict())
    assert again.state_dict()["m.W_3"].tolist() == optimizer.state_dict()["m.W_3"].tolist() != [[0.0, 0.0]]
    ag.clip_grad_norm(listed, {p: np.ones(p.shape, np.float32) for p in listed}, 1.0)


def test_bad_parameters() -> None:
    W = ag.ag_param([[1.0]])
    with expect_error("an optimizer over one tensor twice", ValueError, "optimizer_sgd", "b", "same tensor"):
        ag.optimizer_sgd({"a": W, "b": W})
    with expect_error("an optimizer over two tensors of one name", ValueError, "optimizer_sgd", "'W_2'"):
        first, second, third = (ag.ag_param([[1.0]]) for _ in range(3))
        first.name, second.name, third.name = "W", "W", "W_2"
        ag.optimizer_sgd([first, second, third])
    with expect_error("an optimizer over nothing", ValueError, "optimizer_sgd", "no parameters"):
        ag.optimizer_sgd([])
    with expect_error("an optimizer over a tensor that is no parameter", ValueError, "optimizer_sgd", "ag_param"):
        ag.optimizer_sgd([ag.ag_tensor([1.0])])
    with expect_error("an optimizer over an array", ValueError, "optimizer_sgd", "ndarray", "ag_param"):
        ag.optimizer_sgd([np.ones(3)])
    optimizer = ag.optimizer_sgd([W])
    with expect_error("an optimizer's lr set to a negative number", ValueError, "lr is -0.1"):
        optimizer.lr = -0.1
    assert optimizer.lr == 0.01


@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))],
                         ids=["deepcopy", "pickle"])
def test_a_model_and_its_optimizer_go_on_alike_when_copied(device: str, row: Optimizer, dtype: str,
                                                           copied: Callable[[Any], Any]) -> None:
    with ag.ag_dtype(dtype):
        model = ag.ag_sequential(ag.ag_linear(3, 4, activation="tanh"), ag.ag_linear(4, 2))
    optimizer = row.make(model)
    x = ag.ag_tensor(np.random.default_rng(2).standard_normal((3, 5)), dtype=dtype)

    def steps(model: Any, optimizer: Any) -> None:
        for _ in range(2):
            with ag.with_grad_tape():
                loss = ag.ag_mean(model(x) ** 2)
            ag.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    steps(model, optimizer)
    optimizer.lr = 0.3
    twin, twins = copied((model, optimizer))
    before = {name: value.tobytes() for name, value in model.state_dict().items()}
    assert twins.lr == 0.3 and twins.t == 2 and type(twins) is type(optimizer)
    steps(twin, twins)
    assert {name: value.tobytes() for name, value in model.state_dict().items()} == before
    steps(model, optimizer)
    assert all(value.tobytes() == twin.state_dict()[name].tobytes() for name, value in model.state_dict().items())
    assert all(value.tobytes() == twins.state_dict()[name].tobytes() for name, value in optimizer.state_dict().items()
               if name != "loss_scale")


def test_a_copied_schedule_sets_the_copied_optimizer() -> None:
    optimizer = ag.optimizer_sgd([ag.ag_param([[1.0]])], lr=0.1)
    schedule = ag.lr_scheduler_step(optimizer, 1, gamma=0.5)
    again = pickle.loads(pickle.dumps(schedule))
    assert again.step() == 0.05 and (again.optimizer.lr, optimizer.lr) == (0.05, 0.1)


@pytest.mark.parametrize("row", OPTIMIZERS, ids=lambda row: row.name)
def test_a_state_brings_its_settings_and_fits_no_other_kind(row: Optimizer) -> None:
    W = ag.ag_param([[1.0]])
    settings = [kept for kept in row.settings.values() if len(kept) > 1][-1]
    optimizer = row.make([W], **settings)
    for other in OPTIMIZERS:
        taking = other.make([W])
        if other is not row:
            before = repr(taking)
            with expect_error(other.name, ag.CheckpointError, "load_state_dict", "does not fit this optimizer"):
                taking.load_state_dict(optimizer.state_dict())
            assert repr(taking) == before
            continue
        taking.load_state_dict(optimizer.state_dict())
        assert {name: getattr(taking, name) for name in settings} == pytest.approx(settings)
        with expect_error("a state without settings", ag.CheckpointError, "missing settings"):
            taking.load_state_dict({name: x for name, x in optimizer.state_dict().items() if name != "settings"})
