"""Weights of samples and classes: they equal repetitions, whatever the leaves, replicas and kinds of data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

RNG = np.random.default_rng(7)
X = RNG.standard_normal((37, 4)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64) + (X[:, 2] > 1)
TWICE = RNG.integers(0, 4, 37)  # whole weights, with zeros
WEIGHTS = RNG.random(37) + 0.1
OF_CLASSES = {0: 1.0, 1: 2.0, 2: 5.0}


def net(outputs: int = 3) -> ag.Layer:
    ag.ag_seed(3)
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_linear(6, outputs))


def train(data: Any = (X, Y), outputs: int = 3, **options: Any) -> tuple[ag.Layer, Any]:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 16, "seed": 5, "verbose": False, "lr": 0.05, "capture": True}
    model = net(outputs)
    return model, ag.fit(model, data, **{**settings, **options})


def assert_close(a: ag.Layer, b: ag.Layer, rtol: float = 1e-5) -> None:
    theirs = b.state_dict()
    for name, x in a.state_dict().items():
        np.testing.assert_allclose(x, theirs[name], rtol=rtol, atol=rtol)


NUMBERS = (X, X[:, :1] * 2)
BINARY = (X, (X[:, 0] > 0).astype(np.float32))


@pytest.mark.parametrize(("data", "options"), [
    ((X, Y), {}), ((X, np.eye(3, dtype=int)[Y]), {}), (NUMBERS, {"outputs": 1}),
    (BINARY, {"outputs": 1, "loss": "bce_with_logits"})], ids=["ids", "one-hot", "numbers", "binary"])
def test_weights_are_repetitions(data: Any, options: dict[str, Any]) -> None:
    weighted, history = train(data, batch_size=200, sample_weight=TWICE, **options)
    repeated, wanted = train((data[0].repeat(TWICE, 0), data[1].repeat(TWICE, 0)), batch_size=200, **options)
    assert_close(weighted, repeated)
    np.testing.assert_allclose(history["loss"], wanted["loss"], rtol=1e-5)


def test_any_number_of_devices_computes_the_same_bits() -> None:
    one, history = train(sample_weight=WEIGHTS, leaf=4)
    for count in (2, 3):
        several, found = train(sample_weight=WEIGHTS, leaf=4, devices=[f"cpu:{i}" for i in range(count)])
        assert_close(one, several, 0)
        assert found.rows == history.rows


def test_leaves_do_not_matter() -> None:
    whole, history = train(sample_weight=WEIGHTS)
    for leaf in (3, 16):  # also leaves that are left over
        parts, found = train(sample_weight=WEIGHTS, leaf=leaf)
        assert_close(whole, parts, 1e-4)
        np.testing.assert_allclose(found["loss"], history["loss"], rtol=1e-4)
    model = net()
    order = [np.arange(0, 16), np.arange(16, 32), np.arange(32, 37)]
    losses = [ag.ag_softmax_cross_entropy_loss(model(X[i].T), Y[i], sample_weight=WEIGHTS[i]).item() for i in order]
    _, frozen = train(sample_weight=WEIGHTS, leaf=3, lr=0.0, shuffle=False, epochs=1)
    assert frozen["loss"][0] == pytest.approx(np.average(losses, weights=[WEIGHTS[i].sum() for i in order]), rel=1e-5)


class Dataset:
    def __len__(self) -> int:
        return 37

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return X[i], int(Y[i])


@pytest.mark.parametrize("data", [Dataset(), ag.ag_dataloader(X.T, Y), ag.ag_dataloader(Dataset(), prefetch=1)])
def test_whatever_holds_the_samples(data: Any) -> None:
    wanted, _ = train(sample_weight=TWICE + 0.5)
    assert_close(wanted, train(data, sample_weight=TWICE + 0.5)[0], 0)
    assert train(data, sample_weight=np.arange(37) == 1, on_nonfinite="raise", batch_size=37)[1].epochs == 2


def test_class_weights() -> None:
    wanted, _ = train(sample_weight=np.array([*OF_CLASSES.values()])[Y])
    assert_close(wanted, train(class_weight=OF_CLASSES)[0], 0)
    named = partial(ag.ops.softmax_cross_entropy_loss, weight=[*OF_CLASSES.values()])
    assert_close(wanted, train(loss=named)[0])
    both, _ = train(class_weight="balanced", sample_weight=TWICE)
    counts = np.bincount(Y, TWICE)
    assert_close(both, train(sample_weight=(TWICE.sum() / 3 / counts)[Y] * TWICE)[0], 0)
    without = np.where(Y == 1, 0, WEIGHTS)  # of a class of which nothing counts
    kept = X[Y != 1], Y[Y != 1]
    assert_close(train(class_weight="balanced", sample_weight=without)[0],
                 train(kept, class_weight="balanced", sample_weight=WEIGHTS[Y != 1])[0], 0)
    assert_close(train(class_weight={1: 0.0})[0], train(kept)[0], 0)
    loss = {"loss": "bce_with_logits", "outputs": 1}
    assert_close(train(BINARY, class_weight={1: 3}, **loss)[0],
                 train(BINARY, sample_weight=1 + 2 * BINARY[1], **loss)[0], 0)


def test_a_loss_of_ones_own() -> None:
    def absolute(output: Any, target: Any, sample_weight: Any) -> Any:
        return ag.ag_sum(ag.ag_abs(output - target) * sample_weight) / ag.ag_sum(sample_weight)

    weighted, _ = train(NUMBERS, 1, loss=absolute, sample_weight=TWICE, batch_size=200)
    repeated, _ = train((X.repeat(TWICE, 0), NUMBERS[1].repeat(TWICE, 0)), 1, batch_size=200,
                        loss=lambda output, target: ag.ag_mean(ag.ag_abs(output - target)))
    assert_close(weighted, repeated)


def test_validation_has_weights_of_its_own() -> None:
    model, plain = train(valid=(X, Y), sample_weight=WEIGHTS)
    _, weighted = train(valid=(X, Y, TWICE), sample_weight=WEIGHTS)
    evaluate = partial(ag.training.evaluate, batch_size=16)
    assert plain["val_loss"][-1] == evaluate(model, (X, Y))["loss"]
    assert weighted["val_loss"][-1] == evaluate(model, (X, Y, TWICE))["loss"]
    repeated = evaluate(model, (X.repeat(TWICE, 0), Y.repeat(TWICE)))["loss"]
    assert weighted["val_loss"][-1] == pytest.approx(repeated, rel=1e-6)


def test_only_ratios_count() -> None:
    wanted, history = train(sample_weight=WEIGHTS)
    for power in (-1000, -120, 120, 1000):  # of which float32 holds no sum
        found, same = train(sample_weight=np.ldexp(WEIGHTS, power))
        assert_close(wanted, found, 0)
        assert same["loss"] == pytest.approx(history["loss"])
    big = train(sample_weight=np.full(37, 1e300), class_weight={0: 1e300, 1: 1e300, 2: 1e300})[0]
    assert_close(train()[0], big, 1e-4)


def test_a_class_that_some_samples_lack() -> None:
    few = X[Y < 2], Y[Y < 2]
    assert_close(train(few, class_weight={0: 1.0, 1: 2.0})[0], train(few, class_weight=OF_CLASSES)[0], 0)
    with expect_error("a class by a wrong name", ValueError, "has the class 3, and the targets have 0, 1 only"):
        train(few, class_weight={0: 1.0, 3: 2.0})


def test_other_weights_are_of_another_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(sample_weight=WEIGHTS, epochs=1, checkpoint=tmp_path / "run.st")
    for others in ({}, {"sample_weight": WEIGHTS + 1}, {"sample_weight": WEIGHTS, "class_weight": OF_CLASSES}):
        with expect_error("other weights", ag.CheckpointError, "fit: ", "with sample_weight=an array of checksum"):
            train(checkpoint=tmp_path / "run.st", resume=True, **others)
    for weights, said in ((WEIGHTS, False), (WEIGHTS, False), (WEIGHTS + 1, True)):
        job(sample_weight=weights, checkpoint=tmp_path / "job.st", resume=True)
        assert ("made with sample_weight=an array of checksum" in caplog.text) is said


def test_a_resumed_training_goes_on(tmp_path: Path) -> None:
    whole, history = train(sample_weight=WEIGHTS, epochs=3)
    file = tmp_path / "run.st"
    for epochs in (1, 3):
        parts, found = train(sample_weight=WEIGHTS, epochs=epochs, checkpoint=file, resume=True)
    assert_close(whole, parts, 0)
    assert found.rows == history.rows


def test_an_epoch_that_was_interrupted_at_its_end(tmp_path: Path) -> None:
    class Breaks(ag.training.Callback):
        def on_step_end(self, run: Any, step: int, loss: float) -> None:
            if step == 2 and not tried:
                tried.append(step)
                raise KeyboardInterrupt

    tried: list[int] = []
    _, history = train(sample_weight=WEIGHTS)
    train(sample_weight=WEIGHTS, checkpoint=tmp_path / "run.st", callbacks=Breaks())
    _, found = train(sample_weight=WEIGHTS, checkpoint=tmp_path / "run.st", resume=True)
    assert tried and found.rows == history.rows


# ---------------------------------------------------------------------------------------------- dp_train

PAIRS = [(x[:, None], np.array([y])) for x, y in zip(X, Y, strict=True)]


def job(data: Any = None, loss: Any = "cross_entropy", **options: Any) -> Any:
    settings: dict[str, Any] = {"devices": ["cpu"], "verbose": False, "n_iter": 5, "seed": 1, "batch": 12, "stack": 4}
    if data is PAIRS:
        settings |= {"forward_fn": lambda model, s: model(s[0]), "target_fn": lambda s: s[1]}
    return ag.dp_train(net, ag.ag_dataloader(X.T, Y) if data is None else data, loss, **{**settings, **options})


def test_dp_train_stacks_samples_with_weights(caplog: pytest.LogCaptureFixture) -> None:
    one, apart = job(sample_weight=WEIGHTS, capture=True), job(sample_weight=WEIGHTS, stack=1)
    several = job(sample_weight=WEIGHTS, devices=["cpu", "cpu:1", "cpu:2"])
    by_function = job(PAIRS, weight_fn=lambda s: float(WEIGHTS[np.flatnonzero((s[0][:, 0] == X).all(1))[0]]))
    assert np.array_equal(one.loss_history, several.loss_history)
    for other in (apart, by_function):
        np.testing.assert_allclose(other.loss_history, one.loss_history, rtol=1e-5)
    zeros = job(sample_weight=np.arange(37) % 2)
    assert np.isfinite(zeros.loss_history).all() and not caplog.records


@pytest.mark.parametrize("data", [None, PAIRS], ids=["loader", "pairs"])
def test_dp_train_with_class_weights(data: Any) -> None:
    wanted = job(sample_weight=np.array([*OF_CLASSES.values()])[Y])
    np.testing.assert_array_equal(job(data, class_weight=OF_CLASSES).loss_history, wanted.loss_history)


def test_dp_train_finds_a_loss_that_drops_the_weights(caplog: pytest.LogCaptureFixture) -> None:
    job(sample_weight=WEIGHTS, loss=lambda o, t, sample_weight: ag.ag_softmax_cross_entropy_loss(o, t))
    assert "and the mean of their losses" in caplog.text


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "two kinds of weights": ({"weight_fn": lambda s: 1.0}, ValueError, "give one of them"),
    "a loss without weights": ({"loss": lambda o, t: o.sum()}, TypeError, "<lambda> takes none"),
    "no loss": ({"loss": None}, TypeError, "takes none"),
    "other samples": ({"sample_weight": np.ones(3)}, ag.ShapeError, "sample_weight is (3,)"),
    "classes of samples of one's own": ({"data": [*X[:, :, None]], "class_weight": "balanced"}, TypeError,
                                        "give sample_weight instead"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights(name: str) -> None:
    given, error, said = WRONG[name]
    with expect_error(name, error, "dp_train: ", said):
        job(**{"sample_weight": WEIGHTS, **given})
