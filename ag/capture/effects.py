"""Effects of a recorded step besides its results: attributes that it sets, and gradients that it reads or sets."""

from __future__ import annotations

from collections.abc import Container
from copy import deepcopy
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import numpy as np

from ag.autograd.tensor import Tensor
from ag.autograd.watched import MISSING, Watched
from ag.capture.snapshots import bytes_of, items_of, same, shown, snapshot
from ag.engine.buffer import Buffer
from ag.errors import CaptureError

# Replays set objects of these types as they are: they cannot change, or are not part of the step.
KEPT = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, type, FunctionType,
         BuiltinFunctionType, MethodType, ModuleType, Watched, Tensor, Buffer)


Key = tuple[int, str]  # the id of an object and the name of an attribute


class Effects:
    """Attributes of layers and optimizers that a step sets; every replay sets them again.

    Where the step made a list or dict, each replay makes a new one with the same items, as an eager call would.
    An object from before the step is set again.  A replay could not make other objects, so the step is refused.
    A value that differs in every call is recorded anew each time if the step reads it; else a comparison refuses it.
    """

    def __init__(self) -> None:
        self._set: dict[Key, tuple[ref[object], object]] = {}
        self._kept: dict[Key, object] = {}  # snapshots of the values
        self._made: dict[Key, dict[int, object]] = {}  # of values to be made anew: their parts that stay the same

    def __contains__(self, key: object) -> bool:
        return key in self._set

    def __len__(self) -> int:
        return len(self._set)

    def note(self, owner: object, name: str, value: object) -> None:
        """Note that the step sets an attribute, or deletes it: `MISSING`."""
        self._set[id(owner), name] = ref(owner), value

    def forget_the_dead(self) -> None:
        """Drop attributes of freed objects."""
        self._set = {key: effect for key, effect in self._set.items() if effect[0]() is not None}

    def close(self, known: Container[int], kept: tuple[type, ...]) -> None:
        """End noting; raise if a replay could not make a value.

        `known` has the ids of what was there before the step; objects of types in `kept` are set again as they are.
        """
        for key, (owner, value) in self._set.items():
            if value is MISSING:
                self._kept[key] = MISSING
                continue
            memo: dict[int, object] = {}
            try:
                made = _parts(value, known, kept, memo)
                copied = deepcopy(value, {**memo}) if made is True else value
            except RecursionError:
                raise CaptureError(f"ag_capture: the step sets {key[1]} of {type(owner()).__name__} to containers "
                                   f"nested too deep, or to one that contains itself, which a replay could not make "
                                   f"again. Make them before the step.") from None
            if isinstance(made, type):
                raise CaptureError(f"ag_capture: the step sets {key[1]} of {type(owner()).__name__} to a "
                                   f"{made.__name__} that it made, and a replay could not make another. Make it before "
                                   f"the step, or leave the attribute as it is.")
            self._kept[key] = snapshot(value)
            if made:
                self._made[key] = memo
                self._set[key] = owner, copied

    def repeat(self) -> None:
        """Set the attributes as the step did."""
        for key, (reference, value) in self._set.items():
            owner = reference()
            if value is MISSING:
                if owner is not None and key[1] in vars(owner):
                    delattr(owner, key[1])
            elif owner is not None and (key in self._made or owner.__dict__.get(key[1], self) is not value):
                setattr(owner, key[1], deepcopy(value, {**self._made[key]}) if key in self._made else value)

    def difference(self, now: Effects) -> str | None:
        """Describe the first attribute that another call set to another value, or None."""
        for key in self._kept.keys() | now._kept.keys():
            was, is_now = self._kept.get(key, MISSING), now._kept.get(key, MISSING)
            owner = (self._set.get(key) or now._set[key])[0]()
            if owner is not None and not same(was, is_now):
                return f"{key[1]} of {type(owner).__name__} was set to {shown(was)} and is set to {shown(is_now)}"
        return None


def _parts(value: object, known: Container[int], kept: tuple[type, ...], memo: dict[int, object]) -> bool | type:
    """Return whether a value must be made anew, or the type that cannot be; `memo` gets parts that stay the same."""
    if id(value) in known or isinstance(value, kept):
        memo[id(value)] = value
        return False
    if bytes_of(value) is not None:
        return True
    items = items_of(value)
    if items is None:
        return type(value)
    found = [_parts(item, known, kept, memo) for item in items]
    unknown = next((x for x in found if isinstance(x, type)), None)
    return unknown or any(found) or not isinstance(value, (tuple, frozenset))


class Leaf:
    """A tensor whose ``.grad`` the step read or set."""

    def __init__(self, tensor: Any, read: bool) -> None:
        self.tensor = tensor
        self.read = read  # before it was set
        self.initial: Any = None  # the gradient when it was read
        self.slot: Any = None  # its placeholder: every replay copies the gradient of then into it
