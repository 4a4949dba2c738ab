"""dp_train over processes: every option of test_ranks, and a ResNet with stacks, have the bits of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import digest
from helpers.ranks import OPTIONS, UNDER_MPI, dealt, mpirun, train

import ag

pytestmark = [pytest.mark.skipif(UNDER_MPI, reason="starts processes itself"), pytest.mark.slow]

# What every rank does: its devices are the words of the argument with its number, separated by commas.
PROGRAM = """
import sys
sys.path[:0] = {paths}
import ag
from parallel.elastic.test_processes import {work}
world = ag.DistributedWorld.init("mpi", timeout=120, devices=["cpu"])
{work}(sys.argv[1 + world.rank].split(","), world)
"""


def all_options(devices: list[str], world: ag.DistributedWorld | None = None) -> None:
    for name, options in OPTIONS.items():
        ag.ag_seed(0)
        print(f"{name}: {digest(train(devices, world, **options))}", flush=True)


def resnet(devices: list[str], world: ag.DistributedWorld | None = None) -> None:
    """64 images a step, in stacks of 16; running statistics are in the model's state."""
    rng = np.random.default_rng(2)
    data = [(rng.standard_normal((3, 8, 8, 1)).astype(np.float32), rng.integers(0, 3, 1)) for _ in range(96)]
    options: dict[str, Any] = {"batch": 64, "stack": 16, "n_iter": 3, "make_model": make_resnet, "data": data,
                               "micro_batch": 16}
    print(f"resnet: {digest(train(devices, world, **options))}", flush=True)


def make_resnet() -> ag.Layer:
    return ag.ag_resnet(18, 3, width=4, small_input=True)


def check(work: Any, places: list[list[str]], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What ranks with these devices print is what one process with all of them prints."""
    capsys.readouterr()
    work([device for of_rank in places for device in of_rank])
    wanted = capsys.readouterr().out.splitlines()
    tests, program = Path(__file__).parents[2], folder / "program.py"
    program.write_text(PROGRAM.format(paths=[str(tests), str(tests.parent)], work=work.__name__), "utf-8")
    status, text = mpirun(len(places), program, *map(",".join, places), timeout=300)
    assert status == 0 and len(set(wanted)) == len(wanted), text
    assert {line: text.count(line) for line in wanted} == dict.fromkeys(wanted, len(places)), text


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_options(ranks: int, replicas: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(all_options, dealt(ranks, replicas), tmp_path, capsys)


@pytest.mark.parametrize("replicas", [1, 2])
def test_all_options_on_two_vendors(replicas: int, lavapipe: str, swiftshader: str, tmp_path: Path,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    check(all_options, [[lavapipe] * replicas, [swiftshader] * replicas], tmp_path, capsys)


def test_stacks_of_a_resnet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(resnet, dealt(2, 2), tmp_path, capsys)
