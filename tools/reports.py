"""Writes docs/about/reports.md from the files in benchmarks/reports, which `python -m ag report` made.

    python tools/reports.py

tests/tools/test_report.py compares the page with what this makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REPORTS, PAGE = ROOT / "benchmarks" / "reports", ROOT / "docs" / "about" / "reports.md"
HEAD = """# Reports on devices

Each row is a device on which `ag` was run. To add yours:

```sh
python -m ag report
```

The command tests each device, examines it and measures it, in about a minute. It writes `ag-report.json`. The file
holds no names of people or hosts, no paths outside of the system's folders, and no serial numbers. Read it, then attach
it to an issue. [What works today](what_works.md) says what we tested ourselves.

| device | driver | system | selftest | matrix product | copy | perceptron step | convolution step |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: |
"""
FOOT = """
The matrix product is of square matrices: the largest of 256, 1,024 and 4,096 rows that a device is quick enough for. A
copy reads and writes 64 MiB. Both steps are captured: forward, backward and Adam. The perceptron is 784-256-10 with 128
samples, the convolutional network has 16 channels and 32 images of 32 x 32. Other programs on a machine make its
numbers worse.
"""


def rows(found: dict[str, Any]) -> Iterator[str]:
    """A row for each device of a report."""
    for device in found["doctor"]["devices"]:
        info = device["info"]
        checks = [check for check in found["selftest"] if check["device"] == info["name"]]
        wrong = [check["check"] for check in checks if check["fault"]]
        verdict = f"wrong: {', '.join(wrong)}" if wrong else f"all {len(checks)} right"
        software = " (software)" if info["kind"] == "cpu" and info["name"].partition(":")[0] != "cpu" else ""
        cells = [info["description"], info["driver"] + software, f"{found['system']}, ag {found['ag']}", verdict]
        speed = found["speed"].get(info["name"])
        cells += ["–"] * 4 if speed is None else [
            f"{speed['matmul_gflops']:,.3g} GFLOP/s ({speed['matmul_side']:,})",
            f"{speed['copy_gb_per_s']:,.3g} GB/s",
            f"{speed['perceptron_step_us']:,.0f} µs", f"{speed['convolution_step_us']:,.0f} µs"]
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def page() -> str:
    """The page as it should be."""
    found = [json.loads(path.read_text("utf-8")) for path in sorted(REPORTS.glob("*.json"))]
    return HEAD + "".join(row for each in found for row in rows(each)) + FOOT


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
