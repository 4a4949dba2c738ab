"""Meanings: what the names that a step reads meant, compared quickly with what they mean now.

Names stand together by the place where they are looked up, so one comparison of the values' identities does for all:

    globals of a module      rate, model, scaled        <- ids noted      dict.get of each      -> the same ids?
    attributes of config     rate, k                                      and none of the names it did not have?

Only where an identity is another one are values compared (`ag.autograd.captured.snapshots`).  What can be held weakly
is, so that nothing lives longer for having been read; an identity says nothing once what had it is gone, so each tells
when it goes.  Knows no bytecode: `ag.autograd.captured.names` finds names.  `ag.autograd.captured.notes` asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from itertools import repeat
from types import CellType
from typing import NamedTuple
from weakref import ref

from ag.autograd.captured.snapshots import MISSING, held, same, shown, snapshot, weak
from ag.autograd.captured.unchanged import Rows

__all__ = ["Meanings", "Name", "Own", "key_of", "meaning"]

_NOTHING = repeat(MISSING)  # which has no state, so all may share it


class Name(NamedTuple):
    """A name, where it is looked up, and what it means; no place: it cannot mean anything else."""

    place: object
    name: str
    value: object


class Own(NamedTuple):
    """A place: what an object has itself, and not from its class."""

    owner: object


def key_of(place: object) -> tuple[bool, int]:
    """By what a place is told from others."""
    return (True, id(place.owner)) if isinstance(place, Own) else (False, id(place))


def _has_names(place: object) -> bool:
    """Whether a place has all its names in one dict."""
    return isinstance(place, (Own, type, dict))


def _names_in(place: object) -> Mapping[str, object]:
    """Those names; none if the place is gone."""
    if isinstance(place, dict):
        return place
    own: Mapping[str, object] = getattr(held(place.owner) if isinstance(place, Own) else place, "__dict__", {})
    return own


def meaning(place: object, name: str) -> object:
    """What a name means now, `MISSING` if nothing."""
    if _has_names(place):
        return _names_in(place).get(name, MISSING)
    if isinstance(place, CellType):
        try:
            return place.cell_contents
        except ValueError:  # not assigned, or deleted
            return MISSING
    return place.get(MISSING) if isinstance(place, ContextVar) else getattr(place, name, MISSING)


class _Group:
    """Names that are looked up together, and what they meant.

    Parameters
    ----------
    place : object, optional
        Where all of them are; None: each has its own.
    """

    def __init__(self, place: object = None) -> None:
        self.place = Own(weak(place.owner)) if isinstance(place, Own) else weak(place)
        self.places: list[object] = []
        self.names: list[str] = []
        self.ids: list[int] = []
        self.absent: frozenset[str] = frozenset()
        self._before: list[object] = []
        self._meant: list[object] = []  # snapshots

    def add(self, name: Name, gone: list[object]) -> None:
        """Note what a name means."""
        self.places.append(self.place or weak(name.place))
        self.names.append(name.name)
        self.ids.append(id(name.value))
        self._before.append(_weak(name.value, gone))
        self._meant.append(snapshot(name.value))

    def change(self, gone: list[object]) -> str | None:
        """What means something else, in words; if all means the same by other objects, those are compared next."""
        now = [meaning(held(place), name) for place, name in zip(self.places, self.names, strict=True)]
        for name, before, meant, value in zip(self.names, self._before, self._meant, now, strict=True):
            if value is not held(before) and not same(meant, snapshot(value)):
                return f"{name} was {shown(before)} and is {shown(value)}"
        for name in sorted(self.absent):
            if (value := meaning(held(self.place), name)) is not MISSING:
                return f"{name} was {MISSING!r} and is {shown(value)}"
        self.ids[:] = map(id, now)
        self._before[:] = [_weak(value, gone) for value in now]
        return None


class Meanings:
    """What names meant when they were noted."""

    def __init__(self) -> None:
        self._single = _Group()  # cells, slots, defaults of functions
        self._groups: dict[tuple[bool, int], _Group] = {}
        self._gone: list[object] = []  # a reference to each object that names meant and that is gone
        # What `change` compares: a dict of globals, or of whom the attributes are, with the group and what is in it.
        self._places: list[tuple[object, list[str], list[int], frozenset[str], _Group]] = []

    def add(self, name: Name) -> None:
        """Note what a name means; whoever adds holds the place and the value until `close`."""
        (self._group(name.place) if _has_names(name.place) else self._single).add(name, self._gone)

    def absent(self, place: object, names: frozenset[str]) -> None:
        """Note that a place has none of some names."""
        if names:
            self._group(place).absent = names

    def _group(self, place: object) -> _Group:
        key = key_of(place)
        if key not in self._groups:
            self._groups[key] = _Group(place)
        return self._groups[key]

    def close(self) -> None:
        """The step is over: forget places that are gone with it, as another call makes its own."""
        for group in self._groups.values():
            place = group.place.owner if isinstance(group.place, Own) else group.place
            if held(place) is not None:
                self._places.append((place, group.names, group.ids, group.absent, group))
        self._groups = {}

    def rows(self) -> tuple[Rows, Rows, list[object]]:
        """For `ag.autograd.captured.unchanged`: names by their places, those with places of their own, what is gone."""
        single = self._single
        return ([(place, names, ids, absent, tuple(absent)) for place, names, ids, absent, _ in self._places],
                [(single.places, single.names, single.ids)], self._gone)

    def change(self) -> str | None:
        """What means something else, in words; None if nothing does."""
        gone, single = len(self._gone), self._single
        doubtful: list[_Group] = []
        if single.ids and (gone or single.ids != [id(meaning(held(place), name)) for place, name in zip(
                single.places, single.names, strict=True)]):
            doubtful.append(single)
        for place, names, ids, absent, group in self._places:
            own = place if isinstance(place, dict) else getattr(held(place), "__dict__", {})
            if gone or (names and [*map(id, map(own.get, names, _NOTHING))] != ids) or (
                    absent and not own.keys().isdisjoint(absent)):
                doubtful.append(group)
        for group in doubtful:
            if (found := group.change(self._gone)) is not None:
                return found
        del self._gone[:gone]
        return None


def _weak(value: object, gone: list[object]) -> object:
    """A weak reference, if there are any to this kind of value, that is put into a list when the value is gone."""
    try:
        return ref(value, gone.append)
    except TypeError:
        return value
