"""Parts of `fit` together: freezing, 16 bits, weights, checkpoints and metrics."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.training import BestWeights, Callback, CSVLog, accuracy, evaluate, predict

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
SKLEARN = find_spec("sklearn") is not None


class After(Callback):
    """Does something to the model after the first epoch."""

    def __init__(self, change: Callable[[Any], object]) -> None:
        self.change = change

    def on_epoch_end(self, run: ag.training.Run) -> None:
        if run.history.epochs == 1:
            self.change(run.model)


class Stop(Callback):
    def on_step_end(self, run: ag.training.Run, step: int, loss: float) -> None:
        if step == 7:
            raise KeyboardInterrupt


def net() -> ag.nn.Sequential:
    ag.ag_seed(0)
    return ag.nn.Sequential(ag.nn.Linear(3, 4, activation="tanh"), ag.nn.Dropout(0.5), ag.nn.Linear(4, 2))


def fit(model: Any, data: Any = (X, Y), **options: Any) -> ag.training.History:
    return ag.fit(model, data, **{"epochs": 4, "batch_size": 16, "seed": 1, "lr": 0.05, "verbose": False, **options})


@pytest.mark.parametrize("change", [lambda m: m[0].freeze(), lambda m: ag.nn.eval(m[1])], ids=["freezes", "a mode"])
@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu:1"]], ids=len)
def test_what_a_callback_does_to_layers_is_in_checkpoints(change: Any, devices: list[str], tmp_path: Path) -> None:
    go = partial(fit, callbacks=[After(change)], devices=devices)
    whole = go(model := net())
    path = tmp_path / "c"
    go(net(), callbacks=[After(change), Stop()], checkpoint=path)
    assert go(resumed := net(), checkpoint=path, resume=True)["loss"] == whole["loss"]
    assert all(np.array_equal(a, b) for a, b in zip(
        model.state_dict().values(), resumed.state_dict().values(), strict=True))
    assert resumed[0].requires_grad == model[0].requires_grad


def test_frozen_layers_in_16_bits_are_float32_afterwards() -> None:
    for callbacks, frozen_before in (([After(lambda m: m[0].freeze())], False), ([], True)):
        model = net()
        if frozen_before:
            model[0].freeze()
        before = model[0].W.numpy()
        fit(model, precision="bf16", callbacks=callbacks)
        assert {x.dtype for x in (model[0].W, model[0].b, model[2].W)} == {"f32"}
        assert not frozen_before or np.array_equal(model[0].W.numpy(), before)
        evaluate(model, (X, Y))


def test_the_best_weights_of_16_bits_are_the_masters() -> None:
    plain, best = ag.nn.Linear(3, 2), ag.nn.Linear(3, 2)
    best.load_state_dict(plain.state_dict())
    fit(plain, precision="bf16", lr=0.01)
    fit(best, precision="bf16", lr=0.01, callbacks=[BestWeights()])
    np.testing.assert_array_equal(plain.W.numpy(), best.W.numpy())


def test_weights_of_validation_samples_are_of_the_loss_only(tmp_path: Path) -> None:
    model, some = net(), (Y == 1).astype(np.float64)
    for weights in (some, some + 1e-12):
        found = evaluate(model, (X, Y, weights), metrics=["accuracy"])
        assert found["accuracy"] == pytest.approx(evaluate(model, (X, Y), metrics=["accuracy"])["accuracy"])
        assert found["loss"] == pytest.approx(evaluate(model, (X[Y == 1], Y[Y == 1]))["loss"], rel=1e-6)
    fit(model, valid=(X, Y, some), epochs=2, callbacks=[CSVLog(tmp_path / "log.csv")])
    with open(tmp_path / "log.csv", newline="") as file:
        assert all(float(row["val_loss"]) > 0 for row in csv.DictReader(file))


def test_a_log_that_goes_on_has_each_epoch_once(tmp_path: Path) -> None:
    for epochs in (2, 4):
        fit(net(), epochs=epochs, checkpoint=tmp_path / "c", resume=True, callbacks=[
            CSVLog(tmp_path / "log.csv", append=True)])
    with open(tmp_path / "log.csv", newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]


def test_a_loss_with_weights_of_its_own_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def weighted(output: ag.Tensor, target: Any) -> ag.Tensor:
        return ag.ops.softmax_cross_entropy_loss(output, target, weight=[1.0, 9.0])

    fit(net(), loss=weighted, epochs=1)
    assert "class_weight" not in caplog.text  # a whole batch at once
    fit(net(), loss=weighted, epochs=1, leaf=1)
    assert "Give weights of classes as class_weight" in caplog.text and "depend on leaf" in caplog.text


def test_one_logit_has_the_class_of_its_sign() -> None:
    X, model = np.array([[0.3], [0.4]], np.float32), ag.nn.Linear(1, 1)
    model.load_state_dict({"W": [[1.0]], "b": [[0.0]]})
    metrics = ["accuracy", "recall"] if SKLEARN else ["accuracy"]
    found = evaluate(model, (X, np.array([1, 1])), "bce_with_logits", metrics)
    assert set(found.values()) - {found["loss"]} == {1.0}




def test_targets_that_a_loss_or_a_metric_cannot_mean() -> None:
    with expect_error("1 and 2", ValueError, "fit: targets go from 1 to 2; probabilities, or 0 and 1"):
        fit(ag.nn.Linear(3, 1), (X, Y + 1), loss="bce_with_logits")
    with expect_error("-1", ValueError, "ag_bce_with_logits_loss: targets go from -1 to 0"):
        ag.ops.bce_with_logits_loss(np.zeros((1, 2)), np.array([[-1, 0]]))
    with expect_error("several classes", ValueError, "accuracy: the target has samples of several classes"):
        accuracy([[0.1], [0.9]], [[1], [1]])
    with expect_error("NaN", ValueError, "predict: 1 of 1 samples have NaN"):
        predict(net(), np.full((1, 3), np.nan, np.float32), labels=True)


def test_nan_in_samples_that_are_dicts_is_named() -> None:
    samples = [{"a": x.copy(), "label": int(y)} for x, y in zip(X, Y, strict=True)]
    samples[17]["a"][1] = np.nan

    class Model(ag.Layer):
        def __init__(self) -> None:
            self.inner = ag.ag_linear(3, 2)

        def forward(self, x: Any) -> ag.Tensor:
            return self.inner(x["a"])

    with expect_error("NaN", FloatingPointError, "X['a'] has NaN", "sample 17"):
        fit(Model(), ag.ag_dataloader(samples, target="label"))


def test_estimators_drop_what_counts_nothing_before_they_split() -> None:
    pytest.importorskip("sklearn")
    from ag.training import AgClassifier

    weights = np.repeat([1.0, 0.0], 20)
    make = partial(AgClassifier, hidden=(), epochs=3, patience=2, random_state=0)
    whole, part = make().fit(X, Y, sample_weight=weights), make().fit(X[:20], Y[:20])
    np.testing.assert_allclose(whole.predict_proba(X), part.predict_proba(X), rtol=1e-5)
