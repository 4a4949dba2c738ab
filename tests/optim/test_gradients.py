"""Gradients given to optimizers and to clipping: every key is one of the parameters, arrays are clipped in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag


def made() -> tuple[dict[str, ag.Tensor], ag.optimizer_sgd]:
    params = {"weight": ag.ag_param(np.ones((3, 3))), "bias": ag.ag_param(np.ones((3, 1)))}
    return params, ag.optimizer_sgd(params, lr=1.0)


WRONG: list[tuple[Any, type[Exception], list[str]]] = [
    ({"wieght": np.ones((3, 3))}, ValueError, ["'wieght'", "weight, bias", "Did you mean weight?"]),
    ({"weight": np.ones((3, 3)), "x": np.ones(1)}, ValueError, ["'x'"]),
    ({1: np.ones((3, 3))}, ValueError, ["a gradient of 1"]),
    ([np.ones((3, 3))], TypeError, ["a list"]), (np.ones((3, 3)), TypeError, ["a ndarray"]),
    (5, TypeError, ["a int"]),
]


@pytest.mark.parametrize(("grads", "error", "said"), WRONG, ids=[str(type(grads)) for grads, _, _ in WRONG])
def test_gradients_of_nothing_are_refused(grads: Any, error: type[Exception], said: list[str]) -> None:
    params, optimizer = made()
    with expect_error(f"step({grads!r})", error, "step: ", *said):
        optimizer.step(grads)
    with expect_error(f"clip_grad_norm({grads!r})", error, "clip_grad_norm: ", *said):
        ag.clip_grad_norm(params, grads, 1.0)
    assert optimizer.t == 0 and (params["weight"].numpy() == 1).all()


def test_tensors_that_are_no_parameters() -> None:
    params, optimizer = made()
    other = ag.ag_param(np.ones((3, 3)))
    other.name = "other"
    with expect_error("a gradient of another parameter", ValueError, "(3, 3)", "'other'"):
        optimizer.step({other: np.ones((3, 3))})
    with expect_error("a gradient by name and by parameter", ValueError, "two gradients of 'weight'"):
        optimizer.step({"weight": np.ones((3, 3)), params["weight"]: np.ones((3, 3))})
    with expect_error("a gradient of whole numbers", ag.DtypeError, "'weight'", "i32", "f32"):
        optimizer.step({"weight": ag.ag_tensor(np.ones((3, 3)), dtype="i32")})


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_arrays_are_clipped_in_place(device: str, kind: type[np.floating[Any]]) -> None:
    params, optimizer = made()
    grads = {"weight": np.full((3, 3), 2.0, kind), params["bias"]: ag.ag_tensor(np.full((3, 1), 2.0))}
    assert ag.clip_grad_norm(params, grads, 1.0) == pytest.approx(48**0.5)
    both = [np.asarray(g) for g in grads.values()]
    assert sum((g**2).sum() for g in both) == pytest.approx(1.0)
    optimizer.step(grads)
    np.testing.assert_allclose(params["weight"].numpy(), 1 - both[0], rtol=1e-6)


def test_what_cannot_be_clipped_in_place() -> None:
    params, _ = made()
    fixed = np.ones((3, 3))
    fixed.flags.writeable = False
    for value, kind in ((fixed, "an array of float64"), ([[2.0] * 3] * 3, "a list"), (np.ones((3, 3), int), "int64")):
        with expect_error(f"clipping {kind}", TypeError, "'weight'", kind, "in place"):
            ag.clip_grad_norm(params, {"weight": value}, 1.0)


def test_one_gradient_for_two_parameters_is_scaled_once(device: str) -> None:
    params = {"a": ag.ag_param(np.ones((2, 2))), "b": ag.ag_param(np.ones((2, 2)))}
    for g in (ag.ag_tensor(np.ones((2, 2))), np.ones((2, 2))):
        norm = ag.clip_grad_norm(params, {"a": g, "b": g}, 1.0)
        np.testing.assert_allclose(np.asarray(g), 1 / norm, rtol=1e-6)


@pytest.mark.parametrize("value", [None, "1", float("nan"), 0, -1, np.ones(2)], ids=str)
def test_bad_max_norm(value: Any) -> None:
    with expect_error(f"max_norm {value!r}", ValueError, "clip_grad_norm: max_norm is", "positive"):
        ag.clip_grad_norm(made()[0], {}, value)


INPUTS = {n: ag.ag_tensor(np.ones((n, 4))) for n in (2, 3)}


def steps(optimizer: Any, model: Any, form: str) -> None:
    x = INPUTS[model[0].in_features]
    with ag.with_grad_tape():
        loss = ag.ag_mean(model(x) ** 2)
    grads = ag.backward(loss)
    optimizer.step(grads if form == "gradients" else None if form == "grad" else {
        name: grads[p] for name, p in model.parameters().items() if p in grads})
    optimizer.zero_grad()


def changed(model: Any, how: str) -> None:
    if how == "replaced":
        model[0].W = ag.ag_param(np.ones((3, 3)))
    elif how == "added":
        model.layers.append(ag.ag_linear(2, 2))
    elif how == "exchanged":
        model.layers[1] = ag.ag_linear(3, 2)
    elif how == "unfrozen":
        model[2].b.requires_grad = True
    elif how == "untied":
        model[0].b = ag.ag_param(np.ones((3, 1)))


FORMS, MADE = ["gradients", "grad", "names"], ["model", "parameters", "captured"]
CHANGES = ["replaced", "added", "exchanged", "unfrozen", "untied"]
LATE = [(how, FORMS[j], MADE[(i + j) % 3]) for i, how in enumerate(CHANGES) for j in range(3)]


@pytest.mark.parametrize(("how", "form", "made_of"), LATE)
def test_parameters_that_came_after_the_optimizer_are_refused(how: str, form: str, made_of: str) -> None:
    model = ag.ag_sequential(ag.ag_linear(3, 3), ag.ag_linear(3, 2), ag.ag_linear(2, 2))
    model[2].b.requires_grad = False
    optimizer = ag.optimizer_adam(model.parameters() if made_of == "parameters" else model)
    step = ag.ag_capture(lambda: steps(optimizer, model, form)) if made_of == "captured" else (
        lambda: steps(optimizer, model, form))
    for _ in range(3):
        step()
    changed(model, how)
    mine = {p.id for p in optimizer.params.values()}
    with expect_error(how, ValueError, "step: ", "layer"):
        step()
    ag.optimizer_sgd({name: p for name, p in model.parameters().items() if p.id not in mine})
    if form != "names":
        steps(optimizer, model, form)  # another optimizer has the others


@pytest.mark.parametrize("form", FORMS)
def test_parameters_may_be_removed_swapped_frozen_and_tied(form: str) -> None:
    model = ag.ag_sequential(*(ag.ag_linear(2, 2) for _ in range(4)))
    optimizer = ag.optimizer_adam(model)
    steps(optimizer, model, form)
    model.layers[0], model.layers[1] = model.layers[1], model.layers[0]
    gone = model.layers.pop()
    model[0].W.requires_grad = False
    model[1].b = model[2].b
    before, kept = model[0].W.numpy(), gone.W.numpy()
    if form == "names":
        with expect_error("another name", ValueError, "two gradients"):
            optimizer.step({"layer1_W": np.ones((2, 2)), model[1].W: np.ones((2, 2))})
        return
    steps(optimizer, model, form)
    assert np.array_equal(model[0].W.numpy(), before) and np.array_equal(gone.W.numpy(), kept)
    model[0].W.requires_grad = True
    steps(optimizer, model, form)
    assert not np.array_equal(model[0].W.numpy(), before)
