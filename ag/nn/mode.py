"""Train and eval mode of models, whatever they are made of, and the walk over the objects in them.

Models need not be layers: whatever has an attribute `training` has a mode.  Knows no layer; layers, users and
`ag.parallel` call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Protocol, TypeGuard, TypeVar

from ag.autograd.tensor import Tensor

__all__ = ["ag_eval", "ag_train", "modes_kept", "modes_of", "objects_in", "set_mode"]

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
