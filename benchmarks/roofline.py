"""A roofline plot, as PNG, of a result of bench_ops: `python benchmarks/roofline.py RESULT.json [PLOT.png]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def plot(result: Path, picture: Path) -> None:
    """Draw every operation that computes under the two roofs that were measured with it."""
    content = json.loads(result.read_text("utf-8"))
    roofs, rows = content["roofs"], [r for r in content["results"] if r["intensity"]]  # to gather is to move only
    figure, axes = plt.subplots(figsize=(9, 6))
    low, high = (f(r["intensity"] for r in rows) for f in (min, max))
    grid = [low / 2 * (4 * high / low) ** (i / 99) for i in range(100)]
    axes.loglog(grid, [min(roofs["flops"], x * roofs["bytes"]) / 1e9 for x in grid], "k-", label="measured roof")
    kinds = sorted({r["op"].split()[0] for r in rows})
    for i, kind in enumerate(kinds):
        here = [r for r in rows if r["op"].split()[0] == kind]
        axes.loglog([r["intensity"] for r in here], [r["gflops"] for r in here], "o", color=f"C{i}", label=kind)
        theirs = [r for r in here if r["torch_us"]]
        axes.loglog([r["intensity"] for r in theirs], [r["gflops"] * r["us"] / r["torch_us"] for r in theirs], "x",
                    color=f"C{i}", label=f"{kind}, PyTorch" if theirs else None)
    axes.set_xlabel("FLOP per byte, at least")
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"{content['device']}, {content['machine']['processor']}, {content['machine']['commit']}")
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(picture, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    plot(source, Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".png"))
