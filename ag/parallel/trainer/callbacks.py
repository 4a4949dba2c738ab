"""What may happen between two steps: a user's callback, Ctrl-C, and SIGTERM.

A callback sees the replicas' models and may set their weights, buffers and settings.  Weights and settings that it
sets on one of them hold for all: weights are compared with what the trainer had sent, taken over to the host, and sent
to all; settings, such as modes, ``requires_grad`` and rates, are compared with what they were before the call.

    sent       W = 0.9      W = 0.9          replica 0 has another W, replica 1 has not
    after      W = 0.5      W = 0.9     ->   W = 0.5 on the host and on both

Ctrl-C comes between two steps, or while gradients are computed: the end of a step is not interrupted.  SIGTERM only
asks for the end: all ranks leave after the same step.  Knows models and flat arrays; no data and no device.  `dp_train`
calls the callback through this, the trainer ends its steps in it.  What happens between epochs of `fit` is
`ag.training.callbacks`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from threading import current_thread, main_thread
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType, NoneType
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.errors import CommError
from ag.nn.layer import Layer
from ag.parallel.comm.comm import Json

__all__ = ["Endings", "Observed", "Stateful"]

Both = tuple[Array, Array]  # weights and buffers, in their flat layouts


@runtime_checkable
class Stateful(Protocol):
    """A callback that is part of checkpoints."""

    def state_dict(self) -> Mapping[str, Array | Json]:
        """What it has to keep, by name."""

    def load_state_dict(self, state: Mapping[str, Array | Json]) -> None:
        """Go on with what was kept."""


class _Replica(Protocol):
    """Of a replica, what is looked at."""

    name: str
    model: Any

    def parameter_at(self, i: int) -> str: ...


class Endings:
    """Ctrl-C in a job: it waits while a step ends.  Entered for the job; `end_of_step` makes the end of each step.

    The handler of signals is replaced once, as that takes as long as a small step; `renew` does so again if somebody
    else has put another one there.

    Attributes
    ----------
    asked : bool
        Whether SIGTERM has come, after `listen`.
    """

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._busy = False
        self._came: tuple[int, FrameType | None] | None = None
        self.asked = self._listens = False

    def __enter__(self) -> Endings:
        try:
            self.renew()
        except BaseException:  # Ctrl-C, when the handler was there already
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._handler)
        if self._listens and not self.asked:  # otherwise this process is leaving: a second one would cut that short
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def listen(self) -> None:
        """From now on SIGTERM asks to leave, unless the program has a handler of its own."""
        if current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._listens = True
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True

    def renew(self) -> None:
        """Handle signals, in the main thread."""
        if current_thread() is not main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and handler != self._handle:
            self._handler = handler
            signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._busy:
            self._came = number, frame
        elif self._handler is not None:
            self._handler(number, frame)

    def end_of_step(self, end: Callable[[], None]) -> None:
        """Make this call, for which Ctrl-C waits."""
        self._busy = True
        try:
            end()
        finally:
            self._busy = False
            came, self._came = self._came, None
            if came is not None:
                self._handle(*came)


class Observed:
    """What a callback changes; made before it is called.

    Parameters
    ----------
    replicas : sequence of Replica
    """

    def __init__(self, replicas: Sequence[_Replica]) -> None:
        self._replicas = replicas
        self._parts = [_parts(replica.model) for replica in replicas] if len(replicas) > 1 else []

    def spread_settings(self) -> None:
        """Let a setting that it has changed on some of the models hold for all.

        Raises
        ------
        CommError
            If it has set one in two ways, or to what cannot be that of another model.
        """
        changes: dict[tuple[object, ...], dict[int, object]] = {}
        for owner, parts in enumerate(self._parts):
            for x, above, key, before in parts:
                now = _items(x)
                if len(now) == len(before) and all(map(is_, now.values(), before.values())):
                    continue
                for name, value in now.items():
                    if _is_setting(value) and not _same(value, before.get(name, getattr(type(x), str(name), _ABSENT))):
                        changes.setdefault((*_place(parts, above, key), name), {})[owner] = value
        for place, values in changes.items():
            if len(values) < len(self._replicas):  # otherwise it has set all as it wants them
                self._spread(place, values)

    def _spread(self, place: tuple[object, ...], values: Mapping[int, object]) -> None:
        first, *others = values
        value, where = values[first], ".".join(map(str, place))
        for other in others:
            if not _same(values[other], value):
                raise CommError(f"dp_train: the callback gave {where} other values on {self._replicas[other].name} "
                                f"than on {self._replicas[first].name}; give all models the same, or only one of them.")
        for owner, replica in enumerate(self._replicas):
            if owner not in values:
                x: object = replica.model
                for name in place[:-1]:
                    x = _items(x).get(name)
                if isinstance(value, (Layer, Tensor)) or x is None:
                    raise CommError(f"dp_train: the callback gave {self._replicas[first].name} another {where}, and "
                                    f"{replica.name} keeps its own; set it on all models.")
                if isinstance(x, dict):
                    x[place[-1]] = value
                elif isinstance(x, list):
                    x[cast(int, place[-1])] = value
                else:
                    setattr(x, str(place[-1]), value)

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


# ---------------------------------------------------------------------------------------------- settings

_ABSENT = object()
_PLAIN = (bool, int, float, complex, str, bytes, NoneType, np.generic, FunctionType, BuiltinFunctionType, type)
_PLAIN_TYPES = frozenset(_PLAIN)

# Something in a model that holds others: it, the number of what it is in, its name there, and what it held.
_Part = tuple[object, int, object, dict[object, object]]


def _items(x: object) -> Mapping[object, object]:
    """What an object holds, by name, index or key."""
    if isinstance(x, Tensor):
        return {"requires_grad": x.requires_grad}
    if isinstance(x, (list, tuple)):
        return dict(enumerate(x))
    return x if isinstance(x, dict) else {} if isinstance(x, ModuleType) else getattr(x, "__dict__", {})


def _parts(model: object) -> list[_Part]:
    """A model and all in it that holds something, each once."""
    found: list[_Part] = []
    seen = set[int]()
    left: list[tuple[object, int, object]] = [(model, -1, "")]
    while left:
        x, above, key = left.pop()
        if id(x) not in seen:
            seen.add(id(x))
            held = dict(_items(x))
            left += [(part, len(found), name) for name, part in held.items() if type(part) not in _PLAIN_TYPES]
            found.append((x, above, key, held))
    return found


def _place(parts: Sequence[_Part], above: int, key: object) -> tuple[object, ...]:
    """The names that lead from a model to a part of it."""
    return () if above < 0 else (*_place(parts, *parts[above][1:3]), key)


def _is_setting(value: object) -> bool:
    """Whether it can be compared; parts that are trained are, so that another in their place is noticed."""
    return isinstance(value, (*_PLAIN, Layer)) or (
        isinstance(value, tuple) and all(isinstance(part, _PLAIN) for part in value)) or (
        isinstance(value, Tensor) and value.requires_grad and value.node is None)


def _same(a: object, b: object) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, (*_PLAIN, tuple)) and bool(a == b))


def _bits(array: Array) -> Array:
    """Elements as whole numbers, so that NaN is equal to itself and 0.0 is not -0.0."""
    return array.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])
