"""Guards and effects of a recording: what the step read in Python, and what it leaves there.

What was read is compared before every replay: in C by identity, and where that differs, in Python by value.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterator, Sequence, Sized
from copy import deepcopy
from itertools import repeat
from math import copysign
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from ag.autograd.tensor import Tensor
from ag.autograd.watched import MISSING, Absent, Watched
from ag.capture.reads import GONE, MOST, Name, NameReader, Own, dict_of, held, in_dict, items_of, key_of, meaning, weak
from ag.engine.buffer import Buffer
from ag.errors import CaptureError
from ag.native import code as _code

Key = tuple[int, str]  # the id of an object and the name of an attribute

# Replays set objects of these types as they are: they cannot change, or are not part of the step.
_KEPT = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, type, FunctionType,
         BuiltinFunctionType, MethodType, ModuleType, Watched, Tensor, Buffer)


class Notes:
    def __init__(self, made: set[int]) -> None:
        self._made = made  # ids of blocks allocated since; these and constants are not state
        self._reads: dict[Key, Watched] = {}  # owners are kept while the step runs, so that ids stay theirs
        # tensors that no op made, by id: with ``requires_grad``, name, buffer
        self._trained: dict[int, tuple[Tensor, bool, str | None, Buffer]] = {}
        self._gone: list[object] = []  # references to noted values that were freed
        self._guards = NameGuards(self._gone)
        self._reader = NameReader(Watched)
        self._fixed: list[Contents] = []  # containers that no name means
        self.slow: list[Contents] = []  # containers that compiled code does not compare
        self.effects = Effects()
        self.known: frozenset[int] = frozenset()  # ids that an argument must not have, as the step may ask for it
        self.own_change: str | None = None  # a change by the step of what it reads: it cannot be replayed
        self.leaves: dict[int, Leaf] = {}

    def _is_new(self, b: Buffer) -> bool:
        return id(b.block) in self._made or b.constant is not None

    # -------------------------------------------------------------------------------------- attributes and tensors

    def read(self, owner: Watched, name: str, value: object) -> None:
        key = id(owner), name
        if key in self._reads or key in self.effects:
            return
        self._reads[key] = owner
        self._reader.read_attribute(type(owner), name)
        self._reader.values(value)
        self._note_names()
        if name not in object.__getattribute__(owner, "__dict__"):  # but perhaps in the class's
            self._guards.absent(Own(owner), frozenset((name,)))
        else:
            self._guards.add(Name(Own(owner), name, value))

    def written(self, owner: Watched, name: str, value: object) -> None:
        self.effects.note(owner, name, value)

    def names(self, functions: Sequence[object]) -> None:
        self._reader.values(*functions)
        self._note_names()

    def _note_names(self) -> None:
        for name in self._reader.new():
            if name.place is None:
                self.watch(name.value)
            else:
                self._guards.add(name)

    def watch(self, container: object) -> None:
        self._fixed += contents(container)

    def tensors(self, tensors: Sequence[Tensor]) -> None:
        for x in tensors:
            if x.node is None and id(x) not in self._trained and not self._is_new(x.buffer):
                self._trained[id(x)] = x, x.requires_grad, x.name, x.buffer

    def compiled(self, without: list[Tensor]) -> Callable[[], bool]:
        """Return a quick guard: nothing that no log reports changed, and the tensors `without` have no gradient."""
        if not HAS_CODE:
            return bool  # never sure
        tensors, flags, called, places = ([x[i] for x in self._trained.values()] for i in range(4))
        attributes = vars(Tensor)
        slots = [(attributes["requires_grad"], tensors, flags), (attributes["name"], tensors, called),
                 (attributes["buffer"], tensors, places), (attributes["_grad"], without, [None] * len(without))]
        noted = self._contents()
        self.slow = [pair for pair in noted if not is_quick(pair)]
        return compiled_guard(slots, [*filter(is_quick, noted)], *self._guards.rows(), self._gone)

    def _contents(self) -> list[Contents]:
        return [*self._fixed, *self._guards.contents()]

    def change(self, holds: bool = False, attributes: bool = True) -> str | None:
        """Describe the first change, or None; `holds`: the result of `compiled`; `attributes`: whether these count."""
        if holds:
            return _other_items(self.slow)
        for tensor, was, name, buffer in self._trained.values():
            if tensor.buffer is not buffer:
                return f"{_called(tensor)} lies elsewhere, as an optimizer was made, or it was moved to another device"
            if tensor.requires_grad is not was:
                return f"requires_grad of {_called(tensor)} was {was} and is {tensor.requires_grad}"
            if tensor.name is not name and tensor.name != name:
                return f"the name of {_called(tensor)} was {name!r}"
        return self._guards.change(attributes) or _other_items(self._contents())

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
            self._guards.absent(place, names)
        known = self._reader.known()
        self.forget()
        before = -1
        while before != len(self.effects):  # freeing one object may free the next
            before = len(self.effects)
            self._guards.close()
            self.effects.forget_the_dead()
        self.effects.close(known, _KEPT)
        self.own_change = self.change(attributes=False)

    def forget(self) -> None:
        self._reader = NameReader(Watched)
        self._reads = {}

    # -------------------------------------------------------------------------------------- gradients

    def grad_read(self, x: Tensor, grad: Tensor | None) -> Tensor | None:
        """Return the gradient of `x`, or the placeholder for one from before the step."""
        if id(x) not in self.leaves and not self._is_new(x.buffer):
            leaf = self.leaves[id(x)] = Leaf(x, read=True)
            if isinstance(grad, Tensor):  # the step raises for anything else
                backend = grad.buffer.backend
                slot = backend.alloc(grad.shape, grad.buffer.dtype)
                backend.assign(slot, grad.buffer)
                placeholder = Tensor(slot)
                leaf.initial, leaf.slot = grad, placeholder
                x.set_grad(placeholder)
                return placeholder
        return grad

    def grad_written(self, x: Tensor) -> None:
        if id(x) not in self.leaves and not self._is_new(x.buffer):
            self.leaves[id(x)] = Leaf(x, read=False)


def _other_items(pairs: list[Contents]) -> str | None:
    for container, items in pairs:
        if has_other_items(container, items):
            return f"a {type(container).__name__} that the step reads has other items"
    return None


def _called(x: Tensor) -> str:
    return f"the parameter {x.name!r}" if x.name else f"a tensor of shape {x.shape}"


# ------------------------------------------------------------------------------------------ guards of names


Rows = Sequence[tuple[Any, ...]]

HAS_CODE = _code is not None


def compiled_guard(slots: Rows, contents: Rows, names: Rows, single: Rows, gone: list[object]) -> Callable[[], bool]:
    """Return a quick guard: True if nothing has changed, False if Python has to compare."""
    compares: Callable[[], bool] = _code.Unchanged(slots, names, single, contents, gone, MISSING)
    return compares


def is_quick(noted: Contents) -> bool:
    """Return whether `compiled_guard` can compare a container with its items."""
    return type(noted[0]) in (list, dict) and type(noted[1]) is list


_NOTHING = repeat(MISSING)  # stateless, so all calls share it


class _Noted(NamedTuple):
    value: object  # weakly where possible
    meant: object  # its snapshot
    contents: list[Contents]


class _Group:
    """Names of one place, and what they meant when noted."""

    def __init__(self, place: object, in_dict: bool) -> None:
        owner = place.owner if isinstance(place, Own) else place
        self.place = weak(owner)
        self.in_dict = in_dict  # of the place; else they are a cell, slots, or defaults of a function
        self.is_watched = isinstance(owner, Watched)
        self.kind = weak(type(owner)) if isinstance(place, Own) else None
        self.names: list[str] = []
        self.ids: list[int] = []  # of the values; 0: of another container, which only Python compares
        self.noted: list[_Noted] = []
        self.absent: frozenset[str] = frozenset()

    def change(self, gone: list[object], is_sure: bool) -> str | None:
        """Describe the first name with another value, or None; equal values in other objects are noted anew."""
        place = held(self.place)
        if self.kind is not None and place is not GONE and type(place) is not held(self.kind):
            return f"__class__ was {shown(self.kind)} and is {shown(type(place))}"
        own = place if self.kind is None and isinstance(place, dict) else dict_of(place) or {}
        now = [*map(own.get, self.names, _NOTHING)] if self.in_dict else [meaning(place, name) for name in self.names]
        if not is_sure or [*map(id, now)] != self.ids:
            for i, (name, before, value) in enumerate(zip(self.names, self.noted, now, strict=True)):
                if value is not held(before.value):
                    if not same(before.meant, snapshot(value)):
                        return f"{name} was {shown(before.value)} and is {shown(value)}"
                    self.noted[i] = noted = _noted(value, gone)
                    self.ids[i] = 0 if noted.contents else id(value)
        if self.absent and not own.keys().isdisjoint(self.absent):
            name = min(self.absent & own.keys())
            return f"{name} was {MISSING!r} and is {shown(own.get(name, MISSING))}"
        return None


class NameGuards:
    """Guards of names: compares the identities of all values of a place at once, and values only if these differ."""

    def __init__(self, gone: list[object]) -> None:
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._gone = gone  # gets references to noted values that were freed, as their ids may be used again

    def add(self, name: Name) -> None:
        """Note the value of a name; the caller keeps place and value alive until `close`."""
        if isinstance(name.place, Own) and name.name == "__class__":
            self._group(name.place)  # which knows it
            return
        group = self._group(name.place, in_dict(name.place, name.name))
        group.names.append(name.name)
        group.ids.append(id(name.value))
        group.noted.append(_noted(name.value, self._gone))

    def absent(self, place: object, names: frozenset[str]) -> None:
        if names:
            self._group(place).absent |= names

    def _group(self, place: object, in_dict: bool = True) -> _Group:
        key = *key_of(place), in_dict
        if key not in self._groups:
            self._groups[key] = _Group(place, in_dict)
        return self._groups[key]

    def close(self) -> None:
        """Drop places that the step made and freed."""
        self._groups = {key: group for key, group in self._groups.items() if held(group.place) is not GONE}

    def rows(self) -> tuple[Rows, Rows]:
        """Return rows of `compiled_guard`: names in dicts, names elsewhere."""
        groups = self._groups.values()
        return ([(group.place, group.names, group.ids, group.absent, tuple(group.absent),
                  None if group.kind is None else id(held(group.kind))) for group in groups if group.in_dict],
                [([group.place] * len(group.ids), group.names, group.ids) for group in groups if not group.in_dict])

    def contents(self) -> list[Contents]:
        return [pair for group in self._groups.values() for noted in group.noted for pair in noted.contents]

    def change(self, attributes: bool = True) -> str | None:
        """Describe the first name with another value; None if all are as noted.  `attributes`: of `Watched` objects."""
        gone = len(self._gone)
        for group in self._groups.values():
            if attributes or not group.is_watched:
                found = group.change(self._gone, not gone)
                if found is not None:
                    return found
        if attributes:
            del self._gone[:gone]
        return None


def _noted(value: object, gone: list[object]) -> _Noted:
    return _Noted(_weak(value, gone), snapshot(value), [*contents(value)])


def _weak(value: object, gone: list[object]) -> object:
    """Return a weak reference that goes into a list when the value is freed; the value if it has none."""
    try:
        return ref(value, gone.append)
    except TypeError:
        return value


# ------------------------------------------------------------------------------------------ snapshots

# Comparable forms of values.  Plain values compare by value, containers of the standard library by items to six levels,
# methods by function, small arrays by elements, all other objects by identity.  Snapshots hold objects weakly: capture
# keeps no model alive.  Of the same object, `contents` is quicker: each container, with its items by identity.


Contents = tuple[object, object]  # a container, and its items (compared by identity), bytes or length
_MANY = 1000  # of larger containers only the length is compared
_LEVELS = 6
_PLAIN = (bool, int, float, str, bytes, type(None))


def bytes_of(x: object) -> bytes | None:
    """Return the bytes of a small array or buffer, else None."""
    if isinstance(x, np.ndarray):
        if x.size > _MANY or x.dtype == object:
            return None
        masked = np.ma.getmaskarray(x).tobytes() if isinstance(x, np.ma.MaskedArray) else b""
        return x.view(np.ndarray).tobytes() + masked
    if isinstance(x, (array, bytearray, memoryview)):
        return bytes(x) if (x.nbytes if isinstance(x, memoryview) else len(x)) <= _MANY else None
    return None


def snapshot(value: object, levels: int = _LEVELS) -> object:
    """Return a plain value, a copied container, or a weak reference."""
    if isinstance(value, MethodType):  # a new object at each access
        return MethodType, value.__func__, id(value.__self__)
    elements = bytes_of(value)
    if elements is not None:
        kind = (value.shape, value.dtype) if isinstance(value, np.ndarray) else ()
        return type(value), *kind, elements
    if levels and (items := items_of(value)) is not None:
        if len(items) > _MANY:
            return type(value), id(value), len(items)
        if isinstance(value, (set, frozenset)):
            return type(value), frozenset(items)
        return type(value), *(snapshot(item, levels - 1) for item in items)
    return weak(value)


def same(noted: object, now: object) -> bool:
    if noted is now:
        return True
    if type(noted) is not type(now):
        return False
    if isinstance(noted, tuple) and isinstance(now, tuple):
        return len(noted) == len(now) and all(map(same, noted, now))
    return isinstance(noted, (*_PLAIN, frozenset, np.dtype)) and equal(noted, now)


def equal(x: object, y: object) -> bool:
    """Return whether two values are equal; 0.0 and -0.0 are not, as they give other results."""
    if x is y:
        return True
    if isinstance(x, (int, float)) and isinstance(y, (int, float)) and x == 0 == y:
        return copysign(1.0, x) == copysign(1.0, y)
    return bool(x == y)


def shown(noted: object) -> str:
    there = held(noted)
    return repr(there) if isinstance(there, (*_PLAIN, Absent)) else f"a {type(there).__name__}"


def contents(value: object) -> Iterator[Contents]:
    """Yield each container and small array in a value that can change, with its items or bytes."""
    found: list[object] = [value]
    seen: set[int] = set()
    for x in found:  # grows meanwhile
        elements, items = bytes_of(x), items_of(x)
        if elements is not None:
            yield x, elements
        elif items is not None and id(x) not in seen:
            seen.add(id(x))
            few = len(items) <= _MANY
            if not isinstance(x, (tuple, frozenset)):
                yield x, items if few else _length(x)
            found += items if few else ()


def has_other_items(container: object, items: object) -> bool:
    """Return whether a container's items changed; equal numbers and strings in other objects are noted anew."""
    if type(items) is list:
        now = container if type(container) is list else items_of(container)
        if type(now) is not list or len(now) != len(items):
            return True
        if all(map(is_, now, items)):
            return False
        if not all(x is y or (type(x) in _PLAIN and same(x, y)) for x, y in zip(items, now, strict=True)):
            return True
        items[:] = now
        return False
    return (bytes_of(container) if isinstance(items, bytes) else _length(container)) != items


def _length(container: object) -> int:
    return len(container) if isinstance(container, Sized) else 0


# ------------------------------------------------------------------------------------------ effects


class _Effect:
    """An attribute that a step sets."""

    snapshot: object = MISSING
    parts: dict[int, object] | None = None  # of a value to be made anew: its parts that stay the same

    def __init__(self, owner: ref[Any], name: str, value: object) -> None:
        self.owner, self.name, self.value = owner, name, value


class Effects(dict[Key, _Effect]):
    """Attributes of layers and optimizers that a step sets: every replay does, with new lists and dicts alike."""

    def note(self, owner: object, name: str, value: object) -> None:
        """Note that the step sets an attribute, or deletes it: `MISSING`."""
        self[id(owner), name] = _Effect(ref(owner), name, value)

    def forget_the_dead(self) -> None:
        for key in [key for key, effect in self.items() if effect.owner() is None]:
            del self[key]

    def close(self, known: Container[int], kept: tuple[type, ...]) -> None:
        """End noting; raise if a replay could not make a value: not `known` by id from before, nor of a `kept` type."""
        for effect in self.values():
            value, where = effect.value, f"{effect.name} of {type(effect.owner()).__name__}"
            if value is MISSING:
                continue
            memo: dict[int, object] = {}
            try:
                made = _parts(value, known, kept, memo)
                if made is True:
                    effect.value = deepcopy(value, {**memo})
            except RecursionError:
                raise CaptureError(f"ag_capture: the step sets {where} to containers nested too deep, or to one that "
                                   f"contains itself, which a replay could not make again. Make them before the step."
                                   ) from None
            if isinstance(made, type):
                raise CaptureError(f"ag_capture: the step sets {where} to a {made.__name__} that it made, and a replay "
                                   f"could not make another. Make it before the step, or leave the attribute as it is.")
            effect.snapshot = snapshot(value)
            if made:
                effect.parts = memo

    def repeat(self) -> None:
        for effect in self.values():
            owner, name, value = effect.owner(), effect.name, effect.value
            if owner is None:
                continue
            if value is MISSING:
                if name in vars(owner):
                    delattr(owner, name)
            elif effect.parts is not None:
                setattr(owner, name, deepcopy(value, {**effect.parts}))
            elif owner.__dict__.get(name, self) is not value:
                setattr(owner, name, value)

    def difference(self, now: Effects) -> str | None:
        """Describe the first attribute that another call set to another value, or None."""
        for key in self.keys() | now.keys():
            effects = [self.get(key), now.get(key)]
            was, is_now = (MISSING if effect is None else effect.snapshot for effect in effects)
            owner = next(effect.owner() for effect in effects if effect is not None)
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
