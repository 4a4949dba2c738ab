"""Where the time of a captured step on the CPU goes: a table of its launches by kernel, beside what the machine can do.

Products are given in GFLOP/s, of the roof of a large one, and all others in GB/s that they read and write, of the roof
of copying; a kernel whose arrays stay in a cache may exceed that, and one that computes much (exponentials, attention)
reaches little of it.  launches_ag.py measures a workload.
"""

from __future__ import annotations

import sys

from common import in_turn, parsed, parser, table, write
from steps import WORKLOADS


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--workloads", default="W1,W2,W3,W4")
    args = parsed(command_line)
    results = []
    for workload in args.workloads.split(","):
        command = [sys.executable, "launches_ag.py", "--workload", workload, "--seconds", str(args.seconds),
                   *(["--quick"] if args.quick else [])]
        rows = in_turn({workload: command}, 1, args.keep)
        results += rows
        whole, count = sum(r["us"] for r in rows), sum(r["launches"] for r in rows)
        print(f"\n{workload}: {WORKLOADS[workload].title}; {whole:.0f} us in {count} launches")
        table(["kernel", "launches", "us", "of the step", "reached", "of the roof"],
              [[r["kernel"], r["launches"], r["us"], f"{r['us'] / whole:.0%}", f"{r['reached']:.0f} {r['unit']}",
                f"{r['reached'] / r['roof']:.0%}"] for r in rows])
        write("launches", args, results=results)


if __name__ == "__main__":
    main()
