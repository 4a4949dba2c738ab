"""The hosts of a job: which there are (``a:2,b``), which of them answer, and what killed jobs have left on them.

A host answers if mpiexec's agent can run this file there, which imports the standard library only and does what stdin
asks.  A job's processes have its name in their environment or on their command line, and its launcher holds a lock in
each of its folders.  Every launcher looks for locks in shared memory; each lists all folders.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import NamedTuple, TextIO

Host = tuple[str, int]  # its name, and how many ranks it may have

_AGENT = "PRTE_MCA_plm_ssh_agent"  # names the agent; default: ssh
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_ANSWER = 10.0  # seconds in which a host must answer
_SCRIPT = 30.0  # seconds that a script which lists hosts may take
_EVERY = 5.0  # seconds between two looks for more hosts
_HERE = "here\n"  # the end of what a host answers


def parse_hosts(words: Sequence[str], source: str) -> list[Host]:
    """Return the hosts of words such as ``a:2``; a ValueError says by `source` where wrong ones stand."""
    found: dict[str, int] = {}
    for word in words:
        match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?::([0-9]{1,6}))?", word)
        if match is None or (count := int(match[2] or 1)) < 1:
            raise ValueError(f"launch: {source} has {word!r}; a host's name is required, and how many ranks it may "
                             f"have, such as a:2.")
        if match[1] in found:
            raise ValueError(f"launch: {source} has {match[1]} twice; name each host once, such as {match[1]}:"
                             f"{found[match[1]] + count}.")
        found[match[1]] = count
    if not found:
        raise ValueError(f"launch: {source} has no host; name at least one.")
    return [*found.items()]


def discover(script: str) -> list[Host]:
    """Return the hosts that a script prints, one in a line; ValueError if it fails, or prints something else."""
    source = f"--discover {script}"
    with _begun({script: [script if os.sep in script else os.path.join(os.curdir, script)]}, "") as begun:
        try:
            if isinstance(process := begun[script], OSError):
                raise process
            said, why = process.communicate(timeout=_SCRIPT)
        except (OSError, subprocess.SubprocessError) as error:
            raise ValueError(f"launch: {source} cannot be run ({error}); name an executable file that prints hosts."
                             ) from error
    if process.returncode != 0:
        raise ValueError(f"launch: {source} ended with status {process.returncode} ({why.strip()[-200:]}); it must "
                         f"print hosts and end with 0.")
    return parse_hosts(said.split(), source)


def places(hosts: Sequence[Host]) -> int:
    return sum(count for _, count in hosts)


def is_here(name: str) -> bool:
    """Return whether a name is this host's."""
    if name in ("localhost", socket.gethostname(), socket.gethostname().partition(".")[0]):
        return True
    with suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as test:
        test.bind((socket.gethostbyname(name), 0))  # only an address of one's own can be bound
        return True
    return False


def addresses_for(hosts: Sequence[Host]) -> list[str]:
    """Return the addresses under which hosts reach this one: those from which it would send to them."""
    found = []
    for name in [*(name for name, _ in hosts), "192.0.2.1"]:  # and that of the default route
        with suppress(OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as test:
            test.connect((name, 9))
            found.append(str(test.getsockname()[0]))
    return [*dict.fromkeys([*found, "127.0.0.1"])]


def answering(hosts: Sequence[Host], job: str = "", folders: Sequence[str] = ()) -> tuple[list[Host], list[str]]:
    """Return the hosts that answer, and what is wrong with the others; all are asked at the same time.

    What the job of a name has left on them is swept, in `folders` or where this launcher's jobs have theirs.
    """
    with _ask(hosts, {"job": job, "folders": [*folders] or folders_of(job)}) as answers:
        if job:
            sweep(job, folders)
        said = dict(answers)
    wrong = [f"{name}: {what}" for name, what in said.items() if not what.endswith(_HERE)]
    return [host for host in hosts if said.get(host[0], _HERE).endswith(_HERE)], wrong


def ranks_with_processes(hosts: Sequence[Host], job: str) -> set[int] | None:
    """Return the ranks of a job that have a process; None if a host does not answer."""
    found = ranks_of(job)
    with _ask(hosts, {"job": job, "look": True}) as answers:
        for _, said in answers:
            ranks = re.search(r"^\[([0-9, ]*)\]\n" + _HERE, said, re.MULTILINE)
            found = found | {int(rank) for rank in ranks[1].split(",") if rank} if found is not None and ranks else None
    return found


@contextmanager
def _ask(hosts: Sequence[Host], told: object) -> Iterator[Iterator[tuple[str, str]]]:
    """Run this file on those that are other hosts, all at once; yield an iterator over answers, or what is wrong."""
    agent = shlex.split(os.environ[_AGENT].partition(":")[0]) if os.environ.get(_AGENT) else _SSH
    command = shlex.join([sys.executable, str(Path(__file__))])
    commands = {name: [*agent, name, command] for name, _ in hosts if not is_here(name)}
    end = monotonic() + _ANSWER
    with _begun(commands, json.dumps(told)) as begun:
        def answers() -> Iterator[tuple[str, str]]:
            for name, process in begun.items():
                said = f"{agent[0]} cannot be run"
                if not isinstance(process, OSError):
                    try:
                        said, why = process.communicate(timeout=max(0.1, end - monotonic()))
                        said = said if said.endswith(_HERE) else why.strip()[-300:] or "it says nothing"
                    except subprocess.TimeoutExpired:
                        said = f"no answer in {_ANSWER:g} s"
                yield name, said

        yield answers()


@contextmanager
def _begun(commands: Mapping[str, Sequence[str]], told: str) -> Iterator[dict[str, subprocess.Popen[str] | OSError]]:
    """Start processes that read `told` on their stdin; yield them, or their errors; kill all at the end."""
    # another thread starts them: a signal raises in the main thread alone, and so cannot lose a process
    begun = dict[str, subprocess.Popen[str] | OSError]()
    done = Event()  # Thread.join takes a thread for ended when a signal's exception interrupts it

    def begin() -> None:
        try:
            for name, command in commands.items():
                try:
                    begun[name] = _told(command, told)
                except OSError as error:
                    begun[name] = error
        finally:
            done.set()

    thread = Thread(target=begin, name="ag-begin")
    try:
        thread.start()
        done.wait()
        yield begun
    finally:
        if thread.ident is not None:
            done.wait()
        for process in begun.values():
            if not isinstance(process, OSError) and process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and what it has started
                process.communicate()


def _told(command: Sequence[str], told: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace",
                               start_new_session=True)
    assert process.stdin is not None
    with suppress(OSError), process.stdin as stdin:
        stdin.write(told)
    process.stdin = None  # closed; `communicate` would use it
    return process


class Discovery:
    """A thread that looks for more hosts while a job runs, by a script that prints them."""

    def __init__(self, script: str, warn: Callable[[str], None]) -> None:
        self._script, self._warn = script, warn
        self.listed = discover(script)  # printed last
        self.more = False  # whether hosts that answer could have more ranks than the job has now
        self._now: list[Host] = []
        self._end = Event()
        self._thread = Thread(target=self._look, name="ag-discovery", daemon=True)

    def begin(self, hosts: Sequence[Host]) -> None:
        """Compare with the hosts of a new job from now on."""
        self._now, self.more = [*hosts], False
        if not self._thread.is_alive():
            self._thread.start()

    def end(self) -> None:
        self._end.set()

    def _look(self) -> None:
        said = ""
        while not self._end.wait(_EVERY):
            try:
                self.listed = discover(self._script)
            except ValueError as error:
                if str(error) != said:
                    said = str(error)
                    self._warn(f"{said} The last hosts stay.")
                continue
            now = dict(self._now)
            more = [(name, count) for name, count in self.listed if count > now.get(name, 0)]
            if more and not self.more and answering(more)[0] and now == dict(self._now):
                self.more = True


_PREFIX, _LOCK = "ag-launch-", "lock"
_NAME = re.compile("[0-9a-f]{16}")  # of a job: whatever has it is killed, so nothing shorter is one
_COMMON = ("/dev/shm", "/tmp")
_PATIENCE = 5.0  # seconds for killed processes to go


class Left(NamedTuple):
    """A job whose launcher was killed: its name, folders, and hosts."""

    job: str
    folders: list[str]
    hosts: list[str]


def folders_of(job: str) -> list[str]:
    """Return the folders of a job on each host: for temporary files, and in shared memory."""
    return [os.path.join(place, _PREFIX + job) for place in _places()]


def _places() -> list[str]:
    """Return the folders in which those of jobs are; the last one is the same for all jobs of a host."""
    common = [place for place in _COMMON if os.path.isdir(place)][:1]
    return [*dict.fromkeys([tempfile.gettempdir(), *common])]


def processes_of(job: str) -> list[int]:
    """Return the processes of a job on this host, as far as the system tells."""
    found, name = [], job.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        for file in ("environ", "cmdline"):
            with suppress(OSError):
                if name in (folder / file).read_bytes() and int(folder.name) != os.getpid():
                    found.append(int(folder.name))
                    break
    return found


def ranks_of(job: str) -> set[int] | None:
    """Return the ranks that have a process on this host; None if a process may still become another rank."""
    ranks = set[int]()
    for process in processes_of(job):
        with suppress(OSError):
            folder = Path(f"/proc/{process}")
            line = (folder / "cmdline").read_bytes()
            number = re.search(rb"(?:^|\0)OMPI_COMM_WORLD_RANK=([0-9]+)", (folder / "environ").read_bytes())
            _, parent, _, session = (folder / "stat").read_text("utf-8", "replace").rpartition(") ")[2].split()[:4]
            if number is not None:
                ranks.add(int(number[1]))
            elif line == Path(f"/proc/{parent}/cmdline").read_bytes() and int(session) != process:
                return None  # forked, and no program of its own yet; a daemon that was has a session of its own
    return ranks


def dies_of(process: int, number: int) -> bool:
    """Return whether a signal ends a process on this host, as far as the system tells."""
    with suppress(OSError):
        status = Path(f"/proc/{process}/status").read_text("utf-8", "replace")
        masks = re.findall(r"^Sig(?:Ign|Cgt):\s*([0-9a-f]+)$", status, re.MULTILINE)
        return len(masks) == 2 and not any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def sweep(job: str, folders: Iterable[str] = ()) -> None:
    """End all processes of a job on this host, stopped and orphaned ones too, and remove its folders, or the usual."""
    end = monotonic() + _PATIENCE
    while (processes := processes_of(job)) and monotonic() < end:
        for process in processes:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        sleep(0.02)
    for folder in folders or folders_of(job):
        if _is_ours(Path(folder)):
            shutil.rmtree(folder, ignore_errors=True)


def lock(job: str, hosts: Sequence[str] = ()) -> ExitStack:
    """Make a job's folders, or raise ValueError, and hold their locks until the result is closed.

    If this launcher is killed, the next one sweeps `hosts`, too.
    """
    files = ExitStack()
    for folder in map(Path, reversed(folders_of(job))):
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise ValueError(f"launch: the folder {folder} cannot be made ({error.strerror}); set TMPDIR to a folder "
                             f"that this user may write to.") from error
        file = files.enter_context((folder / f"{_LOCK}.new").open("w", encoding="utf-8"))
        flock(file, LOCK_EX | LOCK_NB)
        json.dump({"folders": folders_of(job), "hosts": [*hosts]}, file)
        file.flush()
        os.rename(file.name, folder / _LOCK)  # so that a launcher that sees it finds it held
    return files


def sweep_older() -> list[Left]:
    """Sweep after launchers that were killed on this host, whatever their TMPDIR; return what other hosts have."""
    found = []
    for place in dict.fromkeys(map(Path, _places())):
        for path in place.glob(f"{_PREFIX}*/{_LOCK}"):
            job = path.parent.name.removeprefix(_PREFIX)
            if _NAME.fullmatch(job) and _is_ours(path.parent):
                with suppress(OSError), path.open("r+", encoding="utf-8") as file:
                    flock(file, LOCK_EX | LOCK_NB)
                    left = _read(file, job)
                    sweep(job, {*left.folders, *folders_of(job)})
                    found.append(left)
    return found


def _is_ours(folder: Path) -> bool:
    """Return whether this user has made a folder, and alone may write to it."""
    with suppress(OSError):
        found = folder.stat()
        return (folder.is_dir() and not folder.is_symlink() and found.st_uid == os.geteuid()
                and not found.st_mode & 0o022)
    return False


def _read(file: TextIO, job: str) -> Left:
    """Return what a lock says: nothing, if its launcher was killed as it wrote, or its version wrote nothing."""
    try:
        said = json.load(file)
        return Left(job, [x for x in said["folders"] if Path(x).name == _PREFIX + job], [*map(str, said["hosts"])])
    except (ValueError, KeyError, TypeError, RecursionError):
        return Left(job, [], [])


def main() -> None:
    """Sweep this host, or list its ranks, as another host asks."""
    asked = json.load(sys.stdin)
    if asked.get("look"):
        ranks = ranks_of(asked["job"])
        print(json.dumps(None if ranks is None else sorted(ranks)))
    elif asked["job"]:
        sweep(asked["job"], asked["folders"])
    print("here")


if __name__ == "__main__":
    main()
