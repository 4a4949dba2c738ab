"""`fit` by names, in smaller passes, in 16 bits, and what it says about data that are likely not meant."""

from __future__ import annotations

import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.engine.registry import say_once

RNG = np.random.default_rng(7)
X = RNG.standard_normal((37, 4)).astype(np.float32)
Y = (X[:, 0] > X[:, 1]).astype(np.int64)
optim = ag.optim
FIT = import_module("ag.training.fit")  # the file, not the function


def net() -> ag.Layer:
    ag.ag_seed(3)
    return ag.ag_sequential(ag.ag_linear(4, 6, activation="tanh"), ag.ag_batch_norm(6), ag.ag_linear(6, 2))


def train(data: Any = (X, Y), model: Any = None, **options: Any) -> tuple[Any, Any]:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 16, "seed": 5, "verbose": False}
    model = model or net()
    return model, ag.fit(model, data, **{**settings, **options})


def assert_same(a: ag.Layer, b: ag.Layer) -> None:
    theirs = b.state_dict()
    for name, x in a.state_dict().items():
        np.testing.assert_array_equal(x, theirs[name], name)


# ---------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(("name", "made"), [("adam", optim.Adam), ("adamw", optim.AdamW), ("sgd", optim.SGD)])
def test_an_optimizer_by_its_name(name: str, made: Any) -> None:
    named, _ = train(optimizer=name, lr=0.03)
    assert_same(named, train(optimizer=lambda params: made(params, lr=0.03))[0])


@pytest.mark.parametrize(("given", "made"), [
    ("cosine", lambda o: optim.CosineSchedule(o, T_max=9)), (optim.CosineSchedule, None), (optim.StepSchedule, None),
    ("step", lambda o: optim.StepSchedule(o, 3)), (optim.WarmupSchedule, None),
    ("warmup", lambda o: optim.WarmupSchedule(o, 1, after=optim.CosineSchedule(o, T_max=8)))])
def test_a_schedule_by_its_name_or_class(given: Any, made: Any) -> None:
    _, found = train(scheduler=given)
    if made is None:
        made = {optim.CosineSchedule: "cosine", optim.StepSchedule: "step"}.get(given, "warmup")
    assert found["lr"] == train(scheduler=made)[1]["lr"]
    result = ag.dp_train(net, ag.ag_dataloader(X.T, Y), "cross_entropy", devices=["cpu"], n_iter=9, batch=16, stack=16,
                         scheduler=given, optimizer="sgd", lr=1e-3, verbose=False)
    assert result.optimizer_state["state"][0] == pytest.approx(found["lr"][-1], abs=1e-9)


def test_a_stopped_training_with_a_named_schedule_stays_so(tmp_path: Path) -> None:
    options: dict[str, Any] = {"scheduler": "cosine", "checkpoint": tmp_path / "run.st", "epochs": 9, "lr": 0.0,
                               "callbacks": [ag.training.EarlyStopping(patience=2, monitor="loss", min_delta=9.0)]}
    _, history = train(**options)
    _, again = train(resume=True, **options)
    assert history.stopped and again.rows == history.rows


@pytest.mark.parametrize("name", ["cosine", "step", "warmup", optim.CosineSchedule])
def test_a_named_schedule_goes_on_for_more_epochs(name: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"scheduler": name, "checkpoint": tmp_path / "run.st"}
    train(epochs=2, **options)
    assert train(epochs=2, resume=True, **options)[1].epochs == 2 and not caplog.records
    _, found = train(epochs=6, resume=True, **options)
    _, wanted = train(epochs=6, scheduler=name)
    assert found["lr"][2:] == wanted["lr"][2:] and "it goes on as one of 18 steps" in caplog.text
    with expect_error("a length of one's own", ag.CheckpointError, "load_state_dict: the"):
        train(epochs=8, resume=True, checkpoint=tmp_path / "run.st",
              scheduler=lambda o: optim.StepSchedule(o, step_size=4))


def test_losses_by_their_names() -> None:
    assert_same(train(loss="cross_entropy")[0], train()[0])
    model, history = train((X, Y), ag.ag_linear(4, 1), loss="bce_with_logits", epochs=40, lr=0.1)
    assert np.mean((ag.training.predict(model, X)[:, 0] > 0) == Y) > 0.9
    assert history["loss"][-1] == pytest.approx(
        ag.training.evaluate(model, (X, Y), "bce_with_logits")["loss"], abs=0.05)
    for name, loss in (("l1", ag.nn.L1Loss()), ("huber", ag.ops.huber_loss)):
        assert_same(*[train((X, X[:, :2]), loss=given)[0] for given in (name, loss)])
    same = [train(loss=given)[1]["loss"] for given in ("cross_entropy", ag.nn.CrossEntropyLoss())]
    assert same[0] == pytest.approx(same[1], rel=1e-5)
    with expect_error("one output", IndexError, "use ag_bce_with_logits_loss"):
        train((X, Y), ag.ag_linear(4, 1))


# ---------------------------------------------------------------------------------------------- smaller passes, 16 bits


def test_accumulate_is_a_smaller_leaf() -> None:
    assert_same(train(accumulate=4)[0], train(leaf=4)[0])
    assert_same(train(accumulate=2, devices=["cpu", "cpu:1"])[0], train(leaf=4)[0])


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_16_bits_from_and_to_float32(precision: str, tmp_path: Path) -> None:
    seen: list[set[str]] = []

    class Looks(ag.training.Callback):
        def on_epoch_end(self, run: Any) -> None:
            seen.append({p.dtype for p in run.model.parameters().values()})

    options: dict[str, Any] = {"precision": precision, "valid": (X, Y), "callbacks": Looks(), "lr": 0.05}
    model, history = train(**options)
    assert seen == [{precision}] * 3 and {p.dtype for p in model.parameters().values()} == {"f32"}
    assert ag.ag_default_dtype() == "f32" and ag.training.predict(model, X).shape == (37, 2)
    assert history["loss"][-1] == pytest.approx(train(valid=(X, Y), lr=0.05)[1]["loss"][-1], rel=0.05)
    rounded = [ag.ag_tensor(x, dtype=precision).numpy().astype(np.float32) for x in model.state_dict().values()]
    assert any((x.reshape(r.shape) != r).any() for x, r in zip(model.state_dict().values(), rounded, strict=True))
    for epochs in (1, 3):  # interrupted, and resumed
        parts, _ = train(**{**options, "epochs": epochs, "checkpoint": tmp_path / "run.st", "resume": True})
    assert_same(parts, model)
    assert_same(pickle.loads(pickle.dumps(model)), model)


def test_16_bits_by_hand() -> None:
    with ag.ag_dtype("bf16"):
        wanted = net()
        train(model=wanted, optimizer="sgd", lr=0.5, epochs=2)
    model = net()
    with ag.ag_dtype("bf16"):
        start = net().state_dict()
    for name, p in model.parameters().items():
        p.data = start[name].astype(np.float32)
    train(model=model, precision="bf16", optimizer="sgd", lr=0.5, epochs=2)
    for name, p in wanted.parameters().items():  # the masters of one are not to be seen, only what they round to
        np.testing.assert_array_equal(ag.ag_tensor(model.parameters()[name].numpy(), dtype="bf16").numpy(), p.numpy())


def test_weights_stay_whole_where_nothing_is_trained() -> None:
    start = net()
    assert_same(train(precision="bf16", epochs=0)[0], start)
    bad = X.copy()
    bad[5] = np.nan
    model = net()
    with pytest.raises(FloatingPointError):
        train((bad, Y), model, precision="bf16", batch_size=37)
    assert_same(model, start)
    with ag.ag_dtype("bf16"), expect_error("a model in 16 bits", ag.DtypeError, "fit: precision is 'f16'", "is bf16"):
        train(precision="f16")


def test_the_best_weights_of_a_training_in_16_bits() -> None:
    model, _ = train(precision="bf16", valid=(X, Y), callbacks=ag.training.BestWeights(), lr=0.05)
    assert {p.dtype for p in model.parameters().values()} == {"f32"}


# ---------------------------------------------------------------------------------------------- what is not meant


class Frame:
    """Has what `fit` asks a DataFrame for."""

    def __init__(self, values: Any) -> None:
        self.values, self.shape, self.ndim, self.columns = values, values.shape, values.ndim, ["a", "b", "c", "d"]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        return Frame(self.values[key])


def spoilt() -> Any:
    bad = X.copy()
    bad[[3, 20], 2] = np.nan
    return bad


@pytest.mark.parametrize("data", [(spoilt(), Y), (Frame(spoilt()), Y), [*zip(spoilt(), Y, strict=True)]],
                         ids=["arrays", "frame", "dataset"])
def test_values_that_are_not_finite_are_named(data: Any, caplog: pytest.LogCaptureFixture) -> None:
    with expect_error("NaN in X", FloatingPointError, "fit: ", "in step 0, as X has NaN in 1 of the step's 16 samples",
                      "sample 3 of the data given, column 2" + (" ('c')" if isinstance(data[0], Frame) else "")):
        train(data, shuffle=False, leaf=4)
    train(data, shuffle=False, epochs=1, on_nonfinite="skip")
    assert "such as sample 20" in caplog.text
    with expect_error("in another order", FloatingPointError, "such as sample ", "of the data given, column 2"):
        train(data, batch_size=37)


def test_a_value_beyond_float32_and_targets() -> None:
    numbers = X[:, :1].astype(np.float64)
    numbers[7] = 1e300
    with expect_error("targets", FloatingPointError, "y has infinities in 1 of the step's 37",
                      "such as sample 7 of the data given;"):
        train((X, numbers), ag.ag_linear(4, 1), batch_size=37)
    with pytest.raises(FloatingPointError, match="Lower lr"):
        train((X, X[:, :1]), ag.ag_linear(4, 1), lr=1e38, optimizer="sgd")


def test_dp_train_names_them_too() -> None:
    with expect_error("dp_train with a loader", FloatingPointError, "dp_train: ", "as X has NaN",
                      "sample 3 of the data given, column 2"):
        ag.dp_train(net, ag.ag_dataloader(spoilt().T, Y, shuffle=False), "cross_entropy", devices=["cpu"], n_iter=1,
                    verbose=False)
    with expect_error("dp_train with samples of one's own", FloatingPointError, "as data has NaN in 1 of", "sample 3"):
        ag.dp_train(lambda: ag.ag_linear(4, 2), [x[:, None] for x in spoilt()[:5]], lambda o, t: ag.ag_sum(o),
                    devices=["cpu"], n_iter=5, batch=5, verbose=False)


def test_features_of_very_different_scales(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    train()
    train((X * 100, Y), epochs=0)
    images = np.tile(X[:, :, None, None] * 1e5, (1, 1, 1, 2))  # no table
    train((images, Y), ag.nn.Sequential(ag.nn.Flatten(), ag.nn.Linear(8, 2)), epochs=0)
    assert not caplog.records
    for _ in range(2):
        train((Frame(X * np.array([1, 1, 1e-5, 1], np.float32)), Y), epochs=0)
    assert [r.getMessage().count("column 2") for r in caplog.records] == [1]
    train((X * 1e6, Y), epochs=0)
    assert "StandardScaler" in caplog.records[-1].getMessage() and len(caplog.records) == 2


def test_floats_that_are_0_or_1(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    binary = Y.astype(np.float32)
    train((X, binary), ag.ag_linear(4, 1), epochs=0, loss="bce_with_logits")
    train((X, X[:, 0]), ag.ag_linear(4, 1), epochs=0)
    assert not caplog.records
    for _ in range(2):
        train((X, binary), ag.ag_linear(4, 1), epochs=0)
    assert [r.getMessage().count("loss='bce_with_logits'") for r in caplog.records] == [1]


@pytest.mark.parametrize(("shape", "channels", "said"), [
    ((10, 8, 8, 3), 3, "np.moveaxis(X, -1, 1)"), ((10, 8, 8), 1, "X[:, None]")])
def test_images_of_another_layout(shape: tuple[int, ...], channels: int, said: str) -> None:
    model = ag.nn.Sequential(ag.nn.Conv2d(channels, 4, 3), ag.nn.Flatten(), ag.nn.Linear(144, 2))
    with expect_error("images", ag.ShapeError, f"fit: X is {shape}: images", "(n, channels, height, width)", said):
        train((np.ones(shape, np.float32), np.arange(10) % 2), model)


def test_errors_begin_with_fit() -> None:
    for given, options in (((X, Y.astype(str)), {}), ((X, Y), {"balance": "x"}),
                           ((X, Y), {"checkpoint": "/no/folder/run.st"}), ((X, Y), {"on_nonfinite": "x"})):
        with pytest.raises(Exception, match=r"^fit: "):
            train(given, **options)


def test_a_model_in_float64_is_for_the_cpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(FIT, "cards", lambda: ["vulkan:0"])
    monkeypatch.setattr(FIT, "was_named", lambda: False)
    say_once.cache_clear()
    with ag.ag_dtype("f64"):
        model = net()
        train((X.astype(np.float64), Y), model, epochs=0)
    (record,) = caplog.records
    assert "the model is in float64, which cards do not hold" in record.getMessage()


def test_cards_that_are_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for there, named, said in ((["vulkan:0"], True, None), ([], False, None), (["cpu"], False, None),
                               (["vulkan:0"], False, "write devices=['vulkan:0']"),
                               (["cpu", "cpu:1"], False, "devices=['cpu', 'cpu:1'] uses all")):
        monkeypatch.setattr(FIT, "cards", lambda there=there: there)
        monkeypatch.setattr(FIT, "was_named", lambda named=named: named)
        say_once.cache_clear()
        caplog.clear()
        train(epochs=0)
        assert [said in r.getMessage() for r in caplog.records] == ([] if said is None else [True])
