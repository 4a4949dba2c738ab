"""`python -m ag launch` without MPI: arguments, hosts, ranks that call, and outcomes."""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from helpers import forked
from helpers.probe import patience

from ag.__main__ import add_arguments, main
from ag.tools.launcher import hosts, launch, rank
from ag.tools.launcher.launch import Contacts, Outcome, verdict

DONE, LEFT, LOST, FAILED = (Outcome(kind) for kind in ("done", "left", "lost", "failed"))
HERE = __file__

WRONG = {
    "no ranks": ("-n 0 {}", "-n is 0; a whole number of at least 1 is required"),
    "no number": ("{}", "neither -n nor --hosts nor --discover is given"),
    "no script": ("-n 2 nowhere.py", "there is no script nowhere.py"),
    "restarts": ("-n 2 --max-restarts -1 {}", "--max-restarts is -1"),
    "least": ("-n 2 --min-ranks 3 {}", "--min-ranks is 3, and there are 2 ranks"),
    "a host": ("--hosts a:2,b:x {}", "--hosts has 'b:x'; a host's name is required"),
    "no place": ("--hosts a:0 {}", "--hosts has 'a:0'"),
    "an option for a host": ("--hosts=-oProxyCommand=x {}", "--hosts has '-oProxyCommand=x'"),
    "a host twice": ("--hosts a,b,a:2 {}", "--hosts has a twice; name each host once, such as a:3"),
    "too many": ("-n 4 --hosts a:2,b {}", "-n is 4, and --hosts has room for 3"),
    "no list of hosts": ("--discover ./nowhere.sh {}", "--discover ./nowhere.sh cannot be run"),
    "a list that fails": ("--discover /bin/false {}", "--discover /bin/false ended with status 1"),
    "an empty list": ("--discover /bin/true {}", "--discover /bin/true has no host"),
}


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is an MPI, which is not called, and this process is no rank."""
    monkeypatch.setattr(launch, "find_mpiexec", lambda: "/bin/false")
    monkeypatch.setattr(launch, "find_spec", lambda _: True)
    monkeypatch.setattr(launch, "started_by_launcher", lambda: False)


@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line, said = WRONG[name]
    assert main(["launch", *line.format(HERE).split()]) == 2
    assert f"launch: {said}" in capsys.readouterr().err


def test_without_mpi_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(launch, "started_by_launcher", lambda: False)
    monkeypatch.setattr(launch, "find_mpiexec", lambda: None)
    assert main(["launch", "-n", "2", HERE]) == 2
    assert "pip install 'ag-autograd[mpi]'" in capsys.readouterr().err


def test_a_rank_does_not_launch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert main(["launch", "-n", "2", HERE]) == 2
    assert "this process is a rank itself" in capsys.readouterr().err


def test_options_after_the_script_are_its_own() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(["-n", "2", "train.py", "-n", "5", "--hosts", "x"])
    assert (options.ranks, options.hosts, options.arguments) == (2, None, ["-n", "5", "--hosts", "x"])


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a launcher's choice where only some hosts answer, after a job on these."""
    def choose(listed: str, last: str, there: str, ranks: int | None = None, least: int = 0) -> object:
        options = argparse.Namespace(script=HERE, arguments=[], ranks=ranks, min_ranks=least)
        given = hosts.parse_hosts(listed.split(), "listed")
        launcher = launch._Launcher(options, "mpiexec", given, launch._Signals())
        launcher._last = hosts.parse_hosts(last.split(), "last")
        monkeypatch.setattr(launch, "answering", lambda asked, job="": (
            [host for host in asked if host[0] in there.split()], []))
        return launcher._choose()

    return choose


def test_more_than_half_of_the_last_hosts_must_answer(answers: Callable[..., Any]) -> None:
    assert answers("a:2 b:2 c:2", "a b c", "a c") == (4, [("a", 2), ("c", 2)])
    assert answers("a b", "a b", "a") is None
    assert answers("a b", "a b", "a", least=1) == (1, [("a", 1)])
    assert answers("a b c", "a b c", "a b", least=3) is None
    assert answers("a b c d", "a b", "a b c d", ranks=3) == (3, [("a", 1), ("b", 1), ("c", 1), ("d", 1)])
    assert answers("a b", "a b", "") is None


def test_this_host_answers_and_another_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", "/bin/false")
    there, wrong = hosts.answering([("localhost", 2), ("nowhere.invalid", 1)])
    assert there == [("localhost", 2)] and wrong == ["nowhere.invalid: it says nothing"]
    assert "127.0.0.1" in hosts.addresses_for(there)


def test_a_host_answers_by_running_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\necho Welcome to $1\nshift\nexec sh -c "$*"\n', "utf-8")
    agent.chmod(0o700)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(agent))
    assert hosts.answering([("nowhere.invalid", 1)]) == ([("nowhere.invalid", 1)], [])


def test_the_verdict() -> None:
    assert verdict([DONE, None, DONE]).kind == "done"
    assert verdict([LOST, DONE, DONE]).kind == "done"
    assert verdict([DONE, FAILED, None]).kind == "failed"
    assert verdict([LEFT, LEFT, DONE]).kind == "left"
    assert verdict([LEFT, None, LEFT]).kind == "lost"  # mpiexec tells ranks to leave when a host has crashed
    assert verdict([None, LOST]).kind == "lost" and verdict([None, None]).kind == "lost"


class Caller:
    """A script that runs as rank 0 of one, and the launcher's end of its line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contacts = Contacts(1, False)

    def start(self, text: str, *arguments: str, output: int = subprocess.PIPE, **variables: str) -> None:
        script = self.folder / "script.py"
        script.write_text(text, "utf-8")
        where = {"job": "x", "addresses": ["127.0.0.1"], "port": self.contacts.port, "secret": self.contacts.secret,
                 "folders": [str(self.folder / "temporary")]}
        env = {**os.environ, rank.LAUNCH: json.dumps(where), "OMPI_COMM_WORLD_RANK": "0", **variables}
        self.process = subprocess.Popen([sys.executable, rank.__file__, str(script), *arguments], env=env,
                                        stdout=output, stderr=subprocess.STDOUT, text=True)
        self.until(lambda: self.contacts.come)

    def until(self, check: Callable[[], bool]) -> None:
        end = monotonic() + patience(30)
        while not check():
            assert monotonic() < end
            self.contacts.look(0.05)

    def end(self) -> tuple[int, str, Outcome | None]:
        self.until(lambda: self.contacts.over)
        text, _ = self.process.communicate(timeout=30)
        return self.process.returncode, text, self.contacts.outcomes()[0]


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    found = Caller(tmp_path)
    yield found
    found.contacts.close()
    found.process.kill()
    found.process.communicate()


SCRIPT = ("import sys, tempfile; print(sys.argv[1:], sys.path[0], __name__, tempfile.gettempdir(), 'numpy' in "
          "sys.modules)")


def test_a_script_runs_as_python_runs_it(caller: Caller, tmp_path: Path) -> None:
    caller.start(SCRIPT, "-n", "5")
    status, text, outcome = caller.end()
    assert (status, outcome) == (0, DONE), text
    assert text.split("\n")[0] == f"['-n', '5'] {tmp_path} __main__ {tmp_path}/temporary False"


ENDS = {
    "sys.exit(0)": (0, DONE),
    "sys.exit(7)": (7, Outcome("failed", 7)),
    "sys.exit('bad')": (1, Outcome("failed", 1)),
    "sys.exit(143)": (0, LEFT),
    "1 / 0": (1, Outcome("failed", 1, "ZeroDivisionError: division by zero")),
    "a, b = os.pipe(); os.close(a); os.write(b, b'x')": (1, Outcome("failed", 1,
                                                                    "BrokenPipeError: [Errno 32] Broken pipe")),
    "os.kill(os.getpid(), 9)": (-9, None),
}


@pytest.mark.parametrize("text", ENDS)
def test_how_a_script_ends_is_told(text: str, caller: Caller) -> None:
    caller.start(f"import os, sys\n{text}")
    status, _, outcome = caller.end()
    assert (status, outcome) == ENDS[text]


@pytest.fixture(params=["pipe", "openpty"])
def closed(request: pytest.FixtureRequest, caller: Caller) -> Callable[..., None]:
    """Starts a script whose output is read until it says so, and no further; Open MPI gives ranks both kinds."""
    def start(text: str, **variables: str) -> None:
        reader, writer = getattr(os, request.param)()
        waits = "import os, sys, time\nprint('on', flush=True)\nwhile not os.path.exists('FLAG'): time.sleep(0.01)\n"
        flag = caller.folder / "flag"
        caller.start(waits.replace("FLAG", str(flag)) + text, output=writer, **variables)
        os.close(writer)
        assert os.read(reader, 100).split() == [b"on"]
        os.close(reader)
        flag.touch()

    return start


PRINTS = """
import ctypes, logging
print("text", flush=True)
print("x" * 100_000)
for stream in (sys.stdout, sys.stderr, sys.__stdout__):
    stream.write("y" * 20_000)
    stream.flush()
    stream.buffer.write(b"z" * 20_000)
    stream.buffer.flush()
logging.warning("logged")
ctypes.CDLL(None).puts(b"by C")
ctypes.CDLL(None).fflush(None)
a, b = os.pipe()
os.close(a)
try:
    os.write(b, b"x")
except BrokenPipeError:
    print("is flushed at the end", end="")
else:
    sys.exit("an error of another file is not the script's")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_script_goes_on_when_nobody_reads_it(unbuffered: str, closed: Callable[..., None], caller: Caller) -> None:
    closed(PRINTS, PYTHONUNBUFFERED=unbuffered)
    status, _, outcome = caller.end()
    assert (status, outcome) == (0, DONE)


@pytest.mark.parametrize("text", ["os.write(1, b'past Python')", "sys.exit(7)", "sys.stdout.write(1)"])
def test_a_script_that_nobody_reads_is_lost_with_its_job(text: str, closed: Callable[..., None],
                                                         caller: Caller) -> None:
    closed(text)
    status, _, outcome = caller.end()
    assert status and outcome is not None and (outcome.kind, outcome.code) == ("lost", status)


def test_a_rank_is_told_to_leave_and_to_end(caller: Caller) -> None:
    caller.start("import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
                 "print('on', flush=True)\nwhile True: time.sleep(0.01)")
    assert caller.process.stdout is not None
    assert caller.process.stdout.readline() == "on\n"
    caller.contacts.answer = rank.LEAVE
    caller.until(lambda: bool(select_line(caller.process)))
    assert caller.contacts.there and caller.contacts.unsaid() == (f"rank 0 ({socket.gethostname()}, process "
                                                                  f"{caller.process.pid})")
    caller.contacts.answer = rank.END
    assert caller.end()[0] == -signal.SIGKILL


def select_line(process: subprocess.Popen[str]) -> bool:
    """Return whether there is something to read."""
    return bool(select.select([process.stdout], [], [], 0)[0])


def test_a_rank_does_not_outlive_its_launcher(caller: Caller) -> None:
    caller.start("import time\ntime.sleep(60)")
    caller.until(lambda: caller.contacts.come)
    caller.contacts.close()
    with suppress(subprocess.TimeoutExpired):
        caller.process.wait(10)
    assert caller.process.poll() == -signal.SIGKILL and caller.process.stdout is not None
    assert "has lost its launcher" in caller.process.stdout.read()


def test_who_is_silent_and_seen_to_run_is_there(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose Python is in a long call; not one that is stopped, once others have hung up."""
    caller.start("import time\ntime.sleep(60)")
    caller.until(lambda: caller.contacts.come)
    os.kill(caller.process.pid, signal.SIGSTOP)
    os.waitpid(caller.process.pid, os.WUNTRACED)
    there = [caller.contacts.there]
    clock = monotonic()
    monkeypatch.setattr(launch, "monotonic", lambda: clock + rank.SILENCE + 3)
    there.append(caller.contacts.there)  # nobody has hung up
    caller.contacts.answer = rank.END
    there.append(caller.contacts.there)
    monkeypatch.setattr(launch._Rank, "_runs", lambda _: True)
    there.append(caller.contacts.there)
    monkeypatch.setattr(launch, "monotonic", lambda: clock + 1000)
    there.append(caller.contacts.there)
    assert there == [True, True, False, True, False]


@pytest.mark.parametrize("how", ["a link", "a file", "open to others", "another user's"])
def test_a_folder_that_is_no_rank_s_own_is_refused(how: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "temporary", tmp_path / "other"
    other.mkdir(0o700)
    match how:
        case "a link":
            folder.symlink_to(other)
        case "a file":
            folder.touch()
        case _:
            folder.mkdir(0o700)
    if how == "open to others":
        folder.chmod(0o770)
    if how == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 65534, 65534)
    said = rank._refused(str(folder))
    assert said.startswith(f"{folder} on ") and "remove it, or set TMPDIR to another place." in said


def test_a_folder_of_a_rank_is_its_users_alone(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    before = os.umask(0)
    try:
        assert rank._refused(str(folder)) == rank._refused(str(folder)) == ""  # another rank of the host has made it
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert rank._refused(str(tmp_path / "nowhere" / "temporary")) == "" and not (tmp_path / "nowhere").exists()


def test_a_rank_without_a_folder_of_its_own_fails_by_name(caller: Caller, tmp_path: Path) -> None:
    (tmp_path / "temporary").symlink_to(tmp_path)
    caller.start("1 / 0")
    status, text, outcome = caller.end()
    assert status == 1 and outcome is not None and outcome.kind == "failed"
    assert f"ag launch: {tmp_path}/temporary on {socket.gethostname()} is a link, or no folder" in text
    assert outcome.text in text


def test_a_long_text_of_any_characters_reaches_the_launcher(caller: Caller) -> None:
    caller.start("raise ValueError(chr(0x1f600) * 500 + chr(0xd800) + chr(0) * 500)")
    _, _, outcome = caller.end()
    assert outcome is not None and outcome.text.startswith("ValueError: " + chr(0x1F600))


def test_a_launcher_says_any_text(capfd: pytest.CaptureFixture[str]) -> None:
    launch._say("a\udcff\ud800")
    assert capfd.readouterr().err == "ag launch: a\\udcff\\ud800\n"


def test_no_socket_takes_the_place_of_a_closed_stream() -> None:
    """A rank at the other end would take an l of the text for the order to leave."""
    done = forked.run("import os, socket, sys\nfrom ag.tools.launcher import launch\nos.close(0), os.close(2)\n"
                      "launch._open_streams()\nprint(os.readlink('/proc/self/fd/0'), os.readlink('/proc/self/fd/2'),"
                      " socket.socket().fileno() > 2)")
    assert done.stdout == "/dev/null /dev/null True\n"
