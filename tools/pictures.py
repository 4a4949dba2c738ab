"""Draws the pictures of the documentation, and writes tables and sentences of docs/performance.md, from results.

    python tools/pictures.py           docs/images/step_*.svg, tables and sentences, from benchmarks/results

A picture fits a phone and follows the colours of the page that shows it, light or dark.
tests/docs/test_performance.py compares what lies in docs/ with what this makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import ceil, floor, log2
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
RESULTS, IMAGES, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "images", ROOT / "docs" / "performance.md"

STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px; fill: #59636e }
.head { font-size: 14px; font-weight: 600 } .group { font-weight: 600 }
.grid { stroke: #d1d9e0 } .axis { stroke: #59636e }
.f0 { fill: #2f6fd6 } .f1 { fill: #9cc0f5 } .f2 { fill: #d4761f } .f3 { fill: #b7bec6 } .f4 { fill: #4b8b3b }
.f5 { fill: #c3d9f7 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8eb } .small { fill: #a5adb6 } .grid { stroke: #3d444d } .axis { stroke: #a5adb6 }
.f0 { fill: #6ea8fe } .f1 { fill: #2d5a9e } .f2 { fill: #f0a35e } .f3 { fill: #6b7480 } .f4 { fill: #86c977 }
.f5 { fill: #1f3f6e }
}
</style>"""
WIDTH, LEFT, LINE, BAR, PER_LINE = 340, 10, 16, 10, 50  # pixels, and characters: a phone shows 360 pixels

WORKLOADS = {
    "W1": "perceptron 4-32-3, 32 samples", "W1b": "perceptron 4-32-3, 1 sample",
    "W2": "perceptron 784-512-256-10, 128", "W3": "GPT of 4 layers, 16 x 64", "W4": "ResNet-8, 32 images",
}
PEERS = {"ag captured": "f0", "ag dp_train": "f0", "ag eager": "f1", "ag numpy": "f5", "torch graph": "f2",
         "torch compiled": "f2", "torch fused": "f3", "jax jit": "f4"}


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img"><title>{escape(title)}</title>')
    return "\n".join([head, STYLE, *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.4g}" y="{y:.4g}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<path d="M{x1:.4g} {y1:.4g} L{x2:.4g} {y2:.4g}" class="{style}"/>'


# ---------------------------------------------------------------------------------------------- steps against PyTorch


def steps(name: str) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The results of a file by workload and peer."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in json.loads((RESULTS / name).read_text("utf-8"))["results"]:
        found.setdefault(row["workload"], {})[row["peer"]] = row
    return found


def machine(name: str) -> str:
    result = json.loads((RESULTS / name).read_text("utf-8"))
    about = result["machine"]
    if card := re.search(r"description='([^']+)'", about["device"] if result["device"] != "cpu" else ""):
        return f"{card[1]}, float32, against CUDA on the same card"
    return f'{about["processor"].replace("(R)", "")}, {about["cores"]} cores'


def bars(name: str) -> str:
    """How many steps are made in the time of one of PyTorch's eager ones, each bar below its name and number."""
    found = steps(name)
    ratios = [row["x_torch_eager"] for peers in found.values() for peer, row in peers.items() if peer in PEERS]
    least, most = floor(log2(min(*ratios, 1.0))), ceil(log2(max(ratios)))
    marks = range(least, most + 1)

    def place(ratio: float) -> float:
        return LEFT + (WIDTH - 2 * LEFT) * (log2(ratio) - least) / (most - least)

    parts = [text(LEFT, 20, "Training steps per eager PyTorch step", "head")]
    y = 20.0
    for words in wrap(f"{machine(name)}. Each mark is twice as fast as the one to its left.", PER_LINE):
        y += LINE
        parts.append(text(LEFT, y, words, "small"))
    for workload, peers in found.items():
        y += 2 * LINE
        parts.append(text(LEFT, y, WORKLOADS[workload], "group"))
        for peer in (peer for peer in PEERS if peer in peers):
            ratio = peers[peer]["x_torch_eager"]
            y += LINE
            parts.append(text(LEFT, y, f"{peer} {ratio:.2g}x", "small"))
            y += 5
            parts += [line(place(2.0**k), y, place(2.0**k), y + BAR, "axis" if k == 0 else "grid") for k in marks]
            begin, end = sorted((place(1.0), place(ratio)))
            parts.append(f'<rect x="{begin:.2f}" y="{y:.4g}" width="{max(end - begin, 1):.2f}" height="{BAR}" '
                         f'class="{PEERS[peer]}"/>')
            y += BAR
    y += LINE
    parts += [text(place(2.0**k), y, f"{2.0**k:g}", "small",
                   "start" if k == least else "end" if k == most else "middle") for k in marks]
    return svg(WIDTH, int(y + 10), f"Steps against PyTorch, {name}", parts)


def step_table(name: str) -> list[str]:
    peers = [peer for peer in ("ag captured", "ag numpy", "ag eager", "ag dp_train", "torch eager", "torch fused",
                               "torch compiled", "torch graph", "jax jit")
             if any(peer in found for found in steps(name).values())]
    rows = [["a step takes, in µs", *peers], ["---", *["---:"] * len(peers)]]
    for workload, found in steps(name).items():
        rows.append([WORKLOADS[workload], *(f'{found[peer]["us_per_step"]:,.0f}' if peer in found else "–"
                                            for peer in peers)])
    return ["| " + " | ".join(row) + " |" for row in rows]


# ---------------------------------------------------------------------------------------------- the other files


def parallel_table(name: str) -> list[str]:
    rows = json.loads((RESULTS / name).read_text("utf-8"))["results"]
    return ["| on CPU devices | samples per second | against one |", "| --- | ---: | ---: |",
            *(f'| {row["how"]} | {row["samples_per_s"]:,.0f} | {row["speedup"]:.2f} |' for row in rows)]


def comm_table(name: str) -> list[str]:
    rows = json.loads((RESULTS / name).read_text("utf-8"))["results"]
    return ["| ranks | here, ms | mpi4py's Allreduce, ms | ratio |", "| ---: | ---: | ---: | ---: |",
            *(f'| {row["ranks"]} | {row["ag_ms"]:.1f} | {row["mpi_ms"]:.1f} | {row["ratio"]:.2f} |' for row in rows)]


def ops_table(name: str) -> list[str]:
    rows = json.loads((RESULTS / name).read_text("utf-8"))["results"]
    return ["| operation, sizes | µs | % of the roof | against PyTorch |", "| --- | ---: | ---: | ---: |",
            *(f'| {row["op"]} {" x ".join(map(str, row["sizes"]))} | {row["us"]:,.0f} | {row["roof_percent"]:.0f} '
              f'| {row["x_torch"]:.2f} |' for row in rows if row["op"].split()[-1] not in ("high", "medium"))]


def host_table(name: str) -> list[str]:
    rows = json.loads((RESULTS / name).read_text("utf-8"))["results"]
    return ["| the host's part, in µs | captured step | its launches | an eager launch |",
            "| --- | ---: | ---: | ---: |",
            *(f'| {WORKLOADS[row["workload"]]} | {row["captured_us"]:.0f} | {row["launches"]:.0f} | '
              f'{row["launch_us"]:.1f} |' for row in rows)]


def loaded_table(name: str) -> list[str]:
    rows = json.loads((RESULTS / name).read_text("utf-8"))["results"]
    return ["| a step takes, in µs | of | alone | beside busy processes | longer by |",
            "| --- | --- | ---: | ---: | ---: |",
            *(f'| {WORKLOADS[row["workload"]]} | {row["peer"]} | {row["us_alone"]:,.0f} | {row["us_beside"]:,.0f} | '
              f'{row["lost"]:.0%} |' for row in rows)]


def launches_table(name: str) -> list[str]:
    rows = json.loads((RESULTS / name).read_text("utf-8"))["results"]
    whole: dict[str, float] = {}
    for row in rows:
        whole[row["workload"]] = whole.get(row["workload"], 0.0) + row["us"]
    return ["| step | kernel | launches | µs | of the step | reaches | of the roof |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
            *(f'| {WORKLOADS[row["workload"]]} | `{row["kernel"]}` | {row["launches"]} | {row["us"]:,.0f} | '
              f'{row["us"] / whole[row["workload"]]:.0%} | {row["reached"]:.0f} {row["unit"]} | '
              f'{row["reached"] / row["roof"]:.0%} |' for row in rows if row["us"] > 0.05 * whole[row["workload"]])]


def overhead_table(name: str) -> list[str]:
    rows = json.loads((RESULTS / name).read_text("utf-8"))["results"]
    return ["| what | median of the rounds |", "| --- | ---: |",
            *(f'| {row["what"]} | {median(row["rounds"]):.3g} {row["unit"]} |' for row in rows)]


TABLES = {"step": step_table, "parallel": parallel_table, "comm": comm_table, "ops": ops_table, "host": host_table,
          "loaded": loaded_table, "launches": launches_table, "overhead": overhead_table}


def where(name: str) -> str:
    """Of what a file is: machine, versions, commit; and whether it is older than the kernels in C of CPU devices."""
    result = json.loads((RESULTS / name).read_text("utf-8"))
    about = result["machine"]
    driver = re.search(r"driver='([^']+)'", about["device"])
    kind = "" if result["device"] == "cpu" else "driver "
    versions = [f"ag at commit {about['commit']}" + (f" ({kind}{driver[1]})" if driver else ""),
                *([f"PyTorch {about['torch'].split()[0]}"] if about.get("torch") else []),
                *([f"JAX {about['jax']}"] if about.get("jax") else [])]
    *before, last = versions
    of = f"{', '.join(before)} and {last}" if before else last
    said = f"`benchmarks/results/{name}`: {machine(name)}, {of}."
    if result["device"] == "cpu" and "kernels for" not in about["device"]:
        said += " These figures are older than the kernels in C, which CPU devices have had since."
    return said


def step_words(name: str) -> list[str]:
    """How fast captured steps are beside each of PyTorch's and JAX's, and on which workloads they are slower."""
    captured = {workload: peers["ag captured"] for workload, peers in steps(name).items()}
    lines = [where(name)]
    for peer, words in (("torch_eager", "its eager step"), ("torch_fused", "that with the fused optimizer"),
                        ("torch_compiled", "what `torch.compile` makes"), ("torch_graph", "its CUDA graph"),
                        ("jax_jit", "what `jax.jit` makes of a whole step")):
        ratios = {workload: row[f"x_{peer}"] for workload, row in captured.items() if f"x_{peer}" in row}
        if not ratios:
            continue
        low, high = min(ratios.values()), max(ratios.values())
        slower = [WORKLOADS[workload] for workload, ratio in ratios.items() if ratio < 0.95]
        lines.append(f"* Against {words}, captured steps here are {low:.2g} to {high:.2g} times as fast"
                     + (f"; slower: {'; '.join(slower)}." if slower else "."))
    differ = [f"{WORKLOADS[workload]} ({peer})" for workload, peers in steps(name).items()
              for peer, row in peers.items() if not row["same_work"]]
    return [lines[0], "", *lines[1:], "", f"Losses differ: {'; '.join(differ)}." if differ else "All losses agree."]


def parallel_words(name: str) -> list[str]:
    """What two devices gain."""
    rows = {row["how"]: row["speedup"] for row in json.loads((RESULTS / name).read_text("utf-8"))["results"]}
    gains = [f"{rows[f'{how} on 2']:.2f} times with {words}" for how, words in (
        ("dp_train", "`dp_train`"), ("threads", "threads that exchange nothing"))]
    return [where(name), "", f"Two devices make {' and '.join(gains)} as many samples per second as one."]


WORDS = {"step": step_words, "parallel": parallel_words}


def with_tables(page: str) -> str:
    """The page with the table after each ``<!-- table: file -->``, and the words after ``<!-- words``, made anew."""
    def table(found: re.Match[str]) -> str:
        return "\n".join([found[0].partition("\n")[0], "", *TABLES[found[1].partition("_")[0]](found[1]), "", ""])

    def words(found: re.Match[str]) -> str:
        kind = found[1].partition("_")[0]
        said = WORDS[kind](found[1]) if kind in WORDS else [where(found[1])]
        return "\n".join([f"<!-- words: {found[1]} -->", "", *said, "", "<!-- end -->"])

    page = re.sub(r"<!-- table: (\S+) -->\n\n(?:\|.*\n)*\n?", table, page)
    return re.sub(r"<!-- words: (\S+) -->\n.*?<!-- end -->", words, page, flags=re.S)


def pictures() -> dict[str, str]:
    """The pictures of the page by the names of their files; none of results without PyTorch's eager steps."""
    names = [path.name for path in sorted(RESULTS.glob("step_*.json"))]
    return {f"{name.removesuffix('.json')}.svg": bars(name) for name in names
            if all("torch eager" in peers for peers in steps(name).values())}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (IMAGES / name).write_text(picture, "utf-8")
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
