"""Names: what a function reads that is not its own, found in its bytecode before it runs.

A step reads more than its arguments.  Each of these is a place, a name in it, and what the name means now:

    rate = 0.1                        the module's globals    "rate"
    def make(scale):
        def step(x, limits=[2.0]):    the function            "__defaults__"
            return x * scale * rate   the cell of make        "scale"
    class Trainer:
        def step(self, x):            the attributes of self  "k"      (and the class's own "k", which it may hide)
            return x * self.k

Only what some code loads counts: what a step sets and never reads may change.  Functions that are found, and methods by
the names of attributes, are read in turn; those of installed packages are not.  `ag.autograd.watched` asks before a
recording, and compares before every replay.
"""

from __future__ import annotations

import sys
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from dis import get_instructions
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, NamedTuple

from ag.autograd.captured.snapshots import held, weak

__all__ = ["Name", "NameReader", "meaning", "weak_place"]

_LOADS = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_MOST = 2000  # names of a step
_FEW = 100  # items of a container that are looked into
_PLAIN = (bool, int, float, complex, str, bytes, type(None), list, deque, tuple, dict, set)


class Name(NamedTuple):
    """A name, where it is looked up, and what it means."""

    place: Any
    name: str
    value: object


class Own(NamedTuple):
    """A place: what an object has itself, and not from its class."""

    owner: object


def weak_place(place: object) -> object:
    """The same place, which it does not hold, if there are weak references to its kind."""
    return Own(weak(place.owner)) if isinstance(place, Own) else weak(place)


def meaning(place: Any, name: str) -> Any:
    """What a name means now; None if nothing."""
    place = held(place)
    if isinstance(place, Own):
        place = getattr(held(place.owner), "__dict__", None) or {}
    if isinstance(place, dict):
        return place.get(name)
    if isinstance(place, CellType):
        try:
            return place.cell_contents
        except ValueError:  # not assigned, or deleted
            return None
    if isinstance(place, type):
        return place.__dict__.get(name)
    return getattr(place, name, None)


@cache
def _is_installed(module: str | None) -> bool:
    """Whether a module is of this package, another one that is installed, or Python's own."""
    package = (module or "builtins").partition(".")[0]
    if package == __name__.partition(".")[0] or (package in sys.stdlib_module_names and package != "__main__"):
        return True
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


@cache
def _loaded(code: CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The globals, variables of enclosing functions, and attributes that code loads, with all code inside it."""
    codes = [code]
    for c in codes:
        codes += [inner for inner in c.co_consts if isinstance(inner, CodeType)]
    loads = {(i.opname, i.argval) for c in codes for i in get_instructions(c) if i.opname.startswith("LOAD_")}
    return (frozenset(name for op, name in loads if op in ("LOAD_GLOBAL", "LOAD_NAME")),
            frozenset(name for op, name in loads if op.endswith("DEREF")),
            frozenset(name for op, name in loads if op in _LOADS))


class NameReader:
    """Finds the names of functions, classes and values, each once.

    It holds all of them, as they are known by their ids, so whoever has read enough lets go of it.

    Parameters
    ----------
    watched : type
        Of objects that tell by themselves when an attribute is read, which need no names.
    """

    def __init__(self, watched: type) -> None:
        self._watched = watched
        self._found: list[Name] = []
        self._given = 0  # how many of them `new` has returned
        self._seen: set[object] = set()
        self._attributes: set[str] = set()  # that any of the functions loads

    def new(self) -> list[Name]:
        """The names that were found since the last call."""
        found = self._found[self._given :]
        self._given = len(self._found)
        return found

    def functions(self, functions: Iterable[object]) -> None:
        """What functions read; each may be a method, a `functools.partial` or an object that can be called, too."""
        for function in functions:
            self.value(function, frozenset())

    def methods(self, kind: type) -> None:
        """What is in a user's own class of watched objects, and what its methods read."""
        for _, f in self._of_class(kind):
            self.function(f)

    def attribute(self, x: object) -> None:
        """What may be read of the value of a watched object's attribute, such as ``options`` of a layer's own."""
        self.value(x, frozenset(self._attributes))

    def _is_new(self, *key: object) -> bool:
        new = key not in self._seen and len(self._found) < _MOST
        self._seen.add(key)
        return new

    def _add(self, place: object, name: str, value: object) -> None:
        if self._is_new(id(place.owner if isinstance(place, Own) else place), name):
            self._found.append(Name(place, name, value))

    def function(self, f: FunctionType, owner: object = None) -> None:
        """What a function reads; `owner` is what its first parameter will be, if it is known."""
        if _is_installed(f.__module__) or not self._is_new(f.__code__, id(owner)):
            return
        outer, enclosing, attributes = _loaded(f.__code__)
        self._attributes |= attributes
        for kind in ("__defaults__", "__kwdefaults__"):
            if (defaults := getattr(f, kind)) is not None:
                self._add(f, kind, defaults)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            if name in enclosing:
                self._named(cell, name, meaning(cell, name), attributes)
        for name in sorted(outer & f.__globals__.keys()):
            self._named(f.__globals__, name, f.__globals__[name], attributes)
        if owner is not None:
            self.value(owner, attributes)

    def _named(self, place: object, name: str, value: object, attributes: frozenset[str]) -> None:
        if not isinstance(value, ModuleType):
            self._add(place, name, value)
        self.value(value, attributes)

    def value(self, x: object, attributes: frozenset[str]) -> None:
        """What is read of a value by code that loads attributes with these names."""
        if isinstance(x, (type, self._watched)) or not self._is_new(id(x), attributes):
            return
        if isinstance(x, FunctionType):
            self.function(x)
        elif isinstance(x, MethodType) and isinstance(x.__func__, FunctionType):
            self.function(x.__func__, x.__self__)
        elif isinstance(x, partial):
            for part in (x.func, *x.args, *x.keywords.values()):
                self.value(part, attributes)
            self._add(x, "args", x.args)
            self._add(x, "keywords", x.keywords)
        elif isinstance(x, (UserDict, UserList)):
            self.value(x.data, attributes)
        elif isinstance(x, (list, deque, tuple, dict)):
            for item in [*(x.values() if isinstance(x, dict) else x)][:_FEW]:
                if not isinstance(item, _PLAIN) or isinstance(item, (list, deque, tuple, dict)):
                    self.value(item, attributes)
        elif isinstance(x, ModuleType):
            kept: tuple[type, ...] = _PLAIN if _is_installed(x.__name__) else (object,)
            for name in sorted(attributes & vars(x).keys()):
                value = vars(x)[name]
                if isinstance(value, kept) and not isinstance(value, (type, ModuleType)):
                    self._named(vars(x), name, value, attributes)
        elif not _is_installed(type(x).__module__):
            self._object(x, attributes)
        elif isinstance(own := getattr(x, "__dict__", None), dict):  # such as an `argparse.Namespace`
            for name in sorted(attributes & own.keys()):
                self._named(Own(x), name, own[name], attributes)

    def _object(self, x: object, attributes: frozenset[str]) -> None:
        """Attributes of an object of the user's own, and methods that may be called."""
        own = getattr(x, "__dict__", None)
        for name in sorted(attributes):
            inherited = next((c.__dict__[name] for c in type(x).__mro__ if name in c.__dict__), None)
            if isinstance(own, dict) and (name in own or inherited is not None):
                self._named(Own(x), name, own.get(name), attributes)
            elif isinstance(inherited, MemberDescriptorType):
                self._named(x, name, getattr(x, name, None), attributes)
        for name, f in self._of_class(type(x)):
            if name in attributes or (name[:2] == "__" and name not in ("__init__", "__new__")):
                self.function(f, x)

    def _of_class(self, kind: type) -> Iterator[tuple[str, FunctionType]]:
        """Note what is in a class and its bases; its functions by name."""
        for c in kind.__mro__:
            if _is_installed(c.__module__):
                continue
            for name, value in c.__dict__.copy().items():
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if isinstance(function, FunctionType):
                    yield name, function
                if name[:2] != "__" and isinstance(function, (*_PLAIN, FunctionType)):
                    self._add(c, name, value)
