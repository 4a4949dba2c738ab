"""docs/errors.md: the named errors, as the tests have seen them.

Run it to write the file anew: it runs the whole suite (a few minutes) and collects what `expect_error` recorded.
tests/docs/test_errors_page.py uses `table` to check that the file is true.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "errors.md"
HEAD = """\
# Errors

Every error that `ag` raises on purpose, with what was done and one message as an example. Each row was seen by a test;
`python tools/errors_table.py` writes this file, and a test compares. `ag.AgError` catches the classes of `ag`, each of
which is also the built-in error of its kind (`ShapeError` is a `ValueError`, `ArenaError` a `MemoryError`, and so on).

"""

# What differs from run to run, from machine to machine, or from one version of another library to the next.
VARYING = [
    (r"\bvulkan:\d\b", "vulkan:0"),
    (r"\bat 0x[0-9a-f]+", "at 0x1000"),
    (r"(?<![\w.])/[\w./-]+/", ""),  # the folder of a file
    (r"'\.([\w.]+)\.[0-9a-f]{8}'", r"'\1'"),  # a file that is being written
    (r"\(\d+ are reserved, \d+ in use\)", "(16777216 are reserved, 1048576 in use)"),
    (r"\b(cannot be (?:read|decoded|imported|opened)|was lost|cannot build|are no array) \(.*?\)(?=[;.] )", r"\1 (…)"),
    (r"\b[0-9a-f]{16}…", "0123456789abcdef…"),  # of a hash of numbers, whose last digits are the processor's
    (r"\bnp\.(?:float|int|u?int)\d*\((.*?)\)", r"\1"),
]


class Row(NamedTuple):
    error: str
    situation: str
    message: str


def steady(message: str) -> str:
    """The message on one line, without what varies."""
    for pattern, replacement in VARYING:
        message = re.sub(pattern, replacement, message)
    return " ".join(message.split())


def rows(recorded: Iterable[tuple[str, str, str]]) -> list[Row]:
    """One row per situation and class; of several messages the first in the alphabet."""
    found: dict[tuple[str, str], str] = {}
    for situation, error, message in recorded:
        said = steady(message)
        found[error, situation] = min(said, found.get((error, situation), said))
    return sorted(Row(error, situation, message) for (error, situation), message in found.items())


def table(recorded: Iterable[tuple[str, str, str]]) -> str:
    """The document."""
    lines = ["| what was done | error | message |", "|---|---|---|"]
    for row in rows(recorded):
        cells = (row.situation, f"`{row.error}`", row.message)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |")
    return HEAD + "\n".join(lines) + "\n"


class _Writer:
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == 0:
            DOCUMENT.write_text(table(sys.modules["helpers.errors"].RECORDED), encoding="utf-8")


def main() -> int:
    """Run the tests and write the file if they passed."""
    sys.path.insert(0, str(ROOT))  # the tests import kernels_build, as under `python -m pytest`
    arguments = ["-q", "-m", "not stock_kp", "--rootdir", str(ROOT), "--ignore",
                 str(ROOT / "tests/docs/test_errors_page.py"), str(ROOT / "tests")]
    return int(pytest.main(arguments, plugins=[_Writer()]))


if __name__ == "__main__":
    sys.exit(main())
