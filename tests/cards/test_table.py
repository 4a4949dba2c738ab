"""docs/kernels.md says what is counted now."""

from __future__ import annotations

from pathlib import Path

import pytest
from cards import radv
from cards.sectors import LAUNCHES, ratio
from cards.table import PAGE, chips, mesa

QUICK = ("layer_norm", "matmul in M4", "adam_update")
LINES = PAGE.read_text("utf-8").splitlines()


def test_a_few_sectors() -> None:
    for name in QUICK:
        assert f"| {name} | {ratio(LAUNCHES[name]()):.2f} |" in LINES


@pytest.mark.slow
def test_all_sectors() -> None:
    assert [f"| {name} | {ratio(make()):.2f} |" for name, make in LAUNCHES.items()] == [
        line for line in LINES if line.rpartition(" | ")[0].removeprefix("| ") in LAUNCHES and line.count("|") == 3]


@pytest.mark.slow
def test_chips(tmp_path: Path) -> None:
    if why := radv.missing():
        pytest.skip(why)
    program = radv.built(tmp_path)
    version = mesa(program)
    if f"by Mesa {version}:" not in "\n".join(LINES):
        pytest.skip(f"the page has the numbers of another Mesa than {version}")
    assert not [row for row in chips(program) if row not in LINES]
