"""Ranks and the launcher get signals while a job starts; `kills.py --starts` does that at more moments."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.probe import patience
from helpers.ranks import UNDER_MPI
from parallel.elastic.kills import STEPS, end_at_start, kill_at_start, undisturbed
from parallel.elastic.launched import PROGRAM, eventually, launched, what_is_left
from parallel.elastic.three_hosts import agent, three_hosts, why_not

pytestmark = [pytest.mark.skipif(UNDER_MPI, reason="starts processes itself"), pytest.mark.slow]


@pytest.fixture(scope="module")
def wanted() -> str:
    return undisturbed(STEPS)


@pytest.mark.parametrize("seconds", [0.0, 0.2, 0.5, 0.8, 1.1])
@pytest.mark.parametrize("victim, number", [(0, signal.SIGKILL), (1, signal.SIGTERM)])
def test_a_rank_is_lost_while_the_job_starts(victim: int, number: int, seconds: float, wanted: str) -> None:
    found = kill_at_start(victim, number, seconds, wanted)
    assert not found.wrong, f"{found.text}\n{found.wrong}"


@pytest.mark.parametrize("seconds", [0.0, 0.3, 0.7, 1.1])
def test_sigterm_ends_a_job_that_starts(seconds: float) -> None:
    found = end_at_start(seconds)
    assert not found.wrong, f"{found.text}\n{found.wrong}"


def test_a_killed_launcher_is_swept_by_one_of_another_tmpdir(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with launched("-n", 2, PROGRAM, "--steps", 10000, folder=first) as lives, launched(
            "-n", 2, PROGRAM, "--steps", 10000, folder=first) as dies:
        for job in (lives, dies):
            job.wait_for("step 3")
        dies.process.kill()
        assert eventually(lambda: not dies.ranks()), dies.text
        assert len([x for x in what_is_left(dies, first) if not x.startswith("process")]) == 3, dies.text  # and lives
        with launched("-n", 1, PROGRAM, "--steps", 1, folder=second) as job:
            assert job.wait() == 0, job.text
        (left,) = what_is_left(dies, first)  # the folder of the one that lives
        (memory,) = {*what_is_left(lives, first)} - {left} - {f"process {x}" for x in lives.ranks().values()} - {
            x for x in what_is_left(lives, first) if x.startswith("process")}
        assert Path(left).name == Path(memory).name and Path(memory, "lock").is_file()
        seen = len(lives.lines)
        assert eventually(lambda: len(lives.lines) > seen + 3), lives.text
        lives.process.terminate()
        lives.wait()
        assert not what_is_left(lives, first), lives.text


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("others", ["start MPI", "import"])
def test_a_rank_of_another_host_is_lost_before_it_calls(others: str, tmp_path: Path) -> None:
    """Only that host knows, and is asked, where Open MPI does not end the others by itself."""
    script, folder = tmp_path / "script.py", tmp_path / "temporary"
    folder.mkdir()
    script.write_text(f"import os, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '0': print('on', flush=True)\n"
                      f"if {others == 'import'} and not os.path.exists({str(tmp_path / 'lost')!r}): time.sleep(300)\n"
                      "import ag\nworld = ag.DistributedWorld.init('mpi', devices=['cpu'])\nworld.comm.barrier()\n"
                      "print('rank', world.rank, 'of', world.size, flush=True)\n", "utf-8")
    with three_hosts() as hosts, launched("--hosts", ",".join(hosts.names), script, folder=folder,
                                          before=hosts.on(1), env=agent()) as job:
        pid = None
        while pid is None:
            pid = job.ranks().get(2)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        assert eventually(lambda: "the job was lost" in job.text, 60), job.text  # where Open MPI ends no line, after it
        (tmp_path / "lost").touch()
        assert job.wait(90) == 0, job.text
        assert time.monotonic() - began < patience(60)
        assert job.text.count("of 3\n") == 3 and re.search("the job was lost: .*rank 2", job.text), job.text
        if others == "import":
            assert "rank 2 (10.77.0.3) was lost as the job started" in job.text, job.text
        assert not what_is_left(job, folder), job.text
