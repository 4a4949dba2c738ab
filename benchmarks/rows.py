"""A plugin of pytest that writes a line of JSON per test as soon as its outcome is known, to the file AG_TEST_ROWS.

A run that is ended at any moment leaves the lines so far.  Knows nothing of `ag`.  gpu_check.sh uses it, and
verdict.py reads the lines.
"""

from __future__ import annotations

import json
import os

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what became of a test; of its set-up and its end only what went wrong."""
    if report.when == "call" or report.outcome != "passed":
        with open(os.environ["AG_TEST_ROWS"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"test": report.nodeid, "outcome": report.outcome}) + "\n")
