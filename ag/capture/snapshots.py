"""Snapshots: comparable forms of values, which tell later whether an attribute or a name still has the same value.

Plain values compare by value, containers of the standard library by items to six levels, methods by function, small
arrays by elements, all other objects by identity.  Snapshots hold objects weakly: capture keeps no model alive.
Where the object is the same, `contents` is quicker: each container in it with its items, compared by identity.
"""

from __future__ import annotations

from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator, Sized
from math import copysign
from operator import is_
from types import MappingProxyType, MethodType
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import numpy as np

from ag.autograd.watched import MISSING

Contents = tuple[object, object]  # a container, and its items (compared by identity), bytes or length
_MANY = 1000  # of larger containers only the length is compared
_LEVELS = 6
_PLAIN = (bool, int, float, str, bytes, type(None))
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def weak(value: object) -> object:
    """Return a weak reference to `value`, or itself if it has none, like numbers, lists and dicts."""
    try:
        return ref(value)
    except TypeError:
        return value


def held(value: object) -> object:
    """Return what `weak` was given; None if it was freed."""
    return value() if type(value) is ref else value


def items_of(x: object) -> list[object] | None:
    """Copy the items of a container, keys and values of a dict; None if it is not one.  Threads may change it."""
    if type(x) is dict:  # hot path: states of optimizers
        copy = x.copy()
        return [*copy, *copy.values()]
    if isinstance(x, np.ndarray):
        return x.ravel().tolist() if x.dtype == object else None
    if isinstance(x, (dict, MappingProxyType)):
        copied = x.copy()
        return [*copied, *copied.values()]
    if isinstance(x, (list, tuple, frozenset)):
        return [*x]
    if isinstance(x, (deque, set)):
        return [*x.copy()]
    if isinstance(x, (UserDict, UserList)):
        return [x.data]
    if isinstance(x, ChainMap):
        return [x.maps]
    if isinstance(x, (WeakKeyDictionary, WeakSet, WeakValueDictionary)):
        return items_of(vars(x)["data"])  # references, which are the same as long as what they refer to is there
    return items_of(getattr(x, "mapping", None)) if isinstance(x, _VIEWS) else None


def bytes_of(x: object) -> bytes | None:
    """Return the bytes of a small array or buffer, else None."""
    if isinstance(x, np.ndarray):
        return x.view(np.ndarray).tobytes() if x.size <= _MANY and x.dtype != object else None
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
    """Return whether two snapshots are equal."""
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
    """Describe a snapshot for a message."""
    there = held(noted)
    if there is None and noted is not None:
        return "an object that is gone"
    return repr(there) if isinstance(there, (*_PLAIN, type(MISSING))) else f"a {type(there).__name__}"


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
