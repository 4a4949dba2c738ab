"""Trees (pytrees): dicts, lists, tuples and dataclasses with arrays in them, taken apart and put together again.

    tree_flatten({"x": a, "y": [b, 3]})   ->   leaves [a, b], treedef {"x": *, "y": [*, 3]}
    tree_unflatten(treedef, [c, d])       ->   {"x": c, "y": [d, 3]}

Leaves are tensors and numpy arrays; everything else belongs to the treedef.  The names are those of JAX.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import MemberDescriptorType
from typing import Any, NamedTuple, cast

import numpy as np

from ag.autograd.tensor import Tensor

_ARRAYS = (Tensor, np.ndarray, np.memmap)  # others may have more than their numbers
_DICTS = (dict, OrderedDict)
_LEAVES, _MUTABLE = (Tensor, np.ndarray), (dict, list)
# Unchangeable, and compared by value.
_PLAIN = {bool, int, float, complex, str, bytes, type(None), *(
    kind for kind in np.sctypeDict.values() if not issubclass(kind, (np.void, np.object_)))}


class _Leaf(NamedTuple):
    """The place of an array; equal to that of any array of the same type, shape and element type."""

    number: int
    kind: tuple[type, tuple[int, ...], object]


class _Constant(NamedTuple):
    """A value that is no array; types and signs count, as 1, 1.0 and True, or 0.0 and -0.0, are equal in Python."""

    kind: type
    value: object
    sign: str = ""


class _Container(NamedTuple):
    """A list, a tuple, or a dict or dataclass, which has keys: strings, and constants for others."""

    kind: type
    items: tuple[TreeDef, ...]
    keys: tuple[object, ...] | None = None


class _Again(NamedTuple):
    """A list or dict that has come before: its number among those that are complete."""

    number: int


TreeDef = _Leaf | _Constant | _Container | _Again
Tree = Any  # of leaves, containers and constants
Leaf = Any  # a tensor or a numpy array


def tree_flatten(tree: Tree) -> tuple[list[Leaf], TreeDef]:
    """The arrays of a tree in order, each once, and its hashable structure; a ValueError refuses what holds itself."""
    leaves: list[Leaf] = []
    treedef = _structure(tree, leaves, {}, [])
    return leaves, treedef


def _structure(x: Tree, leaves: list[Leaf], numbers: dict[int, int], complete: list[Tree]) -> TreeDef:
    """Return the structure of a tree; `numbers` has the places in both lists by id, -1 for what is not complete."""
    kind = type(x)
    if kind is np.ndarray or isinstance(x, _LEAVES):
        number = numbers.setdefault(id(x), len(leaves))
        if number == len(leaves):
            leaves.append(x)
        if kind is not np.ndarray:
            kind = np.ndarray if kind is np.memmap else x.__class__  # of a placeholder, that of an array
        return tuple.__new__(_Leaf, (number, (kind, x.shape, x.dtype)))  # in half the time of _Leaf(...)
    is_shared = isinstance(x, _MUTABLE)
    if is_shared:
        known = numbers.get(id(x))
        if known is not None:
            if known < 0:
                raise ValueError(f"a {kind.__name__} holds itself")
            return _Again(known)
        numbers[id(x)] = -1
    keys: tuple[object, ...] | None = None
    items: Iterable[Tree] = x
    if isinstance(x, dict):
        keys, items = tuple([key if type(key) is str else _key(key) for key in x]), x.values()
    elif not (kind is tuple or kind is list or (isinstance(x, (list, tuple)) and _has_only(x))):
        if not _is_dataclass(x):
            numbers.pop(id(x), None)
            return _constant(x)
        keys = _fields(kind)
        items = [getattr(x, name) for name in keys]
    parts = tuple([_structure(item, leaves, numbers, complete) for item in items])
    made = tuple.__new__(_Container, (kind, parts, keys))
    if is_shared:
        numbers[id(x)] = len(complete)
        complete.append(x)
    return made


def _is_dataclass(x: object) -> bool:
    """Return whether an object has the fields of a dataclass, and nothing else."""
    names = _fields(type(x))
    return bool(names) and _has_only(x, names) and all(hasattr(x, name) for name in names)


def _has_only(x: object, names: Sequence[str] = ()) -> bool:
    """Return whether an object has no attributes of its own but these."""
    slots = {slot for kind in type(x).__mro__ for slot, value in vars(kind).items()
             if isinstance(value, MemberDescriptorType) and kind.__module__ != "builtins"}
    return {*getattr(x, "__dict__", {}), *(slot for slot in slots if hasattr(x, slot))} <= {*names}


def _fields(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass, and none of another class."""
    if not hasattr(kind, "__dataclass_fields__"):
        return ()
    from dataclasses import fields  # which takes time to load

    return tuple([field.name for field in fields(kind)])


def _key(x: object) -> TreeDef:
    return _Container(tuple, tuple(map(_key, x))) if type(x) is tuple else _constant(x)


def _constant(x: object) -> _Constant:
    if isinstance(x, (float, complex, np.inexact)):
        return _Constant(type(x), x, repr(x))  # zeros of either sign are equal, and NaN is not
    return _Constant(type(x), x, str(x.dtype) if isinstance(x, np.generic) else "")  # which has the unit of a time


def tree_unflatten(treedef: TreeDef, leaves: Sequence[Leaf]) -> Tree:
    """Return the tree with `leaves` in their places."""
    return _made(treedef, leaves, [])


def _made(treedef: TreeDef, leaves: Sequence[Leaf], complete: list[Tree]) -> Tree:
    """Return a part of a tree, and append its lists and dicts to `complete`."""
    if isinstance(treedef, _Leaf):
        return leaves[treedef.number]
    if isinstance(treedef, _Constant):
        return treedef.value
    if isinstance(treedef, _Again):
        return complete[treedef.number]
    items = [_made(item, leaves, complete) for item in treedef.items]
    made: Tree
    if treedef.keys is None:
        made = sequence_of(treedef.kind, items)
    else:
        keys = [key if isinstance(key, str) else _made(cast(TreeDef, key), (), []) for key in treedef.keys]
        if hasattr(treedef.kind, "__dataclass_fields__") and not issubclass(treedef.kind, dict):
            made = object.__new__(treedef.kind)
            for name, item in zip(keys, items, strict=True):
                object.__setattr__(made, cast(str, name), item)
        else:
            made = (treedef.kind if treedef.kind in _DICTS else dict)(zip(keys, items, strict=True))
    if isinstance(made, (dict, list)):
        complete.append(made)
    return made


def tree_leaves(tree: Tree) -> list[Leaf]:
    """Return the arrays of a tree in order."""
    if isinstance(tree, (Tensor, np.ndarray)):
        return [tree]
    if isinstance(tree, (dict, list, tuple)):
        items = tree.values() if isinstance(tree, dict) else tree
        return [leaf for item in items for leaf in tree_leaves(item)]
    if _is_dataclass(tree):
        return [leaf for name in _fields(type(tree)) for leaf in tree_leaves(getattr(tree, name))]
    return []


def tree_map(f: Callable[[Leaf], Leaf], tree: Tree) -> Tree:
    """Return the tree with ``f(leaf)`` in the place of every leaf."""
    leaves, treedef = tree_flatten(tree)
    return tree_unflatten(treedef, [f(leaf) for leaf in leaves])


def take_over(tree: Tree, of: Tree, leaves: Mapping[int, Leaf]) -> Tree:
    """Let the lists and dicts of a tree be in place what those of another one became; leaves of that one by id."""
    if id(of) in leaves:
        return leaves[id(of)]
    if isinstance(of, dict):
        items = {key: take_over(tree.get(key) if isinstance(tree, dict) else None, x, leaves) for key, x in of.items()}
        if not isinstance(tree, dict):
            return items
        tree.clear()
        tree.update(items)
        return tree
    if isinstance(of, (list, tuple)):
        old = [*tree, *[None] * len(of)] if isinstance(tree, (list, tuple)) else [None] * len(of)
        made = [take_over(x, y, leaves) for x, y in zip(old, of, strict=False)]
        if not (isinstance(tree, list) and isinstance(of, list)):
            return sequence_of(type(of), made)
        tree[:] = made
        return tree
    if _is_dataclass(of):
        for name in _fields(type(of)):
            found = take_over(getattr(tree, name, None), getattr(of, name), leaves)
            if type(tree) is type(of):
                object.__setattr__(tree, name, found)
        return tree if type(tree) is type(of) else tree_map(lambda x: leaves.get(id(x), x), of)
    return of


def classes_in(treedef: TreeDef) -> set[type]:
    """Return the classes of the containers and constants in a tree."""
    if isinstance(treedef, _Container):
        return {treedef.kind}.union(*map(classes_in, treedef.items))
    return {treedef.kind} if isinstance(treedef, _Constant) else set()


def opaque_type(treedef: TreeDef) -> str | None:
    """Name the type of an object in a tree whose changes cannot be seen, being no array or plain value, or None."""
    if isinstance(treedef, _Leaf):
        return None if treedef.kind[0] in _ARRAYS else treedef.kind[0].__name__
    if isinstance(treedef, _Again):
        return None
    if isinstance(treedef, _Constant):
        return None if treedef.kind in _PLAIN or issubclass(treedef.kind, Enum) else treedef.kind.__name__
    if not (treedef.kind in (*_DICTS, list, tuple) or hasattr(treedef.kind, "_fields")
            or (hasattr(treedef.kind, "__dataclass_fields__") and not issubclass(treedef.kind, (dict, list, tuple)))):
        return treedef.kind.__name__
    keys = [key for key in treedef.keys or () if not isinstance(key, str)]
    return next((name for name in map(opaque_type, (*treedef.items, *cast("list[TreeDef]", keys))) if name), None)


def sequence_of(kind: type, items: list[Tree]) -> Tree:
    """Make a list, tuple or named tuple of items."""
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
