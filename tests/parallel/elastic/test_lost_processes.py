"""dp_train over processes that are killed or stopped: the others go on, with the bits of an undisturbed job."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import pytest
from helpers.dp_classifier import digest
from helpers.ranks import UNDER_MPI, mpi_job, mpirun, train

pytestmark = [pytest.mark.skipif(UNDER_MPI, reason="starts processes itself"), pytest.mark.slow]

# Rank R ends itself by signal S so many seconds after the first step: arguments R,S,SECONDS.
PROGRAM = """
import os, sys, threading, time
sys.path[:0] = {paths}
from helpers.ranks import train
import ag
from helpers.dp_classifier import digest
world = ag.DistributedWorld.init("mpi", devices=["cpu"], timeout=60)
rank, plan = world.rank, [x.split(",") for x in sys.argv[1:]]
steps = []
def callback(step):
    if not steps:
        for victim, number, seconds in plan:
            if int(victim) == rank:
                threading.Timer(float(seconds), os.kill, (os.getpid(), int(number))).start()
    steps.append(step.step)
    time.sleep(0.01)
result = train(["cpu"], world, n_iter=40, batch=7, callback=callback)
assert steps == list(range(40)), steps
print("rank", rank, digest(result), flush=True)
"""


@pytest.fixture(scope="module")
def wanted() -> str:
    return digest(train(["cpu"], n_iter=40, batch=7))


Plan = tuple[int, int, float]


def command(folder: Path, *plan: Plan) -> list[object]:
    program, tests = folder / "program.py", Path(__file__).parents[2]
    program.write_text(PROGRAM.format(paths=[str(tests), str(tests.parent)]), "utf-8")
    return [program, *(f"{victim},{int(number)},{seconds}" for victim, number, seconds in plan)]


def digests(text: str) -> dict[int, str]:
    return {int(rank): found for rank, found in re.findall(r"^rank (\d+) (\w+)$", text, re.M)}


def run(folder: Path, ranks: int, *plan: Plan) -> tuple[int, dict[int, str], str]:
    status, text = mpirun(ranks, *command(folder, *plan), timeout=120)
    return status, digests(text), text


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_processes_train_as_one_does(ranks: int, wanted: str, tmp_path: Path) -> None:
    status, found, text = run(tmp_path, ranks)
    assert status == 0 and found == dict.fromkeys(range(ranks), wanted), text


@pytest.mark.parametrize("seed", range(6))
def test_one_process_of_three_is_killed(seed: int, wanted: str, tmp_path: Path) -> None:
    victim = seed % 3
    _, found, text = run(tmp_path, 3, (victim, signal.SIGKILL, random.Random(seed).uniform(0.0, 0.4)))
    assert found == dict.fromkeys({0, 1, 2} - {victim}, wanted), text


@pytest.mark.parametrize("seed", range(2))
def test_two_processes_of_five_are_killed(seed: int, wanted: str, tmp_path: Path) -> None:
    chance = random.Random(seed)
    victims = chance.sample(range(5), 2)
    _, found, text = run(tmp_path, 5, *((victim, signal.SIGKILL, chance.uniform(0.0, 0.4)) for victim in victims))
    assert found == dict.fromkeys({*range(5)} - {*victims}, wanted), text


def test_one_process_of_three_is_stopped(wanted: str, tmp_path: Path) -> None:
    """mpiexec waits for it, until somebody ends it."""
    with mpi_job(3, *command(tmp_path, (1, signal.SIGSTOP, 0.1)), detector=2.0) as job:
        assert job.stdout is not None
        lines = iter(job.stdout.readline, "")
        text = "".join(line for _, line in zip(range(3), lines, strict=False))  # a loss, and two results
    assert digests(text) == {0: wanted, 2: wanted}, text
    (seconds,) = re.findall(r"rank 1 \(.*\) was lost (?:in|after) step \d+; rank 0, 2 of 3 goes on after (\S+) s", text)
    assert float(seconds) < 10, "the detector takes 2 s, a busy machine a few more, the job's timeout 60"
