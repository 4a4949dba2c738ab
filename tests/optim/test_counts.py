"""Step counts: one for every parameter, so that a gradient that comes late is corrected as a first one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from table.optimizers import adam

import ag

NAMES = "abcdef"
# Which of six parameters have a gradient in which step.
PLAN = ["abcdef", "abc", "ef", "a", "abcdef", "bd", "", "f", "acf", "abcdef"]


def grads_of(k: int, device: str | None = None) -> dict[str, ag.Tensor]:
    rng = np.random.default_rng(k)
    every = {name: rng.standard_normal((3 + i, 7)) for i, name in enumerate(NAMES)}
    return {name: ag.ag_tensor(g, device) for name, g in every.items() if name in PLAN[k]}


def made(**settings: Any) -> tuple[dict[str, ag.Tensor], ag.optimizer_adam]:
    params = {name: ag.ag_param(np.full((3 + i, 7), 0.5)) for i, name in enumerate(NAMES)}
    return params, ag.optimizer_adam(params, lr=0.1, **settings)


def test_every_parameter_is_trained_as_if_alone(device: str) -> None:
    params, optimizer = made()
    for k in range(len(PLAN)):
        optimizer.step(grads_of(k))
    for i, name in enumerate(NAMES):
        own = [grads_of(k)[name].numpy().astype(np.float64) for k in range(len(PLAN)) if name in PLAN[k]]
        expected = adam(np.full((3 + i, 7), 0.5), own, lambda t: 0.1)
        np.testing.assert_allclose(params[name].numpy(), expected, atol=1e-5, err_msg=name)
    assert optimizer.t == 9


def test_captured_steps_with_other_parameters_take_turns(device: str) -> None:
    (params, captured), (others, eager) = made(), made()
    steps = {some: ag.ag_capture(lambda *g, some=some: captured.step(dict(zip(some, g, strict=True))))
             for some in ("abc", "ef")}
    for some in ("abc", "ef", "abc", "d", "abc", "ef", "abcdef", "ef"):
        grads = {name: ag.ag_tensor(np.full((3 + NAMES.index(name), 7), 0.3)) for name in some}
        eager.step(grads)
        if some in steps:
            steps[some](*grads.values())
        else:
            captured.step(grads)
    assert all(np.array_equal(params[name].numpy(), others[name].numpy()) for name in NAMES)
    assert captured.t == eager.t == 8


def test_counts_are_in_the_state(device: str) -> None:
    params, optimizer = made()
    for k in range(4):
        optimizer.step(grads_of(k))
    state, weights = optimizer.state_dict(), {name: p.numpy() for name, p in params.items()}
    assert state["count.a"][-1] == 3 and state["count.f"][-1] == 2 and state["state"][-1] == 4
    others, other = made()
    other.load_state_dict(state)
    for name, p in others.items():
        p.data = weights[name]
    for k in range(4, len(PLAN)):
        optimizer.step(grads_of(k))
        other.step(grads_of(k))
    assert all(np.array_equal(params[name].numpy(), others[name].numpy()) for name in NAMES)


def test_a_state_of_an_earlier_version_has_one_count() -> None:
    _, optimizer = made()
    state = optimizer.state_dict() | {"state": np.array([0.1, 0.4, 0.005, 5], np.float32)}
    optimizer.load_state_dict(state)
    assert optimizer.t == 5 and not [name for name in optimizer.state_dict() if name.startswith("count")]


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.4])
def test_small_betas_keep_digits(device: str, beta: float) -> None:
    W = ag.ag_param([[0.0]], dtype="f32")
    optimizer = ag.optimizer_adam({"W": W}, lr=0.01, beta1=beta, beta2=beta)
    grads = [1e3, 1e-2, 1e3, 1e-2, -1e-2]
    for g in grads:
        optimizer.step({"W": np.full((1, 1), g)})
    expected = adam(np.zeros((1, 1)), [np.full((1, 1), g) for g in grads], lambda t: 0.01, beta, beta)
    np.testing.assert_allclose(W.numpy(), expected, rtol=1e-5)


BROKEN: list[tuple[str, Any, str]] = [
    ("state", [float("nan"), 0, 0, 0], "state holds"), ("state", [-1.0, 0, 0, 0], "state holds"),
    ("state", [0.1, 0.1, 0.1, 2.5], "counts 2.5 steps"), ("count.a", [0.1, 0.1, -1], "count.a holds"),
    ("count.z", [0.1, 0.1, 1], "unexpected count.z"), ("count.a", [1.0], "count.a is (1,)"),
    ("m.a", np.full((3, 7), "x"), "m.a is of type"), ("m.a", np.full((3, 7), 1j), "m.a is of type complex"),
    ("m.b", [[1.0], [1.0, 2.0]], "m.b has rows of different lengths"), ("v.a", np.full((3, 7), -1.0), "negative"),
    ("m.a", np.full((3, 7), 1e300), "m.a has numbers that f32 cannot hold"),
    ("settings", [2.0, 0.9, 1e-8], "beta1 is 2.0"), ("settings", [float("nan"), 0.9, 1e-8], "settings holds"),
    ("v.f", None, "missing v.f")]


@pytest.mark.parametrize(("name", "value", "said"), BROKEN, ids=[said for _, _, said in BROKEN])
def test_a_broken_state_changes_nothing(name: str, value: Any, said: str) -> None:
    _, optimizer = made()
    optimizer.step(grads_of(1))
    before = optimizer.state_dict()
    state = {**optimizer.state_dict(), name: value} if value is not None else {
        k: x for k, x in before.items() if k != name}
    with expect_error(f"a state with {name} = {value}", ag.CheckpointError, "load_state_dict", said):
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert before.keys() == after.keys() and all(np.array_equal(before[k], after[k]) for k in before)


def test_an_interrupted_load_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    params, optimizer = made()
    optimizer.step(grads_of(0))
    before = optimizer.state_dict()
    backend, seen = params["a"].buffer.backend, []
    upload = backend.upload

    def interrupted(array: Any, into: Any) -> None:
        seen.append(into)
        if len(seen) == 5:
            raise KeyboardInterrupt
        upload(array, into)

    monkeypatch.setattr(backend, "upload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.load_state_dict({name: x if name == "settings" else x + 1 for name, x in before.items()})
    monkeypatch.undo()
    after = optimizer.state_dict()
    assert len(seen) > 5 and all(np.array_equal(before[k], after[k]) for k in before)
