"""The answers to wrong names, as "did you mean ag.nn.Linear (also ag.ag_linear)?", and the signatures of classes."""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import import_module
from inspect import CO_VARARGS, Parameter, Signature, cleandoc, signature
from types import FunctionType, MethodType, ModuleType
from typing import Any, ParamSpec, TypeVar

from ag.names.elsewhere import ANY_ARGUMENTS, ARGUMENTS, ELSEWHERE, SYNONYMS, TENSOR

P = ParamSpec("P")
R = TypeVar("R")

NAMESPACES = ("ag.nn", "ag.ops", "ag.optim", "ag.data", "ag.io", "ag.parallel", "ag.training", "ag")
_HOT = ("ag.autograd.tape", "ag.parallel.trainer.callbacks")  # what every step calls has no wrapper
_PREFIXES = ("ag_", "optimizer_", "lr_scheduler_")


def offered(names: Mapping[str, object]) -> list[str]:
    """Return the public names of a namespace, sorted: those without an underscore that are no files."""
    return sorted(n for n, x in names.items() if not n.startswith("_") and not isinstance(x, ModuleType))


class MissingNameError(AttributeError):
    """Raised for a name that `owner` does not have; the message has the nearest right one.

    `here` lists the owner's names, unless it is a namespace.  With `call`, a missing method may be an op:
    ``ag.ops.NAME(call)``.  The message is made when it is read, which ``hasattr`` never does.
    """

    def __init__(self, owner: str, name: str, here: Callable[[], Iterable[str]] | None = None,
                 elsewhere: Mapping[str, str] = ELSEWHERE, call: str = "") -> None:
        super().__init__(owner, name)
        self._here, self._elsewhere, self._call = here, elsewhere, call

    def __str__(self) -> str:
        owner, name = self.args
        if name.startswith("_"):
            return f"{owner} has no attribute {name!r}"
        keys = name, name.removeprefix("ag_"), f"{name.partition('_')[0]}_*"
        hint = next((self._elsewhere[key] for key in keys if key in self._elsewhere), None)
        ops = sys.modules.get("ag.ops")
        if hint is None and self._call and ops is not None and name in dir(ops):
            hint = f"write ag.ops.{name}({self._call})"
        if hint is None:
            hint = _public(owner, name) if self._here is None else _nearest(name, self._here())
        return f"{owner}: there is no {name!r}; {hint}.".replace("?.", "?")

    def __reduce__(self) -> tuple[type[AttributeError], tuple[str]]:  # to other processes goes what it says
        return AttributeError, (str(self),)


def _close(name: str, names: Iterable[str]) -> str | None:
    """Return the one of the names that was meant, if any: first letter and digits agree, as ``log2`` is not ``log``."""
    from difflib import get_close_matches  # which takes time to load, and wrong names are rare

    same = [n for n in names if n[:1] == name[:1] and [*filter(str.isdigit, n)] == [*filter(str.isdigit, name)]]
    return next(iter(get_close_matches(name, same, n=1, cutoff=0.8)), None)


def _nearest(name: str, here: Iterable[str], otherwise: str = "dir() of it lists what there is") -> str:
    near = _close(name, [known for known in here if not known.startswith("_")])
    return f"did you mean {near!r}?" if near else otherwise


def _plain(name: str) -> str:
    """Return a name without prefix, underscores and capitals, as ``ag_layer_norm`` and ``LayerNorm`` have in common."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace("_", "").lower()


def _public(owner: str, name: str) -> str:
    """Ask for the nearest of all public names, from the owner's own namespace if it is there too."""
    own: dict[str, list[str]] = {}  # by the plain name, how it is written in full, ordinary names first
    anywhere: dict[str, list[str]] = {}
    for space in NAMESPACES:  # also those that were not used yet
        for public in sorted(dir(import_module(space)), key=lambda n: n.startswith(_PREFIXES)):
            for places in (own, anywhere) if space == owner else (anywhere,):
                places.setdefault(_plain(public), []).append(f"{space}.{public}")
    plain = _plain(name)
    for places in (own, anywhere):
        if plain in places:
            same = [full for full in anywhere[plain] if full.rpartition(".")[2] == name]
            is_class = {full.rpartition(".")[2][0].isupper() for full in places[plain]}
            return _written(same if same and name[0].isupper() not in is_class else places[plain], anywhere[plain])
    for places in (own, anywhere):  # classes have capitals
        kind = {known: [x for x in full if x.rpartition(".")[2][0].isupper() is name[0].isupper()]
                for known, full in places.items()}
        if near := _close(plain, [known for known in kind if kind[known]]):
            return _written(kind[near], anywhere[near])
    return f"dir({owner}) lists what there is"


def _written(names: list[str], others: list[str]) -> str:
    """Ask for the first of the names, and for that of the same object in another place, if there is one."""
    first = names[0]
    space, thing = first.rpartition(".")[0], _found(first)
    also = [other for other in others if other.rpartition(".")[0] != space and _found(other) is thing]
    return f"did you mean {first}{f' (also {also[0]})' if also else ''}?"


def _found(name: str) -> object:
    space, _, own = name.rpartition(".")
    return getattr(import_module(space), own)


def kinds_of(function: Callable[..., object]) -> dict[str, Any]:
    """Return the arguments of a function and their kinds; `inspect.signature` takes ten times as long."""
    while "__wrapped__" in vars(function):
        function = vars(function)["__wrapped__"]
    code = function.__code__
    names, plain, named = code.co_varnames, code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    listed = names[named : named + bool(code.co_flags & CO_VARARGS)]
    return {**dict.fromkeys(names[:plain], Parameter.POSITIONAL_OR_KEYWORD),
            **dict.fromkeys(listed, Parameter.VAR_POSITIONAL),
            **dict.fromkeys(names[plain:named], Parameter.KEYWORD_ONLY)}


def parameters_of(function: Callable[..., object]) -> list[Parameter]:
    """Return what `inspect.signature` says of a function's arguments."""
    if "__signature__" in vars(function):
        return [*vars(function)["__signature__"].parameters.values()]
    kinds, texts, empty = kinds_of(function), function.__annotations__, Parameter.empty
    while "__wrapped__" in vars(function):
        function = vars(function)["__wrapped__"]
    last, code = function.__defaults__ or (), function.__code__
    names = code.co_varnames[code.co_argcount - len(last) : code.co_argcount]
    defaults = dict(zip(names, last, strict=True)) | (function.__kwdefaults__ or {})
    return [Parameter(name, kind, default=defaults.get(name, empty), annotation=texts.get(name, empty))
            for name, kind in kinds.items()]


def dedented(function: Callable[..., object]) -> str:
    """Return a docstring as `inspect.cleandoc` does, by the margin before the quotes that end it."""
    text = function.__doc__ or ""
    margin = text[text.rfind("\n") :] if "\n" in text else ""
    return cleandoc(text) if margin.strip() else text.replace(margin or "\n", "\n").strip()


def answering(function: Callable[P, R], elsewhere: Mapping[str, str]) -> Callable[P, R]:
    """Return the function with an answer to arguments that it lacks: as `elsewhere` says, or with the nearest."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside of the function
        called = function.__name__
        if called == "__init__" and args:
            called = getattr(args[0], "_function", type(args[0]).__name__)
        raise wrong_arguments(called, signature(function), args, kwargs, elsewhere)

    return call


def wrong_arguments(function: str, has: Signature, args: tuple[object, ...], kwargs: Mapping[str, object],
                    elsewhere: Mapping[str, str] = ANY_ARGUMENTS) -> TypeError:
    """Return the error of arguments that do not fit a function."""
    names = [name for name in has.parameters if name != "self"]
    listed, wrong = f"its arguments are {', '.join(names) or 'none'}", [name for name in kwargs if name not in names]
    if wrong:
        known = next((f"write {own}" for own in SYNONYMS.get(wrong[0], ()) if own in names), None)
        theirs = [hint for table in (elsewhere, ANY_ARGUMENTS) if (hint := table.get(wrong[0]))
                  and f".{function}(" not in hint]  # which would lead back here
        hint = known or next(iter(theirs), None) or _nearest(wrong[0], names, listed)
        return TypeError(f"{function}: there is no argument {wrong[0]!r}; {hint}.".replace("?.", "?"))
    try:
        has.bind(*args, **kwargs)
    except TypeError as error:
        return TypeError(f"{function}: {error}; {listed}.")
    return TypeError(f"{function}: the arguments do not fit; {listed}.")


def answer_arguments(names: dict[str, Any], owner: str) -> dict[str, Any]:
    """Let functions and classes of a namespace answer wrong arguments; ops and tensors, which are hot, do it alone."""
    table = ARGUMENTS.get(owner, ANY_ARGUMENTS)
    answered: dict[int, Callable[..., object]] = {}
    spaces = {"": names}
    for thing in {id(names[name]): names[name] for name in offered(names)}.values():
        if getattr(thing, "__module__", "") in _HOT:
            continue
        if type(thing) is FunctionType and not vars(thing).keys() & {"__wrapped__", "vjp"}:
            answered[id(thing)] = answering(thing, table)
            spaces[thing.__module__] = vars(sys.modules[thing.__module__])  # where pickle looks for it, too
        for cls in thing.__mro__ if type(thing) in (type, ABCMeta) and not issubclass(thing, BaseException) else ():
            init = vars(cls).get("__init__")
            if cls.__module__.startswith("ag.") and isinstance(init, FunctionType) and not hasattr(init, "__wrapped__"):
                if not hasattr(init, "__signature__"):  # what has one answers itself
                    type.__setattr__(cls, "__init__", answering(init, table))
                type.__setattr__(cls, "__signature__", Making())
    for space in spaces.values():
        space.update({name: answered[id(x)] for name, x in space.items() if id(x) in answered})
    return names


def missing(elsewhere: Mapping[str, str]) -> Callable[[object, str], object]:
    """Return a ``__getattr__`` that answers as `elsewhere` says, or with the nearest name."""

    def answer(self: object, name: str) -> object:
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)  # a property that raised: its own error, again
        raise MissingNameError(type(self).__name__, name, lambda: object.__dir__(self), elsewhere)

    return answer


class _File(ModuleType):
    """A file of a namespace, taken for what is in it: ``ag.nn.linear(4, 3)``."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        space, _, own = self.__name__.rpartition(".")
        hint = ELSEWHERE.get(own) or _public(space, own)
        raise TypeError(f"{self.__name__} is a file, and no function; {hint}.".replace("?.", "?"))


def door(names: dict[str, Any], also: Iterable[str] = ()) -> tuple[Callable[[], list[str]],
                                                                   Callable[[str], object]]:
    """Return ``__dir__`` and ``__getattr__`` of the namespace with these names; of files, those in `also` are shown."""
    owner = str(names["__name__"])
    for name, thing in names.items():
        if type(thing) is ModuleType and name not in also and thing.__name__.startswith(f"{owner}."):
            thing.__class__ = _File
            vars(thing)["__module__"] = thing.__name__  # or tools would look for it where `_File` is

    answer_arguments(names, owner)

    def listed() -> list[str]:
        return sorted([*offered(names), *also])

    def wrong(name: str) -> object:
        raise MissingNameError(owner, name)

    return listed, wrong


class Named(type):
    """The class of `Tensor`: a wrong name on the class itself has the answer of one on a tensor."""

    def __getattr__(cls, name: str) -> object:
        raise MissingNameError(f"ag.{cls.__name__}", name, lambda: dir(cls), TENSOR, "t")


class Making:
    """The ``__signature__`` of a class, for `help` and editors: without "None", and without ForwardRef(...)."""

    def __get__(self, instance: object, owner: type) -> Signature:
        if instance is None and issubclass(owner, tuple):
            _, *fields = signature(owner.__new__).parameters.values()
            return Signature([field.replace(annotation=getattr(field.annotation, "__forward_arg__", field.annotation))
                              for field in fields])
        init = next(vars(cls)["__init__"] for cls in owner.__mro__ if "__init__" in vars(cls))
        if instance is not None or not isinstance(init, FunctionType) or isinstance(owner.__new__, FunctionType):
            raise AttributeError("__signature__")  # then `inspect` does as it always does
        return signature(MethodType(init, owner)).replace(return_annotation=Signature.empty)
