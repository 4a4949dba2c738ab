"""Compiling takes time in proportion to the launches of a recording."""

from __future__ import annotations

import cProfile
import pstats

import curves.models
import curves.workloads
import numpy as np
import pytest

import ag
from ag.engine.compile import pipeline


def compiled(layers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return the launches of a GPT's captured step, and the calls of functions, Python's own, too, to compile it."""
    profile, original = cProfile.Profile(), pipeline.compile_program
    with monkeypatch.context() as patch:
        for module in (curves.models, curves.workloads):
            for name, size in {"LAYERS": layers, "D": 8, "T": 4}.items():  # the launches do not depend on sizes
                patch.setattr(module, name, size)
        patch.setattr(pipeline, "compile_program", lambda *args: profile.runcall(original, *args))
        captured = ag.ag_capture(curves.models.training("gpt", curves.workloads.gpt(2, True)[0]))
        captured(*[np.zeros((4, 2), np.int64)] * 2)
    assert captured.program is not None
    return captured.program.launches, pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def test_twice_the_layers_take_twice_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare numbers of calls, which are the same on every machine, as times are not."""
    (few, calls), (more, more_calls), (many, many_calls) = (compiled(layers, monkeypatch) for layers in (2, 4, 8))
    assert 1.5 < more / few < 2 and 1.5 < many / more < 2
    assert more_calls < 2.1 * calls and many_calls < 2.1 * more_calls
