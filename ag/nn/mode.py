"""Train and eval mode of models, whatever they are made of, and the walks over the objects in them.

Models need not be layers: whatever has an attribute `training` has a mode, and `objects_in` finds it.  Names come from
`members`, which goes into lists, tuples and dicts only; what stands elsewhere `hidden_in` finds:

    self.blocks = [linear, linear]         ("blocks1", linear)  ("blocks2", linear)
    self.heads = {"out": linear}           ("heads_out", linear)
    self.queue = deque([linear])           ("queue", the deque), in which linear is hidden

Knows no layer; layers, users and `ag.parallel` call it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Protocol, TypeGuard, TypeVar

import numpy as np

from ag.autograd.tensor import Tensor
from ag.autograd.watched import Watched

__all__ = ["ag_eval", "ag_train", "hidden_in", "members", "modes_kept", "modes_of", "objects_in", "set_mode"]

M = TypeVar("M")


class _Moded(Protocol):
    training: bool


def objects_in(model: object, seen: set[int] | None = None) -> Iterator[object]:
    """A model and every object inside it, each once, however nested; models need not be layers.

    Attributes of objects are followed, and items of lists, tuples and dicts; objects with an id in `seen` are not.
    """
    seen = set() if seen is None else seen
    if id(model) in seen:
        return
    seen.add(id(model))
    yield model
    parts: Iterable[object] = ()
    if isinstance(model, (list, tuple)):
        parts = [*model]  # of copies, as other threads may change them meanwhile
    elif isinstance(model, dict):
        parts = dict(model).values()
    elif hasattr(model, "__dict__") and not isinstance(model, (type, ModuleType)):
        parts = dict(vars(model)).values()
    for part in parts:
        yield from objects_in(part, seen)


def members(attributes: Mapping[str, object], around: tuple[object, ...] = ()) -> Iterator[tuple[str, object]]:
    """What stands in attributes; in lists it is numbered from 1, in dicts the key follows the name.

    An attribute whose name begins with an underscore is left as it is.

    Raises
    ------
    ValueError
        If a list or dict contains itself.
    """
    for name, x in attributes.items():
        if name[0] == "_" or not isinstance(x, (list, tuple, dict)):
            yield name, x
            continue
        if any(x is outer for outer in around):
            raise ValueError(f"Layer: attribute {name!r} is a {type(x).__name__} that contains itself, so what is in "
                             f"it has no end of names; take it out of itself.")
        inside = {f"{name}_{key}": item for key, item in x.items()} if isinstance(x, dict) else {
            f"{name}{i}": item for i, item in enumerate(x, 1)}
        yield from members(inside, (*around, x))


def hidden_in(x: object) -> Iterator[object]:
    """What stands in an object that is no list, tuple or dict, and what stands in such and in methods there.

    Containers, attributes of plain objects, arguments of partial functions, what methods are bound to and what local
    functions take from around them.
    """
    for part in _parts(x, whole=True):
        yield part
        yield from _parts(part, whole=False)


def _parts(x: object, whole: bool) -> Iterable[object]:
    """What stands directly in an object; `whole`: also if that takes looking at all its attributes."""
    if isinstance(x, (list, tuple, set, frozenset, deque)):
        return [*x]  # copies, as other threads may change them meanwhile
    if isinstance(x, (dict, MappingProxyType)):
        return [*x.values()]
    if isinstance(x, MethodType):
        return [x.__self__, *_parts(x.__self__, whole)]
    if isinstance(x, partial):
        return [x.func, *x.args, *x.keywords.values()]
    if isinstance(x, np.ndarray):
        return x.ravel().tolist() if x.dtype.hasobject else ()
    if not whole or isinstance(x, (type, ModuleType, Watched)):  # layers are asked for theirs, optimizers have none
        return ()
    if isinstance(x, FunctionType):
        return [content for cell in x.__closure__ or () for content in _content(cell)]
    return [*getattr(x, "__dict__", {}).values()]


def _content(cell: CellType) -> list[object]:
    try:
        return [cell.cell_contents]
    except ValueError:  # nothing was assigned to that name
        return []


def _has_mode(x: object) -> TypeGuard[_Moded]:
    """Whether an object has a mode; tensors, which are many and have none, are not asked."""
    return not isinstance(x, (Tensor, type, ModuleType)) and hasattr(x, "training")


def modes_of(model: object) -> list[tuple[_Moded, bool]]:
    """Every object in a model that has a mode, with its mode."""
    return [(x, x.training) for x in objects_in(model) if _has_mode(x)]


@contextmanager
def modes_kept(model: object) -> Iterator[None]:
    """Leave all modes in a model as they were."""
    modes = modes_of(model)
    try:
        yield
    finally:
        for x, mode in modes:
            if x.training is not mode:
                x.training = mode


def set_mode(model: M, mode: bool) -> M:
    """Set train or eval mode of a model and of every object inside it that has one; returns the model."""
    for x, _ in modes_of(model):
        x.training = mode
    return model


def ag_train(model: M) -> M:
    """Put a model into train mode, every layer in it, however nested.

    Parameters
    ----------
    model : Layer or any object holding layers

    Returns
    -------
    object
        The model.

    References
    ----------
    ggmlR ``ag_train`` (which does not recurse).

    Examples
    --------
    >>> import ag
    >>> ag.ag_train(ag.ag_sequential(ag.ag_dropout(0.5))).training
    True
    """
    return set_mode(model, True)


def ag_eval(model: M) -> M:
    """Put a model into eval mode, every layer in it, however nested.

    Parameters
    ----------
    model : Layer or any object holding layers

    Returns
    -------
    object
        The model.

    References
    ----------
    ggmlR ``ag_eval`` (which does not recurse).

    Examples
    --------
    >>> import ag
    >>> ag.ag_eval(ag.ag_sequential(ag.ag_dropout(0.5))).training
    False
    """
    return set_mode(model, False)
