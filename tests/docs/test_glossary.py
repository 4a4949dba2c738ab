"""docs/glossary.md: every file named there exists and speaks of its term, or is named after it."""

from __future__ import annotations

import re

from helpers.pages import ROOT

ROWS = [[cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines()
        if line.startswith("|") and not line.startswith(("| term |", "|---"))]
TERMS = [(term, file.strip("`")) for names, _, file in ROWS for term in names.split(", ")]


def plain(text: str) -> str:
    """Words in small letters, with single spaces for hyphens, underscores and ends of lines."""
    return re.sub(r"[-_\s]+", " ", text.lower())


def test_files_speak_of_their_terms() -> None:
    for term, file in TERMS:
        assert plain(term) in plain(file + (ROOT / file).read_text("utf-8")), f"{file} does not say {term!r}"


def test_every_term_stands_once() -> None:
    assert 40 < len(ROWS) <= 60  # the terms of the field need none
    assert len({term for term, _ in TERMS}) == len(TERMS)


def test_terms_are_explained_in_one_line() -> None:
    for names, meaning, _ in ROWS:
        assert 10 < len(meaning) < 110 and not meaning.endswith("."), names
