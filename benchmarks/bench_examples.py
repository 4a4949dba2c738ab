"""Training steps of the programs in examples/: captured, beside the same step in PyTorch, eager.

Models, sizes and batches are those of tests/programs, where the losses of both are compared.  Each library runs in
processes of its own, in turn, in one thread.  A figure is the least time of a step over all rounds, which other
programs disturb least.  A process that is given --peer measures and prints.
"""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import cycle
from math import inf

from common import CURVES, emit, in_turn, limit_threads, parsed, parser, repeated, table, write

PEERS = ("ag", "PyTorch")
NAMES = sorted(path.stem for path in (CURVES / "programs").glob("example_*.py"))


def main() -> None:
    command_line = parser(__doc__, seconds=0.5)
    command_line.add_argument("--peer", choices=PEERS, help="measure in this process")
    if "--peer" in sys.argv:
        args = command_line.parse_args()
        limit_threads(1)
        for name in NAMES[:2] if args.quick else NAMES:
            measure(args.peer, name, args.device, args.seconds)
        return
    args = parsed(command_line)
    more = ["--seconds", str(args.seconds), "--device", args.device, *(["--quick"] if args.quick else [])]
    pythons = {"ag": sys.executable, **({"PyTorch": args.torch_python} if args.torch else {})}
    rows = in_turn({peer: ["env", "AG_THREADS=1", python, "bench_examples.py", "--peer", peer, *more]
                    for peer, python in pythons.items()}, args.rounds, args.keep)
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        at = row["example"], row["peer"]
        found[at] = min(row["us_per_step"], found.get(at, inf))
    results = []
    for name in dict.fromkeys(row["example"] for row in rows):
        ours, theirs = found[name, "ag"], found.get((name, "PyTorch"))
        results.append({"example": name.removeprefix("example_"), "us_ag": ours} | (
            {"us_torch": theirs, "x_torch": theirs / ours} if theirs else {}))
    table(["example", "ag us/step", "PyTorch us/step", "speed against PyTorch"][: 4 if args.torch else 2],
          [[*row.values()] for row in results])
    write("examples", args, results=results)


def measure(peer: str, name: str, device: str, seconds: float) -> None:
    """Print how long a step takes, with its batch's way to the device and the loss's way back."""
    from programs.drawn import Draw

    if peer == "ag":
        import ag

        ag.ag_device(device)
        step, batches = import_module(f"programs.{name}").program(Draw())
        step = ag.ag_capture(step)
    else:
        import torch

        torch.set_num_threads(1)
        step, batches = import_module(f"programs.in_pytorch.{name}").program(Draw())
    batch = cycle(batches)
    for _ in range(10):  # recorded and compared twice
        float(step(*next(batch)))
    emit(example=name, us_per_step=1e6 * min(repeated(lambda: float(step(*next(batch))), seconds)))


if __name__ == "__main__":
    main()
