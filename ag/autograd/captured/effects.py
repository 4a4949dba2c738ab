"""Effects: attributes of layers and optimizers that a step sets, which every replay sets again.

Knows no layer and no launch; `ag.autograd.captured.notes` makes one `Effects` per recording.

Where the step made the object, an eager call would leave a new one each time; so a list or dict is made anew:

    self.log = [x.shape]       each replay sets a new list with the same items, which callers may change or keep
    self.best = self.blocks[0] an object that was there before: the same each time
    self.cache = Cache()       nobody can make another one: the step is refused

A value that differs from call to call (``self.count += 1``) is recorded anew each time and never replayed, as what the
step reads has changed; if the step does not read it, the comparison of two calls refuses the step.  Attributes of
objects other than layers and optimizers are no effects: `ag.autograd.captured.notes` finds such a change, and the
recording is not replayed.
"""

from __future__ import annotations

from collections.abc import Container
from copy import deepcopy
from weakref import ref

from ag.autograd.captured.snapshots import MISSING, bytes_of, items_of, same, shown, snapshot
from ag.errors import CaptureError

__all__ = ["Effects"]

Key = tuple[int, str]  # the id of an object, and the name of an attribute


class Effects:
    """Attributes that a step has set, with their last values."""

    def __init__(self) -> None:
        self._set: dict[Key, tuple[ref[object], object]] = {}
        self._kept: dict[Key, object] = {}  # snapshots of the values
        self._made: dict[Key, dict[int, object]] = {}  # of values to be made anew: what stays as it is in them

    def __contains__(self, key: object) -> bool:
        return key in self._set

    def __len__(self) -> int:
        return len(self._set)

    def note(self, owner: object, name: str, value: object) -> None:
        """The step sets an attribute."""
        self._set[id(owner), name] = ref(owner), value

    def forget_the_dead(self) -> None:
        """Let go of what was set on objects that are gone."""
        self._set = {key: effect for key, effect in self._set.items() if effect[0]() is not None}

    def close(self, known: Container[int], kept: tuple[type, ...]) -> None:
        """The step is over.

        Parameters
        ----------
        known : container of int
            What was there before the step, by ``id``.
        kept : tuple of type
            Whose objects stay the same wherever they are set.

        Raises
        ------
        CaptureError
            If a value cannot be made again.
        """
        for key, (owner, value) in self._set.items():
            memo: dict[int, object] = {}
            made = _parts(value, known, kept, memo)
            if isinstance(made, type):
                raise CaptureError(f"ag_capture: the step sets {key[1]} of {type(owner()).__name__} to a "
                                   f"{made.__name__} that it made, and a replay could not make another. Make it before "
                                   f"the step, or leave the attribute as it is.")
            self._kept[key] = snapshot(value)
            if made:
                self._made[key] = memo
                self._set[key] = owner, deepcopy(value, {**memo})

    def repeat(self) -> None:
        """Set the attributes that the step set."""
        for key, (reference, value) in self._set.items():
            owner = reference()
            if owner is not None and (key in self._made or owner.__dict__.get(key[1], self) is not value):
                setattr(owner, key[1], deepcopy(value, {**self._made[key]}) if key in self._made else value)

    def difference(self, now: Effects) -> str | None:
        """What another call of the step has set otherwise, in words."""
        for key in self._kept.keys() | now._kept.keys():
            was, is_now = self._kept.get(key, MISSING), now._kept.get(key, MISSING)
            owner = (self._set.get(key) or now._set[key])[0]()
            if owner is not None and not same(was, is_now):
                return f"{key[1]} of {type(owner).__name__} was set to {shown(was)} and is set to {shown(is_now)}"
        return None


def _parts(value: object, known: Container[int], kept: tuple[type, ...], memo: dict[int, object]) -> bool | type:
    """Whether a value has to be made again, or the type of what cannot be; `memo` gets what is to stay the same."""
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
