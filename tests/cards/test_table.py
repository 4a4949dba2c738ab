"""docs/kernels.md says what is counted now."""

from __future__ import annotations

from pathlib import Path

import pytest
from cards import radv
from cards.sectors import LAUNCHES, ratio
from cards.table import PAGE, chips, title

LINES = PAGE.read_text("utf-8").splitlines()


@pytest.mark.slow
@pytest.mark.long
def test_all_sectors() -> None:
    assert [f"| {name} | {ratio(make()):.2f} |" for name, make in LAUNCHES.items()] == [
        line for line in LINES if line.rpartition(" | ")[0].removeprefix("| ") in LAUNCHES and line.count("|") == 3]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("which", ["installed", "newer"])
def test_chips(which: str, tmp_path: Path) -> None:
    if why := radv.missing():
        pytest.skip(why)
    program, mesa = radv.built(tmp_path), radv.installed() if which == "installed" else radv.newer()
    if mesa is None:
        radv.without_newer(program)
    assert mesa is not None
    if (above := title(program, mesa)) not in LINES:
        pytest.skip(f"the page has the numbers of other Mesas: not {above}")
    first = LINES.index(above)
    table = chips(program, mesa)
    assert LINES[first : first + len(table)] == table
