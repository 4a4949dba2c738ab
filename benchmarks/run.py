"""Step benchmarks side by side: `python benchmarks/run.py`, or `make bench`.

Runs the peers in turn, several rounds, each in a process of its own, and compares medians of the same run: absolute
times on a shared machine are noise, ratios hold.  PyTorch takes part where it is installed, in this interpreter or
in the one named by --torch-python.  The result goes to benchmarks/results/ with machine, versions and commit.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from workloads import THREADS, WORKLOADS

HERE = Path(__file__).resolve().parent
SAME_LOSS = 2e-3  # relative; float32 over a few hundred steps


def peers(workload: str, python: str, torch_python: str, device: str, torch_device: str) -> dict[str, list[str]]:
    """Command line of every peer."""
    ag_variants = ["eager", "captured", *(["dp_train"] if workload == "W1b" else [])]
    found = {f"ag {v}": [python, "peer_ag.py", "--variant", v, "--device", device] for v in ag_variants}
    if subprocess.run([torch_python, "-c", "import torch"], capture_output=True).returncode == 0:
        found |= {f"torch {v}": [torch_python, "peer_torch.py", "--variant", v, "--device", torch_device]
                  for v in ("eager", "fused")}
    return found


def run_once(command: list[str], workload: str, seconds: float) -> dict[str, Any]:
    """One process; its JSON line."""
    done = subprocess.run([*command, "--workload", workload, "--seconds", str(seconds)],
                          cwd=HERE, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(workload: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over rounds, ratio to both PyTorch variants, and whether the work was the same."""
    by_peer: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_peer.setdefault(row["peer"], []).append(row)
    medians = {peer: statistics.median(r["us_per_step"] for r in of_peer) for peer, of_peer in by_peer.items()}
    reference = rows[0]["loss_last"]
    result = []
    print(f"\n{workload}: {WORKLOADS[workload].title}\n")
    print("| peer | us/step | speed against torch eager | against torch fused | loss | same work |")
    print("|---|---|---|---|---|---|")
    for peer in sorted(medians, key=lambda p: medians[p]):
        loss = by_peer[peer][0]["loss_last"]
        same = abs(loss - reference) <= SAME_LOSS * max(abs(reference), 1e-3)
        ratios = {f"x_{t.replace(' ', '_')}": medians[t] / medians[peer] for t in ("torch eager", "torch fused")
                  if t in medians}
        shown = [f"{r:.2f}x" for r in ratios.values()] or ["", ""]
        print(f"| {peer} | {medians[peer]:.1f} | {' | '.join(shown)} | {loss:.5f} | {'yes' if same else 'NO'} |")
        result.append({"workload": workload, "peer": peer, "us_per_step": medians[peer], **ratios,
                       "rounds": [r["us_per_step"] for r in by_peer[peer]], "loss_last": loss, "same_work": same})
    return result


def machine(torch_python: str, device: str) -> dict[str, Any]:
    """Where this ran."""
    def output(*command: str) -> str:
        return subprocess.run(command, cwd=HERE, capture_output=True, text=True).stdout.strip()

    model = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")] if Path("/proc/cpuinfo").exists() else []
    return {
        "processor": model[0] if model else platform.processor(), "cores": len(model), "threads": THREADS,
        "device": output(sys.executable, "-c", f"from ag.device import backend_of; print(backend_of({device!r}).info)"),
        "python": platform.python_version(), "commit": output("git", "rev-parse", "--short", "HEAD"),
        "numpy": output(sys.executable, "-c", "import numpy; print(numpy.__version__)"),
        "torch": output(torch_python, "-c", "import torch; print(torch.__version__)"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workloads", default="W1,W1b,W2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of measurement per process")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--torch-device", default="cpu", help="such as cuda")
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/step_<device>.json")
    args = parser.parse_args()
    results = []
    for workload in args.workloads.split(","):
        commands = peers(workload, sys.executable, args.torch_python, args.device, args.torch_device)
        rows = [run_once(command, workload, args.seconds) for _ in range(args.rounds) for command in commands.values()]
        results += table(workload, rows)
    out = args.out or HERE / "results" / f"step_{args.device.replace(':', '')}.json"
    out.write_text(json.dumps({"machine": machine(args.torch_python, args.device), "device": args.device,
                               "torch_device": args.torch_device, "results": results}, indent=1) + "\n")
    print(f"\nwritten to {out.name}")


if __name__ == "__main__":
    main()
