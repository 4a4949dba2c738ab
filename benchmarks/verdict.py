"""The verdict on a graphics card, from the rows that gpu_check.sh has written so far: `python verdict.py RESULTS`.

A goal is met if all of its rows meet it, so a table of several sizes says how far the worst is, and only if all of them
have been measured.  Rows come from NAME.jsonl, which is whole up to the moment in which a call was ended; the last line
may be cut off.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from bench_ops import results_of
from common import Row, medians, table
from ops import SIZES


@dataclass(frozen=True)
class Goal:
    """What operations should reach: `percent` of the roof that the device itself showed in the same call."""

    title: str
    operations: tuple[str, ...]
    percent: float
    sizes: tuple[int, ...] = ()  # of this size alone


GOALS = (
    Goal("matrix product, float32, 4096 x 4096", ("matmul",), 67, (4096, 4096, 4096)),
    Goal("convolution", ("conv",), 55),
    Goal("convolution, gradient of the input", ("conv dgrad",), 50),
    Goal("convolution, gradient of the weights", ("conv wgrad",), 50),
    Goal("elementwise, sums, optimizer", ("add", "sum", "AdamW"), 85),
    Goal("norms", ("layer norm", "layer norm backward", "RMS norm", "RMS norm backward"), 85),
    Goal("softmax, cross-entropy", ("softmax", "softmax-CE"), 85),
    Goal("attention", ("attention",), 50),
    Goal("attention, gradient", ("attention backward",), 35),
)
TFLOPS = (  # title, operation and goal, of the largest size that fills such a card
    ("matrix product, high precision, on an H200", "matmul high", 90),
    ("matrix product, bfloat16, on an H200", "matmul medium", 300),
)
LONGEST_W1_US = 200


def rows_of(path: Path) -> list[Row]:
    """The whole lines of a file that may not be there, or may have been cut off as it was written."""
    found = []
    for line in path.read_text("utf-8").splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def said(met: bool, whole: bool = True) -> str:
    """A word for the last column; a goal that is missed stays so, whatever has not been measured yet."""
    return "MISSED" if not met else "met" if whole else "not all measured"


def of_kernels(rows: list[Row]) -> list[list[str]]:
    """Whether every kernel is right."""
    total = next((row["tests"] for row in rows if "tests" in row), 0)
    outcomes = {row["test"]: row["outcome"] for row in rows if "test" in row}  # a test whose end failed has two rows
    counts = Counter(outcomes.values())
    figures = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped of {total}"
    return [["tests of kernels and ops", "all pass", figures if outcomes else "",
             said(not counts["failed"], len(outcomes) == total) if outcomes else "not run"]]


def of_operations(rows: list[Row]) -> list[list[str]]:
    """How near to the device's own roofs operations are."""
    cases = next((SIZES[row["sizes"]] for row in rows if row["case"] == "roofs"), [])
    results = results_of(rows, cases)[1] if cases else []
    lines = []
    for goal in GOALS:
        asked = [case for case in cases if case.op in goal.operations and goal.sizes in ((), case.sizes)]
        found = [row["roof_percent"] for row in results
                 if row["op"] in goal.operations and goal.sizes in ((), row["sizes"])]
        lines.append([goal.title, f"{goal.percent:g}%",
                      " to ".join(dict.fromkeys(f"{f(found):.3g}" for f in (min, max))) + "%" if found else "",
                      said(min(found) >= goal.percent, len(found) == len(asked)) if found else "not measured"])
    timed = {row["case"] for row in rows}
    for title, op, goal_tflops in TFLOPS:
        best = max((row["gflops"] / 1e3 for row in results if row["op"] == op), default=None)
        elsewhere = "float32's kernels ran" if any(case.op == op and case.name in timed for case in cases) else ""
        lines.append([title, f"{goal_tflops} TFLOP/s", f"{best:.3g} TFLOP/s" if best else elsewhere,
                      said(best >= goal_tflops) if best else "MISSED" if elsewhere else "not measured"])
    return lines


def of_steps(rows: list[Row]) -> list[list[str]]:
    """How fast training steps are, alone and against PyTorch."""
    us = medians(rows, ["workload", "peer"], "us_per_step")
    w1 = us.get(("W1", "ag captured"))
    lines = [["W1, captured", f"{LONGEST_W1_US} us", f"{w1:.4g} us" if w1 else "",
              said(w1 <= LONGEST_W1_US) if w1 else "not measured"]]
    peers = {peer for _, peer in us if peer.startswith("torch")}
    for workload, dtype in (("W2", ""), ("W3", ""), ("W4", ""), ("W3", " bf16"), ("W4", " bf16")):
        ours = us.get((workload, f"ag captured{dtype}"))
        best = min((us[workload, peer] for peer in peers if peer.endswith("bf16") == bool(dtype)
                    and (workload, peer) in us), default=None)
        ratio = best / ours if ours and best else None
        lines.append([f"{workload}{dtype}, captured, against PyTorch's best", "1x",
                      f"{ratio:.2f}x" if ratio else f"{ours:.4g} us" if ours else "",
                      said(ratio >= 1) if ratio else "not measured"])
    return lines


def main(results: Path) -> None:
    """Print the table."""
    kernels, operations, steps = (rows_of(results / f"{name}.jsonl") for name in ("kernels", "ops", "step"))
    table(["verdict", "goal", "worst to best", "met?"],
          [*of_kernels(kernels), *of_operations(operations), *of_steps(steps)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
