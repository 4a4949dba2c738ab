"""Replicas: copies of a model on several devices, and calls of several models at the same time, each in a thread.

The copy of a parameter is a result computed from it, so `backward` adds the gradients of all copies to the parameter,
in the order of the copies.  Replicas on one device take turns in their order, so random numbers do not depend on
timing.  While a replica waits in `ReplicaGroup.exchange` for values of all, the next of its device runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from threading import Condition
from typing import Any, TypeVar

from ag.autograd.create import ag_tensor
from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tape import Node, is_recording, no_grad
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree
from ag.engine.buffer import Buffer
from ag.engine.cpu_threads import share_cores
from ag.engine.device import ag_device, backend_of, default_backend
from ag.engine.interpreter import along, current, recording_here
from ag.errors import CaptureError, CommError
from ag.nn.layer import Model, buffers_of, state_of
from ag.ops.arithmetic import ag_add
from ag.ops.convert import ag_to_device
from ag.parallel.comm.device_threads import FollowingError, SharedCores
from ag.parallel.comm.threads import TIMEOUT, Combine, ThreadComm, thread_comms
from ag.parallel.comm.tree_reduction import tree_sum

__all__ = ["parallel_apply", "replicate"]

M = TypeVar("M", bound=Model)
T = TypeVar("T")


class NotFiniteError(CommError, FloatingPointError):
    """Raised for a replica's FloatingPointError, such as that of `detect_anomaly`."""


def parallel_apply(models: Sequence[Callable[..., Tree]], inputs: Sequence[Tree],
                   kwargs: Sequence[Mapping[str, Tree]] | None = None,
                   devices: Sequence[str | Sequence[str]] | None = None) -> list[Tree]:
    """Call each model with its arguments, those on different devices at the same time.

    Parameters
    ----------
    models : sequence of callable
    inputs : sequence
        Per model a tuple of arguments, or its only argument.
    kwargs : sequence of dict, optional
        Per model its keyword arguments.
    devices : sequence of str, or of sequences of str, optional
        Per model the default device while it runs, or all that it uses, beginning with the default one; default: those
        of its parameters.

    Returns
    -------
    list
        What each model returned.

    Raises
    ------
    ValueError
        If the numbers of models, inputs, kwargs and devices differ.
    CommError
        If a model fails, naming the replica and the device; the model's own error is its cause.  It is a
        FloatingPointError, too, where that is one, as of `detect_anomaly`.

    Notes
    -----
    Models that share a device run one after the other, so random numbers do not depend on timing.
    Reference: PyTorch ``torch.nn.parallel.parallel_apply``.

    Examples
    --------
    >>> import ag
    >>> [t.item() for t in ag.parallel_apply([ag.ag_sum, ag.ag_mean], [ag.ag_tensor([1.0, 3.0])] * 2)]
    [4.0, 2.0]
    """
    named = list(kwargs) if kwargs is not None else [{} for _ in models]
    places = [_devices_of(m) for m in models] if devices is None else [_names(where) for where in devices]
    if not len(models) == len(inputs) == len(named) == len(places):
        raise ValueError(f"parallel_apply: there are {len(models)} models, {len(inputs)} inputs, {len(named)} kwargs "
                         f"and {len(places)} devices; the numbers must be equal.")
    calls = [partial(_called, where[0], model, x if isinstance(x, tuple) else (x,), keys)
             for where, model, x, keys in zip(places, models, inputs, named, strict=True)]
    if len(calls) > 1 and recording_here() is not None:
        raise CaptureError(f"parallel_apply: {len(calls)} models run in threads inside a captured step, whose replay "
                           f"would not run them; call the step uncaptured, or capture a step per replica.")
    outcomes = _made_together(calls, places) if len(calls) > 1 else [_outcome(call) for call in calls]
    failed = [(i, error) for i, (_, error) in enumerate(outcomes) if error is not None]
    for i, error in sorted(failed, key=lambda pair: isinstance(pair[1], FollowingError)):
        cause = error.__cause__ if isinstance(error, FollowingError) else error
        kind = NotFiniteError if isinstance(cause, FloatingPointError) else CommError
        raise kind(f"parallel_apply: replica {i} on {places[i][0]} failed with "
                   f"{type(cause).__name__}: {cause}") from cause
    return [result for result, _ in outcomes]


def _called(device: str, model: Callable[..., Tree], args: tuple[Tree, ...], kwargs: Mapping[str, Tree]) -> Tree:
    with ag_device(device):
        return model(*args, **kwargs)


def _outcome(call: Callable[[], Tree]) -> tuple[Tree, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001 - parallel_apply raises it with the replica's name
        return None, error


def _made_together(calls: Sequence[Callable[[], Tree]],
                   places: Sequence[list[str]]) -> list[tuple[Tree, Exception | None]]:
    """Make each call in a thread; calls that share a device take turns."""
    queues = _queues(places)
    busy = {where[0] for where in places if not backend_of(where[0]).asynchronous}
    shared = partial(share_cores, len({*queues}))
    with SharedCores(busy), ThreadPoolExecutor(len(calls), initializer=shared) as pool:
        futures = []
        for call, where, turn in zip(calls, places, turns_of(queues), strict=True):
            group = ReplicaGroup(*turn)
            run = partial(group.run, call, f"replica {group.rank} on {where[0]}")
            futures.append(pool.submit(along(copy_context().run), _outcome, run))
    return [future.result() for future in futures]


def _queues(devices: Sequence[Sequence[str]]) -> list[int]:
    """Return the queue of each call: calls that share a device, directly or by a third call, share a queue."""
    queues: list[set[str]] = []
    for used in devices:
        touched = [queue for queue in queues if queue & set(used)]
        queues = [queue for queue in queues if queue not in touched] + [set(used).union(*touched)]
    return [next(i for i, queue in enumerate(queues) if used[0] in queue) for used in devices]


def _names(where: str | Sequence[str]) -> list[str]:
    return [backend_of(device).name for device in ([where] if isinstance(where, str) else where)]


def _devices_of(model: object) -> list[str]:
    params: dict[str, Tensor] = model.parameters() if hasattr(model, "parameters") else {}
    return list(dict.fromkeys(p.device for p in params.values())) or [default_backend().name]


class Turns:
    """Lets one of several threads run at a time, one after the other."""

    def __init__(self, count: int) -> None:
        self._left = list(range(count))
        self._now = 0
        self._changed = Condition()

    def wait(self, i: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._now == i)

    def pass_on(self, i: int, last: bool = False) -> None:
        """End the turn of thread `i`; the `last` one does not come again."""
        with self._changed:
            following = [k for k in self._left if k > i] or [k for k in self._left if k < i or not last]
            if last:
                self._left.remove(i)
            self._now = following[0] if following else -1
            self._changed.notify_all()


def turns_of(queues: Sequence[object], timeout: float = TIMEOUT) -> list[tuple[ThreadComm, Turns, int]]:
    """Return what the `ReplicaGroup` of each call is made of; those in one queue take turns."""
    turns = {queue: Turns(queues.count(queue)) for queue in queues}
    return [(comm, turns[queue], queues[:i].count(queue))
            for i, (comm, queue) in enumerate(zip(thread_comms(len(queues), timeout), queues, strict=True))]


class ReplicaGroup:
    """A replica's place among those that run with it; `turns` and `place` are those on its device."""

    def __init__(self, comm: ThreadComm, turns: Turns, place: int) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._turns, self._place = comm, turns, place
        self._has_ended = False

    def run(self, call: Callable[[], T], what: str) -> T:
        """Make the replica's call in its turn; an error for want of another replica is a FollowingError."""
        set_group(self)
        self._turns.wait(self._place)
        try:
            return call()
        except BaseException as error:
            follows = self._comm.is_ended()
            self._comm.abort(f"{what} failed")
            if follows and isinstance(error, CommError):
                raise FollowingError(str(error)) from error
            raise
        finally:
            self._has_ended = True
            self._turns.pass_on(self._place, last=True)

    def exchange(self, value: object, combine: Combine = list) -> list[Any]:
        """Return what `combine` makes, in one thread, of the values of all replicas, which all make this call."""
        if self._has_ended:
            raise CommError(f"ag_checkpoint: the layer needs values of all {self.size} replicas, which have ended when "
                            f"backward computes it again; leave SyncBatchNorm out of ag_checkpoint.")
        self._turns.pass_on(self._place)
        try:
            return self._comm.exchange(value, combine)
        finally:
            self._turns.wait(self._place)

    def total(self, mine: Tensor | None, device: str) -> Tensor:
        """Return the sum of the replicas' tensors on this one's device; None adds nothing."""
        total: Tensor = self.exchange((mine, device), _totals)[self.rank]
        return total


def _totals(parts_and_devices: list[tuple[Tensor | None, str]]) -> list[Tensor]:
    """Copy the sum of all parts to each replica's device, in one thread: `backward` follows the order of the copies."""
    parts = [part for part, _ in parts_and_devices if part is not None]
    total = tree_sum((ag_to_device(part, parts[0].device) for part in parts), ag_add)
    return [copy_for_replica(total, device) for _, device in parts_and_devices]


_current: ContextVar[ReplicaGroup | None] = ContextVar("ag_replica_group", default=None)
current_group = _current.get
set_group = _current.set


# ---------------------------------------------------------------------------------------------- copies of a model

CopyOf = Callable[[int, Tensor, str], Tensor]  # (replica, parameter, device) -> its copy there


def replicate(model: M, devices: Sequence[str | Sequence[str]]) -> list[M]:
    """Copies of a model, one per device, for one forward pass.

    Parameters
    ----------
    model : Layer, or any object with ``parameters()``
    devices : sequence of str, or of sequences of str
        A device may occur several times.  For a model that is on several devices itself, a group of as many for each
        replica: what is on the model's first device goes to the group's first, and so on.

    Returns
    -------
    list
        Models like `model`.  Inside `with_grad_tape`, their parameters are results computed from the model's: the
        gradients of all replicas arrive, added up, at the model's parameters.  The first replica works with the
        model's own buffers, such as running averages, if it is on their device; the others with copies.

    Raises
    ------
    ValueError
        If there is no device, or a group has another number of devices than the model.
    DeviceError
        If a device is not there.

    Notes
    -----
    Replicas are made anew for every pass, so they cannot lag behind: weights, modes, buffers and whatever else the
    model holds are as they are now.  Tensors that occur twice in the model do so in a replica.
    Reference: PyTorch ``torch.nn.parallel.replicate``.

    Examples
    --------
    >>> import ag
    >>> [m.W.device for m in ag.replicate(ag.ag_linear(2, 1), ["cpu", "cpu:1"])]
    ['cpu', 'cpu:1']
    """
    return replicas_of(model, devices, lambda i, p, device: copy_for_replica(p, device))


def copy_for_replica(x: Tensor, device: str) -> Tensor:
    """Copy a tensor to a replica's device; always with a new node, so that `backward` follows the copies' order."""
    if x.device != device or not (is_recording() and x.requires_grad):
        return ag_to_device(x, device)
    if (here := current()) is not None:
        here.uses((x,), False)
    return Tensor(x.buffer, True, Node("replicate", _same_gradient, (x,), (True,), None, ()))


def _same_gradient(run: Run, g: Buffer, saved: None, need: Need) -> Cotangents:
    return (g,)


def replicas_of(model: M, devices: Sequence[str | Sequence[str]], copy_of: CopyOf) -> list[M]:
    """Make replicas, where ``copy_of(i, p, device)`` makes replica i's copy of a parameter."""
    if not devices:
        raise ValueError("replicate: devices is empty; name at least one.")
    params = model.parameters().values()
    trained = {id(p) for p in params}
    state = [x for x in state_of(model).values() if id(x) not in trained]
    places = list(dict.fromkeys(x.device for x in (*params, *state)))
    moves = [_moves(places, where) for where in devices]
    # The first replica's copies are made last, so that `backward` comes to its gradients first.
    copies = {i: {id(p): copy_of(i, p, moves[i][p.device]) for p in params} for i in [*range(1, len(devices)), 0]}
    replicas = []
    for i, goes in enumerate(moves):
        memo: dict[int, object] = {**copies[i]}
        with no_grad():
            for x in state:
                own = i == 0 and x.device == goes[x.device]
                memo[id(x)] = x if own else ag_tensor(x.numpy(), device=goes[x.device], dtype=x.dtype)
        replicas.append(copy.deepcopy(model, memo))
    return replicas


def take_buffers(model: Model, replica: Model) -> None:
    theirs = buffers_of(replica)
    with no_grad():
        for name, x in buffers_of(model).items():
            value = theirs.get(name, x)
            if value.shape != x.shape:
                x.rebind(ag_to_device(value, x.device).buffer)
            elif value is not x:
                x.data = value.numpy()  # in place, where captured steps look for it


def _moves(places: list[str], where: str | Sequence[str]) -> dict[str, str]:
    group = _names(where) * (len(places) if isinstance(where, str) else 1)
    if len(group) != len(places):
        raise ValueError(f"replicate: the model is on {', '.join(places)} and the group is {', '.join(group)}; "
                         f"give a device for each.")
    return dict(zip(places, group, strict=True))
