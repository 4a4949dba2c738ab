"""Training steps of this checkout against those of another, such as an older commit: has anything become slower?

`python benchmarks/against.py FOLDER`, after `make setup` in FOLDER; `--device` and what else all benchmarks take.  Each
round runs a step in both, one right after the other, and the first of a round is the second of the next: the ratio of
two neighbours says more than two medians on a machine that is quick now and slow then.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

from common import HERE, Row, in_turn, parsed, parser, table, write

VARIANTS = {"W1": ("eager", "captured"), "W1b": ("eager", "captured", "dp_train"), "W2": ("eager", "captured"),
            "W3": ("eager", "captured"), "W4": ("eager", "captured")}


def ratios(workload: str, variant: str, folder: Path, args: Any) -> Row:
    """Time here by time there, for each round, and their median."""
    more = ["--workload", workload, "--variant", variant, "--device", args.device, "--seconds", str(args.seconds)]
    commands = {name: [str(root / ".venv" / "bin" / "python"), str(root / "benchmarks" / "step_ag.py"), *more,
                       *(["--quick"] if args.quick else [])]
                for name, root in (("here", HERE.parent), ("there", folder))}
    found: dict[str, list[float]] = {"here": [], "there": []}
    for number in range(args.rounds):
        names = ("here", "there") if number % 2 else ("there", "here")
        for row in in_turn({name: commands[name] for name in names}, 1, args.keep):
            found[row["peer"]].append(row["us_per_step"])
    each = [here / there for here, there in zip(found["here"], found["there"], strict=True)]
    return {"workload": workload, "variant": variant, "us_here": statistics.median(found["here"]),
            "us_there": statistics.median(found["there"]), "ratio": statistics.median(each), "ratios": each}


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("folder", type=Path, help="of the other checkout")
    command_line.add_argument("--workloads", default=",".join(VARIANTS))
    args = parsed(command_line)
    folder = args.folder.resolve()
    if not (folder / ".venv" / "bin" / "python").exists():
        raise SystemExit(f"against: {folder} has no .venv; run `make setup` there first.")
    os.environ.pop("PYTHONPATH", None)  # each checkout has what it is installed with
    results = []
    for workload in args.workloads.split(","):
        for variant in VARIANTS[workload]:
            results.append(ratios(workload, variant, folder, args))
            write("against", args, other=commit_of(folder), results=results)
    table(["step", "us here", "us there", "here / there"],
          [[f"{r['workload']} {r['variant']}", r["us_here"], r["us_there"], r["ratio"]] for r in results])


def commit_of(folder: Path) -> str:
    """The commit of the other checkout."""
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True,
                          check=False).stdout.strip()


if __name__ == "__main__":
    main()
