"""Layers and optimizers tell of their attributes: of what is read while a step is recorded, and of every change.

They are `Watched`: while a thread notes, every attribute of theirs that it reads or sets is told to its notes
(`ag.autograd.captured.notes`, which `import ag` need not load).  Assigning an attribute, or moving a tensor, goes into
one short log of changes, so a replay that finds the log as it was compares none of these:

    step reads dropout.rate = 0.5      noted                      dropout.rate = 0.1     into the log
    replay: nothing new in the log     runs                       replay: the log has rate, 0.1 is not 0.5: record anew

Knows no layer and no launch; layers, optimizers, tensors and ops tell it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol, TypeVar, cast

from ag.autograd.captured.snapshots import MISSING
from ag.engine.buffer import Buffer
from ag.engine.program import OPEN, recording_here
from ag.engine.shape import Shape

__all__ = ["CHANGES", "Noted", "Watched", "note_tensors", "notes_here", "start_noting", "stop_noting"]

_LOG = 4096  # changes that are kept


class Noted(Protocol):
    """What is asked of a tensor here."""

    buffer: Buffer
    name: str | None
    node: Any
    requires_grad: bool

    def __init__(self, buffer: Buffer) -> None: ...
    @property
    def shape(self) -> Shape: ...
    def set_grad(self, grad: Any) -> None: ...


T = TypeVar("T", bound=Noted)


class Listener(Protocol):
    """Who notes what a thread does; `ag.autograd.captured.notes`."""

    def read(self, owner: Watched, name: str, value: object) -> None: ...
    def written(self, owner: Watched, name: str, value: object) -> None: ...
    def tensors(self, tensors: Sequence[Noted]) -> None: ...
    def grad_read(self, x: T, grad: T | None) -> T | None: ...
    def grad_written(self, x: Noted) -> None: ...


class ChangeLog:
    """Which attributes were set, and which tensors moved, as (id of the object, name); the last few thousand."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, str]] = []
        self._dropped = 0

    @property
    def position(self) -> int:
        """How many changes there were."""
        return self._dropped + len(self._entries)

    def add(self, changed: object, name: str) -> None:
        """Note a change."""
        self._entries.append((id(changed), name))
        if len(self._entries) > _LOG:
            with _switching:
                surplus = max(len(self._entries) - _LOG // 2, 0)
                self._dropped += surplus
                del self._entries[:surplus]

    def since(self, position: int) -> list[tuple[int, str]] | None:
        """The changes from a position on; None if they are no longer known."""
        start = position - self._dropped
        return self._entries[start:] if start >= 0 else None


CHANGES = ChangeLog()
_switching = Lock()


def _forked() -> None:
    """Go on in a forked child, which has none of the other threads."""
    global _switching
    _switching = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Watched:
    """Base of objects whose attributes a captured step may depend on."""

    def __setattr__(self, name: str, value: object) -> None:
        if OPEN and (notes := notes_here()) is not None:
            notes.written(self, name, value)
        known = object.__getattribute__(self, "__dict__")  # which is not reading it
        if known.get(name, known) is not value:
            CHANGES.add(self, name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        CHANGES.add(self, name)
        object.__delattr__(self, name)


def notes_here() -> Listener | None:
    """What this thread notes, if it records a step."""
    recording = recording_here()
    return None if recording is None else cast("Listener | None", recording.notes)


def _noting(self: Watched, name: str) -> Any:
    """`Watched.__getattribute__` while any thread notes."""
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
    """A recording has notes: attributes that its thread reads are noted there."""
    with _switching:
        type.__setattr__(Watched, "__getattribute__", _noting)


def stop_noting() -> None:
    """A recording was closed: attributes are read as always if no other is open."""
    with _switching:
        if not OPEN and "__getattribute__" in Watched.__dict__:
            type.__delattr__(Watched, "__getattribute__")


def note_tensors(tensors: Sequence[Noted]) -> None:
    """Tell a step that is being recorded which tensors it uses; for callers that found `OPEN` not empty."""
    if (notes := notes_here()) is not None:
        notes.tensors(tensors)
