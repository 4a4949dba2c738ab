"""Watched objects: layers, optimizers and schedules tell a recording which attributes its thread reads and sets."""

from __future__ import annotations

from threading import Lock, get_ident
from typing import Any

from ag.engine.arena import after_fork
from ag.engine.interpreter import recording_here


class Absent:
    """Stands for what is not there, with the words for a message."""

    __slots__ = ("_words",)

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


MISSING = Absent("nothing")  # the value of a name that does not exist
_switching = Lock()
_noted: set[int] = set()  # threads that record


@after_fork
def _forked() -> None:
    """Replace the lock in a forked child, where another thread may have held it, and forget the other threads."""
    global _switching
    _switching = Lock()
    _noted.intersection_update({get_ident()})


class Watched:
    """Base of objects whose attributes a captured step may depend on."""

    def __setattr__(self, name: str, value: object) -> None:
        if (notes := notes_here()) is not None:
            notes.written(self, name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        if (notes := notes_here()) is not None:
            notes.written(self, name, MISSING)


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
