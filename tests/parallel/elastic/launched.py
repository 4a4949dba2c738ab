"""The launcher as a user starts it, for the tests: its output, its end, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from helpers.probe import patience
from helpers.ranks import processes_of

import ag
from ag.parallel.comm.mpi_settings import find_mpiexec

PROGRAM = Path(__file__).parent / "rank_program.py"
_MEMORY = Path("/dev/shm")


class Launched:
    """A launcher that runs."""

    def __init__(self, process: subprocess.Popen[str], token: str) -> None:
        self.process, self.token = process, token
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.lines.append(line)
                self._more.notify_all()

    def close(self) -> None:
        """After its end."""
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def wait_for(self, what: str, seconds: float = 180.0) -> None:
        """Until the output has a line that begins so."""
        with self._more:
            assert self._more.wait_for(lambda: any(x.startswith(what) for x in self.lines), seconds), self.text

    def wait(self, seconds: float = 120.0) -> int:
        """The status."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The launcher has timed out after {seconds:g} s:\n{self.text}") from None
        self._reader.join(10)
        return status

    def results(self) -> dict[int, dict[str, Any]]:
        """Return what the ranks that came to their end have printed."""
        found = [json.loads(line) for line in self.lines if line.startswith("{")]
        return {result["rank"]: result for result in found}

    def mpiexec(self) -> int:
        """The process of mpiexec."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def ranks(self) -> dict[int, int]:
        """The process of each rank that there is."""
        found = {}
        for process in processes_of(self.token):
            with suppress(OSError):
                line = Path(f"/proc/{process}/cmdline").read_text().split("\0")
                environ = Path(f"/proc/{process}/environ").read_text().split("\0")
                if "launcher/rank.py" in "".join(line[1:2]):
                    found.update({int(x.partition("=")[2]): process for x in environ
                                  if x.startswith("OMPI_COMM_WORLD_RANK=")})
        return found


@contextmanager
def launched(*arguments: object, folder: Path, detector: float = 10.0, before: Sequence[str] = (),
             env: Mapping[str, str] | None = None) -> Iterator[Launched]:
    """``python -m ag launch`` with these arguments, and its temporary files in a folder; all of it ends at the end."""
    if find_spec("mpi4py") is None or find_mpiexec() is None:
        pytest.skip("mpi4py or mpiexec is missing; pip install ag-autograd[mpi] brings both")
    token = token_hex(8)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    clean |= {"AG_TEST_JOB": token, "OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(folder),
              "OMPI_MCA_mpi_ft_detector_timeout": f"{detector:g}",
              "OMPI_MCA_mpi_ft_detector_period": f"{min(0.5, detector / 4):g}",
              "PYTHONPATH": os.pathsep.join([str(Path(ag.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
              **(env or {})}
    process = subprocess.Popen([*before, sys.executable, "-m", "ag", "launch", *map(str, arguments)], env=clean,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    job = Launched(process, token)
    try:
        yield job
    finally:
        for left in [process.pid, *processes_of(token)]:
            with suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        process.wait()
        job.close()


def what_is_left(job: Launched, folder: Path) -> list[str]:
    """Processes of a job, files in its folder and in shared memory."""
    processes = [f"process {x}" for x in processes_of(job.token)]
    memory = [_MEMORY / line.split()[1] for line in job.lines if line.startswith("job ")]
    return [*processes, *map(str, folder.iterdir()), *(str(x) for x in memory if x.exists())]


def eventually(check: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Wait until something becomes true; return whether it did in time."""
    end = time.monotonic() + patience(seconds)
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
