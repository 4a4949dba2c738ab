"""Callbacks of `fit`: when they are called, when they stop, whose weights they keep, what they write."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable
from math import nan
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.training import (
    BestWeights,
    Callback,
    CSVLog,
    EarlyStopping,
    Logger,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TensorBoard,
)

X = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]


def made(values: Iterable[float]) -> Any:
    """A metric of one's own hand: one value after the other."""
    left = iter(values)
    return lambda out, target: next(left)


def train(values: Iterable[float], *callbacks: Callback, name: str = "made_error", **options: Any) -> Any:
    """A linear model whose weight is larger by 1 after every epoch; `values` are the metric's."""
    model = ag.ag_linear(1, 1, bias=False)
    model.W.data = np.zeros((1, 1), np.float32)
    settings: dict[str, Any] = {"epochs": 8, "batch_size": 8, "loss": lambda out, target: -ag.ag_sum(model_weight(out)),
                                "verbose": False, "optimizer": lambda params: ag.optimizer_sgd(params, lr=1.0)}
    history = ag.fit(model, (np.ones((8, 1)), X), ag.ag_dataloader(X.T, X.T), metrics={name: made(values)},
                     callbacks=callbacks, **{**settings, **options})
    return model, history


def model_weight(out: Any) -> Any:
    """The mean of the outputs, which is the weight where all inputs are 1."""
    return ag.ag_mean(out)


STOPS = {  # patience, min_delta, values, after how many epochs
    "two in a row": (2, 0.0, [5, 3, 4, 3, 1, 1, 1, 1], 4),
    "one": (1, 0.0, [5, 4, 3, 3, 1, 1, 1, 1], 4),
    "never": (2, 0.0, [8, 7, 7, 6, 6, 5, 5, 4], 8),
    "too little better": (2, 0.5, [5, 4.8, 4.6, 1, 1, 1, 1, 1], 3),
    "little by little is enough": (2, 0.5, [5, 4.8, 4.4, 4.3, 4.2, 1, 1, 1], 5),
    "not a number": (2, 0.0, [5, nan, 4, nan, nan, 1, 1, 1], 5),
    "never a number": (3, 0.0, [nan] * 8, 3),
}


@pytest.mark.parametrize("name", STOPS)
def test_early_stopping(name: str) -> None:
    patience, delta, values, epochs = STOPS[name]
    stopping = EarlyStopping(patience, delta, monitor="val_made_error")
    for _ in range(2):  # it can be used again
        _, history = train(values, stopping)
        assert history.epochs == epochs and (history.stopped is None) is (epochs == 8)
    if epochs < 8:
        assert f"val_made_error did not become better for {patience} epochs" in str(history.stopped)


def test_more_is_better_where_it_is() -> None:
    rising, falling = [1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1]
    for name, mode, values in (("accuracy", "auto", rising), ("odd", "max", rising), ("odd", "min", falling),
                               ("some_loss", "auto", falling)):
        assert train(values, EarlyStopping(2, monitor=f"val_{name}", mode=mode), name=name)[1].epochs == 8
        assert train(values[::-1], EarlyStopping(2, monitor=f"val_{name}", mode=mode), name=name)[1].epochs == 3


def test_what_is_watched_if_nothing_is_said() -> None:
    _, history = train([0] * 9, EarlyStopping(1))
    assert "val_loss" in str(history.stopped) or history.stopped is None
    model = ag.ag_linear(1, 1)
    history = ag.fit(model, (X, X), epochs=4, lr=0.0, callbacks=EarlyStopping(2), verbose=False)
    assert history.epochs == 3 and str(history.stopped).startswith("loss did not become better for 2 epochs")


def test_a_stopped_training_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "job"
    model, history = train([1, 2, 3], EarlyStopping(2, monitor="val_made_error"), BestWeights("val_made_error"),
                           checkpoint=path)
    again, resumed = train([], EarlyStopping(2, monitor="val_made_error"), BestWeights("val_made_error"),
                           checkpoint=path, resume=True)
    assert resumed.rows == history.rows and resumed.stopped == history.stopped
    assert again.W.item() == model.W.item() == 1.0


@pytest.mark.parametrize(("make", "error", "said"), [
    (lambda: EarlyStopping(0), ValueError, "EarlyStopping: patience is 0"),
    (lambda: EarlyStopping(2.5), ValueError, "EarlyStopping: patience is 2.5"),
    (lambda: EarlyStopping(min_delta=-1), ValueError, "min_delta is -1"),
    (lambda: EarlyStopping(min_delta="1"), ValueError, "min_delta is '1'"),
    (lambda: EarlyStopping(mode="up"), ValueError, "mode is 'up'"),
    (lambda: BestWeights(3), TypeError, "BestWeights: monitor is 3"),
    (lambda: CSVLog(3), TypeError, "CSVLog: path is 3; a file's name is"),
    (lambda: TensorBoard(every=0), ValueError, "every is 0"),
    (lambda: TensorBoard(3), TypeError, "folder is 3; a folder's name is"),
    (lambda: ReduceLROnPlateau(1.0), ValueError, "factor is 1.0"),
    (lambda: ReduceLROnPlateau(patience=0), ValueError, "patience is 0"),
    (lambda: ReduceLROnPlateau(cooldown=-1), ValueError, "cooldown is -1"),
    (lambda: ReduceLROnPlateau(min_lr="a"), ValueError, "min_lr is 'a'"),
    (lambda: ModelCheckpoint(3), TypeError, "path is 3"),
    (lambda: ModelCheckpoint("m", keep=0), ValueError, "keep is 0"),
    (lambda: Logger("wandb"), TypeError, "function is 'wandb'"),
    (lambda: Logger(print, every=0), ValueError, "every is 0"),
])
def test_wrong_settings(make: Any, error: type[Exception], said: str) -> None:
    with expect_error(said, error, said):
        make()


@pytest.mark.parametrize("kind", [EarlyStopping, BestWeights])
def test_a_column_that_is_not_there(kind: Any) -> None:
    with expect_error("no column", ValueError, f"{kind.__name__}: monitor is 'val_acc'", "loss, val_loss, val_odd, lr"):
        train([], kind(monitor="val_acc"), name="odd")
    with expect_error("no direction", ValueError, "monitor is 'val_odd'", "mode='max'"):
        train([], kind(monitor="val_odd"), name="odd")


@pytest.mark.parametrize(("values", "best"), [([5, 3, 4, 3], 2), ([1, 2, 3, 4], 1), ([4, 3, 2, 1], 4),
                                              ([nan, 2, nan, 3], 2)])
def test_the_weights_of_the_best_epoch(values: list[float], best: int, tmp_path: Path) -> None:
    path = tmp_path / "best"
    callback = BestWeights("val_made_error", path=path)
    model, history = train(values, callback, epochs=4)
    assert history.epochs == 4
    assert callback.epoch == best and model.W.item() == best == ag.ag_load_model(path).W.item()


def test_without_a_best_epoch_the_last_weights_stay(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = train([nan] * 3, BestWeights("val_made_error"), epochs=3)
    assert model.W.item() == 3 and "never a finite number" in caplog.text


def test_they_are_restored_after_an_error_and_after_ctrl_c() -> None:
    class Fails(Callback):
        def __init__(self, error: type[BaseException]) -> None:
            self.error = error

        def on_epoch_end(self, run: Any) -> None:
            if run.history.epochs == 3:
                raise self.error

    found: list[Any] = []

    class Keeps(Callback):
        def on_train_begin(self, run: Any) -> None:
            found.append(run.model)

    with pytest.raises(ZeroDivisionError):
        train([1, 2, 3], Keeps(), BestWeights("val_made_error"), Fails(ZeroDivisionError))
    assert found[-1].W.item() == 1
    model, history = train([3, 1, 2], BestWeights("val_made_error"), Fails(KeyboardInterrupt))
    assert model.W.item() == 2 and history.interrupted and history.epochs == 3


def resumed(first: list[Callback], then: list[Callback], folder: Path) -> float:
    """The weight after six epochs, of which four are done when the callbacks change; made_error is best in epoch 2."""
    options: dict[str, Any] = {"checkpoint": folder / "job"}
    train([3, 1, 2, 4], *first, epochs=4, **options)
    model, _ = train([5, 6], *then, epochs=6, resume=True, **options)
    return float(model.W.item())


def test_a_resumed_training_finds_them_wherever_they_stand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    others = [EarlyStopping(9), BestWeights("loss", "max")]
    said_otherwise = BestWeights("val_made_error", "min")
    assert resumed([BestWeights("val_made_error")], [*others, said_otherwise], tmp_path) == 2
    (said,) = caplog.messages[:1]
    assert said.startswith("fit: the checkpoint has no state of the callback BestWeights of max loss,")


def test_weights_of_another_column_are_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The loss, the weight with a minus, is best at the end; at its most it was best in epoch 1."""
    other = BestWeights("loss", "max")
    assert resumed([BestWeights("val_made_error")], [other], tmp_path) == 6 and other.epoch is None
    assert caplog.messages == [
        "fit: the checkpoint has no state of the callback BestWeights of max loss, which begins anew.",
        "fit: the checkpoint has a state of BestWeights of min val_made_error, which is no longer among the callbacks.",
        "BestWeights: loss was best in epoch 1, of which the checkpoint had no weights, so the model keeps its last "
        "weights."]


def test_two_of_a_kind_have_a_state_each(tmp_path: Path) -> None:
    class Counts(Callback):
        def __init__(self, count: int) -> None:
            self.count = count

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: Any) -> None:
            self.count = state["count"]

    then = Counts(0), Counts(0)
    resumed([Counts(3), Counts(4)], [then[0], EarlyStopping(9), then[1]], tmp_path)
    assert [callback.count for callback in then] == [3, 4]


RATES = {  # settings, values, rates of the epochs: what Keras' callback does
    "every two": ({"patience": 2}, [5, 5, 5, 5, 5, 5], [1, 1, 1, 0.5, 0.5, 0.25]),
    "after each": ({"patience": 1}, [5, 5, 4, 4, 4, 3], [1, 1, 0.5, 0.5, 0.25, 0.125]),
    "too little better": ({"patience": 2, "min_delta": 1}, [5, 4.5, 4.1, 3.9, 3.5, 2], [1, 1, 1, 0.5, 0.5, 0.5]),
    "cooldown": ({"patience": 1, "cooldown": 2}, [5, 6, 7, 8, 9, 9, 9, 9], [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]),
    "least": ({"patience": 1, "min_lr": 0.3}, [5, 5, 5, 5, 5], [1, 1, 0.5, 0.3, 0.3]),
    "not a number": ({"patience": 2}, [nan, nan, nan, 5, nan, nan, 4], [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]),
    "more is better": ({"patience": 2, "mode": "max"}, [1, 2, 3, 3, 2, 1], [1, 1, 1, 1, 1, 0.5]),
    "already lower": ({"patience": 1, "min_lr": 2.0}, [5, 5, 5], [1, 1, 1]),
}


@pytest.mark.parametrize("name", RATES)
def test_rates_on_a_plateau(name: str, tmp_path: Path) -> None:
    settings, values, rates = RATES[name]
    plateau = ReduceLROnPlateau(0.5, monitor="val_made_error", **settings)
    for _ in range(2):  # it can be used again
        assert train(values, plateau, epochs=len(values))[1]["lr"] == rates
    for epochs in range(1, len(values) + 1):  # a resumed training goes on from its history alone
        _, history = train(values[epochs - 1 : epochs], ReduceLROnPlateau(0.5, monitor="val_made_error", **settings),
                           epochs=epochs, checkpoint=tmp_path / "job", resume=True)
    assert history["lr"] == rates


def test_a_plateau_of_several_optimizers_and_of_a_schedule(caplog: pytest.LogCaptureFixture) -> None:
    model = ag.ag_linear(1, 1)
    made_of: list[Any] = []

    def two(params: Any) -> Any:
        made_of[:] = [ag.optim.SGD({"W": params["W"]}, lr=1.0), ag.optim.SGD({"b": params["b"]}, lr=4.0)]
        return made_of

    ag.fit(model, (X, X), epochs=3, metrics={"made_error": made([1, 1, 1])}, optimizer=two, verbose=False, batch_size=8,
           callbacks=ReduceLROnPlateau(0.5, 2, monitor="made_error"))
    assert [optimizer.lr for optimizer in made_of] == [0.5, 2.0]
    train([1] * 5, ReduceLROnPlateau(0.5, 1), epochs=5, lr=1e-3, optimizer=None,
          scheduler=lambda optimizer: ag.optim.StepSchedule(optimizer, 1, 0.9))
    assert "something else, such as a scheduler of fit, has set the learning rate" in caplog.text


def test_model_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "m-{epoch:02}-{val_made_error:.1f}"
    train([1, 2, 3, 4, 5], ModelCheckpoint(path), epochs=5)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"m-0{i}-{i}.0" for i in range(1, 6)]
    assert [ag.ag_load_model(tmp_path / f"m-0{i}-{i}.0").W.item() for i in (1, 5)] == [1, 5]


def test_old_model_checkpoints_go(tmp_path: Path) -> None:
    other = tmp_path / "m-1"
    other.write_text("not of this training's every second epoch")
    job = tmp_path / "job"
    for epochs in (5, 8):
        train([0] * 8, ModelCheckpoint(str(tmp_path / "m-{epoch}"), every=2, keep=2), epochs=epochs, checkpoint=job,
              resume=True)
        kept = {"m-2", "m-4"} if epochs == 5 else {"m-6", "m-8"}
        assert {p.name for p in tmp_path.iterdir()} == {"m-1", "job"} | kept
    train([0] * 3, ModelCheckpoint(tmp_path / "one", keep=1), epochs=3)
    assert ag.ag_load_model(tmp_path / "one").W.item() == 3


@pytest.mark.parametrize(("path", "said"), [("m-{val_acc}", "{epoch} in it, and {loss}, {val_loss}, {val_made_error}"),
                                            ("m-{loss:d}", "no name can be made"), ("m-{}", "no name can be made"),
                                            ("m-{", "no name can be made"), ("m-{loss.x}", "no name can be made")])
def test_names_that_cannot_be_made(path: str, said: str, tmp_path: Path) -> None:
    with expect_error(path, ValueError, "ModelCheckpoint: path is", said):
        train([], ModelCheckpoint(tmp_path / path))
    with expect_error("no folder", ag.CheckpointError, "ModelCheckpoint", "cannot be written"):
        train([], ModelCheckpoint(tmp_path / "none" / "m-{epoch}"))


def test_loggers_of_other_libraries() -> None:
    found: list[tuple[int, dict[str, float]]] = []

    def log_metrics(metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        found.append((step, {name: float(value) for name, value in metrics.items()}))

    _, history = train([1, 2], Logger(log_metrics, every=3), epochs=2, batch_size=4)
    assert [step for step, _ in found] == [2, 3, 4]  # they never fall
    assert [numbers for step, numbers in found if step != 3] == [
        {"epoch": epoch, **row} for epoch, row in enumerate(history.rows, 1)]
    assert [*found[1][1]] == ["step_loss"]


class Recorder(ModuleType):
    """Of wandb and mlflow, what the recipe uses, with their signatures."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.settings: dict[str, Any] = {}
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.ended = False

    def init(self, *, project: str | None = None, config: dict[str, Any] | None = None) -> Recorder:
        self.settings = dict(config or {})
        return self

    def start_run(self) -> Recorder:
        return self

    def log_params(self, params: dict[str, Any]) -> None:
        self.settings = dict(params)

    def log(self, data: dict[str, float], step: int | None = None, commit: bool | None = None) -> None:
        assert step is not None and (not self.logged or step >= self.logged[-1][0]), "wandb drops a step that is lower"
        self.logged.append((step, {name: float(value) for name, value in data.items()}))

    def log_metrics(self, metrics: dict[str, float], step: int | None = None, synchronous: bool | None = None) -> None:
        self.log(metrics, step)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_error: object) -> None:
        self.ended = True


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_recipe_for(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "recipes" / "logging.md").read_text("utf-8")
    (code,) = [block for block in re.findall(r"^```py elsewhere\n(.*?)^```$", page, re.M | re.S)
               if block.startswith(f"import {name}\n")]
    library = Recorder(name)
    monkeypatch.setitem(sys.modules, name, library)
    data = np.ones((320, 4), np.float32), np.zeros(320, int)
    exec(code, {"ag": ag, "training": ag.training, "model": ag.ag_linear(4, 3), "train": data, "valid": data})
    assert library.ended and library.settings == {"epochs": 5, "batch_size": 32, "lr": 0.01}
    of_epochs = [numbers for _, numbers in library.logged if "epoch" in numbers]
    assert [numbers["epoch"] for numbers in of_epochs] == [1, 2, 3, 4, 5]
    assert [*of_epochs[0]] == ["epoch", "loss", "val_loss", "val_accuracy", "lr"]
    assert [step for step, numbers in library.logged if "step_loss" in numbers] == (
        [10, 20, 30, 40, 50] if name == "wandb" else [])


def test_hooks_that_are_none() -> None:
    with expect_error("a wrong name", TypeError, "Wrong: on_batch_end is no hook", "on_train_begin, on_step_end"):
        class Wrong(Callback):
            def on_batch_end(self, run: Any) -> None:
                """Never called."""

    class Mixed:
        def on_fit_end(self) -> None:
            """Never called."""

    with expect_error("of another base", TypeError, "Both: on_fit_end is no hook"):
        class Both(Mixed, Callback):
            pass

    class Right(EarlyStopping):
        on_what = "val_loss"  # no method

        def on_epoch_end(self, run: Any) -> None:
            super().on_epoch_end(run)

    assert Right().on_what == "val_loss"


def test_their_file_is_tried_before_the_first_epoch(tmp_path: Path) -> None:
    with expect_error("a folder that is not there", ag.CheckpointError, "BestWeights", "cannot be written"):
        train([], BestWeights("val_made_error", path=tmp_path / "none" / "best"))


def test_buffers_go_with_them_on_several_devices() -> None:
    averages: list[np.ndarray] = []

    class Looks(Callback):
        def on_epoch_end(self, run: Any) -> None:
            averages.append(run.model.layers[0].running_mean.numpy())

    model = ag.ag_sequential(ag.ag_batch_norm(1), ag.ag_linear(1, 1))
    ag.fit(model, (X + 2, X), (X, X), 4, metrics={"made_error": made([4, 2, 3, 3])}, batch_size=8, verbose=False,
           callbacks=[Looks(), BestWeights("val_made_error")], devices=["cpu", "cpu:1"])
    assert np.array_equal(model.layers[0].running_mean.numpy(), averages[1])
    assert not np.array_equal(averages[1], averages[3])


def test_the_order_of_calls() -> None:
    calls: list[tuple[Any, ...]] = []

    class Notes(Callback):
        def on_train_begin(self, run: Any) -> None:
            calls.append(("begin", run.epochs, run.steps, run.samples, run.columns))

        def on_step_end(self, run: Any, step: int, loss: float) -> None:
            calls.append(("step", step, run.seen))

        def on_epoch_end(self, run: Any) -> None:
            calls.append(("epoch", run.history.epochs))

        def on_train_end(self, run: Any) -> None:
            calls.append(("end", run.history.epochs))

    train([1, 2], Notes(), epochs=2, batch_size=5)
    assert calls == [("begin", 2, 2, 8, ("loss", "val_loss", "val_made_error", "lr")), ("step", 0, 5), ("step", 1, 8),
                     ("epoch", 1), ("step", 2, 5), ("step", 3, 8), ("epoch", 2), ("end", 2)]


def test_a_callback_may_set_the_rate_and_stop_in_an_epoch() -> None:
    class Changes(Callback):
        def on_step_end(self, run: Any, step: int, loss: float) -> None:
            run.optimizers[0].lr = 0.25
            if step == 4:
                run.stop("enough")

    _, history = train([1, 2, 3], Changes(), batch_size=4)
    assert history["lr"] == [0.25, 0.25] and history.stopped == "enough"


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    _, history = train([1.5, nan], CSVLog(path), epochs=2)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert [row["val_made_error"] for row in rows] == ["1.5", "nan"]
    assert [float(row["loss"]) for row in rows] == history["loss"]
    assert list(rows[0]) == ["epoch", "seconds", "loss", "val_loss", "val_made_error", "lr"]
    train([2.5], CSVLog(path, append=True), epochs=1)
    assert len(path.read_text().splitlines()) == 4
    with expect_error("other columns", ag.CheckpointError, "columns", "append=False"):
        train([1], CSVLog(path, append=True), epochs=1, name="other")
    with pytest.raises(OSError, match="CSVLog: No such file"):
        train([1], CSVLog(tmp_path / "none" / "log.csv"))
    assert [p.name for p in tmp_path.iterdir()] == ["log.csv"]


def test_csv_of_a_resumed_training_has_all_epochs(tmp_path: Path) -> None:
    path, job = tmp_path / "log.csv", tmp_path / "job"
    train([1, 2], CSVLog(path), epochs=2, checkpoint=job)
    train([3], CSVLog(path), epochs=3, checkpoint=job, resume=True)
    assert [line.split(",")[4] for line in path.read_text().splitlines()[1:]] == ["1.0", "2.0", "3.0"]


class Writer:
    """Of a writer of event files, what is used."""

    def __init__(self, folder: str) -> None:
        self.written: list[tuple[str, float, int]] = []
        self.open = True
        WRITERS.append(self)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.written.append((tag, scalar_value, global_step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.open = False


WRITERS: list[Writer] = []


def test_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tensorboardX")
    vars(module)["SummaryWriter"] = Writer
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    train([1, 2], TensorBoard("runs", every=3), epochs=2, batch_size=4)
    writer = WRITERS.pop()
    assert not writer.open
    assert [(tag, step) for tag, _, step in writer.written] == [
        *((tag, 1) for tag in ("loss", "val_loss", "val_made_error", "lr")), ("step_loss", 3),
        *((tag, 2) for tag in ("loss", "val_loss", "val_made_error", "lr"))]
    with pytest.raises(ValueError, match="monitor"):
        train([], TensorBoard("runs"), EarlyStopping(monitor="x"))
    assert not WRITERS.pop().open


def test_without_a_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with expect_error("no writer", ImportError, "TensorBoard: there is no writer", "pip install tensorboardX"):
        train([], TensorBoard())


def test_tensorboard_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    train([1, 2], TensorBoard(tmp_path / "runs"), epochs=2)
    assert [p.stat().st_size > 100 for p in (tmp_path / "runs").iterdir()] == [True]


def test_progress_in_terminals_and_without(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    train([1, 2], epochs=2, verbose=True)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("epoch 1/2: loss ") and "val_made_error 1, " in out[0] and out[0].endswith(" samples/s")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    train([1, 2], EarlyStopping(1, monitor="val_made_error"), epochs=3, batch_size=3, verbose=True)
    found = capsys.readouterr()
    assert "epoch 2/3" in found.err and "8/8" in found.err and "samples/s" in found.err
    assert "val_made_error=2" in found.err and "stopped after epoch 2: val_made_error" in found.out


class Broken(io.StringIO):
    """A terminal that breaks after some writes."""

    writes = 3

    def write(self, text: str) -> int:
        self.writes -= 1
        if self.writes < 0:
            raise BrokenPipeError
        return super().write(text)

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [None, Broken()])
def test_a_training_goes_on_without_its_streams(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    assert train([1, 2], epochs=2, verbose=True)[1].epochs == 2
