"""The estimators in scikit-learn's own checks, in pipelines and in grid search."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

RNG = np.random.default_rng(4)
X = RNG.standard_normal((90, 4))
LABELS = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")


def estimator(name: str, **options: Any) -> Any:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    return getattr(ag, name)(**options)


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "ag.training.estimators", raising=False)
    monkeypatch.delattr(ag.training, "estimators", raising=False)
    for name in ("AgClassifier", "AgRegressor"):
        monkeypatch.delitem(vars(ag), name, raising=False)  # found by an earlier test
        with expect_error("no scikit-learn", ImportError, name, "pip install 'ag-autograd[sklearn]'"):
            getattr(ag, name)


def test_classes_and_probabilities() -> None:
    model = estimator("AgClassifier", epochs=20, random_state=0)
    before = np.asarray(ag.ag_linear(2, 2).W)
    ag.ag_seed(0)
    first = model.fit(X, LABELS).predict_proba(X)
    assert np.array_equal(np.asarray(ag.ag_linear(2, 2).W), before)  # the generator is left as it was
    assert model.score(X, LABELS) > 0.9 and set(model.predict(X)) == {"no", "yes"}
    np.testing.assert_allclose(first.sum(1), 1)
    assert np.array_equal(model.classes_[first.argmax(1)], model.predict(X))
    assert np.array_equal(model.fit(X, LABELS).predict_proba(X), first)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), first)


def test_regression_of_one_target_and_of_several() -> None:
    model = estimator("AgRegressor", epochs=60, lr=0.1, random_state=0, hidden=())
    one, two = X[:, 0] - X[:, 1], np.stack([X[:, 0], X[:, 2]], 1)
    assert model.fit(X, one).predict(X).shape == (90,) and model.score(X, one) > 0.9
    assert model.fit(X, two).predict(X).shape == (90, 2) and model.score(X, two) > 0.9


def test_a_model_with_other_outputs_than_classes() -> None:
    for n in (2, 5):
        model = estimator("AgClassifier", make_model=lambda features, _, n=n: ag.ag_linear(features, n), epochs=1)
        with expect_error("outputs without labels", ValueError, "AgClassifier: ", f"outputs of shape ({n},)",
                          "3 classes"):
            model.fit(X[:12], np.arange(12) % 3)


def test_stopping_early_and_a_model_of_ones_own() -> None:
    made: list[tuple[int, int]] = []

    def make(features: int, classes: int) -> Any:
        made.append((features, classes))
        return ag.ag_linear(features, classes)

    model = estimator("AgClassifier", epochs=200, patience=2, make_model=make, random_state=1, lr=0.1,
                      devices=["cpu", "cpu:1"], hidden=[64]).fit(X, LABELS)  # which is the default
    assert made == [(4, 2)] and model.history_.epochs < 200 and model.history_.stopped
    with expect_error("hidden", ValueError, "AgClassifier: hidden is 5"):
        estimator("AgClassifier", hidden=5).fit(X, LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AgClassifier", "AgRegressor"])
def test_scikit_learns_checks(name: str) -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="scikit-learn is not installed")
    rounds = {"check_sample_weight_equivalence_on_dense_data": "sums in float32 differ in the seventh digit"}
    checks.check_estimator(estimator(name, random_state=0), on_skip=None, expected_failed_checks=rounds)


@pytest.mark.parametrize("name", ["AgClassifier", "AgRegressor"])
def test_weights_are_repetitions(name: str) -> None:
    """scikit-learn's check of it, to five digits."""
    rng = np.random.default_rng(42)
    x, y, weights = rng.random((15, 30)), rng.integers(0, 3, 15), rng.integers(0, 5, 15)
    order = rng.permutation(15)
    model = estimator(name, random_state=0, batch_size=100)
    repeated = model.fit(x.repeat(weights, 0), y.repeat(weights)).predict(x)
    np.testing.assert_allclose(model.fit(x[order], y[order], weights[order]).predict(x), repeated, rtol=1e-5, atol=1e-5)


def test_a_rare_class() -> None:
    rare = X[:, 0] + X[:, 1] > 2.2
    found = {}
    for given in (None, "balanced", {False: 1, True: 30.0}):
        model = estimator("AgClassifier", hidden=(), epochs=30, random_state=0, class_weight=given, weight_decay=0.5)
        found[str(given)] = model.fit(X + RNG.standard_normal(X.shape) / 2, rare).predict(X).sum()
    assert found["None"] <= rare.sum() < found["balanced"] and rare.sum() < found[str(given)]
    with expect_error("a class that is none", ValueError, "AgClassifier: class_weight has the class 'true'"):
        estimator("AgClassifier", class_weight={"true": 2}).fit(X, rare)


def test_weights_are_kept_back_with_their_samples() -> None:
    weights = (LABELS == "yes") + 0.5
    model = estimator("AgClassifier", epochs=5, patience=3, random_state=0, class_weight="balanced")
    assert "val_loss" in model.fit(X, LABELS, weights).history_


def test_targets_are_standardised() -> None:
    y = X[:, 0] * 3e5 + 2e6
    model = estimator("AgRegressor", epochs=30, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    assert (model.target_mean_, model.target_scale_) == (pytest.approx(y.mean()), pytest.approx(y.std()))
    constant = estimator("AgRegressor", epochs=1, random_state=0).fit(X, np.full(90, 7.0))
    assert constant.target_scale_ == 1 and abs(constant.predict(X) - 7).max() < 2
    robust = estimator("AgRegressor", epochs=30, random_state=0, loss="l1").fit(X, y)
    assert robust.score(X, y) > 0.8
    with expect_error("a loss for classes", ValueError, "AgRegressor: loss is 'bce_with_logits'"):
        estimator("AgRegressor", loss="bce_with_logits").fit(X, y)


def test_regularisation_schedules_and_callbacks() -> None:
    rates: list[float] = []

    class Counts(ag.training.Callback):
        def on_epoch_end(self, run: Any) -> None:
            rates.append(run.optimizers[0].lr)

    options: dict[str, Any] = {"epochs": 4, "random_state": 0, "scheduler": "cosine"}
    model = estimator("AgClassifier", callbacks=[Counts()], dropout=0.5, **options).fit(X, LABELS)
    assert rates == sorted(rates, reverse=True) and len(model.loss_curve_) == 4
    assert [type(layer).__name__ for layer in model.model_.layers] == ["Linear", "Dropout", "Linear"]
    decayed = estimator("AgClassifier", weight_decay=50.0, **options).fit(X, LABELS)
    plain = estimator("AgClassifier", **options).fit(X, LABELS)
    norms = [abs(m.model_.layers[0].W.numpy()).sum() for m in (decayed, plain)]
    assert norms[0] < norms[1] / 2
    for name in ("adamw", "sgd"):
        estimator("AgClassifier", optimizer=name, weight_decay=0.1, epochs=1).fit(X, LABELS)
    with expect_error("two places for the decay", ValueError, "AgClassifier: weight_decay is 0.1"):
        estimator("AgClassifier", optimizer=ag.optim.SGD, weight_decay=0.1, epochs=1).fit(X, LABELS)


def test_the_signature_names_no_private_type() -> None:
    from inspect import signature

    for name in ("AgClassifier", "AgRegressor"):
        assert " _" not in str(signature(getattr(ag.training, name))).replace("'", " ")


def no_layers(features: int, outputs: int) -> Any:
    return ag.ag_linear(features, outputs)


@pytest.mark.parametrize(("given", "error", "said"), [
    ({"callbacks": ag.training.EarlyStopping}, TypeError, "callbacks is <class"),
    ({"callbacks": [ag.training.EarlyStopping], "patience": 2}, TypeError, "such as [EarlyStopping()]"),
    ({"optimizer": ag.optim.SGD, "lr": 0.5}, ValueError, "lr is 0.5, and optimizer is a function"),
    ({"dropout": 1.0}, ValueError, "dropout is 1.0; it must be a number in [0, 1)"),
    ({"dropout": 0.5, "make_model": no_layers}, ValueError, "dropout is 0.5, and make_model is given"),
    ({"activation": "tanh", "make_model": no_layers}, ValueError, "activation is 'tanh', and make_model is given"),
    ({"loss": "mse"}, ValueError, "loss is 'mse', which is not for one logit per class; use 'cross_entropy'"),
    ({"loss": ag.ops.bce_with_logits_loss}, ValueError, "not for one logit per class"),
    ({"loss": "bce"}, ValueError, "there is no loss 'bce'"),
    ({"hidden": np.array([4, 4]), "make_model": no_layers}, ValueError, "hidden is array([4, 4]), and make_model is"),
    ({"epochs": 0}, ValueError, "epochs is 0; a whole number of at least 1 is required"),
    ({"make_model": 3}, TypeError, "make_model is a int; a function that makes a model is required"),
    ({"make_model": no_layers(2, 2)}, TypeError, "make_model is a Linear; a function"),
    ({"devices": "cpu"}, TypeError, "devices is 'cpu'; a list of names is needed"),
])
def test_wrong_settings(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with expect_error(said, error, "AgClassifier: ", said):
        estimator("AgClassifier", **given).fit(X, LABELS)


@pytest.mark.parametrize("name", ["AgClassifier", "AgRegressor"])
def test_a_model_that_is_not_trained(name: str) -> None:
    model = estimator(name)
    from sklearn.exceptions import NotFittedError

    with expect_error("predict before fit", NotFittedError, name):
        model.predict(X)


def test_no_callbacks() -> None:
    assert estimator("AgClassifier", callbacks=None, epochs=1).fit(X, LABELS).history_.epochs == 1


def test_what_other_estimators_call_it() -> None:
    for wrong, right in (("alpha", "weight_decay"), ("max_iter", "epochs"), ("hidden_layer_sizes", "hidden")):
        with expect_error(wrong, TypeError, f"AgClassifier: there is no argument {wrong!r}; write {right}"):
            estimator("AgClassifier", **{wrong: 1})


@pytest.mark.slow
def test_pipelines_and_grid_search() -> None:
    model = estimator("AgClassifier", epochs=15, random_state=0)
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), model)
    assert cross_val_score(pipeline, X * 100 + 5, LABELS, cv=3).mean() > 0.85
    for jobs in (1, 2):
        search = GridSearchCV(pipeline, {"agclassifier__hidden": [(), (8,)], "agclassifier__lr": [1e-5, 1e-2]}, cv=3,
                              n_jobs=jobs).fit(X, LABELS)
        assert search.best_params_["agclassifier__lr"] == 1e-2 and search.score(X, LABELS) > 0.8
    weighted = GridSearchCV(pipeline, {"agclassifier__class_weight": [None, "balanced", {"yes": 5}]}, cv=3,
                            scoring="balanced_accuracy").fit(X, LABELS)
    assert weighted.best_score_ > 0.8


def test_estimators_compute_under_any_setting_of_numpy() -> None:
    tiny = np.where(X == 0, 1e-60, X)  # underflows in float32
    tiny[0] = 1e-60
    model = estimator("AgClassifier", epochs=1, random_state=0).fit(tiny, LABELS)
    with np.errstate(all="raise"):
        assert model.predict_proba(tiny * 1000).sum(1) == pytest.approx(np.ones(len(tiny)))
        estimator("AgClassifier", epochs=1, random_state=0).fit(tiny, LABELS)
        regressor = estimator("AgRegressor", epochs=1, random_state=0).fit(tiny, tiny[:, 0])
        assert np.isfinite(regressor.predict(tiny)).all()
