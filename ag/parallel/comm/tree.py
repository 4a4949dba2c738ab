"""Trees (pytrees): dicts, lists and tuples with arrays in them, taken apart and put together again.

    tree_flatten({"x": a, "y": [b, 3]})   ->   leaves [a, b], treedef {"x": *, "y": [*, 3]}
    tree_unflatten(treedef, [c, d])       ->   {"x": c, "y": [d, 3]}

Leaves are tensors and numpy arrays; everything else belongs to the treedef.  The names are those of JAX.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    """A list or tuple, or a dict, which has keys: strings, and constants for others."""

    kind: type
    items: tuple[TreeDef, ...]
    keys: tuple[object, ...] | None = None


TreeDef = _Leaf | _Constant | _Container
Tree = Any  # of leaves, containers and constants
Leaf = Any  # a tensor or a numpy array


def tree_flatten(tree: Tree) -> tuple[list[Leaf], TreeDef]:
    """The arrays of a tree in order, and its hashable structure.

    Two samples with equal structures can be trained on by the same captured step: their arrays agree in type, shape
    and element type, and everything else is equal.
    """
    leaves: list[Leaf] = []
    treedef = _structure(tree, leaves)
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


def _structure(x: Tree, leaves: list[Leaf]) -> TreeDef:
    """Return the structure of a tree and append its arrays to `leaves`."""
    if isinstance(x, (Tensor, np.ndarray)):
        leaves.append(x)
        return _Leaf(len(leaves) - 1, (type(x), x.shape, x.dtype))
    if isinstance(x, dict):
        keys = tuple([key if type(key) is str else _constant(key) for key in x])
        return _Container(type(x), tuple([_structure(item, leaves) for item in x.values()]), keys)
    if isinstance(x, (list, tuple)):
        return _Container(type(x), tuple([_structure(item, leaves) for item in x]))
    return _constant(x)


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
        return (treedef.kind if treedef.kind in _DICTS else dict)(zip(keys, items, strict=True))
    return sequence_of(treedef.kind, items)


def tree_leaves(tree: Tree) -> list[Leaf]:
    """Return the arrays of a tree in order."""
    if isinstance(tree, (Tensor, np.ndarray)):
        return [tree]
    if isinstance(tree, (dict, list, tuple)):
        items = tree.values() if isinstance(tree, dict) else tree
        return [leaf for item in items for leaf in tree_leaves(item)]
    return []


def tree_map(f: Callable[[Leaf], Leaf], tree: Tree) -> Tree:
    """Return the tree with ``f(leaf)`` in the place of every leaf."""
    leaves, treedef = tree_flatten(tree)
    return tree_unflatten(treedef, [f(leaf) for leaf in leaves])


def opaque_type(treedef: TreeDef) -> str | None:
    """Name the type of an object in a tree whose changes cannot be seen; None if there is none.

    Arrays and plain values can be compared; other objects, and attributes of subclasses, cannot.
    """
    if isinstance(treedef, _Leaf):
        return None if treedef.kind[0] in _ARRAYS else treedef.kind[0].__name__
    if isinstance(treedef, _Constant):
        return None if isinstance(treedef.value, _PLAIN) else treedef.kind.__name__
    if not (treedef.kind in (*_DICTS, list, tuple) or hasattr(treedef.kind, "_fields")):
        return treedef.kind.__name__
    return next((name for name in map(opaque_type, treedef.items) if name), None)


def sequence_of(kind: type, items: list[Tree]) -> Tree:
    """Make a list, tuple or named tuple of items."""
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
