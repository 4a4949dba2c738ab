"""Watched objects: layers, optimizers and tensors report reads and writes to recordings, and changes to a log.

While a thread records, each attribute of a `Watched` object that it reads or sets goes to its `notes`
(`ag.autograd.captured.guards`).  Assigning an attribute also goes into the change log `CHANGES`:
a replay that finds no new entries compares no attribute.
"""

from __future__ import annotations

import os
from threading import Lock, get_ident
from typing import Any

from ag.autograd.captured.snapshots import MISSING
from ag.engine.interpreter import recording_here

_LOG = 4096  # changes that are kept


class ChangeLog:
    """The last attributes set, as (id of the object, name)."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, str]] = []
        self._dropped = 0

    @property
    def position(self) -> int:
        """Number of changes so far."""
        return self._dropped + len(self._entries)

    def add(self, changed: object, name: str) -> None:
        """Log a change."""
        self._entries.append((id(changed), name))
        if len(self._entries) > _LOG:
            with _switching:
                surplus = max(len(self._entries) - _LOG // 2, 0)
                self._dropped += surplus
                del self._entries[:surplus]

    def since(self, position: int) -> list[tuple[int, str]] | None:
        """Return the changes from a position on; None if some were dropped."""
        start = position - self._dropped
        return self._entries[start:] if start >= 0 else None


CHANGES = ChangeLog()
_switching = Lock()
_noted: set[int] = set()  # threads that record


def _forked() -> None:
    """Replace the lock in a forked child, where another thread may have held it, and forget the other threads."""
    global _switching
    _switching = Lock()
    _noted.intersection_update({get_ident()})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Watched:
    """Base of objects whose attributes a captured step may depend on."""

    def __setattr__(self, name: str, value: object) -> None:
        if (notes := notes_here()) is not None:
            notes.written(self, name, value)
        known = object.__getattribute__(self, "__dict__")  # not noted as a read
        if known.get(name, known) is not value:
            CHANGES.add(self, name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        CHANGES.add(self, name)
        object.__delattr__(self, name)


def notes_here() -> Any:
    """Return the `Notes` of this thread's recording, or None."""
    recording = recording_here()
    return None if recording is None else recording.notes


def _noting(self: Watched, name: str) -> Any:
    """Stand in for `Watched.__getattribute__` while any thread records."""
    try:
        value = object.__getattribute__(self, name)
    except AttributeError:
        if name[:2] != "__" and (notes := notes_here()) is not None:
            notes.read(self, name, MISSING)
        raise
    notes = notes_here()
    if notes is None:
        return value
    if name == "__dict__":
        for own, item in dict(value).items():  # other threads may change it meanwhile
            notes.read(self, own, item)
    elif name[:2] != "__":
        notes.read(self, name, value)
    return value


def start_noting() -> None:
    """Begin to note the attributes that recording threads read."""
    with _switching:
        _noted.add(get_ident())
        type.__setattr__(Watched, "__getattribute__", _noting)


def stop_noting() -> None:
    """Restore plain attribute access if no other thread records."""
    with _switching:
        _noted.discard(get_ident())
        if not _noted and "__getattribute__" in Watched.__dict__:
            type.__delattr__(Watched, "__getattribute__")
