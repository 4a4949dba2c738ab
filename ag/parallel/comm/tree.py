"""Samples as trees: arrays in dicts, lists and tuples, taken apart and put together again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ag.autograd.tensor import Tensor

__all__ = ["flatten", "opaque", "sequence_of", "unflatten"]

_PLAIN = (int, float, complex, str, bytes, type(None), np.generic)  # unchangeable, and compared by value


class _Leaf:
    """Marks the place of an array in a sample's structure."""

    def __init__(self, index: int, kind: tuple[Any, ...]) -> None:
        self.index = index
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Leaf) and self.kind == other.kind

    def __hash__(self) -> int:
        return hash(self.kind)


def flatten(sample: Any) -> tuple[Any, list[Any]]:
    """A hashable structure with arrays replaced by places, and the arrays.

    Two samples with equal structures can be trained on by the same recorded step: arrays agree in kind, shape and
    type, and everything else is equal.
    """
    leaves: list[Any] = []

    def walk(x: Any) -> Any:
        if isinstance(x, (Tensor, np.ndarray)):
            leaves.append(x)
            return _Leaf(len(leaves) - 1, (type(x).__name__, tuple(x.shape), str(x.dtype)))
        if isinstance(x, dict):
            return (dict, tuple((k, walk(v)) for k, v in x.items()))
        if isinstance(x, (list, tuple)):
            return (type(x), tuple(walk(v) for v in x))
        return (None, (type(x), x))  # 1, 1.0 and True are equal, and yet not the same to a step

    return walk(sample), leaves


def opaque(structure: Any) -> str | None:
    """The type of something in a sample that is neither array nor plain value, so that nobody sees it change."""
    if isinstance(structure, _Leaf):
        return None
    kind, content = structure
    if kind is None:
        return None if isinstance(content[1], _PLAIN) else str(content[0].__name__)
    items = [v for _, v in content] if kind is dict else content
    return next((found for found in map(opaque, items) if found), None)


def unflatten(structure: Any, leaves: Any) -> Any:
    """The sample with `leaves` in their places."""
    if isinstance(structure, _Leaf):
        return leaves[structure.index]
    kind, content = structure
    if kind is None:
        return content[1]
    if kind is dict:
        return {k: unflatten(v, leaves) for k, v in content}
    items = [unflatten(v, leaves) for v in content]
    return sequence_of(kind, items)


def sequence_of(kind: Any, items: list[Any]) -> Any:
    """A list, tuple or named tuple of items."""
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
