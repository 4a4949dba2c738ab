"""Train and eval mode of models, and the walks over the objects in them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from gc import get_referents, is_tracked
from types import CodeType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, TypeVar

import numpy as np

from ag.autograd.tensor import Tensor
from ag.autograd.watched import Watched

M = TypeVar("M")

_NOT_INSIDE = (type, ModuleType, CodeType, FrameType)  # what these refer to is no part of a model
_OWN = ("ag.autograd.", "ag.capture.", "ag.engine.")  # objects of these packages hold no layers, such as devices
_NO_VALUES = (*_NOT_INSIDE, FunctionType, classmethod, staticmethod, property, MemberDescriptorType)
_LIBRARIES = {"ag", "builtins", *sys.stdlib_module_names}  # whose classes hold no layers of a model


def _is_closed(x: object) -> bool:
    return isinstance(x, _NOT_INSIDE) or type(x).__module__.startswith(_OWN)


def _inside(x: object) -> Iterable[object]:
    """List what an object refers to directly, without running its class's code; of a function, what it was given."""
    if isinstance(x, np.ndarray):
        return x.ravel().tolist() if x.dtype.hasobject else ()
    if not is_tracked(x) or isinstance(x, _NOT_INSIDE):
        return ()
    if _is_closed(x):
        return [getattr(x, "__wrapped__", None)]  # of a captured step
    if isinstance(x, FunctionType):  # not its globals
        return [*(x.__closure__ or ()), x.__defaults__, x.__kwdefaults__, vars(x)]
    if type(x).__module__.partition(".")[0] in _LIBRARIES:  # hot path: nearly all are dicts, lists and tuples
        return get_referents(x)
    classes = [base for base in type(x).__mro__ if base.__module__.partition(".")[0] not in _LIBRARIES]  # the user's
    return [*get_referents(x), *(value for base in classes for value in vars(base).values()
                                 if not isinstance(value, _NO_VALUES))]


def objects_in(model: object, seen: set[int] | None = None, functions: bool = False,
               closed: type | tuple[type, ...] = Tensor) -> Iterator[object]:
    """A model and every object inside it, each once, however nested.

    Leaves out those with an id in `seen`, and what types in `closed` hold.  `functions`: also what functions hold.
    """
    seen = set() if seen is None else seen
    todo = [model]
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, closed) or (isinstance(part, FunctionType) and not functions):
            continue
        # attributes first, in their order, which copies have as well; copies, as other threads may change them
        attributes = [] if _is_closed(part) else [*dict(getattr(part, "__dict__", ())).values()]
        todo += reversed([*attributes, *_inside(part)])


def members(attributes: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Name what stands in attributes; in lists from 1, in dicts by key; what has an underscore as it is."""
    for own, value in attributes.items():
        if own[:1] == "_" or not isinstance(value, (list, tuple, dict)):
            yield own, value
            continue
        todo: list[tuple[str, object, tuple[object, ...]]] = [(own, value, ())]
        while todo:
            name, x, around = todo.pop()
            if not isinstance(x, (list, tuple, dict)):
                yield name, x
                continue
            if any(x is outer for outer in around):
                raise ValueError(f"Layer: attribute {name!r} is a {type(x).__name__} that contains itself, so what is "
                                 f"in it has no end of names; take it out of itself.")
            inside = [(f"{name}_{type(key).__name__ if isinstance(key, (Watched, Tensor)) else key}", item)
                      for key, item in x.items()] if isinstance(x, dict) else [
                (f"{name}{i}", item) for i, item in enumerate(x, 1)]
            todo += [(longer, item, (*around, x)) for longer, item in reversed(inside)]


def modes_of(model: object) -> list[tuple[Any, bool]]:
    """Every object in a model that has a mode, with its mode; tensors are many and have none."""
    return [(x, x.training) for x in objects_in(model, functions=True)
            if not isinstance(x, (Tensor, type, ModuleType)) and hasattr(x, "training")]


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
    """Put a model into train mode, every layer in it, however nested; returns the model.

    Parameters
    ----------
    model : Layer or any object holding layers

    Returns
    -------
    object

    Examples
    --------
    >>> ag.ag_train(ag.ag_sequential(ag.ag_dropout(0.5))).training
    True
    """
    return set_mode(model, True)


def ag_eval(model: M) -> M:
    return set_mode(model, False)


ag_eval.__doc__ = (ag_train.__doc__ or "").replace("train mode", "eval mode").replace("ag_train", "ag_eval").replace(
    "True", "False")
