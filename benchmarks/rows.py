"""A plugin of pytest that writes a line of JSON per test as soon as its outcome is known, to the file AG_TEST_ROWS.

The first line says how many tests there are, by which a run that was ended can be told from a whole one.  A run that is
ended at any moment leaves the lines so far.  Knows nothing of `ag`.  gpu_check.sh uses it, and verdict.py reads the
lines.
"""

from __future__ import annotations

import json
import os

import pytest


def _write(**row: object) -> None:
    with open(os.environ["AG_TEST_ROWS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write how many tests will run."""
    _write(tests=len(session.items))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what became of a test; of its set-up and its end only what went wrong."""
    if report.when == "call" or report.outcome != "passed":
        _write(test=report.nodeid, outcome=report.outcome)
