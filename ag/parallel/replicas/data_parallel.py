"""DataParallel: a model that deals every batch out to replicas on several devices, each in a thread.

The copy of a parameter is a result computed from it, so `backward` adds up the gradients of all copies, in their order.
Replicas on one device take turns; one that waits in `ReplicaGroup.exchange` lets the next one run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial, reduce
from numbers import Real
from threading import Condition
from typing import Any, TypeVar

from ag.autograd.activation_checkpoint import is_repeating, same_gradient
from ag.autograd.create import ag_tensor
from ag.autograd.tape import Gradients, Node, backward, is_recording, no_grad, with_grad_tape
from ag.autograd.tensor import Tensor, TensorLike
from ag.autograd.tree import Tree, tree_leaves
from ag.engine.cpu_threads import share_cores
from ag.engine.device import accelerator_name, ag_device, backend_of, default_backend, default_devices
from ag.engine.interpreter import along as beside
from ag.engine.interpreter import current, recording_here
from ag.engine.primitive import Array
from ag.engine.shape import along
from ag.errors import CaptureError, CommError, ShapeError, TapeError
from ag.nn.layer import Layer, Model, State, buffers_of, named_tensors, state_of
from ag.nn.linear import BatchNorm
from ag.nn.mode import objects_in
from ag.ops.arithmetic import ag_add, ag_mul, ag_scale, ag_sub
from ag.ops.creation import ag_cast, ag_to_device
from ag.ops.normalization import ag_batch_norm_op, move_statistics
from ag.ops.reduce import ag_sum
from ag.parallel.comm.device_threads import FollowingError, SharedCores
from ag.parallel.comm.tensor_collectives import gather, moved, scatter, sizes_along
from ag.parallel.comm.threads import TIMEOUT, Combine, ThreadComm, thread_comms
from ag.parallel.comm.tree_reduction import tree_sum

__all__ = ["DataParallel", "SyncBatchNorm", "parallel_apply", "replicate"]

Device = str | int
M = TypeVar("M", bound=Model)
T = TypeVar("T")


class NotFiniteError(CommError, FloatingPointError):
    """Raised for a replica's FloatingPointError, such as that of `detect_anomaly`."""


def parallel_apply(models: Sequence[Callable[..., Tree]], inputs: Sequence[Tree],
                   kwargs: Sequence[Mapping[str, Tree]] | None = None,
                   devices: Sequence[str | Sequence[str]] | None = None) -> list[Tree]:
    """Call each model with its arguments, those on different devices at the same time.

    Models that share a device run one after the other, so random numbers do not depend on timing.
    Reference: PyTorch ``torch.nn.parallel.parallel_apply``.

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
        If a model fails, naming the replica and the device; its cause is the model's error.  It is a
        FloatingPointError, too, where that is one, as of `detect_anomaly`.

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
                   places: Sequence[Sequence[str]]) -> list[tuple[Tree, Exception | None]]:
    """Make each call in a thread; calls that share a device take turns."""
    queues = _queues(places)
    busy = {where[0] for where in places if not backend_of(where[0]).asynchronous}
    shared = partial(share_cores, len({*queues}))
    with SharedCores(busy), ThreadPoolExecutor(len(calls), initializer=shared) as pool:
        futures = []
        for call, where, turn in zip(calls, places, turns_of(queues), strict=True):
            group = ReplicaGroup(*turn)
            run = partial(group.run, call, f"replica {group.rank} on {where[0]}")
            futures.append(pool.submit(beside(copy_context().run), _outcome, run))
    return [future.result() for future in futures]


def _queues(devices: Sequence[Sequence[str]]) -> list[int]:
    """Return the queue of each call: calls that share a device, directly or by a third call, share a queue."""
    queues: list[set[str]] = []
    for used in devices:
        touched = [queue for queue in queues if queue & set(used)]
        queues = [queue for queue in queues if queue not in touched] + [set(used).union(*touched)]
    return [next(i for i, queue in enumerate(queues) if used[0] in queue) for used in devices]


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
    """Copies of a model, one per device, for one forward pass: weights, modes and buffers are as they are now.

    Tensors that occur twice in the model do so in a replica.  Reference: PyTorch ``torch.nn.parallel.replicate``.

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
    ValueError, DeviceError
        If there is no device, one is not there, or a group has another number of devices than the model.

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
    return Tensor(x.buffer, True, Node("replicate", same_gradient, (x,), (True,), None, ()))


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


class DataParallel(Layer):
    """A model on several devices, each working on its part of every batch.

    Parameters
    ----------
    model : Layer, or any callable with ``parameters()``
        Keeps its parameters, wherever they are.
    device_ids : sequence of str or int, or of sequences of these, optional
        As `devices` of `replicate`; a number is that of a card.  Default: the device that `ag_device` was given, else
        every card that holds the model's types, else the CPU.
    output_device : str or int, optional
        Where results are gathered; default: the first device.
    dim, axis : int, optional
        The axis along which inputs are cut and results joined; default -1, the batch.

    Raises
    ------
    ValueError, TypeError, DeviceError
        If `device_ids` is empty, no list, or has a device that is not there, or `model` is no model.

    Notes
    -----
    ``backward(loss)`` on a result brings the gradients of all replicas to the parameters.  A model that returns losses
    (tensors without axes) gets their mean, in which every sample counts the same; `backward` of this class takes that.
    Buffers, such as running averages, follow the first replica, wherever the model is; those of `SyncBatchNorm` are
    averages over all.  Whatever else a replica changes of itself, such as a number, is lost with it.
    Reference: torch-dl ``DataParallel``; PyTorch ``torch.nn.DataParallel``.

    Examples
    --------
    >>> import ag
    >>> model = ag.DataParallel(ag.ag_linear(2, 1), device_ids=["cpu", "cpu:1"])
    >>> with ag.with_grad_tape():
    ...     loss = ag.ag_mean(model(ag.ag_tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 3.0]])))
    >>> ag.backward(loss)[model.module.W].numpy().tolist()
    [[2.0, 1.0]]
    """

    def __init__(self, model: Any, device_ids: Sequence[Device | Sequence[Device]] | None = None,
                 output_device: Device | None = None, dim: int = -1, *, axis: int | None = None) -> None:
        if not callable(model) or not callable(getattr(model, "parameters", None)):
            raise TypeError(f"DataParallel: model is a {type(model).__name__}; a model with parameters() is required.")
        if isinstance(device_ids, str) or not (device_ids is None or isinstance(device_ids, Iterable)):
            raise TypeError(f"DataParallel: device_ids is {device_ids!r:.60}; a list of names is required, such as "
                            f"['cpu', 'cpu:1'].")
        devices: list[tuple[str, ...]]
        if device_ids is None:
            params = model.parameters().values()
            kinds = {p.buffer.dtype for p in params}  # a card may have no float64
            able = [name for name in default_devices() if kinds <= backend_of(name).dtypes]
            devices = [(name,) for name in able or [p.device for p in params][:1]]
        else:
            devices = [_names(where) for where in device_ids]
        if not devices or () in devices:
            raise ValueError(f"DataParallel: device_ids is {device_ids}; name at least one device per replica.")
        self.module = model
        self._groups = devices
        self.output_device = devices[0][0] if output_device is None else _names(output_device)[0]
        self.dim = along("DataParallel", dim, axis)
        self._losses: list[Tensor] = []  # of the last call

    @property
    def device_ids(self) -> tuple[str | tuple[str, ...], ...]:
        """Return the device of each replica, or its group of devices."""
        return tuple(group[0] if len(group) == 1 else group for group in self._groups)

    def replace_devices(self, instead: Mapping[str, str]) -> None:
        """Move replicas and results from failed devices to others."""
        self._groups = [tuple(instead.get(name, name) for name in group) for group in self._groups]
        self.output_device = instead.get(self.output_device, self.output_device)

    @property
    def wrapped_module(self) -> Any:
        """Return the model; another name of `module`."""
        return self.module

    def __call__(self, *inputs: Tree, **kwargs: Tree) -> Tree:
        return self.forward(*inputs, **kwargs)

    def forward(self, *inputs: Tree, **kwargs: Tree) -> Tree:
        """Return the model's result for a batch; all tensors and arrays among the arguments are dealt out."""
        arguments = (inputs, kwargs)
        if sizes_along(arguments, self.dim):
            parts = scatter(arguments, [group[0] for group in self._groups], self.dim)
        else:  # nothing to deal out
            parts = [moved(arguments, self._groups[0][0])]
        replicas = self._replicas(len(parts))
        results = self._results(replicas, parts, self._groups[: len(parts)])
        counts = [max(sizes_along(part, self.dim), default=1) for part in parts]
        out = gather(results, self.output_device, self.dim, counts if any(counts) else None)
        take_buffers(self.module, replicas[0])
        returned = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        self._losses = [t for t in returned if t.ndim == 0 and t.requires_grad]
        return out

    def _results(self, replicas: Sequence[Any], parts: Sequence[tuple[Tree, Tree]],
                 devices: Sequence[tuple[str, ...]]) -> list[Tree]:
        return parallel_apply(replicas, [args for args, _ in parts], [named for _, named in parts], devices)

    def _replicas(self, count: int) -> list[Any]:
        return replicate(self.module, self.device_ids[:count])

    def backward(self, loss: Tensor | float | None = None, scale: float | None = None) -> Gradients:
        """Gradients of a loss, or of the losses that the last call returned, added to the parameters' ``.grad``.

        Parameters
        ----------
        loss : Tensor, optional
            A recorded loss of one element, made of the model's result; default: the losses that the last call returned,
            once.  A number is taken for `scale`.
        scale : float, optional
            Factor of the losses: 1 / K for K batches that are to count as one; default 1.

        Raises
        ------
        TapeError, TypeError
            If there is no recorded loss of one element, or `scale` is no number.
        """
        if loss is not None and not isinstance(loss, Tensor):
            if scale is not None:
                raise TypeError(f"DataParallel.backward: loss is a {type(loss).__name__}; a tensor is required, whose "
                                f"gradient is wanted.")
            loss, scale = None, loss
        factor = 1.0 if scale is None else scale
        if not isinstance(factor, Real) or isinstance(factor, bool):
            raise TypeError(f"DataParallel.backward: scale is a {type(factor).__name__}; a number is required, the "
                            f"factor of the losses.")
        losses, self._losses = self._losses, []
        if isinstance(loss, Tensor):
            if not loss.requires_grad:
                raise TapeError("DataParallel.backward: the loss was not recorded; compute it from the model's result "
                                "inside `with with_grad_tape():`.")
            losses = [loss]
        elif not losses:
            raise TapeError("DataParallel.backward: the last call returned no recorded tensor without axes; call the "
                            "model inside `with with_grad_tape():`, or use ag.backward on a loss of its result.")
        with with_grad_tape():  # also where the tape is off
            total = reduce(ag_add, losses)
            total = total if factor == 1.0 else ag_mul(total, float(factor))
        return backward(total)

    def parameters(self) -> dict[str, Tensor]:
        """Return the model's parameters by its names."""
        parameters: dict[str, Tensor] = self.module.parameters()
        return parameters

    params = parameters

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over names and parameters."""
        return iter(self.parameters().items())

    def buffers(self) -> dict[str, Tensor]:
        """Return the model's buffers by its names."""
        return self.module.buffers() if hasattr(self.module, "buffers") else {}

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the model's parameters and buffers by all their names."""
        return named_tensors(self.module)

    def state_dict(self, frozen: bool = False) -> dict[str, Array]:
        """Return the model's state, without a prefix."""
        state: dict[str, Array] = self.module.state_dict(frozen) if frozen else self.module.state_dict()
        return state

    def load_state_dict(self, state: State, strict: bool = True) -> None:
        """Load values by the model's names; nothing changes if they do not fit."""
        self.module.load_state_dict(state, strict)


def _names(where: Device | Sequence[Device]) -> tuple[str, ...]:
    devices = [where] if isinstance(where, (str, int)) else where
    return tuple(backend_of(accelerator_name(d) if isinstance(d, int) else d).name for d in devices)


class SyncBatchNorm(BatchNorm):
    """Batch norm whose statistics are those of the whole batch, however it is dealt out to replicas.

    Inside `DataParallel` outputs and all gradients are those of one device with the whole batch, the same in every run;
    a replica may have no sample.  It cannot be inside `ag_checkpoint` there.  Elsewhere it is `ag_batch_norm`, with its
    parameters, attributes and errors.  Reference: PyTorch ``torch.nn.SyncBatchNorm``.

    Examples
    --------
    >>> import ag
    >>> model = ag.DataParallel(ag.SyncBatchNorm(1), ["cpu", "cpu:1"])
    >>> model(ag.ag_tensor([[1.0, 3.0]])).numpy().round(3).tolist()
    [[-1.0, 1.0]]
    """

    @classmethod
    def convert(cls, model: T) -> T:
        """Make every batch norm in a model synchronous, in place; returns the model."""
        for layer in objects_in(model):
            if type(layer) is BatchNorm:
                layer.__class__ = cls
        return model

    def forward(self, x: TensorLike) -> Tensor:
        """Normalise `x` of shape (num_features, batch) or (num_features, ..., batch)."""
        group = current_group()
        if group is None or not self.training:
            return super().forward(x)
        x, gamma, beta = self.scaling(x)
        if x.ndim < 2 or x.shape[0] != self.num_features:
            raise ShapeError(f"SyncBatchNorm: x is {x.shape}; ({self.num_features}, ..., batch) is required.")
        exact = ag_cast(x, "f32") if x.dtype in ("f16", "bf16") else x
        rows = exact.reshape(self.num_features, exact.size // self.num_features)
        counts = group.exchange(rows.shape[1])
        count = sum(counts)
        if count < 2:
            raise ShapeError(f"SyncBatchNorm: all replicas together have {count} values per feature; the running "
                             f"variance needs at least two in train mode.")

        def mean_over_replicas(x: Tensor) -> Tensor:
            mine = ag_sum(x, dim=1, keepdim=True) if counts[group.rank] else None
            return ag_scale(group.total(mine, x.device), 1.0 / count)

        mean = mean_over_replicas(rows)
        centred = ag_sub(rows, mean) if rows.size else rows
        variance = mean_over_replicas(centred * centred)
        if not is_repeating():
            move_statistics(mean.buffer.backend.launch, self.running_mean.buffer, self.running_var.buffer, mean.buffer,
                            variance.buffer, count, self.momentum)
        return ag_batch_norm_op(x, gamma, beta, self.eps, mean, variance) if x.size else x
