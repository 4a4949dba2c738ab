"""The next launcher sweeps what killed ones have left, whatever TMPDIR they had; but nothing of a living job."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import TextIO

import pytest

from ag.tools.launcher import hosts, launch

JOB, OTHER = sorted([token_hex(8), token_hex(8)])  # whatever has such a name on this machine is killed


class Places:
    """Folders for temporary files, one of which is the launcher's, and that of shared memory."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.temporary = folder / "a"
        self.memory = folder / "memory"
        for path in (self.temporary, folder / "b", self.memory):
            path.mkdir()
        monkeypatch.setattr(hosts.tempfile, "gettempdir", lambda: str(self.temporary))
        monkeypatch.setattr(hosts, "_COMMON", (str(self.memory),))

    def elsewhere(self) -> None:
        """From now on it has another TMPDIR."""
        self.temporary = self.temporary.with_name("b")

    def left(self) -> list[str]:
        return sorted(f"{path.parent.name}/{path.name[-16:]}" for path in self.memory.parent.glob("*/ag-launch-*"))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    return Places(tmp_path, monkeypatch)


@pytest.fixture
def idle() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes that do nothing, of a job."""
    started = []

    def idle(job: str = JOB, program: str = "", **variables: str) -> subprocess.Popen[bytes]:
        program = f"import os, signal, time\n{program}\nprint(flush=True)\ntime.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", program], env={"X": job, **variables}, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        started.append(process)
        return process

    yield idle
    for job in (JOB, OTHER):
        hosts.sweep(job)
    for process in started:
        process.communicate()


def test_a_killed_launchers_job_is_swept(places: Places, idle: Callable[..., subprocess.Popen[bytes]]) -> None:
    file, other = hosts.lock(JOB), hosts.lock(OTHER)
    process = idle()
    assert hosts.sweep_older() == []
    assert len(places.left()) == 4 and process.poll() is None  # both launchers are there
    file.close()
    os.kill(process.pid, signal.SIGSTOP)
    hosts.sweep_older()
    assert process.wait(10) == -signal.SIGKILL
    assert places.left() == [f"a/{OTHER}", f"memory/{OTHER}"]
    other.close()
    hosts.sweep(OTHER)
    assert not places.left()


def test_a_job_of_another_tmpdir_is_swept(places: Places) -> None:
    file, other = hosts.lock(JOB, ["b", "c"]), hosts.lock(OTHER)
    folders = hosts.folders_of(JOB)
    places.elsewhere()
    assert hosts.sweep_older() == [] and len(places.left()) == 4
    file.close()
    assert hosts.sweep_older() == [hosts.Left(JOB, folders, ["b", "c"])]
    assert places.left() == [f"a/{OTHER}", f"memory/{OTHER}"]
    other.close()
    hosts.sweep_older()
    assert not places.left()


def test_a_job_is_swept_after_its_host_has_started_again(places: Places) -> None:
    hosts.lock(JOB).close()
    shutil.rmtree(places.memory)
    places.memory.mkdir()
    assert hosts.sweep_older()[0].job == JOB and not places.left()


def test_a_job_of_a_version_whose_locks_were_elsewhere_is_swept(places: Places) -> None:
    """Beside the temporary files, and empty; in shared memory there was none."""
    for folder in hosts.folders_of(JOB):
        Path(folder).mkdir()
    (places.temporary / f"ag-launch-{JOB}" / "lock").touch()
    assert hosts.sweep_older() == [hosts.Left(JOB, [], [])] and not places.left()


def test_a_folder_without_a_lock_may_be_that_of_a_living_job(places: Places) -> None:
    """As it has just been made, or is that of ranks whose launcher is on another host."""
    (places.memory / f"ag-launch-{JOB}").mkdir()
    assert hosts.sweep_older() == [] and len(places.left()) == 1


def test_a_folder_that_is_there_already_is_refused(places: Places) -> None:
    (places.memory / f"ag-launch-{JOB}").mkdir()
    with pytest.raises(ValueError, match=f"launch: the folder .*{JOB} cannot be made .*; set TMPDIR to"):
        hosts.lock(JOB)


def test_a_lock_is_held_before_anybody_can_see_it(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def flock(file: TextIO, how: int) -> None:
        seen.append(Path(file.name).with_name("lock").exists())
        real(file, how)

    real = hosts.flock
    monkeypatch.setattr(hosts, "flock", flock)
    with hosts.lock(JOB):
        assert seen == [False, False] and len([*places.memory.parent.glob("*/*/lock")]) == 2


@pytest.mark.parametrize("name", ["", "a", "0123456789abcdeg", "0123456789abcdef0", "PATH"])
def test_what_is_no_name_of_a_job_ends_nobody(name: str, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = []
    monkeypatch.setattr(hosts, "sweep", lambda *what: swept.append(what))
    folder = places.memory / f"ag-launch-{name}"
    folder.mkdir()
    (folder / "lock").touch()
    assert hosts.sweep_older() == [] and not swept


@pytest.mark.parametrize("how", ["a link", "another user's", "open to others"])
def test_what_this_user_has_not_made_is_not_believed(how: str, places: Places, tmp_path: Path) -> None:
    folder, real = places.memory / f"ag-launch-{JOB}", tmp_path / "real"
    (real if how == "a link" else folder).mkdir()
    if how == "a link":
        folder.symlink_to(real)
    elif how == "open to others":
        folder.chmod(0o777)
    elif os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    (folder / "lock").touch()
    if how == "another user's":
        os.chown(folder, 65534, 65534)
    assert hosts.sweep_older() == [] and (folder / "lock").exists()


SAID = ["", "{", "null", "[]", "7", '{"folders": 3, "hosts": []}', '{"folders": [3], "hosts": []}', '{"folders": []}']


@pytest.mark.parametrize("said", SAID)
def test_a_launcher_that_was_killed_as_it_wrote_is_swept(said: str, places: Places) -> None:
    hosts.lock(JOB).close()
    (places.memory / f"ag-launch-{JOB}" / "lock").write_text(said, "utf-8")
    (places.temporary / f"ag-launch-{JOB}" / "lock").unlink()
    assert hosts.sweep_older() == [hosts.Left(JOB, [], [])] and not places.left()


def test_only_folders_of_the_job_are_removed(places: Places, tmp_path: Path) -> None:
    hosts.lock(JOB).close()
    precious = tmp_path / "precious"
    precious.mkdir()
    said = {"folders": [str(precious)], "hosts": []}
    (places.memory / f"ag-launch-{JOB}" / "lock").write_text(json.dumps(said), "utf-8")
    (places.temporary / f"ag-launch-{JOB}" / "lock").unlink()
    assert hosts.sweep_older() == [hosts.Left(JOB, [], [])] and not places.left() and precious.is_dir()


def test_the_other_hosts_of_a_killed_launcher_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(launch, "sweep_older", lambda: [hosts.Left(JOB, ["/scratch/x"], ["b", "c"])])
    monkeypatch.setattr(launch, "answering", lambda *what: asked.append(what))
    monkeypatch.setattr(launch._Launcher, "_jobs", lambda _: 0)
    options = argparse.Namespace(script=__file__, arguments=[], discover=None)
    assert launch._Launcher(options, "mpiexec", [], launch._Signals()).run() == 0
    assert asked[0] == ([("b", 1), ("c", 1)], JOB, ["/scratch/x"])


def test_ranks_with_a_process(idle: Callable[..., subprocess.Popen[bytes]]) -> None:
    assert hosts.ranks_of(JOB) == set()
    processes = [idle(OMPI_COMM_WORLD_RANK=str(i)) for i in (0, 12)]
    idle(NOT_OMPI_COMM_WORLD_RANK="3")
    idle(OTHER, OMPI_COMM_WORLD_RANK="4")
    assert hosts.ranks_of(JOB) == {0, 12}
    processes[0].kill()
    os.waitid(os.P_PID, processes[0].pid, os.WEXITED | os.WNOWAIT)  # nobody has asked for its status yet
    assert hosts.ranks_of(JOB) == {12}


def test_a_process_that_may_become_a_rank(idle: Callable[..., subprocess.Popen[bytes]]) -> None:
    """A child that is what its parent is; not a daemon, which has left its parent's session."""
    daemon = idle(program="a, b = os.pipe()\nif os.fork() == 0: os.setsid(); os.write(b, b'x')\nelse: os.read(a, 1)")
    assert hosts.ranks_of(JOB) == set()
    hosts.sweep(JOB)
    assert daemon.wait(10) == -signal.SIGKILL
    idle(program="os.fork()")
    assert hosts.ranks_of(JOB) is None


def test_ranks_on_other_hosts(idle: Callable[..., subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch,
                              tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\necho Welcome to $1; echo "[7]"\nshift\nexec sh -c "$*"\n', "utf-8")
    agent.chmod(0o700)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(agent))
    idle(OMPI_COMM_WORLD_RANK="1")
    there = [("nowhere.invalid", 1), ("localhost", 1)]
    assert hosts.ranks_with_processes(there, JOB) == {1}
    assert hosts.ranks_with_processes(there, OTHER) == set()
    fork = idle(program="os.fork()")
    assert hosts.ranks_with_processes(there, JOB) is None
    hosts.sweep(JOB)
    assert fork.wait(10) == -signal.SIGKILL and hosts.ranks_with_processes(there, JOB) == set()
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", "/bin/false")
    assert hosts.ranks_with_processes(there, JOB) is None  # nobody knows


def test_what_a_process_does_about_a_signal(idle: Callable[..., subprocess.Popen[bytes]]) -> None:
    dies = idle().pid
    assert hosts.dies_of(dies, signal.SIGTERM) and not hosts.dies_of(dies, signal.SIGPIPE)  # which Python ignores
    assert not hosts.dies_of(idle(program="signal.signal(15, print)").pid, signal.SIGTERM)
    assert not hosts.dies_of(2**22 + 1, signal.SIGTERM)  # there is no such process
