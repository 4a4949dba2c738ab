"""dp_train: the samples it takes, what it returns and what it says.  What it refuses is in test_refused."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.dp_linear import DATA, XS, YS, make_model, train
from helpers.errors import expect_error

import ag

# ---------------------------------------------------------------------------------------------- samples


class Pair(NamedTuple):
    x: np.ndarray
    y: np.ndarray


class Own:
    """A user's sample; dp_train cannot see what is in it."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y


SAMPLES = {
    "tuples": (DATA, lambda s: s[0], lambda s: s[1]),
    "lists": ([list(s) for s in DATA], lambda s: s[0], lambda s: s[1]),
    "named tuples": ([Pair(*s) for s in DATA], lambda s: s.x, lambda s: s.y),
    "dicts with numbers": ([{"x": x, "y": y, "kind": i % 2, "name": "a"} for i, (x, y) in enumerate(DATA)],
                           lambda s: s["x"] if s["kind"] in (0, 1) else None, lambda s: s["y"]),
    "nested": ([{"in": (x, [y])} for x, y in DATA], lambda s: s["in"][0], lambda s: s["in"][1][0]),
    "tensors": ([(ag.ag_tensor(x), ag.ag_tensor(y)) for x, y in DATA], lambda s: s[0], lambda s: s[1]),
    "tensors elsewhere": ([(ag.ag_tensor(x, device="cpu:3"), y) for x, y in DATA], lambda s: s[0], lambda s: s[1]),
    "one array": (np.concatenate([XS, YS], axis=1), lambda s: s[:4].copy(), lambda s: s[4:].copy()),
    "own objects": ([Own(x, y) for x, y in DATA], lambda s: s.x, lambda s: s.y),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_of_every_kind_give_the_same_bits(device: str, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    data, x_of, y_of = SAMPLES[kind]
    places = ["cpu", "cpu:1"] if device == "cpu" else [device] * 2
    found = train(data, forward_fn=lambda m, s: m(x_of(s)), target_fn=y_of, devices=places)
    expected = train(devices=places, capture=False)
    assert np.array_equal(found.loss_history, expected.loss_history)
    assert np.array_equal(found.model.W.numpy(), expected.model.W.numpy())
    assert len(caplog.records) == (kind == "own objects"), caplog.text


def test_samples_that_cannot_be_captured_are_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    train([Own(x, y) for x, y in DATA], forward_fn=lambda m, s: m(s.x), target_fn=lambda s: s.y)
    (record,) = caplog.records
    assert "uncaptured" in record.getMessage() and "Own" in record.getMessage()
    with expect_error("dp_train(capture=True) with samples of an own type", ag.CaptureError, "Own", "arrays"):
        train([Own(x, y) for x, y in DATA], forward_fn=lambda m, s: m(s.x), target_fn=lambda s: s.y, capture=True)


def test_a_step_that_cannot_be_captured_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    def forward(model: ag.Layer, s: Any) -> ag.Tensor:
        return model(s[0] * float(s[0].item(0)))  # a number that Python reads

    expected = train(forward_fn=forward, capture=False)
    assert np.array_equal(train(forward_fn=forward).loss_history, expected.loss_history)
    (record,) = caplog.records
    assert "uncaptured" in record.getMessage() and "(4, 1)" in record.getMessage()
    with expect_error("dp_train(capture=True) with a step that reads a number", ag.CaptureError, "(4, 1)"):
        train(forward_fn=forward, capture=True)


def test_numbers_in_samples_are_part_of_the_step(caplog: pytest.LogCaptureFixture) -> None:
    """Each number needs a captured step of its own; beyond some dozens the rest runs eagerly, which is said."""
    data = [(x, y, i / 8) for i, (x, y) in enumerate(DATA * 8)]
    options = {"forward_fn": lambda m, s: m(s[0]) * s[2], "micro_batch": 48, "n_iter": 2}
    assert np.array_equal(train(data, **options).loss_history, train(data, **options, capture=False).loss_history)
    (record,) = caplog.records
    assert "uncaptured" in record.getMessage()


def test_fewer_samples_than_replicas_use_none_twice() -> None:
    used = []
    result = train(DATA[:3], lambda: ag.ag_linear(4, 2), forward_fn=lambda m, s: used.append(s[0].tobytes()) or m(s[0]),
                   devices=[f"cpu:{i}" for i in range(5)], n_iter=1, capture=False)
    assert len(used) == len(set(used)) == 3
    assert [row["samples"] for row in result.report] == [1, 1, 1, 0, 0]
    assert np.array_equal(result.loss_history, train(DATA[:3], devices=["cpu"], micro_batch=3, n_iter=1).loss_history)


class SemiSupervised(ag.Layer):
    """A model that must find its input again from a code, and the label, too, of the samples that have one."""

    def __init__(self) -> None:
        self.encode, self.decode, self.label = ag.ag_linear(4, 2, "tanh"), ag.ag_linear(2, 4), ag.ag_linear(2, 2)

    def forward(self, x: ag.Tensor, y: ag.Tensor, labelled: ag.Tensor) -> ag.Tensor:
        code = self.encode(x)
        return ag.ag_mse_loss(self.decode(code), x) + ag.ag_mean(((self.label(code) - y) * labelled) ** 2)


@pytest.mark.parametrize("labels", [0, 4])
def test_some_samples_have_labels(labels: int) -> None:
    def trained(others: float, places: list[str]) -> ag.DPResult:
        data = [(x, y, np.ones((1, 1))) if i < labels else (x, np.full_like(y, others), np.zeros((1, 1)))
                for i, (x, y) in enumerate(DATA)]
        return train(data, SemiSupervised, loss_fn=None, forward_fn=lambda m, s: m(*s), target_fn=None, batch=12,
                     stack=4, n_iter=20, lr=0.04, devices=places)

    one, three = trained(0.0, ["cpu"]), trained(99.0, ["cpu", "cpu:1", "cpu:2"])
    assert one.loss_history[-1] < 0.75 * one.loss_history[0]
    np.testing.assert_array_equal(one.loss_history, three.loss_history)
    for name, value in one.params.items():
        np.testing.assert_array_equal(value, three.params[name])


# ---------------------------------------------------------------------------------------------- result and words


def test_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    result = train()
    assert result["loss"] == result.loss == result["loss_history"][-1]
    assert result["params"] is result.params and list(result.params) == ["W", "b"]
    assert result.model.W is result.params["W"]
    assert result.devices == ["cpu", "cpu:1"]
    assert result.optimizer_state["state"][-1] == 3
    for k, row in enumerate(result.report):
        assert row["replica"] == k and row["device"] == result.devices[k] and row["samples"] == 3
        assert row["bytes_per_step"] == 2 * 12 * 4 + 16
        assert min(row[f"{part}_ms"] for part in ("compute", "elapsed", "wait", "reduce")) >= 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("verbose", "steps"), [
    (True, [1, 2, 3, 4, 5]), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (10, [5]), (False, []), (0, []), (None, []),
])
def test_verbose_prints_the_loss(verbose: Any, steps: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    result = train(n_iter=5, verbose=verbose)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"dp_train: step {k}/5, loss {result.loss_history[k - 1]:.6g}" for k in steps]


class Full(io.StringIO):
    """A terminal that takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [None, Full(), SimpleNamespace(write=len)], ids=["missing", "full", "no methods"])
def test_streams_that_fail(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
    assert len(train(verbose=1).loss_history) == 3


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_go_to_stdout_and_a_bar_to_a_terminal(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    for name, stream in streams.items():
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
        monkeypatch.setattr(sys, name, stream)
    losses = train(verbose=2).loss_history
    assert streams["stdout"].getvalue() == (f"dp_train: step 2/3, loss {losses[1]:.6g}\n"
                                            f"dp_train: step 3/3, loss {losses[2]:.6g}\n")
    assert ("dp_train:" in streams["stderr"].getvalue()) is terminal


def test_no_steps() -> None:
    result = train(n_iter=0)
    assert result.loss_history.shape == (0,) and np.isnan(result.loss)
    ag.ag_seed(1)
    assert np.array_equal(result.model.W.numpy(), make_model().W.numpy())


def test_the_callback_sees_every_step() -> None:
    steps: list[ag.DPStep] = []
    result = train(callback=steps.append)
    assert [(s.step, s.loss) for s in steps] == list(enumerate(result.loss_history))
    assert len(steps[0].models) == 2


@pytest.mark.vulkan
def test_the_default_is_every_card(lavapipe: str, swiftshader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AG_SOFTWARE", "1")
    names = [d.name for d in ag.ag_vulkan_devices()]
    with ag.ag_device("auto"):
        assert train(devices=None, n_iter=0).devices == names
        assert train(devices=None, n_gpu=5, n_iter=0).devices == (names * 3)[:5]
        assert train(devices=None, n_gpu=1, n_iter=0).devices == names[:1]
        monkeypatch.setenv("AG_VULKAN_DEVICES", "1")
        assert train(devices=None, n_gpu=2, n_iter=0).devices == names[1:2] * 2


@pytest.mark.vulkan
def test_a_device_that_was_named_decides(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AG_SOFTWARE", "1")
    with ag.ag_device(lavapipe):
        assert train(devices=None, n_iter=1).devices == [lavapipe]
        assert train(devices=None, n_gpu=2, n_iter=1).devices == [lavapipe] * 2
        with ag.ag_device("cpu:3"):
            assert train(devices=None, n_iter=1).devices == ["cpu:3"]
        assert train(devices=None, n_iter=1).devices == [lavapipe]
    with ag.ag_device("cpu"):
        assert train(devices=None, n_gpu=2, n_iter=1).devices == ["cpu", "cpu:1"]


def test_without_a_card_it_says_so_and_trains_on_the_cpu(monkeypatch: Any, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("ag.engine.device.preferred_devices", list)
    monkeypatch.setattr("ag.engine.device.preferred_devices", list)
    monkeypatch.setattr("ag.parallel.trainer.dp_train.list_devices", lambda accelerators_only: [])
    with caplog.at_level(logging.INFO, "ag"), ag.ag_device("auto"):
        result = train(devices=None, n_gpu=2)
    assert result.devices == ["cpu", "cpu:1"]
    (record,) = caplog.records
    assert record.levelno == logging.INFO and "no Vulkan device" in record.getMessage()


def test_the_default_device_comes_back_also_after_an_error(device: str) -> None:
    train()
    assert ag.ag_default_device() == device
    for place in ("make", "forward"):
        def broken(*args: Any) -> Any:
            raise KeyError("own error")

        with pytest.raises(KeyError, match="own error"):
            train(**{"make": broken} if place == "make" else {"forward_fn": broken})
        assert ag.ag_default_device() == device
