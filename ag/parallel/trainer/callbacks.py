"""What may happen between two steps: a user's callback, and Ctrl-C.

A callback sees the replicas' models and may set their weights, buffers and modes.  Weights and modes that it sets on
one of them hold for all: they are compared with what the trainer had sent, taken over to the host, and sent to all.

    sent       W = 0.9      W = 0.9          replica 0 has another W, replica 1 has not
    after      W = 0.5      W = 0.9     ->   W = 0.5 on the host and on both

Ctrl-C comes between two steps: inside `uninterrupted` it waits.  Knows models and flat arrays; no data and no device.
`dp_train` calls the callback through this, the trainer ends its steps in `uninterrupted`.
"""

from __future__ import annotations

import signal
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import current_thread, main_thread
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, Protocol

import numpy as np

from ag.engine.primitive import Array
from ag.errors import CommError
from ag.nn.layer import objects_in

__all__ = ["Observed", "modes_of", "uninterrupted"]

_SMALL, _DEPTH = 100, 7  # containers and arrays that are looked into, and how deep
_EMPTY = CellType()

Both = tuple[Array, Array]  # weights and buffers, in their flat layouts


class _Replica(Protocol):
    """Of a replica, what is looked at."""

    name: str
    model: Any

    def parameter_at(self, i: int) -> str: ...


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block is over."""
    handler = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *given: came.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


def modes_of(model: object) -> list[tuple[Any, bool]]:
    """Every object in a model that has a mode, with its mode."""
    return [(x, x.training) for x in objects_in(model) if not isinstance(x, type) and hasattr(x, "training")]


def settings_of(x: object, depth: int = 4, seen: set[int] | None = None) -> Hashable:
    """The plain values that a function or model may read: of its attributes, closure, defaults and globals.

    What lies deep, or in large containers, is not looked at.
    """
    seen = set() if seen is None else seen
    if x is None or isinstance(x, (bool, int, float, str, bytes, np.generic)):
        return x.__class__, repr(x)
    if depth == 0 or id(x) in seen or isinstance(x, (type, ModuleType)):
        return id(x)
    seen.add(id(x))
    if isinstance(x, np.ndarray):
        return x.tobytes() if x.size <= _SMALL else id(x)
    inside: Iterable[object] = ()
    if isinstance(x, dict):
        inside = [item for pair in dict(x).items() for item in pair] if len(x) <= _SMALL else ()
    elif isinstance(x, (list, tuple, set, frozenset)):
        inside = [*(x.copy() if isinstance(x, set) else x)] if len(x) <= _SMALL else ()
    elif isinstance(x, FunctionType):
        cells = [cell.cell_contents for cell in x.__closure__ or () if cell != _EMPTY]
        used = [x.__globals__[name] for name in x.__code__.co_names if name in x.__globals__]
        inside = [*cells, *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values(), *used]
    elif isinstance(x, MethodType):
        inside = x.__self__, x.__func__
    elif isinstance(x, partial):
        inside = x.func, x.args, x.keywords
    elif hasattr(x, "__dict__"):
        attributes = dict(vars(x))  # other threads may set some meanwhile
        inside = [getattr(type(x), "forward", None), *attributes, *attributes.values()]
    kept = isinstance(x, (dict, list, tuple, set, frozenset))  # containers may be made anew, with the same in them
    return x.__class__ if kept else id(x), *(settings_of(item, depth - 1, seen) for item in inside)


class Observed:
    """What a callback changes; made before it is called.

    Parameters
    ----------
    replicas : sequence of Replica
    functions : sequence of callable
        That may read what it changes.
    """

    def __init__(self, replicas: Sequence[_Replica], functions: Sequence[object]) -> None:
        self._replicas = replicas
        self._functions = functions
        self._settings = self._settings_now()
        self._modes = [modes_of(replica.model) for replica in replicas]

    def _settings_now(self) -> Hashable:
        return settings_of([self._functions, *(r.model for r in self._replicas)], _DEPTH)

    def settings_changed(self) -> bool:
        """Whether it has changed something that functions or models may read."""
        return self._settings_now() != self._settings

    def modes_changed(self) -> bool:
        """Whether it has set a mode; what it has set on one model then holds for all."""
        changed: dict[int, bool] = {}
        for modes in self._modes:
            changed |= {i: x.training for i, (x, before) in enumerate(modes) if x.training is not before}
        for modes in self._modes:
            for i, mode in changed.items():
                if i < len(modes):
                    modes[i][0].training = mode
        return bool(changed)

    def values(self, sent: Both, found: Sequence[Both]) -> Both:
        """The weights and buffers to go on with: weights that it has set on any replica, buffers that all have.

        Parameters
        ----------
        sent : pair of ndarray
            What was sent.
        found : sequence of pairs of ndarray
            What the host has now, and what each replica has.

        Raises
        ------
        CommError
            If it has set a weight in two ways.
        """
        weights = self._merged(sent[0], [pair[0] for pair in found])
        buffers = found[-1][1]
        if any(not np.array_equal(_bits(pair[1]), _bits(buffers)) for pair in found[1:]):
            buffers = sent[1]
        return weights, buffers

    def _merged(self, before: Array, found: Sequence[Array]) -> Array:
        result = before
        known: Array | None = None  # where an earlier one has changed
        for owner, array in enumerate(found):
            if np.array_equal(_bits(array), _bits(before)):
                continue
            changed = _bits(array) != _bits(before)
            if known is None:
                result, known = before.copy(), np.zeros(before.shape, bool)
            twice = changed & known & (_bits(array) != _bits(result))
            if twice.any():
                name = self._replicas[0].parameter_at(int(np.argmax(twice)))
                raise CommError(f"dp_train: the callback gave parameter {name} other values on "
                                f"{self._replicas[owner - 1].name} than on another; give all models the same, or only "
                                f"one of them.")
            result[changed], known = array[changed], known | changed
        return result


def _bits(array: Array) -> Array:
    """Elements as whole numbers, so that NaN is equal to itself and 0.0 is not -0.0."""
    return array.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])
