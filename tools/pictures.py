"""Draws the pictures of the documentation, and writes tables and sentences of docs/performance.md, from results.

    python tools/pictures.py           docs/images/step_*.svg, tables and sentences, from benchmarks/results
    python tools/pictures.py demo      docs/images/demo.svg: trains as `make demo`, on the CPU and all Vulkan devices

A picture follows the colours of the page that shows it, light or dark.  tests/docs/test_performance.py compares what
lies in docs/ with what this makes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import log2, log10
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
STEPS = 200  # of the demo: enough to read flowers
RESULTS, IMAGES, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "images", ROOT / "docs" / "performance.md"

STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px; fill: #59636e }
.head { font-size: 15px; font-weight: 600 } .mono { font: 12px ui-monospace, monospace; white-space: pre }
.grid { stroke: #d1d9e0 } .axis { stroke: #59636e } .line { fill: none; stroke-width: 2 }
.f0 { fill: #2f6fd6 } .f1 { fill: #9cc0f5 } .f2 { fill: #d4761f } .f3 { fill: #b7bec6 }
.s0 { stroke: #2f6fd6 } .s1 { stroke: #d4761f } .s2 { stroke: #4b8b3b }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8eb } .small { fill: #a5adb6 } .grid { stroke: #3d444d } .axis { stroke: #a5adb6 }
.f0 { fill: #6ea8fe } .f1 { fill: #2d5a9e } .f2 { fill: #f0a35e } .f3 { fill: #6b7480 }
.s0 { stroke: #6ea8fe } .s1 { stroke: #f0a35e } .s2 { stroke: #86c977 }
}
</style>"""

STYLES = {  # of peers that not every file has
    "jax jit": "<style>.f4 { fill: #4b8b3b } @media (prefers-color-scheme: dark) { .f4 { fill: #86c977 } }</style>",
    "ag numpy": "<style>.f5 { fill: #c3d9f7 } @media (prefers-color-scheme: dark) { .f5 { fill: #1f3f6e } }</style>",
}
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
    """How many steps are made in the time of one of PyTorch's eager ones, on a scale of powers of two."""
    least, most, left, right, row = -2, 4, 24, 400, 20
    found = steps(name)

    def place(ratio: float) -> float:
        return left + (right - left) * (min(max(log2(ratio), least), most) - least) / (most - least)

    styles = [style for peer, style in STYLES.items() if any(peer in peers for peers in found.values())]
    parts, y = [text(12, 22, "Steps in the time of one eager step of PyTorch", "head"),
                text(12, 42, machine(name), "small")], 56.0
    begin = y
    for workload, peers in found.items():
        shown = [peer for peer in PEERS if peer in peers]
        parts.append(text(12, y + 12, WORKLOADS[workload]))
        y += row
        for peer in shown:
            ratio = peers[peer]["x_torch_eager"]
            a, b = sorted((place(1.0), place(ratio)))
            parts += [f'<rect x="{a:.4g}" y="{y:.4g}" width="{max(b - a, 1):.4g}" height="{row - 5}" '
                      f'class="{PEERS[peer]}"/>',
                      text(b + 6 if ratio >= 1 else place(1.0) + 6, y + 12, f"{peer} {ratio:.2g}x", "small")]
            y += row
        y += 12
    grid = [line(place(2.0**k), begin - 6, place(2.0**k), y - 8, "axis" if k == 0 else "grid")
            for k in range(least, most + 1)]
    marks = [text(place(2.0**k), y + 8, f"{2.0**k:g}x", "small", "middle") for k in range(least, most + 1)]
    return svg(540, int(y + 20), f"Steps against PyTorch, {name}", [*styles, *grid, *parts, *marks])


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


# ---------------------------------------------------------------------------------------------- the demo


def curves(losses: Mapping[str, Sequence[float]], notes: Sequence[str]) -> str:
    """Curves on a logarithmic scale, and lines of text beside them."""
    left, right, top, bottom = 56.0, 470.0, 44.0, 300.0
    values = [value for series in losses.values() for value in series]
    low, high = log10(min(values)), log10(max(values))
    most = max(map(len, losses.values()))

    def x(k: float) -> float:
        return left + (right - left) * k / most

    def y(value: float) -> float:
        return bottom - (bottom - top) * (log10(value) - low) / (high - low)

    parts = [text(12, 24, "Loss while iris flowers are learnt, mean of 25 steps", "head")]
    for tick in (1.0, 0.5, 0.2, 0.1, 0.05, 0.02):
        if low <= log10(tick) <= high:
            parts += [line(left, y(tick), right, y(tick), "grid"),
                      text(left - 8, y(tick) + 4, f"{tick:g}", "small", "end")]
    parts += [text(x(k), bottom + 18, f"{k}", "small", "middle") for k in range(0, most + 1, 50)]
    parts.append(text((left + right) / 2, bottom + 36, "optimizer step", "small", "middle"))
    for number, (name, series) in enumerate(losses.items()):
        points = " ".join(f"{x(k):.1f},{y(value):.1f}" for k, value in enumerate(series))
        parts += [f'<polyline points="{points}" class="line s{number}"/>',
                  line(right - 226, top + 12 + 20 * number, right - 202, top + 12 + 20 * number, f"line s{number}"),
                  text(right - 196, top + 16 + 20 * number, name, "small")]
    parts += [text(492, 66 + 20 * k, words, "mono") for k, words in enumerate(notes)]
    return svg(880, 350, "Loss of one replica and of three on devices of different makers", parts)


def demo() -> str:
    """Train as `make demo` does, with one replica and with one on the CPU and on each Vulkan device."""
    sys.path.insert(0, str(ROOT / "examples"))
    import dp_iris
    import numpy as np

    import ag

    flowers, species = dp_iris.load_iris()
    data = [{"x": flowers[:, i : i + 1], "y": species[:, i : i + 1]} for i in range(150)]
    devices = ["cpu", *(info.name for info in ag.ag_vulkan_devices())]
    drivers = {info.name: info.description.partition(" (")[0] for info in ag.ag_vulkan_devices()}
    check = dp_iris.ReplicaCheck()
    one = dp_iris.train(data, ["cpu"], STEPS)
    several = dp_iris.train(data, devices, STEPS, callback=check)

    def smooth(values: Any) -> list[float]:
        return list(np.convolve(values, np.ones(25) / 25, mode="valid"))

    notes = [f"{name:9} {drivers.get(name, 'the processor'):26.26}" for name in devices]
    accuracy = dp_iris.accuracy(several.model, "cpu", flowers, species)
    notes += ["", f"parameters equal on {len(devices)} replicas", f"after each of {check.steps} steps, SHA-256:",
              f"  {check.sha256[:32]}", f"  {check.sha256[32:]}", "", f"accuracy {accuracy:.3f}"]
    return curves({"one replica, on the processor": smooth(one.loss_history),
                   f"{len(devices)} replicas, on {len(devices)} devices": smooth(several.loss_history)}, notes)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    if sys.argv[1:] == ["demo"]:
        (IMAGES / "demo.svg").write_text(demo(), "utf-8")
        return
    for name, picture in pictures().items():
        (IMAGES / name).write_text(picture, "utf-8")
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
