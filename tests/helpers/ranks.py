"""Several ranks: threads or processes that make the same call, each with its place in a group, or run dp_train."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import make_model

import ag
from ag.parallel.comm.comm import Comm, everyone
from ag.parallel.comm.mpi_settings import (
    find_mpiexec,
    launcher_environment,
    mpiexec_arguments,
    started_by_launcher,
)
from ag.parallel.comm.threads import thread_comms

RNG = np.random.default_rng(53)
# Ragged: samples are columns of 1 to 3 vectors, and their number fits no batch.
DATA = [(RNG.standard_normal((4, 1 + i % 3)).astype(np.float32), RNG.integers(0, 3, 1 + i % 3)) for i in range(29)]

UNDER_MPI = started_by_launcher()


def everybody(comms: Sequence[Comm], work: Callable[[Any], Any]) -> list[Any]:
    """Return the results of `work` on each rank: in threads, or, under MPI, in processes that call with one place."""
    if len(comms) == comms[0].size:
        with ThreadPoolExecutor(len(comms)) as pool:
            return list(pool.map(work, comms))
    mine = np.frombuffer(pickle.dumps(work(comms[0])), np.uint8)
    from ag.parallel.comm.mpi import mpi_comm

    comm = mpi_comm(60)  # the work may have ended its own
    ends = np.cumsum(everyone(comm, mine.size))
    return [pickle.loads(x.tobytes()) for x in np.split(comm.all_gather(mine), ends[:-1])]


@contextmanager
def mpi_job(ranks: int, *command: object, detector: float = 10.0, launcher: Sequence[str] = (),
            env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A running ``mpiexec``; whatever is left of it in the end is killed."""
    mpiexec = find_mpiexec()
    if find_spec("mpi4py") is None or mpiexec is None:
        pytest.skip("mpi4py or mpiexec is missing; pip install ag-autograd[mpi] brings both")
    token = token_hex(8)
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="ag-test-", dir=memory if memory.is_dir() else None)  # what killed ranks leave
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    clean |= {**launcher_environment(detector), "AG_TEST_JOB": token, "OPENBLAS_NUM_THREADS": "1",
              "PYTHONPATH": os.pathsep.join([str(Path(ag.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
              "TMPDIR": folder, "OMPI_MCA_btl_sm_backing_directory": folder, **(env or {})}
    line = [mpiexec, *(launcher or mpiexec_arguments(ranks)), sys.executable, *map(str, command)]
    job = subprocess.Popen(line, env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True)
    try:
        yield job
    finally:
        for process in processes_of(token):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        job.kill()
        job.wait()
        assert job.stdout is not None
        job.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def processes_of(token: str) -> list[int]:
    """The processes of a job, mpiexec and ranks."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and token.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def mpirun(ranks: int, *command: object, timeout: float = 100.0, **options: Any) -> tuple[int, str]:
    """The status and the output of a program of several ranks."""
    with mpi_job(ranks, *command, **options) as job:
        text, _ = job.communicate(timeout=timeout)
        return job.returncode, text


def outcomes(size: int, work: Callable[[Comm], Any], timeout: float = 20.0) -> list[Any]:
    """Run `work(comm)` on all ranks at once; return its result on each rank, or the error that it raises there."""

    def tried(comm: Comm) -> Any:
        try:
            return work(comm)
        except BaseException as error:  # noqa: BLE001 - it is what the test looks at
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(tried, thread_comms(size, timeout)))


def train(devices: list[str], world: Comm | None = None, **options: Any) -> ag.DPResult:
    given = {"make_model": make_model, "data": DATA, "micro_batch": 2, "n_iter": 4, "lr": 0.05, "seed": 4,
             "verbose": False, "stack": 1, "shuffle": False, **options}
    return ag.dp_train(given.pop("make_model"), given.pop("data"), ag.ag_softmax_cross_entropy_loss,
                       lambda model, s: model(s[0]), lambda s: s[1], devices=devices, world=world, **given)


def on_ranks(devices: list[list[str]], **options: Any) -> list[ag.DPResult]:
    """The result of every rank, each with some of the devices."""
    found = outcomes(len(devices), lambda comm: train(devices[comm.rank], comm, **options))
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found


def dealt(ranks: int, replicas: int) -> list[list[str]]:
    """CPU devices for so many replicas on each of so many ranks."""
    return [[f"cpu:{r * replicas + i}" for i in range(replicas)] for r in range(ranks)]
