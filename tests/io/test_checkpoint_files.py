"""Files of checkpoints: broken or forged ones are a CheckpointError."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from helpers.errors import expect_error
from helpers.training_run import Run

import ag


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.safetensors"


def test_files_of_another_kind(path: Path) -> None:
    model = ag.ag_linear(2, 2)
    with expect_error("loading a checkpoint that is not there", ag.CheckpointError, "cannot be read"):
        ag.ag_load_checkpoint(path, model)
    ag.ag_save_model(model, path)
    with expect_error("loading a model file as a checkpoint", ag.CheckpointError, "'ag-model-1'", "'ag-checkpoint-1'"):
        ag.ag_load_checkpoint(path, model)


def assert_refused(path: Path, forge: Callable[[dict[str, str], dict[str, np.ndarray]], None], *fragments: str) -> None:
    """Change a checkpoint's header and arrays, and see that loading it changes nothing."""
    run = Run()
    run.train(3)
    ag.ag_save_checkpoint(path, **run.parts())
    with safetensors.safe_open(path, framework="numpy") as file:
        header = file.metadata()
    arrays = safetensors.numpy.load_file(path)
    forge(header, arrays)
    path.write_bytes(safetensors.numpy.save(arrays, header))
    run.train(2)
    before = run.everything()
    with expect_error("loading a forged checkpoint", ag.CheckpointError, *fragments):
        ag.ag_load_checkpoint(path, **run.parts())
    assert run.everything() == before


@pytest.mark.parametrize(("name", "text"), [
    ("step", None), ("step", "1.5e"), ("step", '"x"'), ("step", "9" * 5000), ("extra", None), ("extra", "[" * 100_000),
    ("generator", None), ("generator", "3"), ("generator", '{"seed": -1, "host_streams": 0, "streams": {}}'),
    ("generator", '{"seed": 1, "host_streams": 0, "streams": [1]}'),
    ("generator", '{"seed": 1, "host_streams": 1e3, "streams": {}}'),
    ("lr", None), ("lr", "NaN"), ("lr", "-0.1"), ("lr", '"0.1"'),
    ("scheduler", None), ("scheduler", "null"), ("scheduler", "[]"), ("scheduler", '{"steps": 1}'),
    ("dataloader", "7"), ("dataloader", '{"seed": 1, "epoch": -1, "next": 0, "samples": 12, "batch_size": 3}'),
    ("dataloader", '{"seed": 1, "epoch": 0, "next": 5, "samples": 12, "batch_size": 3}'),
    ("dataloader", '{"seed": "1", "epoch": 0, "next": 0, "samples": 12, "batch_size": 3}'),
])
def test_a_forged_header(path: Path, name: str, text: str | None) -> None:
    def forge(header: dict[str, str], arrays: dict[str, np.ndarray]) -> None:
        header.pop(name)
        header |= {} if text is None else {name: text}

    assert_refused(path, forge, "run.safetensors")


@pytest.mark.parametrize("names", [("lr", "scheduler"), ("lr", "dataloader"), ("scheduler", "dataloader")])
def test_the_rate_keeps_its_digits_when_several_parts_are_not_there(path: Path, names: tuple[str, ...]) -> None:
    """The rate was put back from the optimizer's state, which has the digits of a float32."""
    def forge(header: dict[str, str], arrays: dict[str, np.ndarray]) -> None:
        for name in names:
            del header[name]

    assert_refused(path, forge, *(f"{name}: the file holds no state of it" for name in names))


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("place", range(4))  # learning rate, bias corrections, steps
def test_a_forged_optimizer_state(path: Path, place: int, number: float) -> None:
    """Some of these loaded, and the step after failed with a mathematical error."""
    def forge(header: dict[str, str], arrays: dict[str, np.ndarray]) -> None:
        arrays["optimizer.state"][place] = number

    assert_refused(path, forge, "optimizer: state holds")


@pytest.mark.parametrize("part", ["optimizer", "scheduler", "dataloader"])
def test_parts_without_a_state_are_named(tmp_path: Path, part: str) -> None:
    model, path = ag.ag_linear(2, 2), tmp_path / "c"
    ag.ag_save_checkpoint(path, model)
    for function in (ag.ag_save_checkpoint, ag.ag_load_checkpoint):
        with pytest.raises(TypeError, match=f"{function.__name__}: {part} is a list; .* is required, or None"):
            function(path, model, **{part: []})


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("a\0b", "\ud800" if sys.platform != "win32" else "a\0"):
        with pytest.raises(OSError, match="Not the name of a file"):
            ag.ag_save_model(ag.ag_linear(2, 2), os.path.join(tmp_path, name))
