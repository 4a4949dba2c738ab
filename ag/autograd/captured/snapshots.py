"""Snapshots: what attributes and names meant, so that it can be told later whether they mean the same.

A plain value is compared by value, a container of the standard library by what is in it, down to six levels, a method
by its function, a small array by its elements, and everything else by identity, with a weak reference: that a step was
captured keeps no model and no optimizer alive, as each has effects while it is (memory, a loss scale).

    sizes = [4, 8]     snapshot (list, 4, 8)     sizes[1] = 9     (list, 4, 9): another
    model              snapshot: who it is       model = other    another

Comparing snapshots takes copies of everything; where the same object is there still, its `contents` are enough: each
container in it, at whatever depth, with the items that it had, which are compared by identity.  Knows no tensor;
`ag.autograd.captured.notes` takes snapshots, `ag.autograd.captured.names` asks what is in a container.
"""

from __future__ import annotations

from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator, Sized
from math import copysign
from operator import is_
from types import MappingProxyType, MethodType
from weakref import ref

import numpy as np

__all__ = ["MISSING", "Contents", "bytes_of", "contents", "equal", "has_other_items", "held", "items_of", "same",
           "shown", "snapshot", "weak"]

Contents = tuple[object, object]  # a container with the items it had, compared by identity, or its bytes, or its length
_MANY = 1000  # items from which on only the length of a container is compared
_LEVELS = 6
_PLAIN = (bool, int, float, str, bytes, type(None))
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class _Missing:
    """What a name means that is nowhere."""

    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


def weak(value: object) -> object:
    """A weak reference to `value`; itself if there are none to its kind, as to numbers, lists and dicts."""
    try:
        return ref(value)
    except TypeError:
        return value


def held(value: object) -> object:
    """What `weak` was given; None if it is gone."""
    return value() if type(value) is ref else value


def items_of(x: object) -> list[object] | None:
    """What is in a container, in a copy, as other threads may change it: keys and values of a dict, ...; else None."""
    if type(x) is dict:  # first, as every replay asks for optimizers' states
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
    return items_of(getattr(x, "mapping", None)) if isinstance(x, _VIEWS) else None


def bytes_of(x: object) -> bytes | None:
    """The elements of a small array or buffer, else None."""
    if isinstance(x, np.ndarray):
        return x.view(np.ndarray).tobytes() if x.size <= _MANY and x.dtype != object else None
    if isinstance(x, (array, bytearray, memoryview)):
        return bytes(x) if (x.nbytes if isinstance(x, memoryview) else len(x)) <= _MANY else None
    return None


def snapshot(value: object, levels: int = _LEVELS) -> object:
    """A plain value itself, for containers a copy that later changes do not reach, else a weak reference."""
    if isinstance(value, MethodType):  # another object each time
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
    """Whether two snapshots are equal."""
    if noted is now:
        return True
    if type(noted) is not type(now):
        return False
    if isinstance(noted, tuple) and isinstance(now, tuple):
        return len(noted) == len(now) and all(map(same, noted, now))
    return isinstance(noted, (*_PLAIN, frozenset, np.dtype)) and equal(noted, now)


def equal(x: object, y: object) -> bool:
    """Whether two values are the same or equal, and not zeros of either sign, which give other results."""
    if x is y:
        return True
    if isinstance(x, (int, float)) and isinstance(y, (int, float)) and x == 0 == y:
        return copysign(1.0, x) == copysign(1.0, y)
    return bool(x == y)


def shown(noted: object) -> str:
    """A value, or what there is of it in a snapshot, for a message."""
    there = held(noted)
    if there is None and noted is not None:
        return "an object that is gone"
    return repr(there) if isinstance(there, (*_PLAIN, _Missing)) else f"a {type(there).__name__}"


def contents(value: object) -> Iterator[Contents]:
    """Every container in a value that can change and be compared quickly, and small arrays, with what is in it."""
    found: list[object] = [value]
    seen: set[int] = set()
    for x in found:  # which grows
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
    """Whether something else is in a container than was."""
    if type(items) is list:
        now = container if type(container) is list else items_of(container)
        return type(now) is not list or len(now) != len(items) or not all(map(is_, now, items))
    return (bytes_of(container) if isinstance(items, bytes) else _length(container)) != items


def _length(container: object) -> int:
    return len(container) if isinstance(container, Sized) else 0
