"""Expect an error of a class, with what its message must say.

Every test that expects one of ag's named errors uses `expect_error`.  This module must not import `ag`: also the tests
of the kernel builder and of the recipes may use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 800  # characters; the message about a checkpoint lists everything that does not fit


@contextmanager
def expect_error(situation: str, error: type[BaseException], *fragments: str) -> Iterator[None]:
    """Assert that the block raises exactly `error`, with a message of readable length that has every fragment in it."""
    try:
        yield
    except error as raised:
        message = str(raised)
        assert type(raised) is error, f"{situation}: {type(raised).__name__} instead of {error.__name__}: {message}"
        missing = [fragment for fragment in fragments if fragment not in message]
        assert not missing, f"{situation}: the message does not contain {missing}: {message}"
        assert len(message) < LONGEST, f"{situation}: {message}"
    else:
        raise AssertionError(f"{situation}: no {error.__name__} was raised")
