"""Trees (pytrees): dicts, lists, tuples and dataclasses with arrays in them, taken apart and put together again.

    tree_flatten({"x": a, "y": [b, 3]})   ->   leaves [a, b], treedef {"x": *, "y": [*, 3]}
    tree_unflatten(treedef, [c, d])       ->   {"x": c, "y": [d, 3]}

Leaves are tensors and numpy arrays; everything else belongs to the treedef.  The names are those of JAX.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from ag.autograd.tensor import Tensor

_ARRAYS = (Tensor, np.ndarray, np.memmap)  # others may have more than their numbers
_DICTS = (dict, OrderedDict)
_PLAIN = (int, float, complex, str, bytes, type(None), np.generic)  # unchangeable, and compared by value


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


TreeDef = _Leaf | _Constant | _Container
Tree = Any  # of leaves, containers and constants
Leaf = Any  # a tensor or a numpy array


def tree_flatten(tree: Tree, shared: bool = False) -> tuple[list[Leaf], TreeDef]:
    """The arrays of a tree in order, and its hashable structure; `shared`: an array that comes again is listed once.

    Two samples with equal structures can be trained on by the same captured step: their arrays agree in type, shape
    and element type, and everything else is equal.
    """
    leaves: list[Leaf] = []
    treedef = _structure(tree, leaves, {} if shared else None)
    return leaves, treedef


def array_kinds(tree: Tree) -> tuple[object, ...] | None:
    """Return a quick key of the structure of a tuple of numpy arrays; None for other trees."""
    if type(tree) is not tuple:
        return None
    kinds: list[object] = []
    for x in tree:
        if type(x) is not np.ndarray:
            return None
        kinds += x.shape, x.dtype
    return tuple(kinds)


def _structure(x: Tree, leaves: list[Leaf], numbers: dict[int, int] | None) -> TreeDef:
    """Return the structure of a tree and append its arrays to `leaves`; `numbers` finds them by id."""
    if isinstance(x, (Tensor, np.ndarray)):
        number = len(leaves) if numbers is None else numbers.setdefault(id(x), len(leaves))
        if number == len(leaves):
            leaves.append(x)
        return _Leaf(number, (x.__class__, x.shape, x.dtype))  # of a stand-in, that of an array
    if isinstance(x, dict):
        keys = tuple([key if type(key) is str else _constant(key) for key in x])
        return _Container(type(x), tuple([_structure(item, leaves, numbers) for item in x.values()]), keys)
    if isinstance(x, (list, tuple)):
        return _Container(type(x), tuple([_structure(item, leaves, numbers) for item in x]))
    if _is_dataclass(x):
        names = _fields(type(x))
        return _Container(type(x), tuple([_structure(getattr(x, name), leaves, numbers) for name in names]), names)
    return _constant(x)


def _is_dataclass(x: object) -> bool:
    """Return whether an object has the fields of a dataclass, and nothing else."""
    names = _fields(type(x)) if dataclasses.is_dataclass(x) and not isinstance(x, type) else ()
    return bool(names) and getattr(x, "__dict__", {}).keys() <= {*names} and all(hasattr(x, name) for name in names)


def _fields(kind: type[Any]) -> tuple[str, ...]:
    return tuple([field.name for field in dataclasses.fields(kind)])


def _constant(x: object) -> _Constant:
    return _Constant(type(x), x, str(x) if x == 0 or isinstance(x, complex) else "") if isinstance(
        x, (float, complex, np.inexact)) else _Constant(type(x), x)


def tree_unflatten(treedef: TreeDef, leaves: Sequence[Leaf]) -> Tree:
    """Return the tree with `leaves` in their places."""
    if isinstance(treedef, _Leaf):
        return leaves[treedef.number]
    if isinstance(treedef, _Constant):
        return treedef.value
    items = [tree_unflatten(item, leaves) for item in treedef.items]
    if treedef.keys is not None:
        keys = [key.value if isinstance(key, _Constant) else key for key in treedef.keys]
        if dataclasses.is_dataclass(treedef.kind):
            made = object.__new__(treedef.kind)
            for name, item in zip(keys, items, strict=True):
                object.__setattr__(made, cast(str, name), item)
            return made
        return (treedef.kind if treedef.kind in _DICTS else dict)(zip(keys, items, strict=True))
    return sequence_of(treedef.kind, items)


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
    return of


def opaque_type(treedef: TreeDef) -> str | None:
    """Name the type of an object in a tree whose changes cannot be seen; None if there is none.

    Arrays and plain values can be compared; other objects, and attributes of subclasses, cannot.
    """
    if isinstance(treedef, _Leaf):
        return None if treedef.kind[0] in _ARRAYS else treedef.kind[0].__name__
    if isinstance(treedef, _Constant):
        return None if isinstance(treedef.value, _PLAIN) else treedef.kind.__name__
    if not (treedef.kind in (*_DICTS, list, tuple) or hasattr(treedef.kind, "_fields")
            or dataclasses.is_dataclass(treedef.kind)):
        return treedef.kind.__name__
    return next((name for name in map(opaque_type, treedef.items) if name), None)


def sequence_of(kind: type, items: list[Tree]) -> Tree:
    """Make a list, tuple or named tuple of items."""
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
