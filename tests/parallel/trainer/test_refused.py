"""dp_train: parameters that are not used, numbers that are not finite, and what is refused before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dp_linear import DATA, make_model, train
from helpers.errors import expect_error

import ag

# ---------------------------------------------------------------------------------------------- parameters


class Partly(ag.Layer):
    """A model with a parameter that is never used, and one that only some samples use."""

    def __init__(self) -> None:
        self.W = ag.ag_param(np.ones((2, 4)))
        self.idle = ag.ag_param(np.ones((3, 1)))
        self.rare = ag.ag_param(np.ones((2, 1)))

    def forward(self, x: ag.Tensor, rare: bool = False) -> ag.Tensor:
        y = self.W @ x
        return y + self.rare if rare else y


def test_a_parameter_used_nowhere_is_named_once_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    result = train(make=Partly, forward_fn=lambda m, s: m(s[0], rare=True), lr=0.1)
    (record,) = caplog.records
    assert "idle" in record.getMessage() and "rare" not in record.getMessage()
    assert np.array_equal(result.params["idle"].numpy(), np.ones((3, 1)))
    assert not np.any(result.optimizer_state["m.idle"]) and np.any(result.optimizer_state["m.rare"])


def test_a_parameter_that_one_replica_does_not_use_counts_as_zero_there() -> None:
    data = [(x, y, i % 2 == 0) for i, (x, y) in enumerate(DATA)]
    found = train(data, Partly, forward_fn=lambda m, s: m(s[0], rare=s[2]), lr=0.1)
    zero = train(data, Partly, forward_fn=lambda m, s: m(s[0]) + m.rare * float(s[2]), lr=0.1)
    assert np.array_equal(found.params["rare"].numpy(), zero.params["rare"].numpy())
    assert not np.array_equal(found.params["rare"].numpy(), np.ones((2, 1)))


# ---------------------------------------------------------------------------------------------- not finite


def nan_at(k: int) -> list[Any]:
    data = [(x.copy(), y) for x, y in DATA]
    data[k][0][1] = np.nan
    return data


def test_a_nan_names_replica_step_and_parameter(device: str) -> None:
    places = ["cpu", "cpu:1"] if device == "cpu" else [device] * 2
    models: list[Any] = []

    def make() -> ag.Layer:
        models.append(make_model())
        return models[-1]

    seen: list[np.ndarray] = []
    with expect_error("dp_train meets a gradient that is not finite", FloatingPointError, "gradient of W",
                      f"replica 1 ({places[1]})", "step 2", "weights are as before"):
        train(nan_at(5), make, devices=places, callback=lambda s: seen.append(s.models[0].W.numpy()))
    assert len(seen) == 2
    for model in models:
        assert np.array_equal(model.W.numpy(), seen[-1])


def test_a_loss_that_is_not_finite_is_named(device: str) -> None:
    with expect_error("dp_train meets a loss that is not finite", FloatingPointError, "the loss", "replica 0"):
        train([(x, np.full((2, 1), np.inf, np.float32) if k == 0 else y) for k, (x, y) in enumerate(DATA)],
              loss_fn=lambda p, t: ag.ag_sum(p) * 0.0 + ag.ag_sum(ag.ag_tensor(t)), devices=[device])


def test_opposite_infinities_are_not_averaged_away() -> None:
    data = [(x.copy(), y) for x, y in DATA]
    data[0][0][:], data[1][0][:] = np.inf, -np.inf
    with expect_error("dp_train meets infinite gradients of both signs", FloatingPointError, "replica 0", "step 0"):
        train(data, loss_fn=lambda p, t: ag.ag_sum(p))


def test_skip_leaves_the_step_out_on_all_replicas(device: str, caplog: pytest.LogCaptureFixture) -> None:
    places = ["cpu", "cpu:1"] if device == "cpu" else [device] * 2
    weights: list[np.ndarray] = []
    result = train(nan_at(2), devices=places, n_iter=4, on_nonfinite="skip", lr=0.1,
                   callback=lambda s: weights.append(np.stack([m.W.numpy() for m in s.models])))
    assert np.isnan(result.loss_history[1]) and np.isfinite(result.loss_history[[0, 2, 3]]).all()
    assert np.array_equal(weights[1], weights[0]) and not np.array_equal(weights[2], weights[1])
    assert all(np.array_equal(a, b) for a, b in weights)
    assert result.optimizer_state["state"][-1] == 3
    (record,) = caplog.records
    assert "replica 0" in record.getMessage() and "step 1" in record.getMessage()


# ---------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(("options", "fragments"), [
    ({"data": []}, ["data is empty"]),
    ({"n_iter": -1}, ["n_iter is -1"]),
    ({"n_gpu": 0, "devices": None}, ["n_gpu is 0", "at least 1"]),
    ({"micro_batch": 0}, ["micro_batch is 0"]),
    ({"accumulate": 0}, ["accumulate is 0"]),
    ({"on_nonfinite": "ignore"}, ["'ignore'", "'skip'"]),
    ({"capture": "always"}, ["'always'", "'auto'"]),
    ({"n_gpu": 3}, ["n_gpu is 3", "devices names 2"]),
    ({"devices": []}, ["devices is empty"]),
    ({"balance": "fast"}, ["'fast'", "'equal'"]),
    ({"balance": [1.0]}, ["[1.0]", "2 weights"]),
    ({"balance": [1.0, -1.0]}, ["-1.0"]),
    ({"balance": [0.0, 0.0]}, ["[0.0, 0.0]"]),
    ({"balance": [float("nan"), 1.0]}, ["nan"]),
    ({"max_norm": 0.0}, ["max_norm is 0.0", "positive"]),
    ({"max_norm": float("nan")}, ["max_norm is nan", "positive"]),
    ({"verbose": -1}, ["verbose is -1"]),
    ({"lr": -1.0}, ["lr is -1.0"]),
    ({"lr": float("nan")}, ["lr is nan"]),
    ({"lr": "fast"}, ["lr is 'fast'", "number"]),
    ({"n_iter": 2.0}, ["n_iter is 2.0", "whole number"]),
    ({"n_iter": True}, ["n_iter is True", "whole number"]),
    ({"batch": 0}, ["batch is 0"]),
    ({"stack": 0}, ["stack is 0"]),
    ({"stack": "all"}, ["'all'", "'auto'", "whole number"]),
    ({"stack": None}, ["stack is None", "'auto'"]),
    ({"shuffle": "yes"}, ["shuffle is 'yes'", "True or False"]),
    ({"resume": None}, ["resume is None"]),
    ({"sync_batch_norm": "auto"}, ["sync_batch_norm is 'auto'"]),
    ({"seed": 1.5}, ["seed is 1.5"]),
    ({"timeout": "long"}, ["timeout is 'long'"]),
    ({"timeout": 0}, ["timeout is 0", "positive"]),
    ({"max_norm": None}, ["max_norm is None"]),
    ({"capture": 2}, ["capture is 2"]),
    ({"balance": [float("inf"), 1.0]}, ["inf", "finite"]),
    ({"balance": ["a", 1.0]}, ["'a'"]),
    ({"balance": 3}, ["balance is 3"]),
    ({"checkpoint_every": 2}, ["without checkpoint"]),
    ({"checkpoint_every": 0, "checkpoint": "job"}, ["checkpoint_every is 0"]),
], ids=lambda v: None if isinstance(v, list) else ", ".join(f"{k}={x}" for k, x in v.items()))
def test_bad_arguments(options: dict[str, Any], fragments: list[str]) -> None:
    made = []
    said = ", ".join(f"{k}={v!r}" for k, v in options.items())
    with expect_error(f"dp_train({said})", ValueError, *fragments):
        train(make=lambda: made.append(1) or make_model(), **options)
    assert ag.ag_default_device() == "cpu"


@pytest.mark.parametrize(("options", "fragments"), [
    ({"make": make_model()}, ["make_model is a Linear", "lambda"]),
    ({"make": 3}, ["make_model is a int"]),
    ({"loss_fn": 3}, ["loss_fn is a int"]),
    ({"forward_fn": 3}, ["forward_fn is a int"]),
    ({"target_fn": "y"}, ["target_fn is a str"]),
    ({"weight_fn": 2.0}, ["weight_fn is a float"]),
    ({"callback": [print]}, ["callback is a list"]),
    ({"scheduler": 0.1}, ["scheduler is a float"]),
    ({"optimizer": ag.optimizer_sgd(make_model(), lr=0.1)}, ["optimizer is a SGD", "lambda params"]),
    ({"devices": "cpu"}, ["devices is 'cpu'", "['cpu', 'cpu:1']"]),
    ({"devices": [1]}, ["devices is [1]"]),
    ({"checkpoint": 3}, ["checkpoint is 3"]),
], ids=lambda v: None if isinstance(v, list) else next(iter(v)))
def test_arguments_of_a_wrong_kind(options: dict[str, Any], fragments: list[str]) -> None:
    with expect_error(f"dp_train with a wrong {next(iter(options))}", TypeError, *fragments):
        train(**options)


def test_numbers_of_numpy_are_numbers() -> None:
    whole, real = np.int64(2), np.float32(0.5)
    result = train(n_iter=whole, micro_batch=whole, accumulate=whole, verbose=np.int64(0), seed=whole, lr=real,
                   max_norm=real, balance=np.array([1.0, 2.0]), shuffle=np.True_, stack=whole, batch=np.int64(8))
    assert len(result.loss_history) == 2


@pytest.mark.parametrize("path", ["no folder/job", "."])
def test_a_checkpoint_that_cannot_be_written_is_refused_at_once(path: str, tmp_path: Path) -> None:
    made = []
    with pytest.raises(OSError, match="cannot be written") as caught:
        train(make=lambda: made.append(1) or make_model(), checkpoint=tmp_path / path)
    assert isinstance(caught.value, ag.CheckpointError) and not made


def test_an_unknown_device() -> None:
    with expect_error("dp_train on an unknown device", ag.DeviceError, "'tpu'", "'cpu'"):
        train(devices=["cpu", "tpu"])


@pytest.mark.vulkan
def test_a_vulkan_device_that_is_not_there(lavapipe: str) -> None:
    with expect_error("dp_train on a Vulkan device that is not there", ag.DeviceError, "vulkan:77"):
        train(devices=["vulkan:77"])


def test_models_that_differ() -> None:
    sizes = iter([(4, 2), (4, 3)])
    with expect_error("dp_train with a make_model that builds different shapes", ag.CommError, "(2, 4)", "(3, 4)",
                      "replica 1"):
        train(make=lambda: ag.ag_linear(*next(sizes)))
    biases = iter([True, False])
    with expect_error("dp_train with a make_model that builds different parameters", ag.CommError, "parameter ('b'",
                      "where replica 1 has none"):
        train(make=lambda: ag.ag_linear(4, 2, bias=next(biases)))


def test_replicas_that_share_a_parameter() -> None:
    model = make_model()
    with expect_error("dp_train with a make_model that returns one model twice", ag.CommError, "parameter W",
                      "same tensor", "new parameters"):
        train(make=lambda: model, devices=["cpu", "cpu"])


def test_parameters_on_a_fixed_device() -> None:
    class Fixed(ag.Layer):
        def __init__(self) -> None:
            self.W = ag.ag_param(np.ones((2, 4)), device="cpu:2")

    with expect_error("dp_train with a model on a fixed device", ag.CommError, "cpu:2", "default device"):
        train(make=Fixed)


def test_what_is_no_model() -> None:
    with expect_error("dp_train with a make_model that returns no model", TypeError, "returned a dict", "forward()"):
        train(make=dict)
    with expect_error("dp_train with a model without parameters", ValueError, "dp_train", "no parameters"):
        train(make=lambda: ag.ag_dropout(0.5))


@pytest.mark.parametrize(("options", "error", "fragments"), [
    ({"loss_fn": lambda pred, target: pred - ag.ag_tensor(target)}, ag.TapeError, ["(2, 1)", "one element"]),
    ({"loss_fn": lambda pred, target: 0.0}, TypeError, ["float", "tensor of one element"]),
    ({"loss_fn": lambda pred, target: ag.ag_sum(ag.ag_tensor(target))}, ag.TapeError, ["not recorded"]),
    ({"scheduler": lambda optimizer: 3}, TypeError, ["returned 3", "step()"]),
], ids=["several elements", "a number", "no parameter", "no schedule"])
def test_what_functions_must_not_return(options: dict[str, Any], error: type[Exception], fragments: list[str]) -> None:
    with expect_error("dp_train with a function that returns something else", error, *fragments):
        train(**options)


@pytest.mark.parametrize("change", ["replaced", "unfrozen", "frozen"])
def test_parameters_that_change_during_the_training(change: str) -> None:
    """Others than before are refused; what is frozen keeps its value."""
    models: list[Any] = []

    def make() -> ag.Layer:
        models.append(ag.ag_linear(4, 2))
        models[-1].b.requires_grad = change != "unfrozen"
        return models[-1]

    frozen: list[np.ndarray] = []

    def callback(step: Any) -> None:
        if not frozen:
            if change == "replaced":
                models[0].W = ag.ag_param(np.ones((2, 4)))
            models[0].b.requires_grad = change != "frozen"
            frozen.append(models[0].b.numpy())

    if change != "frozen":
        with expect_error(change, ValueError, "dp_train: ", "b" if change == "unfrozen" else "W", "would not train it"):
            train(devices=["cpu"], make=make, callback=callback, n_iter=3)
        return
    train(devices=["cpu"], make=make, callback=callback, n_iter=4)
    assert np.array_equal(models[0].b.numpy(), frozen[0])
