"""Hold the style guide of CONTRIBUTING.md: nothing new may break it, and what still does only becomes less."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import style


def test_no_room_breaks_more_rules_than_it_did() -> None:
    allowed = json.loads(style.RATCHET.read_text("utf-8"))
    found = style.found_now()
    for rule, rooms in style.counts(found).items():
        for room, count in rooms.items():
            cases = [place for r, where, place in found if (r, where) == (rule, room)]
            assert count <= allowed.get(rule, {}).get(room, 0), f"{rule} in {room}: {count}\n" + "\n".join(cases[-20:])


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
