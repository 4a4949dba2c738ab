"""Parallel apply: several models at the same time, each on its own arguments and its own device.

Every call has a thread.  Calls that share a device take turns in the order of the calls, so random numbers do not
depend on timing; calls on different devices run at once.  Knows callables and devices; neither parameters nor
gradients.  `DataParallel` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial

from ag.autograd.tensor import Tensor
from ag.engine.cpu_threads import share_cores
from ag.engine.device import ag_device, backend_of, default_backend
from ag.engine.program import recording_here
from ag.errors import CaptureError, CommError
from ag.parallel.comm.shared_cores import SharedCores
from ag.parallel.comm.threads import ThreadComm, thread_comms
from ag.parallel.comm.tree import Tree
from ag.parallel.replicas.replica_group import ReplicaGroup, Turns, set_group

__all__ = ["parallel_apply"]


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
        If a model fails, naming the replica and the device; the model's own error is its cause.

    Notes
    -----
    Models that share a device run one after the other, so random numbers do not depend on timing.

    References
    ----------
    PyTorch ``torch.nn.parallel.parallel_apply``.

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
    args = [x if isinstance(x, tuple) else (x,) for x in inputs]
    calls = [_Call(i, *parts) for i, parts in enumerate(zip(models, args, named, places, strict=True))]
    if len(calls) > 1 and recording_here() is not None:
        raise CaptureError(f"parallel_apply: {len(calls)} models run in threads inside a captured step, whose replay "
                           f"would not run them; call the step uncaptured, or capture a step per replica.")
    if len(calls) == 1:
        calls[0].run()
    elif calls:
        _run_together(calls)
    failed = [call for call in calls if call.error is not None]
    for call in sorted(failed, key=lambda call: call.follows):  # who only waited for the one that failed comes last
        raise CommError(f"parallel_apply: replica {call.rank} on {call.device} failed with "
                        f"{type(call.error).__name__}: {call.error}") from call.error
    return [call.result for call in calls]


class _Call:
    """One replica's work, and what came of it."""

    def __init__(self, rank: int, model: Callable[..., Tree], args: tuple[Tree, ...], kwargs: Mapping[str, Tree],
                 devices: Sequence[str]) -> None:
        self.rank, self.device, self.devices = rank, devices[0], devices
        self._model, self._args, self._kwargs = model, args, kwargs
        self.result: Tree = None
        self.error: Exception | None = None
        self.follows = False  # whether the error is what another replica's failure brought about

    def run(self) -> None:
        """Call the model."""
        try:
            with ag_device(self.device):
                self.result = self._model(*self._args, **self._kwargs)
        except Exception as error:  # noqa: BLE001 - of whatever kind, parallel_apply raises it with the replica's name
            self.error = error


def _run_together(calls: Sequence[_Call]) -> None:
    """Make the calls in a thread each, those that share a device taking turns."""
    comms = thread_comms(len(calls))
    queues = _queues([call.devices for call in calls])
    turns = [Turns(queues.count(queue)) for queue in range(max(queues) + 1)]

    def work(call: _Call, comm: ThreadComm) -> None:
        queue = queues[call.rank]
        place, mine = queues[: call.rank].count(queue), turns[queue]
        group = ReplicaGroup(comm, mine, place)
        set_group(group)
        mine.wait(place)
        try:
            call.run()
            if call.error is not None:
                call.follows = comm.is_ended()
                comm.abort(f"replica {call.rank} on {call.device} failed")
        finally:
            group.end()

    busy = {call.device for call in calls if not backend_of(call.device).asynchronous}
    shared = partial(share_cores, len(turns))
    with SharedCores(busy), ThreadPoolExecutor(len(calls), initializer=shared) as pool:
        futures = [pool.submit(copy_context().run, work, call, comm) for call, comm in zip(calls, comms, strict=True)]
    for future in futures:
        future.result()


def _queues(devices: Sequence[Sequence[str]]) -> list[int]:
    """The number of each call's queue, from 0: calls that share a device, directly or by a third call, share a queue.

    Calls on {a}, {b}, {b, c}, {c} are in the queues 0, 1, 1, 1.
    """
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
