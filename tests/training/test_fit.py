"""`fit`: what it computes is what a loop of one's own computes, on any number of devices, interrupted or not."""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

RNG = np.random.default_rng(7)
X = RNG.standard_normal((37, 4)).astype(np.float32)  # batches of 16: 16, 16, 5
Y = (X[:, 0] > X[:, 1]).astype(np.int64) + (X[:, 2] > 1)
HELD = X[:11] + 0.1, Y[:11]


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Ctrl-C raises, also where the tests run in the background of a shell."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def net(seed: int = 3) -> ag.Layer:
    ag.ag_seed(seed)
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_batch_norm(6), ag.ag_dropout(0.3),
                            ag.ag_linear(6, 3))


def plain(seed: int = 3) -> ag.Layer:
    ag.ag_seed(seed)
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_linear(6, 3))


def train(model: ag.Layer, **options: Any) -> Any:
    settings: dict[str, Any] = {"valid": HELD, "epochs": 3, "metrics": ["accuracy"], "batch_size": 16, "seed": 5,
                                "verbose": False} | ({} if options.get("optimizer") else {"lr": 0.05})
    return ag.fit(model, options.pop("train", (X, Y)), **{**settings, **options})


def assert_same(a: ag.Layer, b: ag.Layer) -> None:
    theirs = b.state_dict()
    for name, x in a.state_dict().items():
        assert x.tobytes() == theirs[name].tobytes(), name


def test_it_is_the_loop_of_ones_own() -> None:
    mine, theirs = plain(), plain()
    history = train(theirs, shuffle=False)
    optimizer, epochs = ag.optimizer_adam(mine, lr=0.05), []
    for _ in range(3):
        losses = []
        for i in range(0, 37, 16):
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(mine(X[i : i + 16].T.copy()), Y[i : i + 16])
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()
            losses.append(loss.item() * len(X[i : i + 16]))
        epochs.append(sum(losses) / 37)
    assert_same(mine, theirs)
    np.testing.assert_allclose(history["loss"], epochs, rtol=1e-12)
    guesses = mine(HELD[0].T.copy()).numpy()
    assert history["val_accuracy"][-1] == np.mean(guesses.argmax(0) == HELD[1])
    assert history["val_loss"][-1] == pytest.approx(ag.ag_softmax_cross_entropy_loss(guesses, HELD[1]).item(), rel=1e-6)


def test_any_number_of_devices_computes_the_same_bits() -> None:
    one, several = net(), [net(), net()]
    history = train(one, leaf=4)
    for model, count in zip(several, (2, 3), strict=True):
        found = train(model, leaf=4, devices=[f"cpu:{i}" for i in range(count)])
        assert_same(one, model)
        assert found.rows == history.rows


def test_a_leaf_that_is_left_over_counts_nothing() -> None:
    apart, whole = plain(), plain()
    for model, leaf in ((apart, 1), (whole, 4)):
        train(model, train=(X[:6], Y[:6]), batch_size=4, leaf=leaf, shuffle=False)
    for name, x in apart.state_dict().items():
        np.testing.assert_allclose(x, whole.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_it_is_dp_train_with_epochs() -> None:
    one = net()
    start = copy.deepcopy(one)
    train(one, train=(X[:32], Y[:32]), batch_size=8, leaf=4)
    loader = ag.ag_dataloader(X[:32], Y[:32], col_major=False)
    result = ag.dp_train(lambda: start, loader, ag.ag_softmax_cross_entropy_loss, devices=["cpu"], n_iter=12, batch=8,
                         stack=4, lr=0.05, seed=5, verbose=False)
    assert_same(one, result.model)


@pytest.mark.slow_on("lavapipe")
def test_on_every_device(device: str) -> None:
    model = net()
    history = train(model, epochs=4)
    assert {p.device for p in model.parameters().values()} == {device}
    assert history["loss"][-1] < history["loss"][0] and history.epochs == 4


def test_the_model_moves_to_the_first_device() -> None:
    model, stays = net(), net()
    train(model, devices=["cpu:1"])
    train(stays)
    assert {x.device for x in model.named_tensors().values()} == {"cpu:1"}
    assert_same(model, stays)
    assert model(np.ones((4, 2), np.float32)).device == "cpu:1"


def test_every_epoch_has_every_sample_once() -> None:
    seen: list[int] = []

    class Asked(Dataset):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
            seen.append(i)
            return super().__getitem__(i)

    ag.fit(plain(), Asked(), epochs=3, loss=ag.ag_softmax_cross_entropy_loss, batch_size=4, verbose=False)
    passes = [seen[i : i + 10] for i in (0, 10, 20)]
    assert [sorted(p) for p in passes] == [list(range(10))] * 3 and len({tuple(p) for p in passes}) == 3


def test_a_second_call_goes_on_with_the_weights() -> None:
    def sgd(params: Any) -> Any:
        return ag.optimizer_sgd(params, lr=0.1)

    whole, parts = plain(), plain()
    train(whole, epochs=2, shuffle=False, optimizer=sgd)
    for _ in range(2):
        assert train(parts, epochs=1, shuffle=False, optimizer=sgd).epochs == 1
    assert_same(whole, parts)


@pytest.mark.parametrize("mode", [True, False])
def test_modes_are_left_as_they_were(mode: bool) -> None:
    found: list[bool] = []

    class Looks(ag.training.Callback):
        def on_step_end(self, run: Any, step: int, loss: float) -> None:
            found.append(run.model.layers[2].training)

    model = net().train(mode)
    model.layers[0].training = not mode
    train(model, callbacks=Looks())
    assert found == [True] * 9
    assert [layer.training for layer in model.layers] == [not mode, mode, mode, mode]


def test_validation_changes_nothing() -> None:
    alone, measured = net(), net()
    train(alone, valid=None, metrics=None)
    train(measured)
    assert_same(alone, measured)


def test_metrics_without_validation_are_of_the_training_samples() -> None:
    model = net()
    history = train(model, valid=None)
    assert list(history) == ["loss", "accuracy", "lr"]
    assert history["accuracy"][-1] == ag.training.evaluate(model, (X, Y), metrics="accuracy")["accuracy"]


def test_targets_that_are_numbers_are_fitted_by_mean_squares() -> None:
    model = ag.ag_linear(4, 1)
    history = ag.fit(model, (X, X[:, 0] * 2), epochs=60, lr=0.1, verbose=False, metrics=["mean_absolute_error"], seed=1)
    assert history["mean_absolute_error"][-1] < 0.05
    assert ag.training.predict(model, X).shape == (37, 1)
    with expect_error("labels that are none", ValueError, "predict: labels is None", "2 classes"):
        ag.training.predict(ag.ag_linear(4, 2), X, labels=None)  # type: ignore[arg-type]


def test_one_hot_targets_are_classes() -> None:
    ids, hot = plain(), plain()
    wanted = train(ids, valid=None)
    found = train(hot, train=(X, np.eye(3, dtype=np.int64)[Y]), valid=None, capture=True)
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)
    assert found["accuracy"] == wanted["accuracy"]
    counts = np.eye(3, dtype=np.int64)[Y]
    counts[5, :2] = 4, -3  # one sample of all, whose numbers add up to 1
    for given in ((X, counts), [(x, y) for x, y in zip(X[5:], counts[5:], strict=True)], (X, counts == 1)):
        with expect_error("whole numbers that are no distributions", ValueError, "no distributions", "ag.ops.mse_loss"):
            train(plain(), train=given, valid=None, metrics=None)
    with expect_error("the first is one", ValueError, "others that are none", "give loss"):
        train(plain(), train=[(x, y) for x, y in zip(X, counts, strict=True)], valid=None, metrics=None)
    model = ag.ag_linear(4, 3)
    assert train(model, train=(X, counts), valid=None, loss=ag.ag_mse_loss, metrics=None).epochs == 3


def test_ids_for_every_place_of_a_sample() -> None:
    class Places(ag.Layer):
        def __init__(self) -> None:
            self.W = ag.ag_param(np.eye(3, 4))

        def forward(self, x: Any) -> Any:
            return ag.ag_reshape(self.W @ x, (3, 1, -1)) * np.ones((3, 2, 1), np.float32)

    assert train(Places(), train=(X, np.stack([Y, Y], 1)), valid=None, metrics=None).epochs == 3


def test_a_schedule_and_its_rate() -> None:
    history = train(plain(), scheduler=lambda o: ag.lr_scheduler_step(o, 3, gamma=0.5))
    assert history["lr"] == [0.025, 0.0125, 0.00625]


class Dataset:
    def __len__(self) -> int:
        return 37

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return X[i], int(Y[i])


@pytest.mark.parametrize("given", [
    (X.tolist(), Y.tolist()), ag.ag_dataloader(X, Y, col_major=False, batch_size=16), Dataset(),
    ag.ag_dataloader(Dataset(), batch_size=16, prefetch=2), (X.astype(np.float64), Y.astype(np.int8))])
def test_whatever_holds_the_samples(given: Any) -> None:
    one, other = net(), net()
    train(one)
    train(other, train=given)
    assert_same(one, other)


def test_a_loader_has_its_own_settings() -> None:
    steps: list[int] = []

    class Counts(ag.training.Callback):
        def on_step_end(self, run: Any, step: int, loss: float) -> None:
            steps.append(run.seen)

    loader = ag.ag_dataloader(X, Y, col_major=False, batch_size=10, drop_last=True, shuffle=False)
    train(net(), train=loader, batch_size=None, epochs=2, callbacks=[Counts()])
    assert steps == [10, 20, 30] * 2
    assert ag.training.predict(net(), ag.ag_dataloader(X.T, batch_size=10, drop_last=True)).shape == (37, 3)


def test_lists_of_pairs_as_training_and_validation() -> None:
    pairs = [*zip(X, Y, strict=True)]
    assert train(plain(), train=pairs, valid=pairs).epochs == 3


def test_images_reach_the_model_as_convolutions_take_them() -> None:
    images = RNG.random((6, 1, 5, 4)).astype(np.float32)
    model = ag.ag_sequential(ag.ag_conv2d_layer(1, 2, 3), ag.ag_flatten_layer(), ag.ag_linear(12, 2))
    assert ag.training.predict(model, images).shape == (6, 2)
    ag.fit(model, (images, np.zeros(6, int)), epochs=1, verbose=False)
    with pytest.raises(ag.ShapeError, match="height, width, batch"):
        ag.fit(model, (images[:, 0], np.zeros(6, int)), epochs=1, verbose=False)


def test_a_model_of_ones_own_and_no_epoch() -> None:
    class Own:
        def __init__(self) -> None:
            self.W = ag.ag_param(np.ones((3, 4)))

        def parameters(self) -> dict[str, ag.Tensor]:
            return {"W": self.W}

        def forward(self, x: Any) -> Any:
            return self.W @ x

    one, two = Own(), Own()
    assert train(one, epochs=0).epochs == 0 and np.array_equal(one.W.numpy(), np.ones((3, 4)))
    train(one, leaf=8)
    train(two, leaf=8, devices=["cpu", "cpu:1"])
    assert np.array_equal(one.W.numpy(), two.W.numpy()) and not np.array_equal(one.W.numpy(), np.ones((3, 4)))


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a class": ({"model": ag.ag_linear}, TypeError, "model is the class Linear"),
    "no model": ({"model": 3}, TypeError, "model is a int"),
    "no data": ({"train": None}, TypeError, "train is a NoneType"),
    "a dict": ({"train": {"x": X}}, TypeError, "train is a dict"),
    "a triple": ({"train": (X, Y, Y)}, TypeError, "train is a tuple of 3"),
    "a generator": ({"train": (x for x in X)}, TypeError, "train is a generator"),
    "a half of a pair": ({"train": (X, None)}, TypeError, "train has a NoneType"),
    "not as many": ({"train": (X, Y[:5])}, ag.ShapeError, "37 inputs and 5 targets"),
    "targets as valid": ({"train": X, "valid": Y}, TypeError, "arrays of 37 samples each, without targets"),
    "a list as valid": ({"train": X, "valid": Y.tolist()}, TypeError, "targets belong to train"),
    "two lists": ({"train": X.tolist(), "valid": (X * 5).tolist()}, TypeError, "targets belong to train"),
    "two lists of arrays": ({"train": [*X], "valid": [*X]}, TypeError, "targets belong to train"),
    "no whole batch": ({"train": ag.ag_dataloader(X.T, Y, batch_size=8, drop_last=True), "batch_size": 38}, ValueError,
                       "37 samples make no batch of 38"),
    "empty": ({"train": (X[:0], Y[:0])}, ValueError, "train holds no samples"),
    "empty validation": ({"valid": (X[:0], Y[:0])}, ValueError, "valid holds no samples"),
    "epochs": ({"epochs": -1}, ValueError, "epochs is -1"),
    "half an epoch": ({"epochs": 1.5}, ValueError, "epochs is 1.5"),
    "batch_size": ({"batch_size": 0}, ValueError, "batch_size is 0"),
    "leaf": ({"leaf": 0}, ValueError, "leave the other out (leaf=None, accumulate=1)"),
    "loss": ({"loss": 3}, TypeError, "loss is 3"),
    "a loss by a wrong name": ({"loss": "mae"}, ValueError, "there is no loss 'mae'; use 'cross_entropy', 'mse'"),
    "metric": ({"metrics": ["acurracy"]}, ValueError if find_spec("sklearn") else ImportError, "no metric 'acurracy'"),
    "a number as metric": ({"metrics": [3]}, TypeError, "the metric 3"),
    "a metric without name": ({"metrics": [lambda o, t: 0.0]}, ValueError, "<lambda>"),
    "two of a name": ({"metrics": ["accuracy", "accuracy"]}, ValueError, "second 'accuracy'"),
    "callback": ({"callbacks": [print]}, TypeError, "callbacks is <built-in function print>"),
    "a callback's class": ({"callbacks": ag.training.BestWeights}, TypeError, "such as [BestWeights()]"),
    "optimizer": ({"optimizer": 3}, TypeError, "optimizer is a int"),
    "an optimizer by a wrong name": ({"optimizer": "lion"}, ValueError, "there is no optimizer 'lion'; use 'adam'"),
    "a schedule by a wrong name": ({"scheduler": "linear"}, ValueError, "there is no scheduler 'linear'; use 'cosine'"),
    "accumulate": ({"accumulate": 0}, ValueError, "accumulate 0"),
    "a model that is frozen": ({"model": net().freeze()}, ValueError, "nothing to train; call unfreeze()"),
    "leaf and accumulate": ({"accumulate": 2, "leaf": 4}, ValueError, "give one of them"),
    "precision": ({"precision": "fp16"}, ValueError, "precision is 'fp16'; use 'f32', 'f16', 'bf16'"),
    "a weight for each class": ({"sample_weight": [1, 2]}, ag.ShapeError, "sample_weight is (2,); (37,)"),
    "negative weights": ({"sample_weight": np.linspace(-1, 1, 37)}, ValueError, "go from -1.0 to 1.0"),
    "negative weights of a class": ({"sample_weight": np.where(Y == 0, -1, 1), "class_weight": "balanced"}, ValueError,
                                    "at least 0 are required"),
    "NaN as a weight": ({"sample_weight": np.full(37, np.nan)}, ValueError, "go from nan to nan"),
    "no weight": ({"sample_weight": np.zeros(37)}, ValueError, "are not all zero"),
    "words as weights": ({"sample_weight": ["a"] * 37}, ag.DtypeError, "sample_weight is of type"),
    "no class weight": ({"class_weight": "even"}, TypeError, "class_weight is 'even'; use 'balanced'"),
    "a class that is none": ({"class_weight": {"1": 2.0}}, ValueError, "the class '1', and the targets have 0, 1, 2"),
    "classes of numbers": ({"train": (X, X[:, 0]), "class_weight": "balanced"}, ValueError, "no class ids"),
    "classes of a dataset": ({"train": [*zip(X, Y, strict=True)], "class_weight": "balanced"}, TypeError,
                             "give sample_weight instead"),
    "a loss without weights": ({"sample_weight": np.ones(37), "loss": lambda o, t: o.sum()}, TypeError,
                               "the loss <lambda> takes none; write def loss(output, target, sample_weight)"),

    "devices": ({"devices": "cpu"}, TypeError, "devices is 'cpu'"),
    "no devices": ({"devices": []}, ValueError, "devices is empty"),
    "shuffle": ({"shuffle": 1}, ValueError, "shuffle is 1"),
    "resume": ({"resume": True}, ValueError, "resume was given without checkpoint"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    given, error, said = WRONG[name]
    model = given.pop("model", None) or net()
    try:
        with expect_error(name, error, "fit: ", said):
            train(model, **given)
    finally:
        if not isinstance(model, ag.Layer):
            given["model"] = model


def test_an_optimizer_that_is_made_already() -> None:
    model = net()
    with expect_error("an optimizer", TypeError, "optimizer is a Adam", "lambda params"):
        train(model, optimizer=ag.optimizer_adam(model))


def test_a_metric_that_is_no_number() -> None:
    with expect_error("a metric", TypeError, "the metric odd returned 'x'"):
        train(net(), metrics={"odd": lambda out, target: "x"})


def test_a_step_that_is_left_out_is_not_in_the_mean() -> None:
    spoilt = X[:12].copy()
    spoilt[3] = np.nan
    steps: list[float] = []

    class Losses(ag.training.Callback):
        def on_step_end(self, run: Any, step: int, loss: float) -> None:
            steps.append(loss)

    history = train(plain(), train=(spoilt, Y[:12]), batch_size=4, on_nonfinite="skip", callbacks=Losses(), epochs=1)
    assert sum(np.isfinite(steps)) == 2 and history["loss"] == [pytest.approx(np.nanmean(steps))]
    history = train(plain(), train=(spoilt * np.nan, Y[:12]), on_nonfinite="skip", epochs=1)
    assert np.isnan(history["loss"][0])


def test_a_loss_that_is_not_finite() -> None:
    ended: list[int] = []

    class Ends(ag.training.Callback):
        def on_train_end(self, run: Any) -> None:
            ended.append(run.history.epochs)

    model, before, bad = plain(), plain(), X.copy()
    bad[20] = np.nan
    with pytest.raises(FloatingPointError, match="step 1"):
        train(model, train=(bad, Y), shuffle=False, callbacks=Ends())
    train(before, train=(X[:16], Y[:16]), shuffle=False, epochs=1)
    assert_same(model, before)
    assert ended == [0] and model.training


class Stops(ag.training.Callback):
    """Presses Ctrl-C once, in one of its calls."""

    def __init__(self, where: str, number: int) -> None:
        self.where, self.left = where, number

    def _count(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    def on_step_end(self, run: Any, step: int, loss: float) -> None:
        self._count("step")

    def on_epoch_end(self, run: Any) -> None:
        self._count("epoch")


class Told(ag.training.Callback):
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_epoch_end(self, run: Any) -> None:
        self.epochs.append(run.history.epochs)


@pytest.mark.parametrize(("where", "number", "epochs"), [("step", 5, 1), ("step", 6, 1), ("epoch", 2, 2),
                                                         ("metric", 2, 1)])
def test_an_interrupted_training_goes_on(where: str, number: int, epochs: int, tmp_path: Path) -> None:
    whole, model = net(), net()
    left = [number if where == "metric" else 0]

    def score(out: Any, target: Any) -> float:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return float(np.mean(out.numpy()))

    before, after = Told(), Told()
    options: dict[str, Any] = {"checkpoint": tmp_path / "job", "metrics": {"score": score}}
    history = train(model, callbacks=[before, Stops(where, number), after], **options)
    assert history.interrupted and history.epochs == epochs
    wanted = train(whole, metrics={"score": score})
    other = net(9)
    resumed = train(other, callbacks=[before, Stops("", 0), after], resume=True, **options)
    assert resumed.rows == wanted.rows and not resumed.interrupted
    assert_same(other, whole)
    assert before.epochs == after.epochs == [1, 2, 3]


def test_resumed_from_a_file_after_each_epoch(tmp_path: Path) -> None:
    path, whole = tmp_path / "job", net()
    wanted = train(whole, leaf=4)
    for epochs in (1, 2, 3):
        model = net() if epochs == 1 else net(epochs)  # which the checkpoint overwrites
        history = train(model, epochs=epochs, checkpoint=path, resume=True, leaf=4, devices=["cpu", "cpu:1"][: epochs])
    assert history.rows == wanted.rows
    assert_same(model, whole)
    assert_same(ag.ag_load_model(path, model_fn=net), whole)


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "job"
    train(net(), epochs=2, checkpoint=path)
    resumed: dict[str, Any] = {"checkpoint": path, "resume": True}
    with expect_error("other batches", ag.CheckpointError, "37 samples in batches of 16", "batches of 8"):
        train(net(), batch_size=8, **resumed)
    with expect_error("other samples", ag.CheckpointError, "37 samples", "36 samples"):
        train(net(), train=(X[1:], Y[1:]), **resumed)
    with expect_error("other metrics", ag.CheckpointError, "val_accuracy"):
        train(net(), metrics=None, **resumed)
    with expect_error("fewer epochs", ag.CheckpointError, "in epoch 2", "epochs is 1"):
        train(net(), epochs=1, **resumed)
    ag.dp_train(plain, [X[:1].T], lambda out, x: ag.ag_mean(out), devices=["cpu"], n_iter=1, verbose=False,
                checkpoint=path)
    with expect_error("of dp_train", ag.CheckpointError, "of dp_train alone"):
        train(net(), **resumed)
    assert train(net(), checkpoint=tmp_path / "new", resume=True).epochs == 3


@pytest.mark.parametrize("capture", [False, "auto"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_step_that_fails_changes_nothing(at: int, capture: bool | str) -> None:
    """Weights, running statistics and the optimizer's state are those of the last step that was made."""
    x = np.random.default_rng(0).normal(size=(32, 2)).astype("f") * 3 + 5

    def trained(steps: int, fails: bool) -> dict[str, Any]:
        ag.ag_seed(3)
        model, calls = ag.nn.Sequential(ag.nn.BatchNorm(2), ag.nn.Linear(2, 1)), []

        class Counts(ag.training.Callback):
            def on_step_end(self, run: Any, step: int, loss: float) -> None:
                calls.append(1)

        def loss(output: ag.Tensor, target: ag.Tensor) -> ag.Tensor:
            if fails and len(calls) == steps:
                raise RuntimeError("no loss")
            return ag.ag_mse_loss(output, target)

        data = (x, x[:, :1]) if fails else (x[: 8 * steps], x[: 8 * steps, :1])
        try:
            ag.fit(model, data, epochs=1, batch_size=8, loss=loss, shuffle=False, verbose=False, capture=capture,
                   callbacks=[Counts()])
        except RuntimeError:
            assert fails
        return {name: value.tolist() for name, value in model.state_dict().items()}

    assert trained(at, True) == trained(at, False)
