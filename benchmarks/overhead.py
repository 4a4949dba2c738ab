"""What the CPU device costs beyond its kernels: eager calls, capturing, memory, and `dp_train` beside the pass.

Every kind of figure comes from a process of its own (overhead_ag.py), several rounds in turn.  A round's figure of a
call is that of its quickest block: what else a machine does adds to a time, and never takes from it.  The median of the
rounds counts.
"""

from __future__ import annotations

import sys
from statistics import median

from common import in_turn, parsed, parser, table, write

KINDS = ("eager", "capture", "memory", "dp_train", "replicas")


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--kinds", default=",".join(KINDS), help="comma-separated")
    args = parsed(command_line)
    more = ["--seconds", str(args.seconds), "--device", args.device, *(["--quick"] if args.quick else [])]
    peers = {kind: [sys.executable, "overhead_ag.py", "--kind", kind, *more] for kind in args.kinds.split(",")}
    if "memory" in peers:
        peers["memory, recompute"] = [*peers["memory"], "--recompute"]
    rows = in_turn(peers, args.rounds, args.keep)
    results = []
    for what in dict.fromkeys(row["what"] for row in rows):
        of_what = [row for row in rows if row["what"] == what]
        results.append({"what": what, "median": median(row["value"] for row in of_what), "unit": of_what[0]["unit"],
                        "rounds": [row["value"] for row in of_what]})
    table(["what", "median", "unit"], [[r["what"], r["median"], r["unit"]] for r in results])
    write("overhead", args, results=results)


if __name__ == "__main__":
    main()
