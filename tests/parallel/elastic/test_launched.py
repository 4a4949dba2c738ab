"""dp_train under the launcher: ranks, mpiexec and the launcher are killed, stopped, asked to leave, and grow.

`kills.py` does the same at more moments.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.dp_classifier import digest
from helpers.probe import patience
from helpers.ranks import UNDER_MPI, train
from parallel.elastic.kills import CUT_STEPS, cut, end_at_start, kill, kill_at_start, undisturbed
from parallel.elastic.launched import PROGRAM, Launched, eventually, launched, what_is_left
from parallel.elastic.three_hosts import agent, three_hosts, why_not

pytestmark = [pytest.mark.skipif(UNDER_MPI, reason="starts processes itself"), pytest.mark.slow]


@pytest.fixture(scope="module")
def wanted() -> str:
    return digest(train(["cpu"], n_iter=40, batch=7))


@pytest.fixture(scope="module")
def wanted_15() -> str:
    return digest(train(["cpu"], n_iter=40, batch=15))


@contextmanager
def clean(tmp_path: Path, *arguments: object, **options: Any) -> Iterator[Launched]:
    """A launcher that leaves nothing."""
    folder = tmp_path / "temporary"
    folder.mkdir(exist_ok=True)
    with launched(*arguments, folder=folder, **options) as job:
        yield job
        assert job.process.poll() is not None
        assert not what_is_left(job, folder), job.text


def kills(*plan: tuple[int, int, float]) -> list[str]:
    return [x for victim, number, seconds in plan for x in ("--kill", f"{victim},{int(number)},{seconds:.3f}")]


def digests(job: Launched) -> dict[int, str]:
    return {rank: str(result["digest"]) for rank, result in job.results().items()}


@pytest.mark.parametrize("ranks, victims", [(3, [0]), (3, [2]), (5, [0, 3])], ids=["the first", "another", "2 of 5"])
def test_ranks_are_killed(ranks: int, victims: list[int], wanted: str) -> None:
    chance = random.Random(ranks)
    found = kill(ranks, victims, [chance.uniform(0.0, 0.4) for _ in victims], wanted)
    assert not found.wrong, f"{found.text}\n{found.wrong}"
    assert all(f"rank {victim} (" in found.text.splitlines()[-1] for victim in victims), found.text


def test_a_stopped_rank_is_ended(wanted: str, tmp_path: Path) -> None:
    with clean(tmp_path, "-n", 3, PROGRAM, *kills((1, signal.SIGSTOP, 0.1)), detector=2.0) as job:
        assert job.wait() == 0, job.text
    assert digests(job) == {0: wanted, 2: wanted}, job.text
    assert all(result["longest"] < 4 for result in job.results().values()), job.text


@pytest.mark.parametrize("whom", ["launcher", "rank 2"])
def test_sigterm_saves_and_leaves(whom: str, wanted: str, tmp_path: Path) -> None:
    command = ["-n", 3, PROGRAM, "--pause", 0.05, "--checkpoint", tmp_path / "job"]
    with clean(tmp_path, *command) as job:
        job.wait_for("step 5")
        os.kill(job.process.pid if whom == "launcher" else job.ranks()[2], signal.SIGTERM)
        assert job.wait() == 128 + signal.SIGTERM, job.text
    last = [line for line in job.lines if line.startswith("step")][-1].split()[1]
    assert int(last) < 39 and not job.results()
    with clean(tmp_path, *command) as job:
        assert job.wait() == 0, job.text
    assert digests(job) == dict.fromkeys(range(3), wanted), job.text
    assert all(result["steps"] == [*range(int(last) + 1, 40)] for result in job.results().values())


def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    """Here the first only asks for the end of a step that takes a minute."""
    with clean(tmp_path, "-n", 2, PROGRAM, "--pause", 60, "--checkpoint", tmp_path / "job") as job:
        job.wait_for("step 0")
        job.process.terminate()
        with pytest.raises(Exception, match="timed out"):
            job.wait(3)
        job.process.terminate()
        assert job.wait(30) == 128 + signal.SIGTERM, job.text


def test_mpiexec_and_all_ranks_are_killed(wanted: str, tmp_path: Path) -> None:
    command = ["-n", 3, PROGRAM, "--pause", 0.05, "--checkpoint", tmp_path / "job", "--every", 4]
    with clean(tmp_path, *command) as job:
        job.wait_for("step 9")
        for process in [job.mpiexec(), *job.ranks().values()]:
            os.kill(process, signal.SIGKILL)
        assert job.wait() == 0, job.text
    assert digests(job) == dict.fromkeys(range(3), wanted), job.text
    (start,) = {result["steps"][0] for result in job.results().values()}
    assert start > 0 and start % 4 == 0, start


def test_no_rank_outlives_its_launcher(tmp_path: Path) -> None:
    """A launcher that is killed leaves files, which the next one sweeps."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    with launched("-n", 3, PROGRAM, "--steps", 10000, folder=folder) as job:
        job.wait_for("step 3")
        job.process.kill()
        assert eventually(lambda: not job.ranks()), job.text
        assert [*folder.iterdir()]
    with clean(tmp_path, "-n", 1, PROGRAM, "--steps", 1) as job:
        assert job.wait() == 0, job.text


def test_a_job_that_is_lost_again_and_again_ends(tmp_path: Path) -> None:
    with clean(tmp_path, "--max-restarts", 1, "-n", 2, PROGRAM, *kills((0, 9, 0.0), (1, 9, 0.0)), "--pause", 1) as job:
        assert job.wait() == 1
    assert "lost 2 times, and --max-restarts is 1" in job.lines[-1]


def test_a_rank_of_its_own_fault_ends_the_job(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys, ag\nworld = ag.DistributedWorld.init('mpi', devices=['cpu'])\n"
                      "if world.rank == 1: sys.exit(7)\nworld.comm.barrier()\n", "utf-8")
    with clean(tmp_path, "-n", 2, script) as job:
        assert job.wait() in (1, 7), job.text  # the other one's error may come first
    assert "has come to the end of its program" in job.text and job.text.count("2 ranks on this host") == 1


def test_a_rank_prints_what_nobody_reads(wanted: str, tmp_path: Path) -> None:
    """As in the moment between the loss of a host and the end of the job, in which no script may fail."""
    with clean(tmp_path, "-n", 2, PROGRAM, "--unread", 7) as job:
        assert job.wait() == 0, job.text
    assert digests(job) == {1: wanted} and [x for x in job.lines if x.startswith("step")][-1] == "step 6 of 2\n"


@pytest.mark.parametrize("pipe", ['"$@" | head -n 3', '"$@" 2>&1 | head -n 3', '"$@" 2> >(head -n 1 >&2)'])
def test_a_job_that_nobody_reads_is_not_started_again(pipe: str, tmp_path: Path) -> None:
    """It ends as under plain mpiexec, in the way of `yes | head`; here every line goes to stdout and to stderr."""
    script, starts = tmp_path / "script.py", tmp_path / "starts"
    script.write_text(f"import sys, time\nopen({str(starts)!r}, 'a').write('x')\n"
                      "while True: print('on'); print('on', file=sys.stderr); time.sleep(0.05)\n", "utf-8")
    with clean(tmp_path, "-n", 2, script, before=["bash", "-c", f"set -o pipefail; {pipe}", "bash"]) as job:
        assert job.wait(60) == 128 + signal.SIGPIPE, job.text
    assert starts.read_text("utf-8") == "xx" and "Traceback" not in job.text


def test_a_job_grows(wanted_15: str, tmp_path: Path) -> None:
    listed, script = tmp_path / "hosts", tmp_path / "hosts.sh"
    listed.write_text("localhost:2\n", "utf-8")
    script.write_text(f"#!/bin/sh\ncat {listed}\n", "utf-8")
    script.chmod(0o700)
    with clean(tmp_path, "--discover", script, PROGRAM, "--batch", 15, "--pause", 0.2, "--checkpoint",
               tmp_path / "job") as job:
        job.wait_for("step 2")
        listed.write_text("localhost:3\n", "utf-8")
        assert job.wait() == 0, job.text
    assert digests(job) == dict.fromkeys(range(3), wanted_15), job.text
    steps = [line.split()[1::2] for line in job.lines if line.startswith("step")]
    assert [int(step) for step, _ in steps] == [*range(40)], job.text
    assert {ranks for _, ranks in steps} == {"2", "3"}, job.text


def test_a_job_goes_on_with_other_numbers_of_ranks(wanted_15: str, tmp_path: Path) -> None:
    for ranks, steps in ((3, 12), (2, 25), (4, 40)):
        with clean(tmp_path, "-n", ranks, PROGRAM, "--batch", 15, "--steps", steps, "--checkpoint",
                   tmp_path / "job") as job:
            assert job.wait() == 0, job.text
    assert digests(job) == dict.fromkeys(range(4), wanted_15), job.text


# ---------------------------------------------------------------------------------------------- the start


@pytest.mark.parametrize("seconds", [0.0, 0.5])
@pytest.mark.parametrize("victim, number", [(0, signal.SIGKILL), (1, signal.SIGTERM)])
def test_a_rank_is_lost_while_the_job_starts(victim: int, number: int, seconds: float, wanted: str) -> None:
    found = kill_at_start(victim, number, seconds, wanted)
    assert not found.wrong, f"{found.text}\n{found.wrong}"


@pytest.mark.parametrize("seconds", [0.0, 0.7])
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
        if others == "import":  # by its address, or by its name where it has said that
            named = re.search(r"rank 2 \((10\.77\.0\.3\) was lost as the job started|\w+h3, process \d+\))", job.text)
            assert named is not None, job.text
        assert not what_is_left(job, folder), job.text


# ---------------------------------------------------------------------------------------------- three hosts


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_each_link_is_cut() -> None:
    """All three at the same time, of hosts of their own; `kills.py --cuts 3` does it more often."""
    wanted = undisturbed(CUT_STEPS)
    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(lambda i: cut(i, wanted), (1, 2, 3))]
    assert not any(one.wrong for one in found), "\n".join(f"{one.text}\n{one.wrong}" for one in found if one.wrong)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_host_crashes(tmp_path: Path) -> None:
    with three_hosts() as hosts, launched(
            "--hosts", ",".join(hosts.names), PROGRAM, "--pause", 0.1, "--checkpoint", tmp_path / "job", "--every", 3,
            folder=tmp_path, before=hosts.on(1), env=agent()) as job:
        job.wait_for("step 6")
        hosts.crash(3)
        assert job.wait(90) == 0, job.text
    assert {result["digest"] for result in job.results().values()} == {undisturbed(40)}, job.text
    assert len(job.results()) == 2 and "10.77.0.3" in job.text and "2 ranks on 10.77.0.1:1, 10.77.0.2:1" in job.text
    (start,) = {result["steps"][0] for result in job.results().values()}
    assert start >= 6, start  # the last third step, or the one after which ranks have left, as mpiexec told them
    assert all(result["steps"] == [*range(start, 40)] for result in job.results().values())
