"""Reads: the names that a step reads outside its own locals, found in bytecode.

Bytecode does not tell of which object an attribute is loaded.  So every attribute name that any code loads or sets is
looked up in every object, class and module found, and functions among the values are read in turn.
"""

from __future__ import annotations

import builtins
import random
import sys
from collections import ChainMap, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dis import get_instructions
from functools import cache, cached_property, partial, partialmethod
from importlib.util import resolve_name
from io import IOBase
from itertools import count, pairwise, repeat
from operator import attrgetter, length_hint, methodcaller
from pickle import dumps
from queue import Queue, SimpleQueue
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import numpy as np

from ag.autograd.watched import MISSING, Absent

# ------------------------------------------------------------------------------------------ places of names

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def weak(value: object) -> object:
    """Return a weak reference to `value`, or itself if it has none, like numbers, lists and dicts."""
    try:
        return ref(value)
    except TypeError:
        return value


GONE = Absent("an object that is gone")


def held(value: object) -> object:
    """Return what `weak` was given; `GONE`, which is the value of no name, if it was freed."""
    if type(value) is not ref:
        return value
    there = value()
    return GONE if there is None else there


def items_of(x: object) -> list[object] | None:
    """Copy the items of a container, keys and values of a dict; None if it is not one.  Threads may change it."""
    if isinstance(x, (dict, MappingProxyType)):
        copied = x.copy()
        return [*copied, *copied.values(), *([x.default_factory] if isinstance(x, defaultdict) else ())]
    if isinstance(x, np.ndarray):
        return x.ravel().tolist() if x.dtype == object else None
    if isinstance(x, (list, tuple, frozenset)):
        return [*x]
    if isinstance(x, (deque, set)):
        return [*x.copy()]
    if isinstance(x, (UserDict, UserList)):
        return [x.data]
    if isinstance(x, ChainMap):
        return [x.maps]
    if isinstance(x, (WeakKeyDictionary, WeakSet, WeakValueDictionary)):
        return items_of(vars(x)["data"])  # references, which are the same as long as what they refer to is there
    return items_of(getattr(x, "mapping", None)) if isinstance(x, _VIEWS) else None


def dict_of(x: object) -> Any:
    """Return the attributes of an object's own; None where it has none, without running a `__getattr__` of the user."""
    kind = type(x)
    return None if not kind.__dictoffset__ and _has(kind, "__getattr__") else getattr(x, "__dict__", None)


def _has(kind: type, name: str) -> bool:
    return any(name in vars(c) for c in kind.__mro__)


class Name(NamedTuple):
    """A name, the place where it is looked up, and its value; no place: the value is fixed."""

    place: object
    name: str
    value: object


class Own(NamedTuple):
    """A place: an object's own attributes, without its class's."""

    owner: object


REFERENT = sys.intern("referent")  # the name of what a weak reference refers to
# Attributes that stand in no dict of their object or class.
SPECIAL = frozenset(("__bases__", "__class__", "__code__"))


def key_of(place: object) -> tuple[bool, int]:
    return (True, id(place.owner)) if isinstance(place, Own) else (False, id(place))


def in_dict(place: object, name: str) -> bool:
    """Return whether a name of a place stands in the one dict that the place has."""
    return isinstance(place, (Own, type, dict)) and name not in SPECIAL


def meaning(place: object, name: str) -> object:
    """Return the value of a name now, `MISSING` if there is none."""
    if name in SPECIAL:
        return getattr(place, name, MISSING)
    if name is REFERENT:
        there = place() if isinstance(place, ReferenceType) else place
        return MISSING if there is None or there is GONE else there
    if in_dict(place, name):
        own: Mapping[str, object] = place if isinstance(place, dict) else vars(
            place.owner if isinstance(place, Own) else place)
        return own.get(name, MISSING)
    if isinstance(place, CellType):
        try:
            return place.cell_contents
        except ValueError:  # unassigned or deleted
            return MISSING
    return place.get(MISSING) if isinstance(place, ContextVar) else getattr(place, name, MISSING)


# ------------------------------------------------------------------------------------------ sources of values

Source = Callable[[], object]  # returns the state, for comparison

UNKNOWN = object()  # state of a source that does not show it
# Iterators with a length hint.
_COUNTED = (*map(type, (iter([]), iter(()), iter(""), iter(b""), iter(range(0)), iter(range(1 << 80)), iter(set()),
                        iter({}), iter({}.values()), iter({}.items()), reversed([]), reversed({}))), repeat)


def source(x: Any) -> Source | None:
    """Return a function for the state of a source, of a method's source, or of a module's generator; else None."""
    if isinstance(x, (BuiltinMethodType, MethodWrapperType)):
        x = x.__self__
    if isinstance(x, ModuleType):
        x = _behind(x)
    kind = type(x)
    is_iterator = _has(kind, "__next__")
    if kind.__module__ == "builtins" and not is_iterator:
        return None  # hot path: most values
    if isinstance(x, np.random.RandomState):
        return lambda: dumps(x.get_state(legacy=False))  # a dict with arrays
    if isinstance(x, (np.random.Generator, np.random.BitGenerator)):
        bits: Any = getattr(x, "bit_generator", x)
        return lambda: dumps(bits.state)
    if isinstance(x, Queue):
        return lambda: [*map(id, x.queue)]
    if isinstance(x, SimpleQueue):
        return x.qsize
    if isinstance(x, random.Random):
        return partial(_pythons, x)
    if not is_iterator or isinstance(x, IOBase):
        return None
    if isinstance(x, count):
        return partial(repr, x)
    return partial(length_hint, x, -1) if isinstance(x, _COUNTED) else lambda: UNKNOWN


def _behind(module: ModuleType) -> object:
    """Return the generator that the functions of a module draw from."""
    if module.__name__ == "random":
        return module.random.__self__
    return np.random.mtrand._rand if module.__name__ == "numpy.random" else None


def _pythons(x: random.Random) -> object:
    try:
        return x.getstate()
    except NotImplementedError:  # `SystemRandom`
        return UNKNOWN


# ------------------------------------------------------------------------------------------ names in bytecode

MOST = 10_000  # names of a step, the limit

_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM", "STORE_ATTR", "DELETE_ATTR")
_OUTER = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
_EMPTY = {"CACHE", "PUSH_NULL", "PRECALL", "RESUME", "NOP", "EXTENDED_ARG"}
_VARIABLE = "LOAD_FAST", "LOAD_DEREF", "LOAD_NAME"
_NAMES, _MYSELF = ("__name__", "__qualname__"), ("self", "cls")
_BY_STRING = {"__dict__", "__getattribute__", "attrgetter", "getattr", "globals", "hasattr", "methodcaller", "vars"}
_FEW = 100  # items of a container that are looked into; numbers and strings do not count
_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_PLAIN = (*_NUMBERS, list, tuple, dict, set)
_MADE = {"__init__", "__new__"}  # methods that run only when an object is made
# Methods that are called where no code names them, so that a class may get one later.
_IMPLICIT = frozenset(f"__{name}__" for name in (
    "bool", "len", "eq", "ne", "lt", "le", "gt", "ge", "hash", "contains", "iter", "next", "getitem", "call",
    "enter", "exit", "getattr", "getattribute", "float", "int", "index", "complex", "round", "add", "radd",
    "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "mod", "pow", "rpow", "matmul", "rmatmul",
    "neg", "pos", "abs", "str", "repr", "format", "array"))
_WRAPPERS: dict[type, str] = {property: "fget", staticmethod: "__func__", classmethod: "__func__",
                              cached_property: "func", partialmethod: "func", type(cache(len)): "__wrapped__"}


@cache
def _is_installed(module: object) -> bool:
    """Return whether a module is installed: of this package, site-packages or the standard library; None: built in."""
    if not isinstance(module, str | None):  # as of Cython's functions
        return False
    package = (module or "builtins").partition(".")[0]
    if package == __name__.partition(".")[0] or (package in sys.stdlib_module_names and package != "__main__"):
        return True
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


class _Loaded(NamedTuple):
    """The names that code loads or sets, with all code nested in it."""

    outer: frozenset[str]  # globals and builtins
    enclosing: frozenset[str]  # variables of enclosing functions
    attributes: frozenset[str]
    imports: frozenset[str]  # modules, with a leading dot for each level of a relative import
    types: frozenset[str]  # variables of which it asks ``type(x)``, but for names of types
    identity: bool  # whether it may ask if two objects are one: by `is`, `in` or `id`


@cache
def _loaded(code: CodeType) -> _Loaded:
    codes = [code]
    for c in codes:
        codes += [inner for inner in c.co_consts if isinstance(inner, CodeType)]
    loads: set[tuple[str, str]] = set()
    imports: set[str] = set()
    types: set[str] = set()
    identity = False
    for c in codes:
        given: list[object] = []  # constants so far: an import follows its level and its names
        instructions = [i for i in get_instructions(c) if i.opname not in _EMPTY]
        caught = {i.argval for i in instructions if i.opname == "DELETE_FAST"}  # by ``except ... as error``
        for i, then, after in zip(instructions, instructions[1:], instructions[3:], strict=False):
            if i.argval == "type" and i.opname in _OUTER and then.opname.startswith(_VARIABLE) and (
                    after.argval not in _NAMES or "ndarray" in c.co_consts) and then.argval not in {*_MYSELF, *caught}:
                types.add(str(then.argval))
        identity |= any((i.opname == "IS_OP" and before.opname != "LOAD_CONST") or i.opname == "CONTAINS_OP"
                        for before, i in pairwise(instructions))
        for i in instructions:
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
                   frozenset(attributes), frozenset(imports), frozenset(types), identity or "id" in outer)


class _Space:
    """A place with many names, and which of them are read."""

    def __init__(self, place: Any, keys: Collection[str]) -> None:
        self.place, self.keys = place, frozenset(keys)  # the names that it has before the step
        self.noted: set[str] = set()
        self.read: set[str] = set()  # names read here, of a place that is not open
        self.open = False  # every attribute name is looked up here; false for globals
        self.special = False  # special methods and properties were looked up
        self.foreign = False  # an installed module: its numbers and lists are noted, its code is not read


class NameReader:
    """Finds the names that functions, classes and values read, each once; holds all values, as it knows them by id."""

    def __init__(self, watched: type) -> None:
        self._watched = watched  # class of objects that report reads themselves
        self._found: list[Name] = []
        self._seen: dict[int, object] = {}
        self._kinds: set[type] = set()  # classes of watched objects
        self._spaces: dict[tuple[bool, int], _Space] = {}
        self._todo: list[object] = []
        self._attributes: set[str] = set()  # loaded by any of the functions
        self._asked = 0  # how many of them were looked up in all spaces
        self._watched_names: set[str] = set()  # attributes of watched objects that were read
        self._imports: list[tuple[str, FunctionType]] = []  # modules not yet imported
        self._sources: list[tuple[object, Source, object]] = []  # with their states when found
        self._called: dict[int, str] = {}  # names by ids of values
        self.types: set[str] = set()  # variables of which functions ask ``type(x)``
        self.identity = False  # whether one of them may ask if two objects are one
        self.count = 0  # names found

    def new(self) -> list[Name]:
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
        self._todo += values

    def read_attribute(self, kind: type, name: str) -> None:
        """Add an attribute read of a watched object; its class may be the user's own."""
        self._watched_names.add(name)
        if kind not in self._kinds:
            self._kinds.add(kind)
            for space in self._classes(kind):
                self._ask(space, {x for x, value in vars(space.place).copy().items() if x[:2] != "__" and (
                    isinstance(value, (*_PLAIN, FunctionType)) or _wrapped(value) is not None)})

    def missing(self) -> Iterator[tuple[object, frozenset[str]]]:
        """Yield, after the step, places with the names that are read and that they did not have before it."""
        for space in self._spaces.values():
            names = space.read | self._attributes if space.open else space.read
            if not space.foreign:
                yield space.place, frozenset((names | self._watched_names if isinstance(space.place, type) else names)
                                             - space.keys)

    def known(self) -> frozenset[int]:
        return frozenset(self._seen)

    def taken(self) -> str | None:
        """Describe what the step took from a source, or None."""
        for x, state, before in self._sources:
            now = state()
            if now is UNKNOWN or now != before:
                called = self._called.get(id(x), f"a {type(x).__name__}")
                return f"can reach {called}, from which it may take something" if now is UNKNOWN else (
                    f"takes something from {called}")
        return None

    def modules(self) -> None:
        """Look again for modules that functions import and that were not loaded before the step."""
        imports, self._imports = self._imports, []
        for module, f in imports:
            self._import(module, f)

    # -------------------------------------------------------------------------------------- values

    def _look_into(self, x: object) -> None:
        if id(x) in self._seen or type(x) in _NUMBERS or isinstance(x, self._watched):
            return
        self._seen[id(x)] = x
        if x is type:  # under another name, as `_ask` keeps its own back
            self.types.add("...")
        if (state := source(x)) is not None:
            before = state()
            if before is not UNKNOWN or _is_installed(type(x).__module__):  # the code of a user's class is read instead
                self._sources.append((x, state, before))
        if isinstance(x, FunctionType):
            self._function(x)
        elif isinstance(x, MethodType):
            self._todo += x.__func__, x.__self__
        elif isinstance(x, ModuleType):
            self._space(vars(x), vars(x), foreign=_is_installed(x.__name__))
        elif isinstance(x, ContextVar):
            self._note(x, x.name, meaning(x, x.name))
        elif isinstance(x, ReferenceType):
            self._note(x, REFERENT, meaning(x, REFERENT))
        elif isinstance(x, type):
            self._classes(type(x))
            for space in self._classes(x):
                self._ask(space, _MADE)
        else:
            self._todo += [item for item in items_of(x) or () if not isinstance(item, _NUMBERS)][:_FEW]
            self._object(x)

    def _object(self, x: object) -> None:
        if isinstance(x, (attrgetter, methodcaller)):
            names = [name for name in x.__reduce__()[1] if isinstance(name, str)]
            self._attributes.update(part for name in names for part in name.split("."))
        if isinstance(x, BuiltinMethodType) and not isinstance(x.__self__, ModuleType):
            self._note(None, "__self__", x.__self__)
        if isinstance(x, partial):
            self._attributes.update(name for name in x.args if isinstance(name, str))  # such as of `getattr`
            self._todo.append(x.func)
            self._note(None, "args", (*x.args, x.keywords) if x.keywords else x.args)
        self._todo.append(_wrapped(x))
        is_users = bool(self._classes(type(x)))
        own = dict_of(x)
        if isinstance(own, dict):
            self._space(Own(x), own)
        if is_users:
            self._noted(Own(x) if isinstance(own, dict) else x, "__class__", type(x))
        slots = {name for c in type(x).__mro__ if not _is_installed(c.__module__)
                 for name, value in vars(c).copy().items() if isinstance(value, MemberDescriptorType)}
        if slots:
            self._space(x, slots)

    def _classes(self, kind: type) -> list[_Space]:
        """Return the spaces of a class and its bases that are the user's, with special methods and properties read."""
        spaces = [self._space(c, vars(c)) for c in kind.__mro__ if not _is_installed(c.__module__)]
        for space in spaces:
            if not space.special:
                space.special = True
                space.read |= _IMPLICIT
                self._noted(space.place, "__bases__", space.place.__bases__)
                inside = vars(space.place).copy()
                self._ask(space, {name for name, value in inside.items() if isinstance(value, property) or (
                    name[:2] == "__" and name not in _MADE and isinstance(value, FunctionType))})
        return spaces

    def _function(self, f: FunctionType) -> None:
        if _is_installed(f.__module__) and _is_installed(str(f.__globals__.get("__name__"))):
            return  # either may be another's: `wraps` copies the module, and decorators return functions of theirs
        code = _loaded(f.__code__)
        self._noted(f, "__code__", f.__code__)
        if "type" not in f.__globals__:
            self.types |= code.types
        self.identity |= code.identity
        self._attributes |= code.attributes
        if f.__dict__:
            self._space(Own(f), f.__dict__)
            self._todo += f.__dict__.values()  # includes ``__wrapped__`` of decorators
        for kind in ("__defaults__", "__kwdefaults__"):
            if (defaults := getattr(f, kind)) is not None:
                self._note(f, kind, defaults)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            if name in code.enclosing and id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                self._note(cell, name, meaning(cell, name))
        self._ask(self._space(f.__globals__, f.__globals__, is_open=False), code.outer)
        self._ask(self._space(vars(builtins), vars(builtins), is_open=False), code.outer - f.__globals__.keys())
        for module in sorted(code.imports):
            self._import(module, f)

    def _import(self, module: str, f: FunctionType) -> None:
        try:
            full = resolve_name(module, f.__globals__.get("__package__"))
        except ImportError:  # raised again when the function runs
            return
        for name in sorted({full, full.partition(".")[0]}):
            if name in sys.modules:
                self._note(sys.modules, name, sys.modules[name])
            else:
                self._imports.append((module, f))

    # -------------------------------------------------------------------------------------- names

    def _space(self, place: object, keys: Collection[str], is_open: bool = True, foreign: bool = False) -> _Space:
        """Return the space of a place; if open, look up attributes in it."""
        key = key_of(place)
        space = self._spaces.get(key)
        if space is None:
            space = self._spaces[key] = _Space(place, keys)
        if is_open and not space.open:
            space.open, space.foreign = True, foreign
            self._ask(space, self._attributes | ({"__getattr__"} if isinstance(place, dict) else set()))
        return space

    def _ask(self, space: _Space, names: AbstractSet[str]) -> None:
        """Note the values of names in a space that has them."""
        if not space.open:
            space.read.update(names)
        for name in sorted((space.keys & names) - space.noted):
            value = meaning(space.place, name)
            if not space.foreign or isinstance(value, _PLAIN):
                space.noted.add(name)
                note = self._noted if value is type and space.place is vars(builtins) else self._note
                note(space.place, name, value)
            elif source(value) is not None:
                self._called[id(value)] = name
                self._todo.append(value)

    def _note(self, place: object, name: str, value: object) -> None:
        self._called[id(value)] = name
        self._todo.append(value)
        self._noted(place, name, value)

    def _noted(self, place: object, name: str, value: object) -> None:
        self.count += 1
        self._found.append(Name(place, name, value))


def _wrapped(x: object) -> object:
    """Return the function in a descriptor or a decorator of the standard library, or None."""
    return next((getattr(x, name) for kind, name in _WRAPPERS.items() if isinstance(x, kind)), None)
