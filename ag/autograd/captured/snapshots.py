"""Snapshots: what attributes and names meant, so that it can be told later whether they mean the same.

A plain value is compared by value, a list, deque, tuple, dict or set by what is in it, down to six levels, a method by
its function, a small numpy array by its elements, and everything else by identity, with a weak reference: that a step
was captured keeps no model and no optimizer alive, as each has effects while it is (memory, a loss scale).

    sizes = [4, 8]     snapshot (list, 4, 8)     sizes[1] = 9     (list, 4, 9): another
    model              snapshot: who it is       model = other    another

Comparing snapshots takes copies of everything; where the same object is there still, its `contents` are enough: each
container in it with the items that it had, which are compared by identity.  Knows no tensor; `ag.autograd.watched`
takes snapshots.
"""

from __future__ import annotations

from collections import UserDict, UserList, deque
from collections.abc import Iterator
from operator import is_
from types import MethodType
from typing import Any
from weakref import ref

import numpy as np

__all__ = ["Contents", "contents", "has_other_items", "held", "same", "shown", "snapshot", "weak"]

Contents = tuple[Any, tuple[Any, ...]]  # a container and the items it had
_MANY = 1000  # items from which on only the length of a container is compared
_LEVELS = 6
_PLAIN = (bool, int, float, str, bytes, type(None))


def weak(value: object) -> object:
    """A weak reference to `value`; itself if there are none to its kind, as to numbers, lists and dicts."""
    try:
        return ref(value)
    except TypeError:
        return value


def held(value: object) -> object:
    """What `weak` was given; None if it is gone."""
    return value() if type(value) is ref else value


def snapshot(value: object, levels: int = _LEVELS) -> object:
    """A plain value itself, for containers a copy that later changes do not reach, else a weak reference."""
    if type(value) is np.ndarray and value.size <= _MANY:
        return np.ndarray, value.shape, value.dtype, value.tobytes()
    if isinstance(value, MethodType):  # another object each time
        return MethodType, value.__func__, id(value.__self__)
    if isinstance(value, (UserDict, UserList)):
        return type(value), snapshot(value.data, levels)
    if isinstance(value, (list, deque, tuple, dict, set)) and levels:
        if len(value) > _MANY:
            return type(value), id(value), len(value)
        if isinstance(value, set):
            return type(value), frozenset(value)
        return type(value), *(snapshot(item, levels - 1) for item in _items(value))
    return weak(value)


def same(noted: object, now: object) -> bool:
    """Whether two snapshots are equal."""
    if noted is now:
        return True
    if type(noted) is not type(now):
        return False
    if isinstance(noted, tuple) and isinstance(now, tuple):
        return len(noted) == len(now) and all(map(same, noted, now))
    return isinstance(noted, (*_PLAIN, frozenset, np.dtype)) and bool(noted == now)


def shown(noted: object) -> str:
    """A value, or what there is of it in a snapshot, for a message."""
    there = held(noted)
    if there is None and noted is not None:
        return "an object that is gone"
    return repr(there) if isinstance(there, _PLAIN) else f"a {type(there).__name__}"


def _items(container: Any) -> Any:
    """What is compared of a container, in a copy, as other threads may change it: keys and values of a dict, ..."""
    if isinstance(container, dict):
        copy = container.copy()
        return [*copy, *copy.values()]
    if isinstance(container, np.ndarray):
        return (container.tobytes(),)
    if isinstance(container, deque):
        return [*container.copy()]
    return (frozenset(container),) if isinstance(container, set) else container


def contents(value: object, levels: int = _LEVELS) -> Iterator[Contents]:
    """Every container in a value that can change and be compared quickly, and small arrays, with what is in it."""
    if isinstance(value, (UserDict, UserList)):
        yield from contents(value.data, levels)
    elif type(value) is np.ndarray or isinstance(value, set):
        if len(value) <= _MANY if isinstance(value, set) else value.size <= _MANY:
            yield value, tuple(_items(value))
    elif isinstance(value, (list, deque, tuple, dict)) and levels and len(value) <= _MANY:
        items = tuple(_items(value))
        if not isinstance(value, tuple):
            yield value, items
        for item in items:
            yield from contents(item, levels - 1)


def has_other_items(container: object, items: tuple[object, ...]) -> bool:
    """Whether something else is in a container than was."""
    if isinstance(container, (list, deque, dict)):
        now = container if isinstance(container, list) else _items(container)
        return len(now) != len(items) or not all(map(is_, now, items))
    return bool(_items(container) != items)
