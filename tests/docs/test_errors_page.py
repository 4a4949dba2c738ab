"""docs/errors.md has every class of error, and the table of messages is read from the sources."""

from __future__ import annotations

import re
from functools import cache
from runpy import run_path
from typing import Any

import pytest
from helpers.pages import ROOT

import ag

PAGE = (ROOT / "docs" / "errors.md").read_text("utf-8")
TABLE: dict[str, Any] = run_path(str(ROOT / "tools" / "errors_table.py"))


@cache
def rows() -> list[Any]:
    return list(TABLE["rows"]())


@pytest.mark.parametrize("name", ag.errors.__all__)
def test_the_page_says_what_a_class_is_for(name: str) -> None:
    error = getattr(ag, name)
    built_in = next(base.__name__ for base in error.__bases__ if base.__module__ == "builtins")
    assert f"| `{name}` | `{built_in}` | {error.__doc__.splitlines()[0]} |\n" in PAGE


def test_the_table_finds_errors_of_every_class() -> None:
    classes = {row.error for row in rows()}
    assert len(rows()) > 250 and {"ValueError", "TypeError", *ag.errors.__all__} - {"AgError"} <= classes


@pytest.mark.slow
def test_the_table_has_a_line_per_row() -> None:
    assert TABLE["table"]().count("\n") == len(rows()) + TABLE["HEAD"].count("\n")


def test_messages_read_well() -> None:
    odd = [row for row in rows() if not 10 < len(row.message) < 500 or not re.match(r"[\w{(.@]", row.message)]
    assert not odd


def test_messages_of_every_form() -> None:
    def text(code: str) -> str | None:
        import ast

        message: str | None = TABLE["message_of"](ast.parse(code, mode="eval").body)
        return message

    assert text('"a" f"{x + 1!r} b"') == "a{x + 1} b"
    assert text('"a " + name') == "a {name}"
    assert text('"one" if n == 1 else "many"') == "one"
    assert text("error") is None
