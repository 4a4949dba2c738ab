"""docs/errors.md says what the tests of this run have seen.

Any run checks that each error seen is listed.  A run of everything, on both drivers, also checks the whole file to
the letter, when its last test is over.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.errors import RECORDED

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from errors_table import DOCUMENT, Row, rows, steady, table

WRITE = "run `python tools/errors_table.py` and commit docs/errors.md"


def listed() -> dict[tuple[str, str], str]:
    """Message by (error, situation) in the file."""
    found = {}
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = line.strip("|").replace("\\|", "\0").split("|")
        if len(cells) == 3 and cells[1].strip().startswith("`"):
            situation, error, message = (cell.strip().replace("\0", "|") for cell in cells)
            found[error.strip("`"), situation] = message
    return found


def ran_everything(config: pytest.Config, session: pytest.Session) -> bool:
    """Whether no test was left out or failed, and both drivers were there."""
    return (
        config.getoption("markexpr") in ("", "not stock_kp")
        and not config.getoption("keyword")
        and config.invocation_params.args.count("--lf") == 0
        and config.args_source is not pytest.Config.ArgsSource.ARGS
        and session.testsfailed == 0
        and all(driver in os.environ.get("AG_TEST_ICDS", "").lower() for driver in ("lvp", "swiftshader"))
    )


@pytest.fixture(scope="session")
def _after_all(request: pytest.FixtureRequest) -> Iterator[None]:
    """Torn down when the last test of the session is over."""
    yield
    known = listed()
    new = [f"{row.error}: {row.situation}" for row in rows(RECORDED) if (row.error, row.situation) not in known]
    assert not new, f"errors that docs/errors.md does not list: {new}; {WRITE}"
    if ran_everything(request.config, request.session):
        assert DOCUMENT.read_text(encoding="utf-8") == table(RECORDED), f"docs/errors.md is not true any more; {WRITE}"


def test_the_document_is_checked_at_the_end(_after_all: None) -> None:
    assert len(listed()) > 100


def test_every_row_reads_well() -> None:
    for (error, situation), message in listed().items():
        assert error.endswith("Error") or error == "StopIteration", situation
        # A checkpoint that does not fit has everything that does not fit listed, in one message.
        longest = 800 if error == "CheckpointError" else 400
        assert 10 < len(message) < longest, f"{situation}: {message}"


def test_rows() -> None:
    seen = [("a", "E", "b at 0xff"), ("a", "E", "a|b\nc"), ("b", "D", "/tmp/x/y.bin cannot be read (foo); z")]
    assert rows(seen) == [Row("D", "b", "y.bin cannot be read (…); z"), Row("E", "a", "a|b c")]
    assert "| a | `E` | a\\|b c |" in table(seen)
    assert steady("on vulkan:1 at 0xabc") == "on vulkan:0 at 0x1000"
