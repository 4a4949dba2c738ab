"""Parallel apply: several models at the same time, each on its own arguments and its own device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from ag.blocks import one_thread
from ag.device import ag_device, backend_of, default_backend
from ag.errors import AgError, CommError
from ag.parallel.replica_group import ReplicaGroup, Turns, set_group
from ag.parallel.thread_comm import ThreadComm, thread_comms

__all__ = ["parallel_apply"]

_FAILURES = (AgError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AttributeError)


def parallel_apply(models: Sequence[Any], inputs: Sequence[Any], kwargs: Sequence[Mapping[str, Any]] | None = None,
                   devices: Sequence[str] | None = None) -> list[Any]:
    """Call each model with its arguments, those on different devices at the same time.

    Parameters
    ----------
    models : sequence of callable
    inputs : sequence
        Per model a tuple of arguments, or its only argument.
    kwargs : sequence of dict, optional
        Per model its keyword arguments.
    devices : sequence of str, optional
        Per model the default device while it runs; default: that of its first parameter.

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
    Models on one device run one after the other, so random numbers do not depend on timing.

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
    places = [_device_of(m) for m in models] if devices is None else [backend_of(d).name for d in devices]
    if not len(models) == len(inputs) == len(named) == len(places):
        raise ValueError(f"parallel_apply: there are {len(models)} models, {len(inputs)} inputs, {len(named)} kwargs "
                         f"and {len(places)} devices; the numbers must be equal.")
    given = [x if isinstance(x, tuple) else (x,) for x in inputs]
    calls = [_Call(i, *parts) for i, parts in enumerate(zip(models, given, named, places, strict=True))]
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

    def __init__(self, rank: int, model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any],
                 device: str) -> None:
        self.rank, self.device = rank, device
        self._model, self._args, self._kwargs = model, args, kwargs
        self.result: Any = None
        self.error: Exception | None = None
        self.follows = False  # whether the error is what another replica's failure brought about

    def run(self) -> None:
        """Call the model."""
        try:
            with ag_device(self.device):
                self.result = self._model(*self._args, **self._kwargs)
        except _FAILURES as error:
            self.error = error


def _run_together(calls: Sequence[_Call]) -> None:
    """Make the calls in a thread each, those on one device taking turns."""
    comms = thread_comms(len(calls))
    devices = [call.device for call in calls]
    turns = {device: Turns(devices.count(device)) for device in devices}

    def work(call: _Call, comm: ThreadComm) -> None:
        place, mine = devices[: call.rank].count(call.device), turns[call.device]
        mine.wait(place)
        try:
            set_group(ReplicaGroup(comm, mine, place))
            call.run()
            if call.error is not None:
                call.follows = comm.is_ended()
                comm.abort(f"replica {call.rank} on {call.device} failed")
        finally:
            mine.pass_on(place, last=True)

    initializer = one_thread if len(turns) > 1 else None
    with ThreadPoolExecutor(len(calls), initializer=initializer) as pool:
        futures = [pool.submit(copy_context().run, work, call, comm) for call, comm in zip(calls, comms, strict=True)]
    for future in futures:
        future.result()


def _device_of(model: Any) -> str:
    params = model.parameters() if hasattr(model, "parameters") else {}
    first = next(iter(params.values()), None)
    return first.device if first is not None else default_backend().name
