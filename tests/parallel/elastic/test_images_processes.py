"""Images over processes: the example's log to the byte, also after a rank is killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.ranks import UNDER_MPI, mpirun

pytestmark = [pytest.mark.skipif(UNDER_MPI, reason="starts processes itself"), pytest.mark.slow]

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "train_imagenet.py"

# The example, of which one rank kills itself when a step is over, before the log is written: RANK,STEP before the rest.
# Devices are those of each rank, with / between them.
PROGRAM = f"""
import os, signal, sys
sys.path[:0] = [{str(ROOT)!r}]
from examples import train_imagenet
victim, at = map(int, sys.argv.pop(1).split(","))
mine, = [i + 1 for i, word in enumerate(sys.argv) if word == "--devices"]
sys.argv[mine] = sys.argv[mine].split("/")[int(os.environ["OMPI_COMM_WORLD_RANK"])]
after = train_imagenet.Job.after_step
def after_step(job, step):
    if (job.world.rank, step.step) == (victim, at):
        os.kill(os.getpid(), signal.SIGKILL)
    after(job, step)
train_imagenet.Job.after_step = after_step
train_imagenet.main()
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "digits"
    subprocess.run([sys.executable, ROOT / "examples" / "make_image_tree.py", "digits", path], check=True, timeout=120)
    return path


def arguments(digits: Path, folder: Path, devices: str) -> list[str]:
    return ["--data", str(digits), "--devices", devices, "--log", str(folder / "log"), "--checkpoint",
            str(folder / "job")]


@pytest.fixture(scope="module")
def alone(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The log of one process with four devices."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, EXAMPLE, *arguments(digits, folder, "cpu,cpu:1,cpu:2,cpu:3")], check=True,
                   timeout=600, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    return (folder / "log").read_bytes()


def test_two_ranks_of_two_devices_write_the_same_log(digits: Path, alone: bytes, tmp_path: Path) -> None:
    status, text = mpirun(2, EXAMPLE, *arguments(digits, tmp_path, "cpu,cpu:1"), timeout=600)
    assert status == 0, text
    assert (tmp_path / "log").read_bytes() == alone
    assert float(alone.decode().splitlines()[-1].split(",")[4]) >= 0.95


@pytest.mark.parametrize(("devices", "victim", "step"), [
    ("cpu,cpu:1/cpu,cpu:1", 1, 30), ("cpu,cpu:1/cpu/cpu", 0, 37)])
def test_a_rank_killed_in_the_second_epoch_changes_nothing(devices: str, victim: int, step: int, digits: Path,
                                                           alone: bytes, tmp_path: Path) -> None:
    """Of 1438 images and 64 a step, steps 22 to 44 are in it.  Rank 0 has not written the line of its last step.

    Four stacks are a step, of which four devices have one each, and those that are left two.
    """
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    _, text = mpirun(devices.count("/") + 1, tmp_path / "program.py", f"{victim},{step}",
                     *arguments(digits, tmp_path, devices), timeout=600)
    assert re.search(rf"rank {victim} \(.*\) was lost", text), text
    assert (tmp_path / "log").read_bytes() == alone, text
