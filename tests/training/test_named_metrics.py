"""Metrics by name: scikit-learn's, against its own scorers; the confusion matrix; labels of predictions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.engine.registry import say_once
from ag.training import EpochMetric, accuracy, confusion_matrix, evaluate, predict
from ag.training.metrics import more_is_better, named_metrics

sklearn_metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
RNG = np.random.default_rng(7)


class Given(ag.Layer):
    """A model whose outputs are its inputs."""

    def forward(self, x: Any) -> Any:
        return ag.ag_tensor(x)


def softmax(logits: Any) -> Any:
    powers = np.exp(logits.astype(float))
    return powers / powers.sum(1, keepdims=True)


class Estimator:
    """An estimator of scikit-learn with the outputs of a model, (samples, classes)."""

    def __init__(self, outputs: Any) -> None:
        self.outputs, self.classes_ = outputs, np.arange(max(2, outputs.shape[1]))
        self._estimator_type = "classifier"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(estimator_type="classifier", target_tags=TargetTags(required=True), transformer_tags=None,
                    regressor_tags=None, classifier_tags=ClassifierTags(), input_tags=InputTags())

    def fit(self, X: Any, y: Any) -> Any:
        return self

    def predict(self, X: Any) -> Any:
        return self.outputs.argmax(1)

    def predict_proba(self, X: Any) -> Any:
        return softmax(self.outputs)


def outputs_and_ids(classes: int) -> tuple[Any, Any]:
    ids = RNG.integers(0, classes, 61)
    return (np.eye(classes)[ids] + RNG.normal(size=(61, classes))).astype(np.float32), ids


BINARY, TERNARY = outputs_and_ids(2), outputs_and_ids(3)
REGRESSION = {"r2", "explained_variance", "d2_absolute_error_score", "neg_max_error", "neg_mean_absolute_error",
              "neg_mean_absolute_percentage_error", "neg_mean_gamma_deviance", "neg_mean_poisson_deviance",
              "neg_mean_squared_error", "neg_mean_squared_log_error", "neg_median_absolute_error",
              "neg_root_mean_squared_error", "neg_root_mean_squared_log_error"}
SCORERS = [name for name in sklearn_metrics.get_scorer_names() if not name.endswith("_samples")]  # of several labels
OF_TWO = {"positive_likelihood_ratio", "neg_negative_likelihood_ratio"}
MACRO = {"f1": "f1_macro", "precision": "precision_macro", "recall": "recall_macro", "jaccard": "jaccard_macro",
         "roc_auc": "roc_auc_ovr"}


def measured(outputs: Any, targets: Any, name: Any, batch_size: int = 17) -> float:
    _, found = evaluate(Given(), (outputs, targets), lambda out, target: ag.ag_mean(out), [name],
                        batch_size=batch_size).values()
    return found


@pytest.mark.filterwarnings("ignore")  # of likelihoods that are infinite, and a trivial top 2 of two
@pytest.mark.parametrize("name", sorted(set(SCORERS) - REGRESSION))
def test_every_scorer_of_classes(name: str) -> None:
    for outputs, ids in (BINARY, TERNARY):
        several = outputs.shape[1] > 2
        if several and name in OF_TWO:
            continue
        wanted = sklearn_metrics.get_scorer(MACRO.get(name, name) if several else name)(
            Estimator(outputs), np.zeros((61, 1)), ids)
        assert measured(outputs, ids, name) == pytest.approx(wanted, rel=1e-6, abs=1e-9), name


@pytest.mark.parametrize("name", sorted(REGRESSION))
def test_every_scorer_of_numbers(name: str) -> None:
    wanted = abs(RNG.normal(size=61)).astype(np.float32) + 0.1
    for columns in (1, 3):
        if columns > 1 and name in ("neg_max_error", "neg_mean_gamma_deviance", "neg_mean_poisson_deviance"):
            continue  # of one column
        y = np.repeat(wanted[:, None], columns, 1)
        out = (y + 0.1 * abs(RNG.normal(size=y.shape))).astype(np.float32)
        found = measured(out, y if columns > 1 else wanted, name)
        score = sklearn_metrics.get_scorer(name)
        assert found == pytest.approx(score._sign * score._score_func(y, out.astype(float)), rel=1e-6)


@pytest.mark.parametrize("name", ["f1_score", "log_loss", "cohen_kappa_score", "brier_score_loss", "hinge_loss",
                                  "balanced_accuracy_score", "matthews_corrcoef", "roc_auc_score", "hamming_loss",
                                  "average_precision_score", "zero_one_loss", "d2_log_loss_score", "rand_score"])
def test_functions_by_name_and_as_objects_do_not_depend_on_the_batch(name: str) -> None:
    outputs, ids = BINARY
    shares = softmax(outputs)[:, 1]
    given = {"hinge_loss": outputs[:, 1].astype(float) - outputs[:, 0], "log_loss": shares, "brier_score_loss": shares,
             "roc_auc_score": shares, "average_precision_score": shares, "d2_log_loss_score": shares}
    function = getattr(sklearn_metrics, name)
    wanted = pytest.approx(function(ids, given.get(name, outputs.argmax(1))), rel=1e-6)
    one_logit = (outputs[:, 1:] - outputs[:, :1]) * 20  # the same classes, and no probabilities
    for size in (1, 20, 61):
        assert measured(outputs, ids, name, size) == measured(outputs, ids, function, size) == wanted
        if name in ("f1_score", "cohen_kappa_score", "roc_auc_score"):
            assert measured(one_logit, ids, name, size) == wanted
            assert measured(one_logit, ids[:, None].astype(np.float32), name, size) == wanted
            assert measured(softmax(outputs).astype(np.float32), ids, name, size) == wanted


def test_a_set_without_one_of_the_classes() -> None:
    outputs, ids = TERNARY
    few = np.flatnonzero(ids < 2)
    wanted = sklearn_metrics.log_loss(ids[few], softmax(outputs)[few], labels=[0, 1, 2])
    assert measured(outputs[few], ids[few], "log_loss") == pytest.approx(wanted, rel=1e-6)


def test_sequences_and_distributions() -> None:
    logits = RNG.normal(size=(12, 3, 5)).astype(np.float32)  # samples, classes, time
    ids = RNG.integers(0, 3, (12, 5))
    wanted = sklearn_metrics.f1_score(ids.ravel(), logits.argmax(1).ravel(), average="macro")
    assert measured(logits, ids, "f1") == measured(logits, ids, "f1_macro") == pytest.approx(wanted)
    outputs, ids = TERNARY
    assert measured(outputs, np.eye(3, dtype=np.float32)[ids], "f1") == measured(outputs, ids, "f1")


def test_options_and_names() -> None:
    outputs, ids = TERNARY
    beta = partial(sklearn_metrics.fbeta_score, beta=2, average="micro")
    scorer = sklearn_metrics.make_scorer(beta)
    found = evaluate(Given(), (outputs, ids), metrics={"a": beta, "b": scorer, "c": "top_2_accuracy", "d": "acc"})
    assert found["a"] == found["b"] == beta(ids, outputs.argmax(1))
    assert found["d"] == accuracy(outputs.T, ids) < found["c"] < 1
    assert [*evaluate(Given(), (outputs, ids), metrics=["acc", "f1", "top_5_accuracy"])][1:] == [
        "acc", "f1", "top_5_accuracy"]


def test_fit_and_what_is_better() -> None:
    outputs, ids = TERNARY
    model = ag.ag_linear(3, 3)
    best = ag.training.BestWeights(monitor="val_f1")
    history = ag.fit(model, (outputs, ids), (outputs, ids), 5, metrics=["f1", "log_loss"], lr=0.1, verbose=False,
                     callbacks=best)
    assert best.epoch == 1 + int(np.argmax(history["val_f1"]))
    assert evaluate(model, (outputs, ids), metrics="f1")["f1"] == max(history["val_f1"])
    for name in sklearn_metrics.get_scorer_names():
        assert more_is_better(name) is more_is_better(f"val_{name}") is True, name
    for name in ("log_loss", "brier_score_loss", "mean_squared_error", "max_error", "mae", "rmse", "val_loss",
                 "mean_poisson_deviance"):
        assert more_is_better(name) is False, name
    assert more_is_better("odd") is more_is_better("lr") is None


@pytest.mark.parametrize(("name", "error", "said"), [
    ("f2", ValueError, "fit: there is no metric 'f2'; use accuracy"),
    ("confusion_matrix", ValueError, "there is no metric 'confusion_matrix'"),
    ("roc_curve", ValueError, "there is no metric 'roc_curve'"),
    ("silhouette_score", ValueError, "there is no metric 'silhouette_score'"),
    ("make_scorer", ValueError, "there is no metric"), ("top_0_accuracy", ValueError, "there is no metric"),
    ("fbeta_score", ValueError, "needs beta; give it in a dict"),
    (3, TypeError, "the metric 3 is a int"), (["f1", "f1"], ValueError, "a second 'f1'"),
])
def test_names_that_are_none(name: Any, error: type[Exception], said: str) -> None:
    with expect_error(str(name), error, said):
        named_metrics("fit", name if isinstance(name, list) else [name])


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with expect_error("no scikit-learn", ImportError, "there is no metric 'f1' without scikit-learn; run `pip install"):
        named_metrics("fit", ["f1"])
    assert [*named_metrics("fit", ["acc", "top_3_accuracy", "mae", "mse"])] == ["acc", "top_3_accuracy", "mae", "mse"]


def test_metrics_in_numpys_style() -> None:
    outputs, ids = TERNARY
    styles: dict[str, Callable[[Any, Any], Any]] = {
        "numpy": lambda out, target: (out.argmax(0) == target).mean(),
        "of an array": lambda out, target: (out.numpy().argmax(0) == target).mean(),
        "functions": lambda out, target: np.mean(np.argmax(out, 0) == target),
        "tensors": lambda out, target: ag.ag_mean(ag.ag_tensor((out.argmax(0) == target).astype(np.float32)))}
    found = evaluate(Given(), (outputs, ids), metrics={name.replace(" ", "_"): f for name, f in styles.items()},
                     batch_size=7)
    assert [*found.values()][1:] == pytest.approx([accuracy(outputs.T, ids)] * 4)


def test_a_metric_of_all_samples() -> None:
    seen: list[tuple[Any, ...]] = []

    def median(out: Any, target: Any) -> Any:
        seen.append((out.shape, target.shape))
        return np.median(out - target)

    outputs, _ = BINARY
    found = evaluate(Given(), (outputs, outputs * 2), metrics=[EpochMetric(median)], batch_size=8)
    r2 = sklearn_metrics.r2_score(outputs * 2, outputs)  # the targets first
    assert evaluate(Given(), (outputs, outputs * 2), metrics=[EpochMetric(sklearn_metrics.r2_score)])[
        "r2_score"] == pytest.approx(r2, rel=1e-6)
    assert seen == [((2, 61), (2, 61))] and found["median"] == pytest.approx(np.median(-outputs))


def test_an_output_that_is_a_logit() -> None:
    logits = np.array([[-3.0], [2.0], [0.5], [-0.1], [4.0]], np.float32)
    ids = np.array([0, 1, 0, 1, 1])
    for size in (1, 2, 5):  # the batch of 0.5 alone is no probability
        assert measured(logits, ids, "accuracy", size) == measured(logits, ids, "accuracy_score", size) == 0.6
    assert accuracy([[-0.1, 0.7, 0.4]], [0, 1, 0]) == accuracy([[-0.1, 0.7, 0.4]], [[0, 1, 0]]) == pytest.approx(2 / 3)
    with expect_error("a class", IndexError, "the label 2 is outside 0..1"):
        accuracy([[0.1, 3.0]], [2, 0])
    for name in ("accuracy", "f1"):
        with expect_error("numbers", ValueError, f"the metric {name} is of classes, and the loss is mse_loss"):
            evaluate(Given(), (logits, ids[:, None].astype(np.float32)), metrics=[name])
    assert evaluate(Given(), (logits, logits), metrics=["r2"])["r2"] == 1.0


def test_a_logit_has_its_class_whatever_the_others_are(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    logits = np.linspace(0.1, 0.9, 9, dtype=np.float32)[:, None]
    for part in (logits, np.concatenate([logits, [[-2.0]]])):
        assert predict(Given(), part, labels=np.True_)[:9].tolist() == [1] * 9
        assert confusion_matrix(part.T, np.ones(len(part), int))[1, 1] == 9
    assert accuracy(logits.T, [1] * 9) == 1.0 and not caplog.records
    share = 1 / (1 + np.exp(-1.0))  # of a logit of 1.0, for each
    assert measured(np.ones((4, 1), np.float32), np.ones(4, int), "log_loss") == pytest.approx(-np.log(share))
    predict(Given(), logits.repeat(2, 0), labels=True)
    assert "one output per sample is a logit" in caplog.text


def test_what_has_no_classes() -> None:
    outputs, ids = TERNARY
    assert np.isnan(measured(np.full_like(outputs, np.nan), ids, "f1"))
    with expect_error("several labels", ValueError, "targets are neither class ids nor distributions"):
        measured(outputs, np.ones((61, 3), np.float32), "f1")
    with expect_error("an id out of range", IndexError, "f1_score: the label 3 is outside 0..2"):
        measured(outputs, ids + 1, "f1")
    with expect_error("several columns", ValueError, "max_error of scikit-learn: "):
        measured(outputs, outputs, "max_error")
    with expect_error("shapes", ag.ShapeError, "(2, 61)", "(3, 61)"):
        measured(outputs, np.ones((61, 2), np.float32), "r2")


def test_confusion_matrix() -> None:
    outputs, ids = TERNARY
    wanted = sklearn_metrics.confusion_matrix(ids, outputs.argmax(1))
    for batch_size in (1, 13, 100):
        found = confusion_matrix(Given(), (outputs, ids), batch_size=batch_size)
        assert np.array_equal(found, wanted) and found.dtype.kind == "i"
    assert np.array_equal(confusion_matrix(ag.ag_tensor(outputs.T), ids), wanted)
    assert np.array_equal(confusion_matrix(outputs.T, np.eye(3)[ids].T), wanted)
    assert confusion_matrix([[-1.0, 3.0]], [0, 0]).tolist() == [[1, 1], [0, 0]]
    with expect_error("NaN", ValueError, "confusion_matrix: 1 of 2 samples have NaN"):
        confusion_matrix([[np.nan, 3.0], [0, 1]], [0, 0])
    with expect_error("names", ValueError, "there are 3 classes"):
        confusion_matrix(outputs.T, ids, labels=["a", "b"])


def test_the_picture_of_a_confusion_matrix() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    from matplotlib import pyplot

    outputs, ids = TERNARY
    matrix = confusion_matrix(outputs.T, ids, labels=["cat", "dog", "bird"], plot=True)
    place = pyplot.gcf().axes[0]
    assert [text.get_text() for text in place.texts] == [f"{n:.3g}" for n in matrix.ravel() if n]
    assert [label.get_text() for label in place.get_yticklabels()] == ["cat", "dog", "bird"]
    assert place.get_xlabel() == "predicted"
    pyplot.close("all")


def test_labels_of_predictions() -> None:
    outputs, _ = TERNARY
    assert np.array_equal(predict(Given(), outputs, labels=True), outputs.argmax(1))
    names = predict(Given(), outputs, labels=["cat", "dog", "bird"], batch_size=7)
    assert names.tolist() == np.array(["cat", "dog", "bird"])[outputs.argmax(1)].tolist()
    assert predict(Given(), np.array([[-1.0], [2.0]]), labels=["no", "yes"]).tolist() == ["no", "yes"]
    pictures = RNG.normal(size=(4, 3, 5)).astype(np.float32)
    assert np.array_equal(predict(Given(), pictures, labels=True), pictures.argmax(1))
    for wrong in (["a", "b"], "abc"):
        with expect_error("names", ValueError, "there are 3 classes"):
            predict(Given(), outputs, labels=wrong)


def test_estimators() -> None:
    from sklearn.base import clone

    outputs, ids = BINARY
    estimator = clone(ag.training.AgClassifier(hidden=(), epochs=3, patience=2, metrics=["f1", "roc_auc"]))
    history = estimator.fit(outputs, np.array(["no", "yes"])[ids]).history_
    assert [*history] == ["loss", "val_loss", "val_f1", "val_roc_auc", "lr"]
    regressor = ag.training.AgRegressor(hidden=(), epochs=2, metrics="r2").fit(outputs, outputs.sum(1))
    assert [*regressor.history_] == ["loss", "r2", "lr"]
