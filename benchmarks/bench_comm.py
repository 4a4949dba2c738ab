"""Sums over ranks: `MpiComm.all_reduce`, which outlives lost ranks, and mpi4py's `Allreduce`, in the same job.

Of every round and kind the quickest call counts, of which the slowest rank; of all rounds the best.
"""

from __future__ import annotations

import os
import sys

from common import in_turn, parsed, parser, table, write

from ag.parallel.comm.mpi_settings import find_mpiexec, launcher_environment, mpiexec_arguments


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--ranks", default="2,3,4", help="comma-separated")
    command_line.add_argument("--elements", type=int, default=10_000_000, help="float32")
    args = parsed(command_line)
    if args.quick:
        args.ranks, args.elements = "2", min(args.elements, 1000)
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise SystemExit("bench_comm: mpiexec is missing; pip install 'ag-autograd[mpi]' brings it.")
    os.environ.update(launcher_environment())
    more = ["--elements", str(args.elements), "--calls", "2" if args.quick else "5"]
    peers = {ranks: [mpiexec, *mpiexec_arguments(int(ranks)), sys.executable, "comm_mpi.py", *more]
             for ranks in args.ranks.split(",")}
    rows = in_turn(peers, args.rounds, args.keep)
    results = []
    for ranks in peers:
        best = {how: min(r["ms"] for r in rows if (r["peer"], r["how"]) == (ranks, how))
                for how in ("Allreduce", "all_reduce")}
        results.append({"ranks": int(ranks), "elements": args.elements, "mpi_ms": best["Allreduce"],
                        "ag_ms": best["all_reduce"], "ratio": best["all_reduce"] / best["Allreduce"]})
    table(["ranks", "elements", "Allreduce ms", "all_reduce ms", "ratio"], [list(r.values()) for r in results])
    write("comm", args, results=results)


if __name__ == "__main__":
    main()
