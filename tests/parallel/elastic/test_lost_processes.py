"""Training over processes that are killed or stopped: the others go on, with the results of an undisturbed job."""

from __future__ import annotations

import json
import random
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from helpers.dp_classifier import digest
from helpers.ranks import UNDER_MPI, mpi_job, mpirun, train
from parallel.elastic.launched import PROGRAM
from parallel.elastic.trained import Trained

pytestmark = [pytest.mark.skipif(UNDER_MPI, reason="starts processes itself"), pytest.mark.slow]


@pytest.fixture(scope="module")
def wanted() -> str:
    return digest(train(["cpu"], n_iter=40, batch=7))


def check(text: str, ranks: set[int], wanted: str) -> None:
    """Compare the results of these ranks, and no others, with an undisturbed job."""
    results = [json.loads(line) for line in re.findall(r"^\{.*\}$", text, re.M)]
    assert {result["rank"]: result["digest"] for result in results} == dict.fromkeys(ranks, wanted), text
    assert all(result["steps"] == [*range(40)] for result in results), text


@pytest.mark.parametrize(("ranks", "kills", "seed"), [
    (1, 0, 0), (4, 0, 0), (3, 1, 0), (3, 1, 1), (3, 1, 2), (5, 2, 0)])
def test_processes_train_as_one_does(ranks: int, kills: int, seed: int, wanted: str) -> None:
    """Also those that are left when some are killed."""
    chance = random.Random(100 * ranks + seed)
    victims = chance.sample(range(ranks), kills)
    plan = [x for i in victims for x in ("--kill", f"{i},{int(signal.SIGKILL)},{chance.uniform(0.0, 0.4)}")]
    status, text = mpirun(ranks, PROGRAM, *plan, timeout=120)
    assert kills or status == 0, text
    check(text, {*range(ranks)} - {*victims}, wanted)


def test_one_process_of_three_is_stopped(wanted: str) -> None:
    """mpiexec waits for it, until it is ended."""
    with mpi_job(3, PROGRAM, "--kill", f"1,{int(signal.SIGSTOP)},0.1", detector=2.0) as job:
        assert job.stdout is not None
        text = ""
        while text.count("{") < 2:
            line = job.stdout.readline()
            assert line, text
            text += line
    check(text, {0, 2}, wanted)
    (seconds,) = re.findall(r"rank 1 \(.*\) was lost (?:in|after) step \d+; rank 0, 2 of 3 goes on after (\S+) s", text)
    assert float(seconds) < 10, "the detector takes 2 s, a busy machine a few more, the job's timeout 60"


# ---------------------------------------------------------------------------------------------- train_distributed

# Arguments: kind of model, checkpoint or -, and the rank and the call of the loss in which it kills itself.
TRAINED = """
import os, sys
sys.path[:0] = {paths}
import ag
from parallel.elastic.trained import Trained
kind, checkpoint, *victims = sys.argv[1:]
comm = ag.DistributedWorld.init("mpi", devices=["cpu"], timeout=60).comm
rank = comm.rank
happens = {{}}
for victim in victims:
    of, call = map(int, victim.split(","))
    happens[of, call] = lambda: os.kill(os.getpid(), {signal})
options = {{}} if checkpoint == "-" else {{"checkpoint": checkpoint, "checkpoint_every": 2}}
done = Trained([f"cpu:{{rank + 1}}"], kind, comm, happens=happens, **options)
numbers = [float(x) for part in done.numbers() for x in part.ravel()]
print("rank", rank, done.world.size, ",".join(map(repr, numbers)), flush=True)
"""


def run(folder: Path, ranks: int, kind: str, *victims: str, checkpoint: object = "-") -> dict[int, np.ndarray]:
    """The losses and weights of the ranks that are left."""
    program, tests = folder / "program.py", Path(__file__).parents[2]
    program.write_text(TRAINED.format(paths=[str(tests), str(tests.parent)], signal=int(signal.SIGKILL)), "utf-8")
    _, text = mpirun(ranks, program, kind, checkpoint, *victims, timeout=120)
    found = {int(rank): (int(size), np.array([float(x) for x in numbers.split(",")]))
             for rank, size, numbers in re.findall(r"^rank (\d+) (\d+) (\S+)$", text, re.M)}
    assert len(found) == ranks - len(victims) and {size for size, _ in found.values()} == {len(found)}, text
    return {rank: numbers for rank, (_, numbers) in found.items()}


def alone(kind: str) -> np.ndarray:
    return np.concatenate([x.ravel() for x in Trained(["cpu:1", "cpu:2"], kind).numbers()]).astype(np.float64)


@pytest.mark.parametrize("kind", ["data parallel", "batch norm", "everything sent", "compressed"])
def test_two_processes_train_as_one_does(kind: str, tmp_path: Path) -> None:
    found = run(tmp_path, 2, kind)
    assert np.array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], alone(kind), atol=2e-6, rtol=1e-5 if kind == "compressed" else 1e-6)


@pytest.mark.parametrize(("ranks", "victims"), [(3, ["0,5"]), (3, ["1,5"]), (3, ["2,5"]), (5, ["0,3", "3,8"])])
def test_processes_are_killed(ranks: int, victims: list[str], tmp_path: Path) -> None:
    for numbers in run(tmp_path, ranks, "data parallel", *victims, checkpoint=tmp_path / "job").values():
        np.testing.assert_allclose(numbers, alone("data parallel"), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_training_described_in_a_file(ranks: int) -> None:
    """The example compares its losses with those of one device."""
    status, text = mpirun(ranks, Path(__file__).parents[3] / "examples" / "parallel_config.py")
    assert status == 0 and text.count("after 60 steps, at most") == ranks, text
