"""Guards and effects of a recording: what the step read in Python, and what it leaves there.

`Notes` hears of attributes, names, tensors and gradients while the step is recorded.  What was read is compared before
every replay: in C by identity, and where that differs, in Python by value.  `Effects` are set again by every replay.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from copy import deepcopy
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import numpy as np

from ag.autograd.tensor import Tensor
from ag.autograd.watched import MISSING, Watched, start_noting
from ag.capture.reads import HAS_CODE, MOST, Name, NameGuards, NameReader, Own, compiled_guard, is_quick
from ag.capture.snapshots import (
    Contents,
    bytes_of,
    contents,
    has_other_items,
    items_of,
    same,
    shown,
    snapshot,
)
from ag.engine.buffer import Buffer
from ag.engine.program import Recording
from ag.errors import CaptureError

Key = tuple[int, str]  # the id of an object and the name of an attribute

# Replays set objects of these types as they are: they cannot change, or are not part of the step.
_KEPT = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, type, FunctionType,
         BuiltinFunctionType, MethodType, ModuleType, Watched, Tensor, Buffer)


class Notes:
    """Notes of what one thread read and wrote since `open`."""

    def __init__(self, made: set[int]) -> None:
        self._made = made  # ids of blocks allocated since; these and constants are not state
        self._reads: set[Key] = set()
        self._owners: dict[int, Watched] = {}  # of attributes, kept while the step runs, so that ids stay theirs
        self._absent: dict[int, set[str]] = {}  # attributes that an owner does not have
        self._contents: list[tuple[ref[Watched], list[Contents]]] = []  # containers in attributes of an owner
        self._flat: list[Contents] = []  # containers, compared by every replay
        self._tensors: set[int] = set()
        # tensors that no op made: ``requires_grad``, name, buffer
        self._trained: list[tuple[Tensor, bool, str | None, Buffer]] = []
        self._gone: list[object] = []  # references to noted values that were freed
        self._names, self._attributes = NameGuards(self._gone), NameGuards(self._gone)
        self._reader = NameReader(Watched)
        self._slow: list[Contents] = []  # the part of `_flat` that compiled code does not compare
        self.effects = Effects()
        self.known: frozenset[int] = frozenset()  # ids that an argument must not have, as the step may ask for it
        self.own_change: str | None = None  # a change by the step of what it reads: it cannot be replayed
        self.leaves: dict[int, Leaf] = {}

    def _is_new(self, b: Buffer) -> bool:
        return id(b.block) in self._made or b.constant is not None

    def open(self, recording: Recording) -> None:
        """Note what the thread of a recording does while it is open."""
        recording.notes = self
        start_noting()

    # -------------------------------------------------------------------------------------- attributes and tensors

    def read(self, owner: Watched, name: str, value: object) -> None:
        """Note the value of an attribute, unless the step set it."""
        key, kind = (id(owner), name), type(owner)
        if key in self._reads or key in self.effects:
            return
        self._reads.add(key)
        if id(owner) not in self._owners:
            self._owners[id(owner)] = owner
            self._attributes.add(Name(Own(owner), "__class__", kind))
        self._reader.read_attribute(kind, name)
        self._reader.values(value)
        self._note_names()
        if name not in object.__getattribute__(owner, "__dict__"):  # but perhaps in the class's
            self._absent.setdefault(id(owner), set()).add(name)
        else:
            self._attributes.add(Name(Own(owner), name, value))
            self._contents.append((ref(owner), [*contents(value)]))

    def written(self, owner: Watched, name: str, value: object) -> None:
        """Note the new value of an attribute."""
        self.effects.note(owner, name, value)

    def names(self, functions: Sequence[object]) -> None:
        """Note the values of names that functions read outside their own locals."""
        self._reader.values(*functions)
        self._note_names()

    def _note_names(self) -> None:
        for name in self._reader.new():
            if name.place is not None:
                self._names.add(name)
            self._flat += contents(name.value)

    def watch(self, container: object) -> None:
        """Compare the items of a container, too."""
        self._flat += contents(container)

    def tensors(self, tensors: Sequence[Tensor]) -> None:
        """Note the buffers of tensors from before the step."""
        for x in tensors:
            if id(x) not in self._tensors and not self._is_new(x.buffer):
                self._tensors.add(id(x))
                if x.node is None:
                    self._trained.append((x, x.requires_grad, x.name, x.buffer))

    def compiled(self, without: list[Tensor]) -> Callable[[], bool]:
        """Return a quick guard: nothing that no log reports changed, and the tensors `without` have no gradient."""
        if not HAS_CODE:
            return bool  # never sure
        tensors, flags, called, places = ([x[i] for x in self._trained] for i in range(4))
        attributes = vars(Tensor)
        slots = [(attributes["requires_grad"], tensors, flags), (attributes["name"], tensors, called),
                 (attributes["buffer"], tensors, places), (attributes["_grad"], without, [None] * len(without))]
        quick = [pair for pair in self._flat if is_quick(pair)]
        self._slow = [pair for pair in self._flat if not is_quick(pair)]
        rows, more = self._names.rows(), self._attributes.rows()
        return compiled_guard(slots, quick, [*rows[0], *more[0]], [*rows[1], *more[1]], self._gone)

    @property
    def is_slow(self) -> bool:
        """Tell whether Python compares something that `compiled` does not."""
        return bool(self._slow)

    def change(self, holds: bool = False) -> str | None:
        """Describe the first change since noting, or None; `holds`: the result of `compiled`."""
        if holds:
            return _other_items(self._slow)
        gone = len(self._gone)
        found = self._changed_now() or self._attributes.change()
        if found is None:
            del self._gone[:gone]
        return found

    def _changed_now(self) -> str | None:
        """Describe the first change but of attributes of layers and optimizers, or None."""
        for tensor, was, name, buffer in self._trained:
            if tensor.buffer is not buffer:
                return f"{_called(tensor)} lies elsewhere, as an optimizer was made, or it was moved to another device"
            if tensor.requires_grad is not was:
                return f"requires_grad of {_called(tensor)} was {was} and is {tensor.requires_grad}"
            if tensor.name is not name and tensor.name != name:
                return f"the name of {_called(tensor)} was {name!r}"
        if (found := self._names.change()) is not None:
            return found
        return _other_items(self._flat)

    @property
    def asked_type(self) -> str | None:
        """Say for which variable the step asks its type, where array arguments have that of their placeholders."""
        name = min(self._reader.types, default=None)
        return None if name is None else (
            f"the step asks for type({name}), and array arguments are placeholders of another type while it is "
            f"recorded; write isinstance({name}, np.ndarray)")

    def close(self, args: set[int]) -> None:
        """End noting; raise if a replay could not do what the step did; `args`: ids of the caller's arguments."""
        self.known = self._reader.known() if self._reader.identity else frozenset()
        if not args.isdisjoint(self.known):
            raise CaptureError("ag_capture: the step can reach one of its arguments by itself, and may ask whether it "
                               "is that object, by `is`, `in` or `id`; it gets placeholders, which are not. Pass it in "
                               "one way only.")
        if (taken := self._reader.taken()) is not None:
            raise CaptureError(f"ag_capture: the step {taken}; a replay would not. Take it before the step, and pass "
                               f"it as an argument.")
        self._reader.modules()
        self._note_names()
        if self._reader.count >= MOST:
            raise CaptureError(f"ag_capture: the step, with what it calls, reads more than {MOST:,} names, too many to "
                               f"compare before every replay; let it reach fewer objects, or do not capture it.")
        for place, names in self._reader.missing():
            self._names.absent(place, names)
        for number, absent in self._absent.items():
            self._attributes.absent(Own(self._owners[number]), frozenset(absent))
        known = self._reader.known()
        self.forget()
        self._names.close()
        before = -1
        while before != len(self.effects):  # freeing one object may free the next
            before = len(self.effects)
            self.effects.forget_the_dead()
        self._attributes.close()
        self._flat += [pair for owner, pairs in self._contents if owner() is not None for pair in pairs]
        self.effects.close(known, _KEPT)
        self.own_change = self._changed_now()

    def forget(self) -> None:
        """Free what was held while the step ran."""
        self._reader = NameReader(Watched)
        self._owners = {}

    # -------------------------------------------------------------------------------------- gradients

    def grad_read(self, x: Tensor, grad: Tensor | None) -> Tensor | None:
        """Return the gradient of `x`, or the placeholder for one from before the step."""
        if id(x) not in self.leaves and not self._is_new(x.buffer):
            leaf = self.leaves[id(x)] = Leaf(x, read=True)
            if grad is not None:
                backend = grad.buffer.backend
                slot = backend.alloc(grad.shape, grad.buffer.dtype)
                backend.assign(slot, grad.buffer)
                placeholder = Tensor(slot)
                leaf.initial, leaf.slot = grad, placeholder
                x.set_grad(placeholder)
                return placeholder
        return grad

    def grad_written(self, x: Tensor) -> None:
        """Note that the step sets the gradient of `x`."""
        if id(x) not in self.leaves and not self._is_new(x.buffer):
            self.leaves[id(x)] = Leaf(x, read=False)


def _other_items(pairs: list[Contents]) -> str | None:
    for container, items in pairs:
        if has_other_items(container, items):
            return f"a {type(container).__name__} that the step reads has other items"
    return None


def _called(x: Tensor) -> str:
    return f"the parameter {x.name!r}" if x.name else f"a tensor of shape {x.shape}"


# ------------------------------------------------------------------------------------------ effects


class Effects:
    """Attributes of layers and optimizers that a step sets; every replay sets them again.

    Where the step made a list or dict, each replay makes a new one with the same items, as an eager call would.
    An object from before the step is set again.  A replay could not make other objects, so the step is refused.
    A value that differs in every call is recorded anew each time if the step reads it; else a comparison refuses it.
    """

    def __init__(self) -> None:
        self._set: dict[Key, tuple[ref[object], object]] = {}
        self._kept: dict[Key, object] = {}  # snapshots of the values
        self._made: dict[Key, dict[int, object]] = {}  # of values to be made anew: their parts that stay the same

    def __contains__(self, key: object) -> bool:
        return key in self._set

    def __len__(self) -> int:
        return len(self._set)

    def note(self, owner: object, name: str, value: object) -> None:
        """Note that the step sets an attribute, or deletes it: `MISSING`."""
        self._set[id(owner), name] = ref(owner), value

    def forget_the_dead(self) -> None:
        """Drop attributes of freed objects."""
        self._set = {key: effect for key, effect in self._set.items() if effect[0]() is not None}

    def close(self, known: Container[int], kept: tuple[type, ...]) -> None:
        """End noting; raise if a replay could not make a value.

        `known` has the ids of what was there before the step; objects of types in `kept` are set again as they are.
        """
        for key, (owner, value) in self._set.items():
            if value is MISSING:
                self._kept[key] = MISSING
                continue
            memo: dict[int, object] = {}
            try:
                made = _parts(value, known, kept, memo)
                copied = deepcopy(value, {**memo}) if made is True else value
            except RecursionError:
                raise CaptureError(f"ag_capture: the step sets {key[1]} of {type(owner()).__name__} to containers "
                                   f"nested too deep, or to one that contains itself, which a replay could not make "
                                   f"again. Make them before the step.") from None
            if isinstance(made, type):
                raise CaptureError(f"ag_capture: the step sets {key[1]} of {type(owner()).__name__} to a "
                                   f"{made.__name__} that it made, and a replay could not make another. Make it before "
                                   f"the step, or leave the attribute as it is.")
            self._kept[key] = snapshot(value)
            if made:
                self._made[key] = memo
                self._set[key] = owner, copied

    def repeat(self) -> None:
        """Set the attributes as the step did."""
        for key, (reference, value) in self._set.items():
            owner = reference()
            if value is MISSING:
                if owner is not None and key[1] in vars(owner):
                    delattr(owner, key[1])
            elif owner is not None and (key in self._made or owner.__dict__.get(key[1], self) is not value):
                setattr(owner, key[1], deepcopy(value, {**self._made[key]}) if key in self._made else value)

    def difference(self, now: Effects) -> str | None:
        """Describe the first attribute that another call set to another value, or None."""
        for key in self._kept.keys() | now._kept.keys():
            was, is_now = self._kept.get(key, MISSING), now._kept.get(key, MISSING)
            owner = (self._set.get(key) or now._set[key])[0]()
            if owner is not None and not same(was, is_now):
                return f"{key[1]} of {type(owner).__name__} was set to {shown(was)} and is set to {shown(is_now)}"
        return None


def _parts(value: object, known: Container[int], kept: tuple[type, ...], memo: dict[int, object]) -> bool | type:
    """Return whether a value must be made anew, or the type that cannot be; `memo` gets parts that stay the same."""
    if id(value) in known or isinstance(value, kept):
        memo[id(value)] = value
        return False
    if bytes_of(value) is not None:
        return True
    items = items_of(value)
    if items is None:
        return type(value)
    found = [_parts(item, known, kept, memo) for item in items]
    unknown = next((x for x in found if isinstance(x, type)), None)
    return unknown or any(found) or not isinstance(value, (tuple, frozenset))


class Leaf:
    """A tensor whose ``.grad`` the step read or set."""

    def __init__(self, tensor: Any, read: bool) -> None:
        self.tensor = tensor
        self.read = read  # before it was set
        self.initial: Any = None  # the gradient when it was read
        self.slot: Any = None  # its placeholder: every replay copies the gradient of then into it
