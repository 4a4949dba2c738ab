"""Expect an error and remember it, so that `docs/errors.md` lists only errors that a test has really seen.

Every test that expects one of ag's named errors uses `expect_error`; the generator of the document reads `RECORDED`
after the run. This module must not import `ag`: also the tests of the kernel builder and of the recipes may use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class RecordedError(NamedTuple):
    """One error seen by a test: what was done, the class raised, what it said."""

    situation: str
    error: str
    message: str


RECORDED: list[RecordedError] = []


@contextmanager
def expect_error(situation: str, error: type[BaseException], *fragments: str) -> Iterator[None]:
    """Assert that the block raises exactly `error`, with every fragment in its message, and record it."""
    try:
        yield
    except error as raised:
        message = str(raised)
        assert type(raised) is error, f"{situation}: {type(raised).__name__} instead of {error.__name__}: {message}"
        missing = [fragment for fragment in fragments if fragment not in message]
        assert not missing, f"{situation}: the message does not contain {missing}: {message}"
        seen = RecordedError(situation, error.__name__, message)
        if seen not in RECORDED:
            RECORDED.append(seen)
    else:
        raise AssertionError(f"{situation}: no {error.__name__} was raised")
