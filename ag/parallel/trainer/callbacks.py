"""Events between two steps, a callback, Ctrl-C and SIGTERM, and the results of `dp_train`.

Weights, buffers and settings that a callback sets on one model hold for all.  Weights are compared with those sent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import is_
from threading import current_thread, main_thread
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType, NoneType
from typing import Any, cast

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.errors import CommError
from ag.io.checkpoint import Stateful as Stateful
from ag.names import Making
from ag.nn.layer import Layer
from ag.parallel.comm.comm import Json
from ag.parallel.comm.membership import Progress
from ag.parallel.comm.tree_reduction import Node
from ag.parallel.trainer.checkpoint import DPState, load_state
from ag.parallel.trainer.replica import Replica

Both = tuple[Array, Array]  # weights and buffers, in their flat layouts


class Place(Progress):
    """A rank's place among those that train together; this one is that of the only rank."""

    host = "cpu"  # device of the optimizer, which no other rank of the process uses

    def __init__(self) -> None:
        self.begun = False  # the first step has begun: the others go on if a rank is lost
        self.leaves = False  # a rank was asked to leave: all of them leave after the same step
        self.used: set[str] = set()  # parameters that samples of any rank have used; empty for one rank
        self._shares: list[list[float]] = []  # of every rank, the weights of its replicas

    @property
    def rank(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return 1

    @property
    def replicas(self) -> int:
        """Return the number of replicas of all ranks."""
        return sum(map(len, self._shares))

    def gather(self, value: Json = None) -> list[Json]:
        """Return the values of all ranks, in their order: anything that JSON can hold."""
        return [value]

    def exchange(self, value: Json = None) -> list[Json]:
        """Return the JSON values of all ranks, in their order, within a step."""
        return [value]

    def compare(self, named: Sequence[tuple[str, object]], advice: str) -> None:
        """Raise a CommError unless all ranks have the same names and values; `advice` ends the message."""

    def meet(self, alike: Sequence[tuple[str, object]], weights: Sequence[float], devices: Sequence[str]) -> None:
        """Compare what must be `alike` on all ranks, and exchange the shares and devices of their replicas."""
        self._shares = [list(weights)]

    def begin_alike(self, first: Replica) -> None:
        """Copy weights, buffers and the seed of rank 0 to all ranks."""

    def state(self, path: str | os.PathLike[str]) -> DPState | None:
        """Return the checkpoint in rank 0's file on all ranks; None if there is no file."""
        return load_state(path)

    def positions(self, samples: int) -> range:
        """Return the positions of this rank's samples in a step, in the order of all replicas."""
        return range(samples)

    def nodes(self, nodes: Sequence[Node], used: Iterable[set[str]], leave: bool = False) -> Sequence[Node]:
        """Return the rows to add up; `used` are parameters that this rank's samples have used.

        `leave`: this rank was asked to leave.
        """
        self.leaves = leave
        return nodes

    def share(self, weights: Sequence[float]) -> None:
        """Tell all ranks this rank's shares after a device was lost."""

    def finish(self) -> None:
        """Note that the training is over."""

    def report(self) -> dict[str, Any]:
        """Return the part of `DPResult.report` about the exchange."""
        return {"rank": 0, "exchange_ms": 0.0, "wire_bytes_per_step": 0}


class Endings:
    """A context in which Ctrl-C waits while a step ends; `renew` replaces a handler that the program has set since."""

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], object] | None = None
        self._busy = False
        self._came: tuple[int, FrameType | None] | None = None
        self.asked = False  # SIGTERM has come, after `listen`
        self._listens = False

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
        """Let SIGTERM ask for the end, unless the program handles it."""
        if current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._listens = True
            signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True

    def renew(self) -> None:
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
        """Call `end`; Ctrl-C waits for it."""
        self._busy = True
        try:
            end()
        finally:
            self._busy = False
            came, self._came = self._came, None
            if came is not None:
                self._handle(*came)


class Observed:
    """Changes that a callback makes in the models of replicas; created before the call."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._parts = [_parts(replica.model) for replica in replicas] if len(replicas) > 1 else []

    def spread_settings(self) -> None:
        """Give settings that the callback has changed on some models to all; conflicts raise a CommError."""
        changes: dict[tuple[object, ...], dict[int, object]] = {}
        for owner, parts in enumerate(self._parts):
            for x, path, before in parts:
                now = _items(x)
                if len(now) == len(before) and all(map(is_, now.values(), before.values())):
                    continue
                for name, value in now.items():
                    if _is_setting(value) and not _same(value, before.get(name, getattr(type(x), str(name), _ABSENT))):
                        changes.setdefault((*path, name), {})[owner] = value
        for place, values in changes.items():
            if len(values) < len(self._replicas):  # otherwise the callback has set all models
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
        """Return the weights and buffers to go on with: weights set on any replica, buffers that all have.

        `found` has those of the host first, then those of each replica.  Conflicting weights raise a CommError.
        """
        weights = self._merged(sent[0], [pair[0] for pair in found])
        buffers = found[-1][1]
        if any(not np.array_equal(_bits(pair[1]), _bits(buffers)) for pair in found[1:]):
            buffers = sent[1]
        return weights, buffers

    def _merged(self, before: Array, found: Sequence[Array]) -> Array:
        result = before
        known: Array | None = None  # where an earlier array has changed
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

# An object in a model that holds others: the object, the names that lead to it, and what it held.
_Part = tuple[object, tuple[object, ...], dict[object, object]]


def _items(x: object) -> Mapping[object, object]:
    """Return what an object holds, by name, index or key."""
    if isinstance(x, Tensor):
        return {"requires_grad": x.requires_grad}
    if isinstance(x, (list, tuple)):
        return dict(enumerate(x))
    return x if isinstance(x, dict) else {} if isinstance(x, ModuleType) else getattr(x, "__dict__", {})


def _parts(model: object) -> list[_Part]:
    """List a model and every object in it that holds something, each once."""
    found: list[_Part] = []
    seen = set[int]()
    left: list[tuple[object, tuple[object, ...]]] = [(model, ())]
    while left:
        x, path = left.pop()
        if id(x) not in seen:
            seen.add(id(x))
            held = dict(_items(x))
            left += [(part, (*path, name)) for name, part in held.items() if type(part) not in _PLAIN_TYPES]
            found.append((x, path, held))
    return found


def _is_setting(value: object) -> bool:
    """Return whether a value can be compared; trained parts can, so that their replacement is noticed."""
    return isinstance(value, (*_PLAIN, Layer)) or (
        isinstance(value, tuple) and all(isinstance(part, _PLAIN) for part in value)) or (
        isinstance(value, Tensor) and value.requires_grad and value.node is None)


def _same(a: object, b: object) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, (*_PLAIN, tuple)) and bool(a == b))


def _bits(array: Array) -> Array:
    """View elements as integers: NaN equals itself, and 0.0 differs from -0.0."""
    return array.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])


@dataclass(frozen=True)
class DPStep:
    """The argument of a callback after every step.

    Attributes
    ----------
    step : int
        Number of the step, from 0.
    loss : float
        Mean loss over the step's samples.
    models : list
        The replicas' models, with the new weights.
    ranks : Place, or None
        This rank's place among those that train together, always there in a callback: ``ranks.rank``, ``ranks.size``,
        and ``ranks.gather(value)``, the values of all ranks, such as counts to add up; all ranks must call it, or none.
    """

    __signature__ = Making()
    step: int
    loss: float
    models: list[Any]
    ranks: Place | None = field(default=None, repr=False)


@dataclass(frozen=True, repr=False)
class DPResult:
    """The result of `dp_train`; ``result["loss"]`` works like ``result.loss``.

    Attributes
    ----------
    params : dict of str to Tensor
        Final parameters, on replica 0's device.
    loss_history : ndarray of shape (n_iter,)
        Mean loss of every step, before its update; shorter if the job ended early.
    loss : float
        The last of them.
    model : object
        Replica 0's model; its buffers are those of all replicas.  It is in the modes that training had: call `ag_eval`
        on it before it predicts.
    devices : list of str
        Device of every replica.
    report : list of dict
        Per replica: ``replica``, ``device``, ``driver``; ``samples`` of all steps and ``shard``, those of the last one;
        over all steps ``compute_ms`` that the device has worked on them, ``elapsed_ms`` from giving it the work to
        having the sums on the host, ``wait_ms`` from then until the last replica had its own, ``reduce_ms`` for sums,
        optimizer and new weights; ``bytes_per_step`` moved both ways.  `compute_ms` is from the device's timestamps
        where ``clock`` is ``"device"``: those of the first two steps and every 16th, as they cost time; a sample of
        the steps between counts as long as one of the last such step.  Where it is ``"host"``, there are none, and
        it is `elapsed_ms`.
        Of this rank, ``data_wait_ms`` that it waited for its samples, and ``data_wait_share``, which part of the time
        of all steps that was.  Of the world, ``rank``; ``exchange_ms``, which is part of ``reduce_ms``;
        ``wire_bytes_per_step``, what this rank sent to others in the last step.
    optimizer_state : dict of str to ndarray, or list of dict
        State of the optimizer, to go on with; a list if `optimizer` made a list.
    interrupted : bool
        Whether Ctrl-C ended the job before its last step.
    """

    __signature__ = Making()
    params: dict[str, Tensor]
    loss_history: Array
    loss: float
    model: Any
    devices: list[str]
    report: list[dict[str, Any]]
    optimizer_state: dict[str, Array] | list[dict[str, Array]]
    interrupted: bool = False

    def __getitem__(self, name: str) -> Any:
        names = [f.name for f in fields(self)]
        if name not in names:
            raise KeyError(f"DPResult: there is no {name!r}; it has {', '.join(names)}.")
        return getattr(self, name)

    def __repr__(self) -> str:
        numbers = sum(p.size for p in self.params.values())
        ended = ", interrupted" if self.interrupted else ""
        return (f"DPResult(loss={self.loss:.6g} after {len(self.loss_history)} steps{ended}, {len(self.params)} "
                f"parameters of {numbers:,} numbers, devices={self.devices})")
