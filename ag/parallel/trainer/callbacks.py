"""Callbacks of `dp_train`, what they change between two steps, and its results.

Weights, buffers and settings that a callback sets on one model hold for all.  Weights are compared with those sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import is_
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any, cast

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.errors import CommError
from ag.io.checkpoint import Stateful as Stateful
from ag.names import Making
from ag.nn.layer import Layer
from ag.parallel.trainer.replica import Replica
from ag.parallel.trainer.replicas import Ranks

Both = tuple[Array, Array]  # weights and buffers, in their flat layouts


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
        """Return weights and buffers to go on with, of host and replicas; conflicts raise a CommError."""
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
    step, loss : int and float
        Number of the step, from 0, and the mean loss over its samples.
    models : list
        The replicas' models, with the new weights.
    ranks : Ranks
        ``ranks.rank``, ``ranks.size``, and ``ranks.gather(value)``, the values of all ranks; all must call it, or none.

    Examples
    --------
    >>> import ag
    >>> def stop(step):  # the callback of `dp_train`: False ends the job
    ...     return step.loss > 0.1
    >>> stop(ag.DPStep(0, 0.5, [])), stop(ag.DPStep(1, 0.05, []))
    (True, False)
    """

    __signature__ = Making()
    step: int
    loss: float
    models: list[Any]
    ranks: Ranks | None = field(default=None, repr=False)


@dataclass(frozen=True, repr=False)
class DPResult:
    """The result of `dp_train`; ``result["loss"]`` works like ``result.loss``.

    Attributes
    ----------
    params : dict of str to Tensor
        Final parameters, on replica 0's device.
    loss_history, loss : ndarray of shape (n_iter,) and float
        Mean loss of every step, before its update, shorter if the job ended early; and the last of them.
    model : object
        Replica 0's model, with the buffers of all.  It is in the modes that training had: call `ag_eval` on it before
        it predicts.
    devices : list of str
        Device of every replica.
    report : list of dict
        Per replica: ``replica``, ``device``, ``driver``; ``samples`` of all steps and ``shard``, those of the last one;
        over all steps ``compute_ms`` that the device has worked on them, ``elapsed_ms`` from giving it the work to
        having the sums on the host, ``wait_ms`` from then until the last replica had its own, ``reduce_ms`` for sums,
        optimizer and new weights; ``bytes_per_step`` moved both ways.  `compute_ms` is from the device's timestamps of
        the first two steps and every 16th where ``clock`` is ``"device"``, and else `elapsed_ms`.
        Of this rank, ``data_wait_ms`` that it waited for its samples, and ``data_wait_share``, which part of the time
        of all steps that was.  Of the world, ``rank``; ``exchange_ms``, which is part of ``reduce_ms``;
        ``wire_bytes_per_step``, what this rank sent to others in the last step.
    optimizer_state : dict of str to ndarray, or list of dict
        State of the optimizer, to go on with; a list if `optimizer` made a list.
    interrupted : bool
        Whether Ctrl-C ended the job before its last step.

    Examples
    --------
    >>> import ag
    >>> result = ag.dp_train(lambda: ag.nn.Linear(1, 1), ag.ag_dataloader([[1.0]], [[2.0]]), "mse", verbose=False)
    >>> len(result.loss_history), sorted(result.params)
    (10, ['W', 'b'])
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
