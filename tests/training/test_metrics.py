"""Metrics, their means over batches of unequal sizes, the history, and the learning rate finder."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.training import accuracy, evaluate, find_lr, mean_absolute_error, mean_squared_error, predict, top_k_accuracy
from ag.training.metrics import METRICS, Mean

RNG = np.random.default_rng(2)
LOGITS = RNG.standard_normal((5, 33)).astype(np.float32)
IDS = RNG.integers(0, 5, 33)


def test_accuracy_and_top_k() -> None:
    assert accuracy(LOGITS, IDS) == accuracy(ag.ag_tensor(LOGITS), np.eye(5)[IDS].T) == np.mean(LOGITS.argmax(0) == IDS)
    ranks = (-LOGITS).argsort(0).argsort(0)[IDS, np.arange(33)]
    for k in (1, 2, 5, 9):
        assert top_k_accuracy(k)(ag.ag_tensor(LOGITS), IDS) == np.mean(ranks < k)
    assert accuracy(np.zeros((2, 3, 4)), np.zeros((3, 4))) == 1.0  # samples of several


def test_labels_that_are_no_classes() -> None:
    for metric in (ag.training.accuracy, ag.training.top_k_accuracy(2)):
        for label, shown in ((3, "3"), (-1, "-1"), (0.5, "0.5"), (np.nan, "nan")):
            with expect_error("an id out of range", IndexError, f"accuracy: the label {shown} is outside 0..2"):
                metric(np.eye(3), [0, 1, label])
        with expect_error("names of classes", ag.DtypeError, "accuracy: the target is of type <U1"):
            metric(np.eye(3), ["a", "b", "c"])


def test_outputs_that_are_no_numbers_are_not_right() -> None:
    outputs = np.eye(3)
    outputs[2, 0] = np.nan  # of a sample whose class 0 has the largest number
    for metric in (ag.training.accuracy, ag.training.top_k_accuracy(3)):
        assert metric(outputs, [0, 1, 2]) == pytest.approx(2 / 3)
        assert metric(np.full((3, 2), np.nan), [0, 0]) == 0


def test_errors_of_numbers() -> None:
    target = np.zeros_like(LOGITS)
    assert mean_absolute_error(ag.ag_tensor(LOGITS), target) == pytest.approx(np.abs(LOGITS).mean())
    assert mean_squared_error(LOGITS, target) == pytest.approx((LOGITS**2).mean())
    for metric in (mean_absolute_error, mean_squared_error):
        with expect_error("shapes", ag.ShapeError, "(5, 33)", "(33,)"):
            metric(LOGITS, IDS)


def test_there_must_be_classes() -> None:
    with expect_error("one class", ag.ShapeError, "top_2_accuracy: output is (1, 4)", "two classes"):
        top_k_accuracy(2)(np.zeros((1, 4)), np.zeros(4, int))
    with expect_error("a number", ag.ShapeError, "accuracy: output is ()", "one output"):
        accuracy(np.zeros(4).sum(), np.zeros(4, int))


def test_targets_must_fit() -> None:
    with expect_error("targets", ag.ShapeError, "target is (7,)", "(33,)"):
        accuracy(LOGITS, np.zeros(7, int))
    with expect_error("k", ValueError, "top_k_accuracy: k is 0"):
        top_k_accuracy(0)


@pytest.mark.parametrize("batch_size", [1, 7, 32, 33, 100])
def test_means_are_over_samples(batch_size: int) -> None:
    model = ag.ag_linear(5, 5)
    x = LOGITS.T
    found = evaluate(model, (x, IDS), metrics=[*METRICS][:1] + [top_k_accuracy(2)], batch_size=batch_size)
    outputs = predict(model, x, batch_size=batch_size)
    np.testing.assert_allclose(outputs, model(LOGITS).numpy().T, rtol=1e-5, atol=1e-6)
    assert found["accuracy"] == pytest.approx(accuracy(outputs.T, IDS), rel=1e-12)
    assert found["top_2_accuracy"] == pytest.approx(top_k_accuracy(2)(outputs.T, IDS), rel=1e-12)
    assert found["loss"] == pytest.approx(ag.ag_softmax_cross_entropy_loss(outputs.T, IDS).item(), rel=1e-5)


def test_what_a_metric_may_return() -> None:
    for value in (0.5, np.float32(0.5), np.array([[0.5]]), ag.ag_tensor(0.5), True, 1):
        assert evaluate(ag.ag_linear(5, 5), (LOGITS.T, IDS), metrics={"m": lambda out, target, v=value: v})["m"] == \
            float(np.asarray(value).item())
    for wrong in (None, [1.0, 2.0], np.zeros(2), ag.ag_tensor([1.0, 2.0])):
        with expect_error("no number", TypeError, "evaluate: the metric m returned"):
            evaluate(ag.ag_linear(5, 5), (LOGITS.T, IDS), metrics={"m": lambda out, target, v=wrong: v})


class Other(ag.Layer):
    """A linear layer with another output."""

    def __init__(self, of: Any) -> None:
        self.body, self.of = ag.ag_linear(2, 3), of

    def forward(self, x: Any) -> Any:
        return self.of(self.body(x))


@pytest.mark.parametrize(("of", "error", "said"), [
    (lambda out: out.T, ag.ShapeError, "the model made (5, 3) of 5 samples"),
    (ag.ag_sum, ag.ShapeError, "the model made () of 5 samples"),
    (lambda out: {"logits": out}, TypeError, "the model returned a dict"),
    (lambda out: out.numpy(), TypeError, "the model returned a ndarray"),
], ids=["samples first", "a number", "a dict", "numpy"])
def test_outputs_that_are_not_of_the_samples(of: Any, error: type[Exception], said: str) -> None:
    with expect_error("predict", error, "predict: ", said):
        ag.training.predict(Other(of), np.ones((12, 2), np.float32), batch_size=5)


def test_a_model_without_parameters() -> None:
    class Negative(ag.Layer):
        def forward(self, x: Any) -> Any:
            return -ag.ag_tensor(x)

    x = np.ones((5, 2), np.float32)
    assert np.array_equal(ag.training.predict(Negative(), x), -x)
    assert ag.training.evaluate(Negative(), (x, x))["loss"] == 4.0
    for train in (lambda: ag.fit(Negative(), (x, x), verbose=False), lambda: ag.training.find_lr(Negative(), (x, x))):
        with expect_error("a model without parameters", ValueError, "there are no parameters"):
            train()


def test_evaluating_leaves_modes_and_the_generator() -> None:
    model = ag.ag_sequential(ag.ag_linear(5, 5), ag.ag_dropout(0.5))
    model.layers[0].training = False
    ag.ag_seed(3)
    first = np.asarray(ag.ag_linear(2, 2).W)
    ag.ag_seed(3)
    assert np.array_equal(predict(model, LOGITS.T), predict(model, LOGITS.T))
    assert [x.training for x in (model, *model.layers)] == [True, False, True]
    assert np.array_equal(np.asarray(ag.ag_linear(2, 2).W), first)


def history() -> Any:
    return ag.fit(ag.ag_linear(5, 5), (LOGITS.T, IDS), (LOGITS.T, IDS), 3, metrics=["accuracy"], verbose=False)


def test_history() -> None:
    found = history()
    assert list(found) == ["loss", "val_loss", "val_accuracy", "lr"] and len(found["loss"]) == found.epochs == 3
    assert [row["val_loss"] for row in found.rows] == found["val_loss"] == dict(found)["val_loss"]
    assert repr(found).startswith("History(3 epochs; last: loss=") and len(found.seconds) == 3
    for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert type(twin) is type(found) and twin == found and twin.rows == found.rows and twin.seconds == found.seconds
    assert json.loads(json.dumps(found)) == dict(found) and "loss" in found and found.get("acc") is None
    with expect_error("no column", KeyError, "there is no 'acc'; it has loss, val_loss, val_accuracy, lr"):
        found["acc"]
    with expect_error("nothing", KeyError, "no epoch was finished"):
        ag.training.History()["loss"]


def test_a_table_of_the_history() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    found = history()
    table = pandas.DataFrame(found)
    assert [*table.columns] == [*found] and table.shape == (3, 4)
    assert table.to_dict("records") == found.rows and pandas.DataFrame(ag.training.History()).empty


@pytest.mark.slow
def test_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    places = history().plot()
    assert [place.get_title() for place in places] == ["loss", "accuracy"]
    assert [[line.get_label() for line in place.lines] for place in places] == [["training", "validation"], [
        "validation"]]
    assert len(history().plot("val_loss")) == 1
    assert curve().plot().get_xscale() == "log"
    pyplot.close("all")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (ag.training.History().plot, ag.training.LRCurve(np.ones(1), np.ones(1), 1.0).plot):
        with expect_error("no matplotlib", ImportError, "matplotlib is not installed"):
            draw()


def curve(**options: Any) -> Any:
    settings: dict[str, Any] = {"lowest": 1e-4, "highest": 100.0, "steps": 40, "seed": 1, "batch_size": 16}
    return find_lr(ag.ag_linear(5, 1), (LOGITS.T, LOGITS.sum(0)), **{**settings, **options})


def test_rates_grow_until_the_loss_explodes() -> None:
    found = curve()
    best = int(np.argmin(found.losses))
    assert 5 <= len(found.rates) == len(found.losses) < 40  # it ends where the loss explodes
    assert found.rates[0] == pytest.approx(1e-4) and found.suggestion == found.rates[best] / 10
    assert found.losses[best] < found.losses[0] < found.losses[-1] and 1e-3 < found.suggestion < 1


def test_losses_and_optimizers_of_the_finder_by_name() -> None:
    ag.ag_seed(0)
    wanted = curve(loss=ag.ops.mse_loss, optimizer=ag.optim.SGD)
    ag.ag_seed(0)
    assert np.array_equal(curve(loss="mse", optimizer="sgd").losses, wanted.losses)


def test_the_model_stays_as_it_is() -> None:
    model = ag.ag_sequential(ag.ag_linear(5, 4), ag.ag_batch_norm(4), ag.ag_linear(4, 5)).eval()
    before = model.state_dict()
    find_lr(model, (LOGITS.T, IDS), steps=10, batch_size=11)
    assert all(np.array_equal(x, before[name]) for name, x in model.state_dict().items()) and not model.training


def test_losses_that_are_not_finite() -> None:
    with expect_error("no loss", ValueError, "find_lr: 0 losses were finite"):
        find_lr(ag.ag_linear(5, 1), (np.full((8, 5), np.nan, np.float32), np.ones(8)), steps=10)


@pytest.mark.parametrize(("options", "said"), [
    ({"steps": 2}, "steps is 2"), ({"lowest": 0.0}, "lowest is 0.0"), ({"highest": 1e-5}, "highest 1e-05"),
    ({"lowest": "a"}, "lowest is 'a'"), ({"batch_size": 0}, "batch_size is 0")])
def test_wrong_arguments(options: dict[str, Any], said: str) -> None:
    with expect_error(said, ValueError, "find_lr: ", said):
        curve(**options)


@pytest.mark.parametrize("metric", [ag.training.accuracy, ag.training.mean_squared_error,
                                    ag.training.mean_absolute_error])
def test_what_is_no_array_of_numbers(metric: Any) -> None:
    good = np.ones((2, 2))
    for given, error in (([[1, 2], [3]], ag.ShapeError), (["a", "b"], ag.DtypeError), ([None, None], ag.DtypeError)):
        for operands in ((given, good), (good, given)):
            with expect_error(f"{given}", error, metric.__name__, "required"):
                metric(*operands)


def test_numbers_at_the_ends_of_the_range() -> None:
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ag.training.mean_squared_error([[1e-200, 1e200]], [[0.0, 0.0]]) == np.inf
        assert np.isnan(ag.training.mean_absolute_error([[np.inf]], [[np.inf]]))
        assert np.isnan(ag.training.accuracy(np.ones((2, 0)), np.zeros(0, int)))
        mean = Mean()
        for value in (1.5e308, 1.5e308, -1.5e308, -1.5e308, 1.5e308, 1.5e308):
            mean.add(value, 1)
        assert mean.value == pytest.approx(0.5e308)
        mean.add(np.inf, 1)
        assert mean.value == np.inf
        mean.add(-np.inf, 1)
        assert np.isnan(mean.value)
