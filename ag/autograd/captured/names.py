"""Names: what a function reads that is not its own, found in its bytecode before it runs.

Knows functions, values and the bytecode of the user's code; no tensor, no launch, and not what becomes of a difference.
`ag.autograd.captured.notes` asks before a step, while it runs and after it; `ag.autograd.captured.meanings` compares.
Sources that are found on the way (`ag.autograd.captured.sources`) are kept here with their states, and `taken` says
whether the step took something from one.

A step reads more than its arguments.  Each of these is a place, a name in it, and what the name means now:

    rate = 0.1                        the module's globals    "rate"
    def make(scale):
        def step(x, limits=[2.0]):    the function            "__defaults__"
            return x * scale * rate   the cell of make        "scale"
    class Trainer:
        def step(self, x):            the attributes of self  "k"      (and the class's own "k", which it may hide)
            return x * self.k

Bytecode does not tell of what object an attribute is loaded: it may have been handed on, returned or taken from a list.
So every name that some code loads as an attribute is looked up in every object, class and module that was found, and
functions among what it means are read in turn, until nothing new is found.  A name that an object does not have is
noted, too, as it may come to have it.  Names that are set count like those that are loaded; code of installed packages
is not read.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dis import get_instructions
from functools import cache, cached_property, partial, partialmethod
from importlib.util import resolve_name
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import NamedTuple

from ag.autograd.captured.meanings import Name, Own, key_of, meaning
from ag.autograd.captured.snapshots import items_of
from ag.autograd.captured.sources import UNKNOWN, Source, source

__all__ = ["MOST", "NameReader"]

MOST = 10_000  # names of a step

_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM", "STORE_ATTR", "DELETE_ATTR")
_OUTER = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
_BY_STRING = {"__dict__", "attrgetter", "getattr", "globals", "hasattr", "methodcaller", "vars"}
_FEW = 100  # items of a container that are looked into, besides numbers and strings
_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_PLAIN = (*_NUMBERS, list, tuple, dict, set)
_MADE = {"__init__", "__new__"}  # methods that run when an object of a class is made, and not later
_WRAPPERS: dict[type, str] = {property: "fget", staticmethod: "__func__", classmethod: "__func__",
                              cached_property: "func", partialmethod: "func", type(cache(len)): "__wrapped__"}


@cache
def _is_installed(module: object) -> bool:
    """Whether a module is of this package, another one that is installed, or Python's own, as where there is none.

    A class may have something else in the place of its module's name, as Cython's functions do; then it is not known.
    """
    if not isinstance(module, str | None):
        return False
    package = (module or "builtins").partition(".")[0]
    if package == __name__.partition(".")[0] or (package in sys.stdlib_module_names and package != "__main__"):
        return True
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


class _Loaded(NamedTuple):
    """The names that code loads or sets, with all code inside it."""

    outer: frozenset[str]  # globals, or built-in functions
    enclosing: frozenset[str]  # variables of enclosing functions
    attributes: frozenset[str]
    imports: frozenset[str]  # modules, with a leading dot for each level of a relative import


@cache
def _loaded(code: CodeType) -> _Loaded:
    """The names that code loads or sets, from its bytecode."""
    codes = [code]
    for c in codes:
        codes += [inner for inner in c.co_consts if isinstance(inner, CodeType)]
    loads: set[tuple[str, str]] = set()
    imports: set[str] = set()
    for c in codes:
        given: list[object] = []  # constants: before an import the level, and what is taken from the module
        for i in get_instructions(c):
            if i.opname == "IMPORT_NAME" and isinstance(level := given[-2], int):
                imports.add("." * level + i.argval)
            elif i.opname == "MATCH_CLASS" and isinstance(names := given[-1], tuple):
                loads |= {("LOAD_ATTR", name) for name in names}
            elif i.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
                given.append(i.argval)
            if isinstance(i.argval, str):
                loads.add((i.opname, i.argval))
    outer = {name for op, name in loads if op in _OUTER}
    attributes = {name for op, name in loads if op in _ATTRIBUTES}
    if _BY_STRING & (outer | attributes):
        strings = {x for op, x in loads if op == "LOAD_CONST" and x.isidentifier()}
        outer, attributes = outer | strings, attributes | strings
    return _Loaded(frozenset(outer), frozenset(name for op, name in loads if op.endswith("DEREF")),
                   frozenset(attributes), frozenset(imports))


class _Space:
    """A place with many names, and which of them are read.

    Parameters
    ----------
    place : object
        See `Name`.
    keys : collection of str
        The names that it has before the step.
    """

    def __init__(self, place: object, keys: Collection[str]) -> None:
        self.place, self.keys = place, frozenset(keys)
        self.noted: set[str] = set()
        self.read: set[str] = set()  # some code reads these here
        self.open = False  # whether it is asked for all attributes, as globals are not
        self.special = False  # whether it has been asked for methods that are called by other means than their names
        self.foreign = False  # a module that is installed: its numbers and lists are read, its code is not


class NameReader:
    """Finds the names of functions, classes and values, each once.

    It holds all of them, as they are known by their ids, so whoever has read enough lets go of it.

    Parameters
    ----------
    watched : type
        Of objects that tell by themselves when an attribute is read, which need no names.

    Attributes
    ----------
    count : int
        Names that were found.
    """

    def __init__(self, watched: type) -> None:
        self._watched = watched
        self._found: list[Name] = []
        self._seen: dict[int, object] = {}
        self._kinds: set[type] = set()  # of watched objects
        self._spaces: dict[tuple[bool, int], _Space] = {}
        self._todo: list[object] = []
        self._attributes: set[str] = set()  # that any of the functions loads
        self._asked = 0  # for how many of them all spaces have been asked
        self._told: set[str] = set()  # attributes of watched objects that were read
        self._imports: list[tuple[str, FunctionType]] = []  # of modules that were not there
        self._sources: list[tuple[object, Source, object]] = []  # and their states when they were found
        self._called: dict[int, str] = {}  # names by values
        self.count = 0

    def new(self) -> list[Name]:
        """The names that were found since the last call."""
        while self.count < MOST and (self._todo or self._asked < len(self._attributes)):
            if self._todo:
                self._look_into(self._todo.pop())
                continue
            self._asked = len(self._attributes)
            for space in [*self._spaces.values()]:
                if space.open:
                    self._ask(space, self._attributes)
        found, self._found = self._found, []
        return found

    def values(self, *values: object) -> None:
        """Functions that are called, and what else is read, such as ``options`` of a layer's own."""
        self._todo += values

    def told(self, kind: type, name: str) -> None:
        """An attribute of a watched object is read, which may stand in the user's own class of it."""
        self._told.add(name)
        if kind not in self._kinds:
            self._kinds.add(kind)
            for space in self._classes(kind):
                self._ask(space, {x for x, value in vars(space.place).copy().items() if x[:2] != "__" and (
                    isinstance(value, (*_PLAIN, FunctionType)) or _wrapped(value) is not None)})

    def missing(self) -> Iterator[tuple[object, frozenset[str]]]:
        """Names that are read and that a place did not have before the step; asked after it."""
        for space in self._spaces.values():
            names = space.read | self._attributes if space.open else space.read
            if not space.foreign:
                yield space.place, frozenset((names | self._told if isinstance(space.place, type) else names)
                                             - space.keys)

    def known(self) -> frozenset[int]:
        """What was found, by ``id``."""
        return frozenset(self._seen)

    def taken(self) -> str | None:
        """What the step has taken from a source, in words."""
        for x, state, before in self._sources:
            now = state()
            if now is UNKNOWN or now != before:
                called = self._called.get(id(x), f"a {type(x).__name__}")
                return f"can reach {called}, from which it may take something" if now is UNKNOWN else (
                    f"takes something from {called}")
        return None

    def modules(self) -> None:
        """Look for modules again that functions import, and that were not there before the step."""
        imports, self._imports = self._imports, []
        for module, f in imports:
            self._import(module, f)

    # -------------------------------------------------------------------------------------- values

    def _look_into(self, x: object) -> None:
        if id(x) in self._seen or isinstance(x, (self._watched, *_NUMBERS)):
            return
        self._seen[id(x)] = x
        if (state := source(x)) is not None:
            before = state()
            if before is not UNKNOWN or _is_installed(type(x).__module__):  # a class of the user's is read itself
                self._sources.append((x, state, before))
        if isinstance(x, FunctionType):
            self._function(x)
        elif isinstance(x, MethodType):
            self._todo += x.__func__, x.__self__
        elif isinstance(x, ModuleType):
            self._space(vars(x), vars(x), foreign=_is_installed(x.__name__))
        elif isinstance(x, ContextVar):
            self._note(x, x.name, meaning(x, x.name))
        elif isinstance(x, type):
            self._classes(type(x))
            for space in self._classes(x):
                self._ask(space, _MADE)
        else:
            self._todo += [item for item in items_of(x) or () if not isinstance(item, _NUMBERS)][:_FEW]
            self._object(x)

    def _object(self, x: object) -> None:
        """Attributes of an object, and methods that may be called."""
        if isinstance(x, partial):
            self._todo.append(x.func)
            self._note(None, "args", (*x.args, x.keywords) if x.keywords else x.args)
        self._todo.append(_wrapped(x))
        self._classes(type(x))
        if isinstance(own := getattr(x, "__dict__", None), dict):
            self._space(Own(x), own)
        slots = {name for c in type(x).__mro__ if not _is_installed(c.__module__)
                 for name, value in vars(c).copy().items() if isinstance(value, MemberDescriptorType)}
        if slots:
            self._space(x, slots)

    def _classes(self, kind: type) -> list[_Space]:
        """The user's own among a class and its bases, with the special methods and properties in them."""
        spaces = [self._space(c, vars(c)) for c in kind.__mro__ if not _is_installed(c.__module__)]
        for space in spaces:
            if not space.special:
                space.special = True
                inside = vars(space.place).copy()
                self._ask(space, {name for name, value in inside.items() if isinstance(value, property) or (
                    name[:2] == "__" and name not in _MADE and isinstance(value, FunctionType))})
        return spaces

    def _function(self, f: FunctionType) -> None:
        """What a function reads."""
        if _is_installed(f.__module__):
            return
        code = _loaded(f.__code__)
        self._attributes |= code.attributes
        if f.__dict__:
            self._space(Own(f), f.__dict__)
            self._todo += f.__dict__.values()  # among them what decorators have wrapped
        for kind in ("__defaults__", "__kwdefaults__"):
            if (defaults := getattr(f, kind)) is not None:
                self._note(f, kind, defaults)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            if name in code.enclosing and id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self._note(cell, name, meaning(cell, name))
        self._ask(self._space(f.__globals__, f.__globals__, is_open=False), code.outer)
        for module in sorted(code.imports):
            self._import(module, f)

    def _import(self, module: str, f: FunctionType) -> None:
        """A function imports a module when it runs."""
        try:
            full = resolve_name(module, f.__globals__.get("__package__"))
        except ImportError:  # which it will tell itself
            return
        for name in sorted({full, full.partition(".")[0]}):
            if name in sys.modules:
                self._note(sys.modules, name, sys.modules[name])
            else:
                self._imports.append((module, f))

    # -------------------------------------------------------------------------------------- names

    def _space(self, place: object, keys: Collection[str], is_open: bool = True, foreign: bool = False) -> _Space:
        """The space of a place, which is asked for attributes."""
        key = key_of(place)
        space = self._spaces.get(key)
        if space is None:
            space = self._spaces[key] = _Space(place, keys)
        if is_open and not space.open:
            space.open, space.foreign = True, foreign
            self._ask(space, self._attributes)
        return space

    def _ask(self, space: _Space, names: AbstractSet[str]) -> None:
        """Note what names mean in a space that has them."""
        if not space.open:
            space.read.update(names)
        for name in sorted((space.keys & names) - space.noted):
            value = meaning(space.place, name)
            if not space.foreign or isinstance(value, _PLAIN):
                space.noted.add(name)
                self._note(space.place, name, value)
            elif source(value) is not None:
                self._called[id(value)] = name
                self._todo.append(value)

    def _note(self, place: object, name: str, value: object) -> None:
        self.count += 1
        self._called[id(value)] = name
        self._found.append(Name(place, name, value))
        self._todo.append(value)


def _wrapped(x: object) -> object:
    """The function in a descriptor, or in what a decorator of the standard library made; None if there is none."""
    return next((getattr(x, name) for kind, name in _WRAPPERS.items() if isinstance(x, kind)), None)
