"""Adds up the legs of the tests: per leg its time, its results and its slowest tests, then "N passed, N failed".

Run by tools/test.sh with the folder of pytest's junit files, the seconds of all, and LEG=STATUS=SECONDS=PROBE for each
leg, where PROBE begins with the machine's factor (tests/helpers/probe.py). Status 77 stands for a leg that lacked a
piece. The exit status is 1 if a leg failed. No leg fails for its time: folders that took more processor time than
tests/times.json says are named, and FOLDER/times.json has the new times.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

TIMES = Path(__file__).parents[1] / "tests" / "times.json"  # per leg and folder, seconds of processor time at factor 1
NOISE, NOISE_S = 1.25, 3.0  # a folder is named when it exceeds its time by this factor and by these seconds
SLOWEST = 10


class Test(NamedTuple):
    """One test of a report."""

    name: str
    folder: str
    outcome: str  # passed, skipped, failed
    wall_s: float
    processor_s: float


def tests_of(report: Path) -> list[Test]:
    """The tests of a junit file; one that fails and then errs in its teardown counts once."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        parts = (case.get("classname") or "").removeprefix("tests.").split(".")
        folder = "/".join(parts[: next((k for k, p in enumerate(parts) if p.startswith("test_")), len(parts))])
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        noted = {p.get("name"): p.get("value") for p in case.iter("property")}
        name = f"{'/'.join(parts)}.py::{case.get('name')}"
        test = Test(name, folder or ".", outcome, float(case.get("time") or 0), float(noted.get("processor_s") or 0))
        if name not in found or test.outcome == "failed":
            found[name] = test
    return list(found.values())


def by_folder(tests: Sequence[Test]) -> dict[str, float]:
    """Seconds of processor time by folder."""
    seconds: Counter[str] = Counter()
    for test in tests:
        seconds[test.folder] += test.processor_s
    return dict(sorted(seconds.items()))


def above(seconds: dict[str, float], times: dict[str, float], factor: float) -> list[str]:
    """The folders that took longer than their times, scaled by the factor."""
    return [f"{folder} {took:.0f} s, not {times[folder] * factor:.0f}" for folder, took in seconds.items()
            if folder in times and took > max(times[folder] * factor * NOISE, times[folder] * factor + NOISE_S)]


def clock(seconds: int) -> str:
    """Minutes and seconds."""
    return f"{seconds // 60}:{seconds % 60:02}"


def main(folder: Path, total_s: int, legs: Sequence[str]) -> int:
    """Print the summary; the exit status."""
    times = json.loads(TIMES.read_text("utf-8"))
    total_passed = total_failed = 0
    for leg, status, seconds, probe in (argument.split("=") for argument in legs):
        report, again = folder / f"{leg}.xml", folder / f"{leg}.again.xml"
        tests = tests_of(report) if report.is_file() else []
        second = [t.name for t in tests_of(again) if t.outcome == "passed"] if again.is_file() else []
        counts = Counter(t.outcome for t in tests)
        passed, failed = counts["passed"] + len(second), counts["failed"] - len(second)
        line = f"{leg:9} {clock(int(seconds)):>5} min  "
        line += {"0": "ok", "77": "not run, see above for what is missing"}.get(status, "failed")
        if tests:
            line += f": {passed} passed, {failed} failed, {counts['skipped']} skipped"
        if second:
            line += f"; passed only when run again: {', '.join(second)}"
        print(f"{line}; slowness {probe}")
        for test in sorted(tests, key=lambda t: -t.wall_s)[:SLOWEST]:
            print(f"{'':11}{test.wall_s:6.1f} s ({test.processor_s:.1f} of processor)  {test.name}")
        took, factor = by_folder(tests), float(probe.split()[0])
        for what in above(took, times.get(leg, {}), factor):
            print(f"{'':11}longer than in tests/times.json: {what}")
        if took:
            times[leg] = {name: round(s / factor, 1) for name, s in took.items()}
        total_passed += passed
        total_failed += failed or int(status not in ("0", "77"))
    (folder / "times.json").write_text(json.dumps(times, indent=1) + "\n", "utf-8")  # to be copied to tests/
    print(f"{total_passed} passed, {total_failed} failed in {clock(total_s)} min")
    return int(total_failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
