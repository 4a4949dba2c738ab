"""dp_train with several optimizers, each with parameters of its own: the same as stepping them by hand."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from helpers.dp_buffers import DATA, assert_same, decayed, make_model, train, two
from helpers.dp_classifier import places
from helpers.errors import expect_error

import ag
from ag.optim.flat import FlatGroup
from ag.parallel.trainer import host_optimizer


@pytest.mark.parametrize("max_norm", [np.inf, 0.05], ids=["free", "clipped"])
def test_they_step_as_by_hand(max_norm: float) -> None:
    """One sample in a step; the norm that is clipped is that of all gradients."""
    result = train(["cpu"], optimizer=lambda p: tuple(two(p)), max_norm=max_norm, batch=1, n_iter=9,
                   scheduler=lambda o: ag.lr_scheduler_step(o, 3, 0.5))
    ag.ag_seed(5)
    model = make_model()
    optimizers = two(model.parameters())
    schedules = [ag.lr_scheduler_step(o, 3, 0.5) for o in optimizers]
    norms = []
    for x, labels in DATA[:9]:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(x)), labels)
        grads = ag.backward(loss)
        norms.append(ag.clip_grad_norm(model, grads, max_norm))
        for part in (*optimizers, *schedules):
            part.step(grads) if part in optimizers else part.step()
    assert min(norms) > 0.05
    for name, p in model.parameters().items():
        np.testing.assert_allclose(result.params[name].numpy(), p.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)
    assert isinstance(result.optimizer_state, list)
    for found, optimizer in zip(result.optimizer_state, optimizers, strict=True):
        expected = optimizer.state_dict()
        assert found.keys() == expected.keys()
        np.testing.assert_allclose(found["state"], expected["state"], rtol=1e-6)
    assert [o.lr for o in optimizers] == pytest.approx([0.02 / 8, 0.05 / 8])


@pytest.mark.parametrize("make", [two, lambda p: ag.optimizer_adam(p, lr=0.02)], ids=["two", "one"])
def test_weights_that_are_lent_stay(make: Any) -> None:
    """Change the host's weights by a step, by setting them and through an optimizer's parameters."""
    group = FlatGroup(make_model().parameters())
    gradient = group.zeros()
    host = host_optimizer.HostOptimizers(group, gradient, make, np.inf, "cpu", tells=False)
    host.use(group.params)

    def step() -> None:
        group.backend.upload(np.ones(group.size), gradient)
        host.step()

    def set_a_parameter() -> None:
        for p in host.params.values():
            p.data = np.zeros(p.shape)
        host.followed()

    for change in (step, step, step, lambda: host.take(np.full(group.size, 7, np.float32)), set_a_parameter, step):
        before, lent = host.weights().copy(), host.lend()
        assert np.array_equal(lent(), before) and np.shares_memory(lent(), host.weights())
        change()
        assert np.array_equal(lent(), before) and not np.array_equal(host.weights(), before)


def test_one_in_a_list_or_in_another_order_is_one(device: str) -> None:
    whole = train([device], batch=4)
    for make in (lambda p: [ag.optimizer_adam(p, lr=0.02)], lambda p: ag.optimizer_adam(list(p.values()), lr=0.02),
                 lambda p: ag.optimizer_adam(dict(reversed(p.items())), lr=0.02)):
        found = train([device], batch=4, optimizer=make)
        assert np.array_equal(found.loss_history, whole.loss_history)
        assert all(np.array_equal(found.params[n].numpy(), p.numpy()) for n, p in whole.params.items())


# ---------------------------------------------------------------------------------------------- who has what


@pytest.mark.parametrize("bits", ["f32", "f16"])
def test_a_parameter_that_no_optimizer_has_is_frozen_and_named_once(bits: str, device: str,
                                                                    caplog: pytest.LogCaptureFixture) -> None:
    default = ag.ag_default_dtype()
    ag.ag_dtype(bits)
    try:
        ag.ag_seed(5)
        before = {name: p.numpy() for name, p in make_model().parameters().items()}
        result = train(places(device, 2), optimizer=decayed, batch=4, n_iter=3)
    finally:
        ag.ag_dtype(default)
    for name, p in result.params.items():
        assert np.array_equal(p.numpy(), before[name]) == (not name.endswith("W")), name
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == ("dp_train: no optimizer has layer1_b, layer2_gamma, layer2_beta, layer4_b, "
                                   "layer5_gamma, layer5_beta; they keep their values.")


def test_frozen_parameters_do_not_count_in_the_norm() -> None:
    """A huge gradient of a frozen parameter leaves the others' steps alone."""
    def final(factor: float) -> np.ndarray:
        def loss(model: Any, sample: Any) -> Any:
            y = model(sample[0])
            return ag.ag_softmax_cross_entropy_loss(y, sample[1]) + ag.ag_sum(model.parameters()["layer4_b"]) * factor

        result = train(["cpu"], loss_fn=None, forward_fn=loss, max_norm=0.1,
                       optimizer=lambda p: ag.optimizer_sgd({"W": p["layer1_W"]}, lr=0.1))
        return result.params["layer1_W"].numpy()

    assert np.array_equal(final(0.0), final(1e3))


def test_a_parameter_in_two_optimizers() -> None:
    with expect_error("dp_train with a parameter in two optimizers", ValueError, "layer1_W", "two optimizers"):
        train(["cpu"], optimizer=lambda p: [ag.optimizer_sgd(p), decayed(p)])


def test_an_optimizer_over_other_parameters() -> None:
    with expect_error("dp_train with an optimizer over other parameters", ValueError, "a parameter mine", "none of"):
        train(["cpu"], optimizer=lambda p: ag.optimizer_sgd({**p, "mine": ag.ag_param([[1.0]])}))
    for nothing in (None, [], [None], "adam"):
        with expect_error(f"dp_train with optimizer(params) returning {nothing!r}", ValueError, "params) returned",
                          repr(nothing)):
            train(["cpu"], optimizer=lambda p, nothing=nothing: nothing)


def test_a_rate_beside_the_optimizers(caplog: pytest.LogCaptureFixture) -> None:
    """One that none of them has does nothing, which the log says; one that they have is no contradiction."""
    results = []
    unused = "lr=0.5 is not used, as optimizer(params) has the rate 0.1"
    for given, said in (({"lr": 1e-3}, []), ({"lr": 0.1}, []), ({"lr": 0.5}, [unused])):
        caplog.clear()
        results.append(train(["cpu"], optimizer=lambda p: ag.optimizer_sgd(p, lr=0.1), **given))
        assert [record.levelname for record in caplog.records] == ["WARNING"] * len(said)
        assert all(text in record.getMessage() for text, record in zip(said, caplog.records, strict=True))
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


def test_a_step_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One optimizer or several: the host's step is replayed from the second on."""
    original, opened = host_optimizer.record, []
    monkeypatch.setattr(host_optimizer, "record", lambda *args: opened.append(args) or original(*args))
    for optimizer in (None, two):
        opened.clear()
        train(["cpu:1"], optimizer=optimizer, n_iter=6)
        assert len(opened) == 1
