"""Training steps beside busy processes, and alone: how much slower captured steps get, and those of PyTorch.

A step whose threads wait for each other loses more than its share of the cores: one thread without a core stops all.
Every peer runs alone and beside the others in the same rounds.  "Lost" is how much longer a step takes then.
"""

from __future__ import annotations

import sys

from bench_step import peers
from common import in_turn, medians, parsed, parser, table, write
from steps import WORKLOADS

KINDS = ("captured", "fused")


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--workloads", default="W3,W4")
    command_line.add_argument("--busy", type=int, default=2, help="processes that compute all the time")
    command_line.set_defaults(against="fused")
    args = parsed(command_line)
    results = []
    for workload in args.workloads.split(","):
        commands = {}
        for peer, command in peers(workload, args).items():
            if peer.endswith(KINDS):
                commands[f"{peer}, alone"] = command
                commands[f"{peer}, beside"] = [sys.executable, "beside.py", str(args.busy), *command]
        rows = in_turn(commands, args.rounds, args.keep)
        found = {name: us for (name,), us in medians(rows, ["peer"], "us_per_step").items()}
        print(f"\n{workload}: {WORKLOADS[workload].title}, alone and beside {args.busy} busy processes")
        for peer in dict.fromkeys(name.partition(",")[0] for name in commands):
            alone, beside = found[f"{peer}, alone"], found[f"{peer}, beside"]
            results.append({"workload": workload, "peer": peer, "busy": args.busy, "us_alone": alone,
                            "us_beside": beside, "lost": beside / alone - 1})
        table(["peer", "us/step alone", "beside", "lost"],
              [[r["peer"], r["us_alone"], r["us_beside"], f"{r['lost']:.0%}"] for r in results
               if r["workload"] == workload])
        write("loaded", args, results=results)


if __name__ == "__main__":
    main()
