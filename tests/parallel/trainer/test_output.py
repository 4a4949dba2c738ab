"""Output of `dp_train`: streams that are missing, closed, full or no terminal never end a training."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ag

DATA = [(np.full((3, 1), i / 4, np.float32), np.ones((2, 1), np.float32)) for i in range(4)]


class Full(io.StringIO):
    """A terminal that takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def isatty(self) -> bool:
        return True


def train(**options: Any) -> ag.DPResult:
    ag.ag_seed(4)
    return ag.dp_train(lambda: ag.ag_linear(3, 2), DATA, ag.ag_mse_loss, lambda m, s: m(s[0]), lambda s: s[1],
                       devices=["cpu"], n_iter=3, **options)


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
