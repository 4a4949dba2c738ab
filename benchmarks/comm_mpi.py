"""One rank of `bench_comm.py`: the sum over the ranks, by mpi4py's `Allreduce` and by `MpiComm.all_reduce`, in turn."""

from __future__ import annotations

import argparse

from common import emit, limit_threads, seconds_of

parser = argparse.ArgumentParser()
parser.add_argument("--elements", type=int, required=True)
parser.add_argument("--calls", type=int, required=True)
args = parser.parse_args()
limit_threads(1)

import numpy as np  # noqa: E402 - after the thread pools are limited

from ag.parallel.comm.mpi import mpi_comm  # noqa: E402
from ag.parallel.comm.mpi_process import mpi_process  # noqa: E402

comm, process = mpi_comm(), mpi_process()
raw = process.duplicate()
array = np.random.default_rng(comm.rank).standard_normal(args.elements).astype(np.float32)
total, ours = np.empty_like(array), np.empty_like(array)


def all_reduce() -> None:
    raw.Allreduce(array, total)


def slowest(seconds: list[float]) -> float:
    """The quickest call, of which the slowest rank."""
    found = np.array(seconds)
    process.inside("Allreduce", lambda: raw.Allreduce(process.mpi.IN_PLACE, found, process.mpi.MAX))
    return float(found.min())


kinds = {"Allreduce": lambda: process.inside("Allreduce", all_reduce), "all_reduce": lambda: comm.all_reduce(ours)}
for measured in (False, True):
    for name, work in kinds.items():
        times = []
        for _ in range(args.calls):
            np.copyto(ours, array)
            comm.barrier()
            times.append(seconds_of(work))
        best = slowest(times)
        if comm.rank == 0 and measured:
            emit(how=name, ms=best * 1e3)
assert np.allclose(total, ours, rtol=1e-5, atol=1e-4)
