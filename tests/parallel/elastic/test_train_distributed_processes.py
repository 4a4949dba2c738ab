"""`train_distributed` over processes, some of which are killed: as one process, and as the quick tests with threads."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import numpy as np
import pytest
from helpers.ranks import UNDER_MPI, mpirun
from parallel.elastic.trained import Trained

pytestmark = [pytest.mark.skipif(UNDER_MPI, reason="starts processes itself"), pytest.mark.slow]

# Arguments: kind of model, checkpoint or -, and the rank and the call of the loss in which it kills itself.
PROGRAM = """
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
    program.write_text(PROGRAM.format(paths=[str(tests), str(tests.parent)], signal=int(signal.SIGKILL)), "utf-8")
    _, text = mpirun(ranks, program, kind, checkpoint, *victims, timeout=120)
    found = {int(rank): (int(size), np.array([float(x) for x in numbers.split(",")]))
             for rank, size, numbers in re.findall(r"^rank (\d+) (\d+) (\S+)$", text, re.M)}
    assert len(found) == ranks - len(victims) and {size for size, _ in found.values()} == {len(found)}, text
    return {rank: numbers for rank, (_, numbers) in found.items()}


def alone(kind: str) -> np.ndarray:
    return np.concatenate([x.ravel() for x in Trained(["cpu:1", "cpu:2"], kind).numbers()]).astype(np.float64)


@pytest.mark.parametrize("kind", ["data parallel", "batch norm", "everything sent"])
def test_two_processes_train_as_one_does(kind: str, tmp_path: Path) -> None:
    found = run(tmp_path, 2, kind)
    assert np.array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], alone(kind), atol=1e-6, rtol=1e-6)


def test_compressed(tmp_path: Path) -> None:
    """Within 2 % of one process, and in fact but for rounding."""
    found = run(tmp_path, 2, "compressed")
    assert np.array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], alone("compressed"), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_one_process_of_three_is_killed(victim: int, tmp_path: Path) -> None:
    found = run(tmp_path, 3, "data parallel", f"{victim},5", checkpoint=tmp_path / "job")
    for numbers in found.values():
        np.testing.assert_allclose(numbers, alone("data parallel"), atol=1e-6, rtol=1e-6)


def test_two_processes_of_five_are_killed(tmp_path: Path) -> None:
    found = run(tmp_path, 5, "data parallel", "0,3", "3,8", checkpoint=tmp_path / "job")
    for numbers in found.values():
        np.testing.assert_allclose(numbers, alone("data parallel"), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_training_described_in_a_file(ranks: int) -> None:
    """The example compares its losses with those of one device."""
    status, text = mpirun(ranks, Path(__file__).parents[3] / "examples" / "parallel_config.py")
    assert status == 0 and text.count("after 60 steps, at most") == ranks, text
