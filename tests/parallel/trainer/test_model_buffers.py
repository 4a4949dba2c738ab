"""dp_train moves the models' buffers once in a step, on all replicas alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.dp_buffers import (
    BATCH,
    DATA,
    Scaled,
    assert_same,
    assert_same_buffers,
    buffers,
    make_model,
    train,
    with_average,
)
from helpers.dp_classifier import places
from helpers.errors import expect_error

import ag


@pytest.mark.sync
def test_captured_and_eager_leave_the_same_buffers(device: str) -> None:
    assert_same(train(places(device, 2), with_average, capture=True), train(places(device, 2), with_average,
                                                                             capture=False))


def test_a_step_moves_them_by_the_mean_over_its_samples(device: str) -> None:
    """As PyTorch moves them in one pass; the samples are those of the step, each normalised on its own."""
    result = train([device], lambda: ag.ag_sequential(ag.ag_batch_norm(4), ag.ag_linear(4, 3)), n_iter=2)
    mean, variance = np.zeros((4, 1)), np.ones((4, 1))
    for k in range(2):
        samples = [DATA[(k * BATCH + j) % len(DATA)][0] for j in range(BATCH)]
        mean = 0.9 * mean + 0.1 * np.mean([x.mean(1, keepdims=True) for x in samples], axis=0)
        variance = 0.9 * variance + 0.1 * np.mean([x.var(1, keepdims=True, ddof=1) for x in samples], axis=0)
    found = buffers(result.model)
    np.testing.assert_allclose(found["layer1_running_mean"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["layer1_running_var"], variance, rtol=1e-5)


def test_constants_stay_as_they_are(device: str) -> None:
    made: list[Any] = []

    def make() -> ag.Layer:
        model = with_average()
        made.append((model, buffers(model)))
        return model

    result = train(places(device, 3), make, batch=6, n_iter=3)
    after, (_, first) = buffers(result.model), made[0]
    for name in ("layer1_mask", "layer1_table", "layer1_numbers"):
        assert np.array_equal(after[name], first[name]), name
        assert np.array_equal(first[name], made[1][1][name]) == (name == "layer1_mask")
    for model, _ in made:
        assert_same_buffers(model, result.model)
    assert after["layer1_calls"] == 3


def test_a_step_that_is_left_out_leaves_them_alone(device: str) -> None:
    seen = []
    bad = [(np.full_like(x, np.nan), y) if i == 5 else (x, y) for i, (x, y) in enumerate(DATA[:8])]
    ag.dp_train(make_model, bad, ag.ag_softmax_cross_entropy_loss, lambda model, s: model(s[0]), lambda s: s[1],
                devices=places(device, 2), micro_batch=2, n_iter=2, on_nonfinite="skip", verbose=False, seed=5,
                callback=lambda step: seen.append([buffers(m) for m in step.models]))
    (first, other), again = seen
    for models in (again[0], again[1], other):
        assert all(np.array_equal(models[name], x) for name, x in first.items())
    assert np.any(first["layer2_running_mean"])


def test_a_statistic_that_is_not_finite_is_named(device: str) -> None:
    class Overflowing(ag.Layer):
        def __init__(self) -> None:
            self.W = ag.ag_param(np.ones((3, 4)))
            self.most = ag.ag_tensor(np.ones(1))

        def forward(self, x: Any) -> Any:
            with ag.no_grad():
                self.most = self.most * 1e30 * 1e30
            return self.W @ ag.ag_tensor(x)

    with expect_error("dp_train meets a running statistic that is not finite", FloatingPointError, "buffer most is not",
                      "replica 0", "step 0"):
        train(places(device, 2), Overflowing, capture=False)


def test_buffers_that_a_callback_sets_on_one_replica_only_are_refused() -> None:
    models: list[Any] = []

    def make() -> ag.Layer:
        models.append(make_model())
        return models[-1]

    def disturb(step: ag.DPStep) -> None:
        x = models[1].buffers()["layer2_running_var"]
        x.data = x.numpy() + 1

    with pytest.raises(ag.CommError, match=r"the buffers of replica 1 \(cpu:1\) have SHA-256"):
        train(["cpu", "cpu:1"], make, callback=disturb, n_iter=1)


def test_models_whose_buffers_differ() -> None:
    features = iter([True, False])
    with expect_error("dp_train with a make_model that builds different buffers", ag.CommError, "buffer ('mean'",
                      "replica 1 has none"):
        train(["cpu", "cpu:1"], lambda: Scaled(next(features)))
