"""What every benchmark shares: the command line, peers run in turn, tables, and results with the machine they are of.

Peers are scripts that print one JSON line per figure.  Each runs in a process of its own, in turn, several rounds, and
figures are medians over the rounds of one run: absolute times on a shared machine are noise, ratios hold.  Only the
standard library is used, so that a peer can import this in any environment.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
CURVES = HERE.parent / "tests"  # models and data that tests compare with PyTorch, and benchmarks train
THREADS = 2
Row = dict[str, Any]

sys.path += [str(HERE.parent), str(CURVES), str(CURVES / "curves")]


# ---------------------------------------------------------------------------------------------- peers


def limit_threads(count: int = THREADS) -> None:
    """Limit thread pools of numpy and PyTorch; must come before either is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)


def emit(**row: Any) -> None:
    """Print a figure of a peer."""
    print(json.dumps(row), flush=True)


def seconds_of(work: Any, clock: Callable[[], float] = perf_counter) -> float:
    """How long one call takes."""
    begin = clock()
    work()
    return clock() - begin


def repeated(work: Any, budget: float, least: int = 3, most: int = 1000,
             clock: Callable[[], float] = perf_counter) -> list[float]:
    """Seconds of single calls, after one to warm up, for about `budget` seconds."""
    work()
    count = round(budget / max(seconds_of(work), 1e-9))
    return [seconds_of(work, clock) for _ in range(min(max(count, least), most))]


def in_turn(peers: dict[str, Sequence[str]], rounds: int, keep: Path | None = None) -> list[Row]:
    """The figures of all peers, run one after the other, `rounds` times; each at once in the file `keep`, too."""
    rows = []
    for round_number in range(rounds):
        for peer, command in peers.items():
            with TemporaryFile("w+") as errors:
                with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=errors, text=True) as running:
                    assert running.stdout is not None
                    try:
                        for line in filter(lambda line: line.startswith("{"), running.stdout):
                            rows.append({"peer": peer, "round": round_number, **json.loads(line)})
                            if keep is not None:
                                with keep.open("a", encoding="utf-8") as file:
                                    file.write(json.dumps(rows[-1]) + "\n")
                    except BaseException:  # an interrupt, too, leaves no peer behind
                        running.kill()
                        raise
                if running.returncode:
                    errors.seek(0)
                    raise SystemExit(f"{peer}: {' '.join(command)} failed:\n{errors.read()}")
    return rows


def medians(rows: Iterable[Row], keys: Sequence[str], value: str) -> dict[tuple[Any, ...], float]:
    """Median of `value` over the rows that agree in `keys`."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in keys), []).append(row[value])
    return {key: statistics.median(values) for key, values in groups.items()}


# ---------------------------------------------------------------------------------------------- command line


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """The command line that all benchmarks have."""
    found = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    found.add_argument("--device", default="cpu", help="of this library")
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--seconds", type=float, default=1.0, help="of measurement per figure, about")
    found.add_argument("--quick", action="store_true", help="smallest sizes, one round, without PyTorch")
    found.add_argument("--torch-device", default="cpu", help="such as cuda")
    found.add_argument("--torch-python", default=sys.executable, help="an interpreter that has PyTorch")
    found.add_argument("--jax-python", help="an interpreter that has JAX, for bench_step.py; default: none")
    found.add_argument("--out", type=Path, help="default: benchmarks/results/NAME_DEVICE.json")
    found.set_defaults(**defaults)
    return found


def parsed(found: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments; `torch` says whether PyTorch takes part, `machine` where this runs, `keep` is for `in_turn`."""
    args = found.parse_args()
    args.keep = args.out and args.out.with_suffix(".jsonl")
    if args.keep:
        args.keep.parent.mkdir(exist_ok=True)
        args.keep.unlink(missing_ok=True)
    if args.quick:
        args.rounds, args.seconds = 1, min(args.seconds, 0.02)
    args.torch = not args.quick and subprocess.run(
        [args.torch_python, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    if args.jax_python:
        tried = subprocess.run([args.jax_python, "-c", "import jax"], capture_output=True, text=True, check=False)
        if tried.returncode:
            raise SystemExit(f"--jax-python {args.jax_python}: it has no JAX.\n{tried.stderr}")
    args.machine = None
    return args


# ---------------------------------------------------------------------------------------------- results


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table that is also Markdown; numbers with three digits."""
    print("\n| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|")
    for row in rows:
        print("| " + " | ".join(f"{x:.3g}" if isinstance(x, float) and abs(x) < 1e3 else f"{x:.0f}"
                                if isinstance(x, float) else str(x) for x in row) + " |")


def machine(args: argparse.Namespace) -> Row:
    """Where this ran."""
    def output(*command: str) -> str:
        if shutil.which(command[0]) is None:  # git, on a bare machine
            return ""
        return subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=False).stdout.strip()

    cpuinfo = Path("/proc/cpuinfo")
    model = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines()
             if line.startswith("model name")] if cpuinfo.exists() else []
    found = {
        "processor": model[0] if model else platform.processor(), "cores": os.cpu_count(), "threads": THREADS,
        "device": output(sys.executable, "-c", "from ag.engine.device import backend_of; "
                                               f"print(backend_of({args.device!r}).info)"),
        "python": platform.python_version(),
        "commit": os.environ.get("AG_COMMIT") or output("git", "rev-parse", "--short", "HEAD"),
        "changed": bool(output("git", "status", "--porcelain", "--untracked-files=no")),
        "numpy": output(sys.executable, "-c", "import numpy; print(numpy.__version__)"),
    }
    if args.torch:
        describe = "import torch; print(torch.__version__, torch.cuda.get_device_name() if {} else '')"
        found["torch"] = output(args.torch_python, "-c", describe.format(args.torch_device.startswith("cuda")))
    if args.jax_python:
        found["jax"] = output(args.jax_python, "-c", "import jax; print(jax.__version__)")
    return found


def write(name: str, args: argparse.Namespace, **results: Any) -> None:
    """Write the result file, anew where it was written before."""
    args.machine = args.machine or machine(args)
    out: Path = args.out or RESULTS / f"{name}_{args.device.replace(':', '')}.json"
    out.parent.mkdir(exist_ok=True)
    content = {"machine": args.machine, "device": args.device, "torch_device": args.torch_device, **results}
    out.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    print(f"\nwritten to {out.name}", flush=True)
