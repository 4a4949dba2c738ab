"""What a captured step read and wrote in Python: attributes of layers and optimizers, tensors, gradients.

A recording has launches; what the step looked at on its way to them is noted here, so that a replay can tell whether
it would look at the same.  Layers and optimizers are `Watched`: while a thread notes, every attribute of theirs that
it reads is noted with its value, and every one it sets is set again after each replay.  Assigning an attribute, or
moving a tensor, goes into one short log of changes, so a replay that finds the log as it was compares none of these:

    step reads dropout.rate = 0.5      noted                      dropout.rate = 0.1     into the log
    replay: nothing new in the log     runs                       replay: the log has rate, 0.1 is not 0.5: record anew

What no log tells is compared before every replay: names (`ag.autograd.captured.meanings`), the items of containers,
``requires_grad``.  ``Tensor.grad`` is noted by itself, as every step changes it.  Knows no layer and no launch;
`ag.autograd.capture` asks it, tensors and ops tell it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, Protocol, TypeVar, cast
from weakref import ref

from ag.autograd.captured.meanings import Meanings
from ag.autograd.captured.names import MOST, NameReader
from ag.autograd.captured.snapshots import MISSING, Contents, contents, has_other_items, same, shown, snapshot
from ag.engine.buffer import Buffer
from ag.engine.program import OPEN, Recording, recording_here
from ag.engine.shape import Shape
from ag.errors import CaptureError

__all__ = ["CHANGES", "Leaf", "Notes", "Watched", "note_tensors", "notes_here", "stop_noting"]

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


def notes_here() -> Notes | None:
    """What this thread notes, if it records a step."""
    recording = recording_here()
    return None if recording is None else cast("Notes | None", recording.notes)


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


class Leaf:
    """A tensor whose ``.grad`` the step read or set.

    Attributes
    ----------
    tensor : Tensor
    read : bool
        Whether it was read before it was set.
    initial : Tensor or None
        What it was when it was read.
    slot : Tensor or None
        What stood for it: every replay begins with the gradient of then in there.
    """

    def __init__(self, tensor: Any, read: bool) -> None:
        self.tensor = tensor
        self.read = read
        self.initial: Any = None
        self.slot: Any = None


class Notes:
    """What one thread read and wrote since `open`.

    Parameters
    ----------
    made : set of int
        Blocks (by ``id``) that were allocated since; what lies in them, and constants, are no state.

    Attributes
    ----------
    leaves : dict of int to Leaf
    effects : dict of (id of the object, name) to (weak reference to it, value)
        Attributes that the step set, with their last values.
    """

    def __init__(self, made: set[int]) -> None:
        self._made = made
        self._reads: dict[tuple[int, str], tuple[ref[Watched], Any]] = {}
        self._contents: dict[tuple[int, str], list[Contents]] = {}  # of attributes that are lists or dicts
        self._flat: list[Contents] = []  # of names, and after the step of attributes, too: what every replay compares
        self._tensors: dict[int, tuple[ref[Noted], Buffer]] = {}
        self._trained: list[tuple[Noted, bool]] = []  # tensors that no op made, and their ``requires_grad``
        self._names = Meanings()
        self._reader = NameReader(Watched)
        self.effects: dict[tuple[int, str], tuple[ref[Watched], Any]] = {}
        self.leaves: dict[int, Leaf] = {}
        self._position = CHANGES.position

    def _is_new(self, b: Buffer) -> bool:
        return id(b.block) in self._made or b.constant is not None

    def open(self, recording: Recording) -> None:
        """Begin to note what the thread of a recording does, as long as it is open."""
        with _switching:
            type.__setattr__(Watched, "__getattribute__", _noting)
            recording.notes = self

    # -------------------------------------------------------------------------------------- attributes and tensors

    def read(self, owner: Watched, name: str, value: object) -> None:
        """Note what an attribute was, unless the step set it itself."""
        key, kind = (id(owner), name), type(owner)
        if key in self._reads or key in self.effects:
            return
        self._reads.setdefault((id(owner), "__class__"), (ref(owner), snapshot(kind)))
        self._reader.told(kind, name)
        self._reader.values(value)
        self._note_names()
        self._reads[key] = ref(owner), snapshot(value)
        if name in object.__getattribute__(owner, "__dict__"):
            self._contents[key] = list(contents(value))

    def written(self, owner: Watched, name: str, value: object) -> None:
        """Note what an attribute becomes."""
        self.effects[id(owner), name] = ref(owner), value

    def names(self, functions: Sequence[object]) -> None:
        """Note what the names mean that functions read and that are not their own."""
        self._reader.values(*functions)
        self._note_names()

    def _note_names(self) -> None:
        for name in self._reader.new():
            self._names.add(name)
            self._flat += contents(name.value)

    def tensors(self, tensors: Sequence[Noted]) -> None:
        """Note where tensors lie that were there before."""
        for x in tensors:
            if id(x) not in self._tensors and not self._is_new(x.buffer):
                self._tensors[id(x)] = ref(x), x.buffer
                if x.node is None:
                    self._trained.append((x, x.requires_grad))

    def change(self) -> str | None:
        """What is not as it was noted, in words; None if all is."""
        position = CHANGES.position
        if position != self._position:
            changes = CHANGES.since(self._position)
            # None: the log was cut since, so anything that was noted may have changed
            noted: Iterator[tuple[int, str]] = iter(changes if changes is not None else [
                *self._reads, *((number, "buffer") for number in self._tensors)])
            for key in noted:
                if (found := self._changed(key)) is not None:
                    return found
            self._position = position
        for tensor, was in self._trained:
            if tensor.requires_grad is not was:
                return f"requires_grad of {_called(tensor)} was {was} and is {tensor.requires_grad}"
        if (found := self._names.change()) is not None:
            return found
        for container, items in self._flat:
            if has_other_items(container, items):
                return f"a {type(container).__name__} that the step reads has other items"
        return None

    def _changed(self, key: tuple[int, str]) -> str | None:
        number, name = key
        if key in self._reads:
            owner, noted = self._reads[key]
            there = owner()
            if there is not None:
                try:
                    now = snapshot(object.__getattribute__(there, name))
                except AttributeError:
                    now = MISSING
                if not same(noted, now):
                    return f"{name} of {type(there).__name__} was {shown(noted)} and is {shown(now)}"
        elif name == "buffer" and number in self._tensors:
            x, buffer = self._tensors[number]
            moved = x()
            if moved is not None and moved.buffer is not buffer:
                return f"{_called(moved)} lies elsewhere, as an optimizer was made, or it was moved to another device"
        return None

    def repeat_effects(self) -> None:
        """Set the attributes that the step set."""
        for (_, name), (reference, value) in self.effects.items():
            owner = reference()
            if owner is not None and owner.__dict__.get(name, self) is not value:
                setattr(owner, name, value)

    def forget_the_dead(self) -> None:
        """Let go of what belonged to objects that the step made and dropped."""
        self._reader.modules()
        self._note_names()
        if self._reader.count >= MOST:
            raise CaptureError(f"ag_capture: the step, with what it calls, reads more than {MOST:,} names, too many to "
                               f"compare before every replay; let it reach fewer objects, or do not capture it.")
        for place, names in self._reader.missing():
            self._names.absent(place, names)
        self.forget()
        self._names.close()
        before = -1
        while before != len(self._reads) + len(self.effects):  # what held an object may have died with another
            before = len(self._reads) + len(self.effects)
            self.effects = {key: effect for key, effect in self.effects.items() if effect[0]() is not None}
            self._reads = {key: noted for key, noted in self._reads.items() if noted[0]() is not None}
            self._contents = {key: pairs for key, pairs in self._contents.items() if key in self._reads}
        self._flat += [pair for pairs in self._contents.values() for pair in pairs]

    def forget(self) -> None:
        """Let go of what had to be held as long as the step ran: nothing is read any more."""
        self._reader = NameReader(Watched)

    # -------------------------------------------------------------------------------------- gradients

    def grad_read(self, x: T, grad: T | None) -> T | None:
        """The gradient of `x`, or what stands for one of before the step."""
        if id(x) not in self.leaves and not self._is_new(x.buffer):
            leaf = self.leaves[id(x)] = Leaf(x, read=True)
            if grad is not None:
                backend = grad.buffer.backend
                slot = backend.alloc(grad.shape, grad.buffer.dtype)
                backend.assign(slot, grad.buffer)
                stand_in = type(x)(slot)
                leaf.initial, leaf.slot = grad, stand_in
                x.set_grad(stand_in)
                return stand_in
        return grad

    def grad_written(self, x: Noted) -> None:
        """The step sets the gradient of `x`."""
        if id(x) not in self.leaves and not self._is_new(x.buffer):
            self.leaves[id(x)] = Leaf(x, read=False)


def _called(x: Noted) -> str:
    return f"the parameter {x.name!r}" if x.name else f"a tensor of shape {x.shape}"


def stop_noting() -> None:
    """A recording was closed: attributes are read as always if no other is open."""
    with _switching:
        if not OPEN and "__getattribute__" in Watched.__dict__:
            type.__delattr__(Watched, "__getattribute__")


def note_tensors(tensors: Sequence[Noted]) -> None:
    """Tell a step that is being recorded which tensors it uses; for callers that found `OPEN` not empty."""
    if (notes := notes_here()) is not None:
        notes.tensors(tensors)
