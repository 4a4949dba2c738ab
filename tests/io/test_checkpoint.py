"""Checkpoints: a resumed run is the uninterrupted one to the bit, and loading is all or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from helpers.errors import expect_error
from helpers.training_run import LABELS, Run, X

import ag
from ag.engine.random import generator_snapshot, host_seed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.safetensors"


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_a_resumed_run_is_the_uninterrupted_one(device: str, captured: bool, path: Path) -> None:
    run = Run(captured)
    run.train(6)
    assert 0 < run.loader.state_dict()["next"] < 4  # in the middle of an epoch
    ag.ag_save_checkpoint(path, **run.parts(), step=6, extra={"best": [0.5, "x"]})
    expected = run.train(7)
    assert len({loss for loss, _ in expected[:-1]}) == 7

    resumed = Run(captured, seed=99)
    assert ag.ag_load_checkpoint(path, **resumed.parts()) == ag.Checkpoint(6, {"best": [0.5, "x"]})
    assert resumed.train(7) == expected

    other = Run(captured, seed=98)  # one that has trained already, and perhaps captured its step
    other.train(3)
    ag.ag_load_checkpoint(path, **other.parts())
    other._batches = other._endless()
    assert other.train(7) == expected


def test_saving_changes_nothing(path: Path) -> None:
    expected = Run().train(6)
    run = Run()
    found = []
    for k in range(6):
        found += run.train(1)[:-1]
        ag.ag_save_checkpoint(path, **run.parts(), step=k)
    assert [*found, run.weights()] == expected


@pytest.mark.vulkan
def test_every_device_goes_on_with_its_own_stream(path: Path, swiftshader: str) -> None:
    def masks() -> list[bytes]:
        drop = ag.ag_dropout(0.5)
        return [drop(ag.ag_tensor(np.ones((4, 8)), device=name)).numpy().tobytes()
                for name in ("cpu", "cpu", swiftshader, "cpu:1")] + [str(host_seed()).encode()]

    model = ag.ag_linear(2, 2)
    ag.ag_seed(3)
    masks()
    ag.ag_save_checkpoint(path, model)
    snapshot = generator_snapshot()
    assert {name: snapshot["streams"][name] for name in ("cpu", swiftshader, "cpu:1")} == {
        "cpu": 2, swiftshader: 1, "cpu:1": 1}
    expected = masks()
    ag.ag_seed(4)
    masks()
    ag.ag_load_checkpoint(path, model)
    assert generator_snapshot() == snapshot  # also before the devices were used again
    assert masks() == expected


def test_parts_that_are_not_wanted_stay_in_the_file(path: Path) -> None:
    run = Run()
    run.train(5)
    ag.ag_save_checkpoint(path, **run.parts(), step=5)
    resumed = Run(seed=99)
    before = resumed.schedule.state_dict(), resumed.loader.state_dict()
    assert ag.ag_load_checkpoint(path, resumed.model, resumed.optimizer).step == 5
    assert resumed.weights() == run.weights()
    assert (resumed.schedule.state_dict(), resumed.loader.state_dict()) == before


def test_parts_of_your_own(path: Path) -> None:
    class Own:
        def __init__(self) -> None:
            self.W = ag.ag_param(np.ones((2, 2)))
            self.place = [0]

        def parameters(self) -> dict[str, ag.Tensor]:
            return {"W": self.W}

        def state_dict(self) -> dict[str, Any]:
            return {"place": self.place}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.place = state["place"]

    own = Own()
    own.W.data, own.place = np.full((2, 2), 3.0), [1, 2]
    ag.ag_save_checkpoint(path, own, dataloader=own)
    loaded = Own()
    ag.ag_load_checkpoint(path, loaded, dataloader=loaded)
    assert loaded.place == [1, 2] and loaded.W.numpy().tolist() == [[3, 3], [3, 3]]


def test_a_rate_set_by_hand_keeps_its_digits(path: Path) -> None:
    run = Run()
    run.optimizer.lr = 0.1
    ag.ag_save_checkpoint(path, run.model, run.optimizer)
    resumed = Run()
    ag.ag_load_checkpoint(path, resumed.model, resumed.optimizer)
    assert resumed.optimizer.lr == 0.1
    assert resumed.optimizer.state_dict()["state"][0] == np.float32(0.1)


def test_what_json_cannot_hold_is_refused(path: Path) -> None:
    for extra, key in (({1: 2}, "1"), ({"a": [{None: 2}]}, "None"), ({"a": {True: 2}}, "True")):
        with expect_error("keys that would come back as strings", TypeError, f"the key {key} is no text", "JSON"):
            ag.ag_save_checkpoint(path, ag.ag_linear(2, 1), extra=extra)
    with expect_error("saving a checkpoint with extra that is no JSON", TypeError, "extra", "JSON"):
        ag.ag_save_checkpoint(path, ag.ag_linear(1, 1), extra={"a": np.ones(3)})
    assert not path.exists()


def test_everything_that_does_not_fit_is_listed_and_nothing_changes(path: Path) -> None:
    run = Run()
    run.train(2)
    ag.ag_save_checkpoint(path, **run.parts())
    ag.ag_seed(1)
    other = Run(seed=99)
    other.train(5)
    other.model = ag.ag_sequential(ag.ag_linear(4, 8, bias=False), ag.ag_dropout(0.3), ag.ag_linear(8, 2))
    other.loader = ag.ag_dataloader(X[:, :9], batch_size=3)
    other.schedule = ag.lr_scheduler_cosine(other.optimizer, 13)
    before = other.everything()
    with expect_error("loading a checkpoint into another run", ag.CheckpointError, "ag_load_checkpoint",
                      "run.safetensors", "model", "unexpected layer1_b", "layer3_W is (3, 8) instead of (2, 8)",
                      "scheduler", "T_max is 12 instead of 13", "dataloader", "12 samples"):
        ag.ag_load_checkpoint(path, **other.parts())
    assert other.everything() == before


def test_a_part_that_is_not_in_the_file(path: Path) -> None:
    run = Run()
    run.train(1)
    ag.ag_save_checkpoint(path, run.model)
    before = run.everything()
    with expect_error("loading a checkpoint without an optimizer into one", ag.CheckpointError,
                      "optimizer: the file holds no state of it"):
        ag.ag_load_checkpoint(path, run.model, run.optimizer)
    assert run.everything() == before


def test_a_part_that_fails_leaves_nothing_behind(path: Path) -> None:
    class Broken(ag.lr_scheduler_step):
        def load_state_dict(self, state: Any) -> None:
            if state["steps"] == 0:
                raise RuntimeError("broken")

    run = Run()
    run.schedule = Broken(run.optimizer, 2)
    ag.ag_save_checkpoint(path, **run.parts())
    run.train(2)
    before = run.everything()
    with pytest.raises(RuntimeError, match="broken"):
        ag.ag_load_checkpoint(path, **run.parts())
    assert run.everything() == before


class Own:
    """A part with a state of its own, which it may refuse; it hands out the dict that it works with."""

    def __init__(self, refuses: bool = False) -> None:
        self.state, self.refuses = {"place": [0]}, refuses

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state["place"][0] = state["place"][0]
        if self.refuses and state["place"][0] != 0:
            raise ag.CheckpointError("load_state_dict: the place is taken; another is required.")


@pytest.mark.parametrize("wrong", ["scheduler", "dataloader", "generator", "lr", "model"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_whichever_part_does_not_fit_nothing_changes(path: Path, wrong: str, prefetch: int) -> None:
    run, own = Run(), Own(refuses=wrong == "scheduler")
    run.loader = ag.ag_dataloader(X, LABELS, batch_size=3, prefetch=prefetch, shuffle=wrong != "dataloader")
    own.state = {"place": [7]}
    run.train(3)
    ag.ag_save_checkpoint(path, **{**run.parts(), "scheduler": own})
    if wrong in ("generator", "lr"):
        change_header(path, wrong)
    run.loader = ag.ag_dataloader(X, LABELS, batch_size=3, prefetch=prefetch, seed=1)
    if wrong == "model":
        run.model = ag.ag_sequential(ag.ag_linear(4, 8, activation="relu"), ag.ag_dropout(0.3), ag.ag_linear(8, 2))
    plain = [batch.y.tolist() for loader in [ag.ag_dataloader(X, LABELS, batch_size=3, seed=1)] for _ in range(2)
             for batch in loader]
    loop = iter(run.loader)
    seen = [next(loop).y.tolist()]
    own.state = {"place": [0]}
    before = run.everything()
    with expect_error("loading a checkpoint of which a part does not fit", ag.CheckpointError, "ag_load_checkpoint",
                      f"{wrong}: "):
        ag.ag_load_checkpoint(path, **{**run.parts(), "scheduler": own})
    assert run.everything() == before and own.state == {"place": [0]}
    assert seen + [batch.y.tolist() for loop in (loop, run.loader) for batch in loop] == plain


def change_header(path: Path, name: str) -> None:
    """Put nonsense in the place of an entry."""
    with safetensors.safe_open(path, framework="numpy") as file:
        header, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    safetensors.numpy.save_file(arrays, path, {**header, name: '{"seed": "none"}'})


def test_loading_in_a_loop_goes_on_in_that_loop(path: Path) -> None:
    run = Run()
    expected = [batch.y.tolist() for batch in run.loader]
    run = Run()
    seen = []
    for batch in run.loader:
        seen.append(batch.y.tolist())
        if len(seen) == 1:
            ag.ag_save_checkpoint(path, run.model, dataloader=run.loader)
        if len(seen) == 3:
            ag.ag_load_checkpoint(path, run.model, dataloader=run.loader)
    assert seen == expected[:3] + expected[1:]
    assert [batch.y.tolist() for batch in run.loader] == [batch.y.tolist() for loader in [Run().loader]
                                                         for _ in range(2) for batch in loader][4:]


def test_the_header_is_plain_json(path: Path) -> None:
    run = Run()
    ag.ag_save_checkpoint(path, **run.parts(), step=3)
    with safetensors.safe_open(path, framework="numpy") as file:
        header = file.metadata()
        names = list(file.keys())
    assert header["format"] == "ag-checkpoint-1" and header["step"] == "3"
    assert json.loads(header["scheduler"]) == run.schedule.state_dict()
    assert json.loads(header["dataloader"]) == run.loader.state_dict()
    assert {"model.layer1_W", "optimizer.m.layer1_W", "optimizer.state"} <= set(names)


def test_a_rate_that_was_assigned_beside_a_schedule(tmp_path: Path) -> None:
    """The schedule sets the next rate; until then the one that was assigned holds, also after a load."""
    def made() -> tuple[ag.Layer, Any, Any]:
        model = ag.ag_linear(2, 1)
        optimizer = ag.optimizer_sgd(model, lr=0.5)
        return model, optimizer, ag.lr_scheduler_cosine(optimizer, T_max=4)

    model, optimizer, schedule = made()
    schedule.step()
    optimizer.lr = 0.125
    path = tmp_path / "run.safetensors"
    ag.ag_save_checkpoint(path, model, optimizer, schedule)
    _, other, its_schedule = again = made()
    ag.ag_load_checkpoint(path, *again)
    assert other.lr == optimizer.lr == 0.125
    assert its_schedule.step() == schedule.step() == other.lr
