"""The answers of docs/architecture.md to a newcomer's questions stand in the files and lines that it names."""

from __future__ import annotations

import re

import pytest
from helpers.pages import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
ROWS = re.findall(r"^\| ([^|]+\?) \| `([^`]+):(\d+)` \| `([^`]+)` \|", TEXT, re.M)


def test_there_are_ten() -> None:
    assert len(ROWS) == 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_answer_is_there(row: tuple[str, str, str, str]) -> None:
    _, file, number, code = row
    lines = (ROOT / file).read_text("utf-8").splitlines()
    there = [k for k, line in enumerate(lines, 1) if line.strip() == code]
    assert int(number) in there, f"docs/architecture.md says {file}:{number}, and the line is {there}"
