"""Hold the style guide of CONTRIBUTING.md: nothing new may break it, and what still does only becomes less."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import style


@cache
def ratchet() -> dict[str, dict[str, int]]:
    return json.loads(style.RATCHET.read_text("utf-8"))


@pytest.mark.parametrize("room", style.rooms())
def test_a_room_breaks_no_more_rules_than_it_did(room: str) -> None:
    allowed = ratchet().get(room, {})
    for rule, places in style.breaches(style.rooms()[room]).items():
        assert len(places) <= allowed.get(rule, 0), f"{rule}: {len(places)}\n" + "\n".join(places[-20:])


def test_subjects_of_commits_are_short() -> None:
    subjects = style.long_subjects()
    if subjects is None:
        pytest.skip("git has no history here")
    assert subjects == []


WRONG = {
    "clause": 'def f():\n    """What every stage does."""\n',
    "formula": '"""Plan launches. Knows no backend."""\n',
    "head": '"""' + "Plan.\n\n" * 4 + '"""\n',
    "sentence": 'def f():\n    """Plan ' + "a launch " * 16 + '; then run."""\n',
}


@pytest.mark.parametrize("rule", WRONG)
def test_each_rule_sees_what_breaks_it(rule: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(WRONG[rule], "utf-8")
    assert [found for found, _, _ in style.broken(path)] == [rule]
    path.write_text('"""Plan launches."""\n', "utf-8")
    assert list(style.broken(path)) == []


def test_lines_of_the_changelog_are_short() -> None:
    lines = (style.ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    assert [line for line in lines if len(line) > 160 or (line.startswith(" ") and line.strip())] == []
    assert {line for line in lines if line.startswith("###")} <= {"### Added", "### Changed", "### Fixed"}
