"""Damaged checkpoints of `fit` and logs: a CheckpointError, or a training that goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.fuzz import mutations

import ag
from ag.training import BestWeights, CSVLog

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def train(path: Path, epochs: int = 2, resume: bool = True, **options: Any) -> ag.training.History:
    return ag.fit(ag.ag_linear(3, 2), (X, Y), epochs=epochs, batch_size=3, seed=1, verbose=False, checkpoint=path,
                  resume=resume, callbacks=[BestWeights()], **options)


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    size = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:size]), content[size:]


def with_header(header: dict[str, Any], rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    train(tmp_path / "job", resume=False)
    return tmp_path / "job"


@pytest.mark.parametrize("key", ["next", "losses", "told", "columns", "rows", "seconds", "stopped", "dealt",
                                 "BestWeights of min loss: epoch"])
def test_every_entry_of_a_checkpoint_is_checked(path: Path, key: str) -> None:
    header, rest = header_of(path.read_bytes())
    state = json.loads(header["__metadata__"]["callback"])
    assert key in state
    for value in (3.5, "x", [None], -1):
        if (key, value) in (("stopped", "x"), ("dealt", "x")):
            continue
        header["__metadata__"]["callback"] = json.dumps({**state, key: value})
        path.write_bytes(with_header(header, rest))
        with expect_error(f"{key} is {value}", ag.CheckpointError, "checkpoint"):
            train(path, epochs=3)


def steps_of_dp_train(path: Path, resume: bool = True) -> int:
    return len(ag.dp_train(lambda: ag.ag_linear(3, 2), [X.T[:, :1]] * 4, lambda out, x: ag.ag_mean(out),
                           devices=["cpu"], n_iter=2, verbose=False, checkpoint=path, resume=resume).loss_history)


def epochs_of_fit(path: Path, resume: bool = True) -> int:
    history = train(path, resume=resume)
    assert len(history["loss"]) == history.epochs
    return history.epochs


@pytest.mark.parametrize("count", [100, pytest.param(5_000, marks=pytest.mark.slow)])  # each is a whole job
@pytest.mark.parametrize("job", [epochs_of_fit, steps_of_dp_train])
def test_damaged_checkpoints(job: Callable[..., int], in_memory: Path, count: int) -> None:
    path, goes_on = in_memory / "job", 0
    job(path, resume=False)
    for variant in mutations(path.read_bytes(), count, seed=4):
        path.write_bytes(variant)
        try:
            assert job(path) <= 2
            goes_on += 1
        except ag.CheckpointError:
            continue
    assert 0 < goes_on < count


@pytest.mark.parametrize("content", [b"\xff\xfe", b'"epoch', b"\r\n", b"epoch,loss\n1,2\n"])
def test_a_log_that_is_none_is_not_appended_to(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("log.csv", "pipe.csv"):
        with expect_error(name, ag.CheckpointError, "CSVLog", name, "append=False"):
            ag.fit(ag.ag_linear(3, 2), (X, Y), callbacks=CSVLog(tmp_path / name, append=True), epochs=1, verbose=False)


class Moves(ag.training.Callback):
    def on_epoch_end(self, run: Any) -> None:
        os.chdir("/")


def test_relative_paths_stay_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # a path that is used again is looked up again
        ag.fit(ag.ag_linear(3, 2), (X, Y), epochs=2, verbose=False, checkpoint="job", lr=0.0,
               callbacks=[Moves(), CSVLog("log.csv"), BestWeights(path="best")])
        assert {file.name for file in tmp_path.iterdir()} == {"job", "log.csv", "best"}
        assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
        monkeypatch.chdir(tmp_path)
