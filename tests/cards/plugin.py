"""A plugin of pytest, ``-p cards.plugin``: all tests of a run under conditions of a card, which AG_CARD names.

AG_ORDER is ``reversed`` or ``random``; AG_POISON=1 fills new memory with NaN; AG_ADDRESSED=1 has no descriptors.
AG_EVERY=1/3 keeps every third test, from the second: a table has many rows of one kernel.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

_active = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    from cards.conditions import chosen_for, found_by_address, order_between_barriers, poisoned_memory

    if card := os.environ.get("AG_CARD"):
        _active.enter_context(chosen_for(card))
    if order := os.environ.get("AG_ORDER"):
        _active.enter_context(order_between_barriers(order))
    if os.environ.get("AG_POISON") == "1":
        _active.enter_context(poisoned_memory())
    if os.environ.get("AG_ADDRESSED") == "1":
        _active.enter_context(found_by_address())


def pytest_unconfigure() -> None:
    _active.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first, _, step = os.environ.get("AG_EVERY", "0/1").partition("/")
    items[:] = items[int(first) :: int(step)]
