"""`python -m ag launch` where a rank is lost as the job starts; a program of ours starts ranks in place of mpiexec."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.probe import patience

from ag.__main__ import main
from ag.parallel.comm.mpi_settings import find_mpiexec
from ag.tools.launcher import hosts, launch, rank

MPIEXEC = f"""#!{sys.executable}
import os, subprocess, sys
program = sys.argv[sys.argv.index("slot:OVERSUBSCRIBE") + 1:]
ranks = [subprocess.Popen(program, env={{**os.environ, "OMPI_COMM_WORLD_RANK": str(i)}})
         for i in range(int(sys.argv[2]))]
if os.path.exists("stillborn"):
    os.remove("stillborn")
    ranks[1].kill()
for rank in ranks:
    rank.wait()
"""
BEGIN = """
import ctypes, faulthandler, os, signal, subprocess, sys, time, types
world = types.SimpleNamespace(now="", progress=lambda: world.now)
sys.modules["ag.parallel.comm.mpi_process"] = world
faulthandler.dump_traceback_later(12, exit=True)  # whatever the launcher does
rank, launcher = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(sys.argv[1])
first = not os.path.exists(f"started{rank}")
open(f"started{rank}", "a").write("x")

def there(what):
    open(f"{what}{rank}", "w").close()
    while not all(os.path.exists(f"{what}{i}") for i in range(3)):
        time.sleep(0.01)

def join():
    world.now = "joining"
    there("here")
    world.now = "joined"

def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""
HERE = socket.gethostname()


class Starts:
    """A launcher of three ranks in a folder of its own."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capture = folder, capture
        self.text = ""

    def run(self, script: str, *options: str) -> int:
        """The status; what was said is `text`."""
        path = self.folder / "script.py"
        path.write_text(BEGIN + script, "utf-8")
        status = main(["launch", *(options or ("-n", "3")), str(path), str(os.getpid())])
        self.text = self._capture.readouterr().err
        return status

    @property
    def starts(self) -> list[int]:
        """Count the starts of each rank whose script began."""
        return [len(path.read_text("utf-8")) if path.exists() else 0
                for path in (self.folder / f"started{i}" for i in range(3))]

    def left(self) -> list[str]:
        return [path.name for name in ("temporary", "memory") for path in (self.folder / name).iterdir()]


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Starts:
    for name in ("temporary", "memory"):
        (tmp_path / name).mkdir()
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(MPIEXEC, "utf-8")
    mpiexec.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosts.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    monkeypatch.setattr(hosts, "_COMMON", (str(tmp_path / "memory"),))
    monkeypatch.setattr(launch, "find_mpiexec", lambda: str(mpiexec))
    monkeypatch.setattr(launch, "find_spec", lambda _: True)
    monkeypatch.setattr(launch, "started_by_launcher", lambda: False)
    monkeypatch.setattr(launch, "_AGAIN", 0.0)
    monkeypatch.setattr(launch, "_JOINS", 0.5)
    monkeypatch.setattr(launch, "_DEAF", 0.8)
    monkeypatch.setattr(launch, "_ABSENT", (0.1, 0.1))
    return Starts(tmp_path, capfd)


LOST = {
    "as it joins": "join() if rank != 1 or not first else die()",
    "before the others begin to join": """
if first:
    if rank == 1: die()
    time.sleep(60)
join()
""",
    "and others fail for want of it": """
if first:
    world.now = "joining"
    there("on")
    if rank == 1: die()
    time.sleep(0.2)
    sys.exit("MPI does not start")
join()
""",
    "and leaves a child": """
if rank == 1 and first:
    if os.fork() == 0: time.sleep(60)
    die()
join()
""",
    "and the others do not hear the launcher": """
if first:
    if rank == 1: die()
    ctypes.PyDLL(None).sleep(60)
join()
""",
}


@pytest.mark.parametrize("how", [pytest.param(how, marks=pytest.mark.slow if how.startswith(("and leaves", "and the",
                                              "before")) else ()) for how in LOST])
def test_a_job_that_loses_a_rank_as_it_starts_is_started_again(how: str, starts: Starts) -> None:
    assert starts.run(LOST[how]) == 0, starts.text
    assert starts.starts == [2, 2, 2] and not starts.left()
    said = starts.text.splitlines()
    assert len([line for line in said if "3 ranks on" in line]) == 2
    assert f"the job was lost: rank 1 ({HERE}, process " in starts.text and "was lost as the job started" in starts.text


def test_a_rank_is_lost_before_it_has_called(starts: Starts) -> None:
    (starts.folder / "stillborn").touch()
    assert starts.run("join()") == 0, starts.text
    assert starts.starts == [2, 1, 2] and not starts.left()
    assert f"the job was lost: rank 1 ({HERE}) was lost as the job started" in starts.text


def test_a_job_that_does_not_begin_names_its_ranks(starts: Starts) -> None:
    (starts.folder / "mpiexec").write_text("#!/bin/sh\nexit 1\n", "utf-8")
    assert starts.run("", "--max-restarts", "0", "-n", "2") == 1
    assert f"the job was lost: rank 0 ({HERE}), rank 1 ({HERE}) did not begin." in starts.text


def test_a_slow_rank_is_waited_for(starts: Starts) -> None:
    """Longer than the launcher waits once a rank is lost; with and without Python running."""
    slow = "time.sleep(1.3) if rank == 1 else ctypes.PyDLL(None).sleep(1) if rank else None"
    assert starts.run(f"there('on')\n{slow}\njoin()") == 0
    assert starts.starts == [1, 1, 1] and starts.text.count("ag launch") == 1, starts.text


@pytest.mark.slow
def test_a_rank_that_is_lost_later_is_none_of_the_launchers_business(starts: Starts) -> None:
    assert starts.run("join(); time.sleep(0.6); there('joined'); time.sleep(1.0) if rank != 1 else die()") == 0
    assert starts.starts == [1, 1, 1] and f"done; without rank 1 ({HERE}" in starts.text, starts.text


@pytest.mark.slow
def test_a_script_that_fails_before_the_others_have_joined_ends_them(starts: Starts) -> None:
    """At once, and the job is not started again, although the others are killed then."""
    begin = monotonic()
    assert starts.run("sys.exit(7) if rank == 1 else join()") == 7
    assert starts.starts == [1, 1, 1] and "the script has failed (status 7)" in starts.text, starts.text
    assert monotonic() - begin < patience(launch._FAILED / 2)


@pytest.mark.slow
def test_a_rank_that_joins_nobody_is_named(starts: Starts) -> None:
    """The others would wait for ever; that the script came to its end there is no success."""
    assert starts.run("None if rank == 1 else join()") == 1
    assert starts.starts == [1, 1, 1], starts.text
    assert f"rank 1 ({HERE}, process" in starts.text and "end of its script without joining the others" in starts.text


ASKED = {
    "ranks that do not hear it": "there('on')\nif rank == 0: os.kill(launcher, signal.SIGTERM)\n"
                                 "ctypes.PyDLL(None).sleep(60)",
    "ranks that wait for others": """
signal.signal(signal.SIGTERM, lambda *_: None)
there('on')
if rank == 0: os.kill(launcher, signal.SIGTERM)
while rank == 2: time.sleep(0.1)
world.now = "joining"
time.sleep(60)
""",
    "ranks that do nothing about it": "there('on')\nif rank == 0: os.kill(launcher, signal.SIGTERM)\ntime.sleep(60)",
}


@pytest.mark.parametrize("whom", ASKED)
def test_sigterm_ends_a_job_that_starts(whom: str, starts: Starts) -> None:
    begin = monotonic()
    assert starts.run(ASKED[whom]) == 143, starts.text
    assert starts.starts == [1, 1, 1] and not starts.left()
    assert monotonic() - begin < patience(10)


@pytest.mark.parametrize(("answer", "number"), [
    (rank.LEAVE, signal.SIGTERM), (rank.END, signal.SIGKILL), (rank.GO_ON, None)])
def test_a_rank_that_does_not_hear_the_answer_is_signalled(answer: bytes, number: int | None,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(launch, "processes_of", lambda name: {7: name})
    monkeypatch.setattr(launch, "dies_of", lambda process, number: True)
    monkeypatch.setattr(os, "kill", lambda process, number: told.append((process, number)))
    running = launch.Job.__new__(launch.Job)
    running._name = "a job"
    running.contacts = SimpleNamespace(answer=answer, processes_here=lambda silent: [7, 8])  # type: ignore[assignment]
    running._tell_the_deaf()
    assert told == ([] if number is None else [(7, number)])


def test_ranks_that_handle_sigterm_are_not_hurried(starts: Starts) -> None:
    """Before they begin to join each other they may have something to save, after a call that nothing interrupts."""
    assert starts.run("""
signal.signal(signal.SIGTERM, lambda *_: (open(f"saved{rank}", "w").close(), sys.exit(143)))
there("on")
if rank == 0: os.kill(launcher, signal.SIGTERM)
ctypes.PyDLL(None).sleep(2)
time.sleep(60)
""") == 143
    assert all((starts.folder / f"saved{i}").exists() for i in range(3)), starts.text


def test_sigterm_that_interrupts_nothing_is_heard(starts: Starts) -> None:
    """As one that comes between the last line of Python and the begin of a call that waits: nothing ends the wait."""
    begin = monotonic()
    assert starts.run("""
signal.signal(signal.SIGTERM, lambda *_: (open(f"saved{rank}", "w").close(), sys.exit(143)))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # so another thread takes it
there("on")
if rank == 0: os.kill(launcher, signal.SIGTERM)
time.sleep(60)
""") == 143
    assert all((starts.folder / f"saved{i}").exists() for i in range(3)), starts.text
    assert monotonic() - begin < patience(10)


@pytest.mark.parametrize(("option", "text"), [
    ("--discover", "#!/bin/sh\nkill -TERM $PPID\nexec sleep 60\n"),
    ("--hosts", f"#!/bin/sh\nkill -TERM {os.getpid()}\nsleep 60 & wait\n")], ids=["--discover", "--hosts"])
def test_sigterm_does_not_wait_for_hosts(option: str, text: str, starts: Starts,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """For a list of them, or for those that do not answer."""
    script = starts.folder / "script.sh"
    script.write_text(text, "utf-8")
    script.chmod(0o700)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(script))
    begin = monotonic()
    assert starts.run("", option, str(script) if option == "--discover" else "nowhere.invalid,localhost") == 143
    assert monotonic() - begin < patience(hosts._ANSWER / 2) and starts.starts == [0, 0, 0]


@pytest.mark.parametrize("option", ["--hosts", "--discover"])
def test_sigterm_as_a_process_is_started_leaves_none(option: str, starts: Starts,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent that asks a host, or the script that lists hosts."""
    asked = list[subprocess.Popen[str]]()

    class Killing(subprocess.Popen[str]):
        def __init__(self, command: list[str], **options: Any) -> None:
            super().__init__(command, **options)
            asked.append(self)
            os.kill(os.getpid(), signal.SIGTERM)
            sleep(0.2)  # in which the handler runs

    agent = starts.folder / "agent"
    agent.write_text("#!/bin/sh\nexec sleep 60\n", "utf-8")
    agent.chmod(0o700)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(agent))
    monkeypatch.setattr(hosts.subprocess, "Popen", Killing)
    assert starts.run("", option, {"--hosts": "nowhere.invalid,localhost", "--discover": str(agent)}[option]) == 143
    assert [process.returncode for process in asked] == [-signal.SIGKILL]


@pytest.mark.slow
@pytest.mark.skipif(find_mpiexec() is None, reason="needs mpiexec")
def test_stdin_of_ranks_has_ended(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Open MPI's own mpiexec, which forwards stdin to rank 0, and does not tell it of the end."""
    monkeypatch.setattr(launch, "find_mpiexec", find_mpiexec)
    assert starts.run("sys.exit(sys.stdin.read() != '')", "-n", "2") == 0, starts.text


@pytest.mark.slow
def test_ranks_skip_assertions_if_the_launcher_does(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != "_"}  # imports read others
    monkeypatch.setattr(launch.sys, "flags", SimpleNamespace(**flags | {"optimize": 2}))
    assert starts.run("join(); sys.exit(sys.flags.optimize != 2)") == 0, starts.text


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def modules(**there: object) -> None:
        for name in ("ag.parallel.comm.mpi_process", "mpi4py.MPI"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        for name, module in there.items():
            monkeypatch.setitem(sys.modules, {"ours": "ag.parallel.comm.mpi_process"}.get(name, "mpi4py.MPI"), module)

    return modules


class Mpi:
    """Of mpi4py, what is asked."""

    def __init__(self, started: bool) -> None:
        self._started = started

    def Is_initialized(self) -> bool:  # noqa: N802 - its name
        return self._started


def test_how_far_a_rank_is(modules: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    from ag.parallel.comm import mpi_process

    modules()
    assert rank._progress() == ""
    modules(mpi=object())  # which is being imported
    assert rank._progress() == ""
    modules(mpi=Mpi(True))
    assert rank._progress() == "joined"
    modules(ours=object())
    assert rank._progress() == ""
    modules(ours=mpi_process, mpi=Mpi(False))
    assert rank._progress() == ""
    with mpi_process._starting:  # MPI is not asked while it starts
        modules(ours=mpi_process, mpi=None)
        assert rank._progress() == "joining"
    modules(ours=mpi_process, mpi=Mpi(True))
    assert rank._progress() == "joined"
    monkeypatch.setattr(mpi_process, "_begun", True)  # and it has no process, as the start has failed
    assert rank._progress() == "joining"
