"""The backend of the tests of kernels, with guard words around every operand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.guarded import guarded

import ag
from ag.engine.backend import Backend


@pytest.fixture
def backend(device: str) -> Iterator[Backend]:
    """A guarded backend whose guard words a test leaves alone."""
    found = guarded(device)
    yield found
    try:
        found.check_guards()
    except ag.ArenaError:
        guarded.cache_clear()  # one kernel's mistake must not fail the tests of all others
        raise
