"""Compiling takes time in proportion to the launches of a recording."""

from __future__ import annotations

import cProfile
import pstats
from time import thread_time

import curves.models
import curves.workloads
import numpy as np
import pytest

import ag
from ag.engine.compile import pipeline


def compiled(layers: int, device: str, patch: pytest.MonkeyPatch) -> tuple[int, float]:
    """Return the launches of a GPT's captured step, and the seconds to compile them: the best of three.

    The clock counts the compiling thread alone, as a software driver's threads run the recorded step beside it.
    """
    for module in (curves.models, curves.workloads):
        for name, size in {"LAYERS": layers, "D": 8, "T": 4}.items():  # the launches do not depend on sizes
            patch.setattr(module, name, size)
    seconds = []
    original = pipeline.compile_program

    def timed(*args: object) -> object:
        begin = thread_time()
        launches = original(*args)  # type: ignore[arg-type]
        seconds.append(thread_time() - begin)
        return launches

    patch.setattr(pipeline, "compile_program", timed)
    ids = np.zeros((4, 2), np.int64)
    with ag.ag_device(device):
        for _ in range(3):
            captured = ag.ag_capture(curves.models.training("gpt", curves.workloads.gpt(2, True)[0]))
            captured(ids, ids)
            assert captured.program is not None
    return captured.program.launches, min(seconds)


def test_four_times_the_layers_take_four_times_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    launches, seconds = compiled(4, "cpu", monkeypatch)
    more_launches, more_seconds = compiled(16, "cpu", monkeypatch)
    assert 3 < more_launches / launches < 4
    assert more_seconds < 9 * seconds  # with passes that walk all launches for each it was 12


def calls(layers: int, patch: pytest.MonkeyPatch) -> int:
    """Functions, Python's own ones, too, that are called to compile it."""
    profiles = []
    original = pipeline.compile_program

    def counted(*args: object) -> object:
        profiles.append(cProfile.Profile())
        return profiles[-1].runcall(original, *args)  # type: ignore[arg-type]

    with patch.context() as inner:
        inner.setattr(pipeline, "compile_program", counted)
        compiled(layers, "cpu", inner)
    return min(pstats.Stats(profile).total_calls for profile in profiles)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_twice_the_layers_take_twice_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is the same on every machine, as times are not."""
    few, more, many = (calls(layers, monkeypatch) for layers in (4, 8, 16))
    assert more < 2.1 * few and many < 2.1 * more


@pytest.mark.slow
def test_a_large_model(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launches, seconds = compiled(32, device, monkeypatch)
    print(f"32 layers on {device}: {launches} launches compiled in {seconds:.3f} s")
    assert launches > 32 * 10
