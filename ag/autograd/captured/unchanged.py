"""Whether everything that a step has read is surely as it was: the quick answer of compiled code, if there is any.

`unchanged.c`, which says what a row is, compares identities without running Python, in a tenth of the time.  Where it
is not sure, and where it was not compiled, `ag.autograd.captured.notes` compares in Python.  Knows no program; the
notes of a recording ask for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from ag.autograd.captured.snapshots import MISSING, Contents

__all__ = ["HAS_CODE", "Rows", "is_quick", "unchanged"]

Rows = Sequence[tuple[Any, ...]]

try:
    _code: Any = import_module(f"{__package__}._unchanged")
except ImportError:
    _code = None
HAS_CODE = _code is not None


def unchanged(slots: Rows, contents: Rows, names: Rows, single: Rows, gone: list[object]) -> Callable[[], bool]:
    """What says whether nothing of this has changed; False where it does not know."""
    compares: Callable[[], bool] = _code.Unchanged(slots, names, single, contents, gone, MISSING)
    return compares


def is_quick(noted: Contents) -> bool:
    """Whether `unchanged` can compare a container with its items."""
    return type(noted[0]) in (list, dict) and type(noted[1]) is list
