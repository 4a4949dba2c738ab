"""Parallel apply: several models at the same time, each on its own arguments and its own device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from ag.blocks import one_thread
from ag.device import ag_device, backend_of, default_backend
from ag.errors import AgError, CommError

__all__ = ["parallel_apply"]


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
    Each device has one thread, in which its models run in their order, so random numbers do not depend on timing.

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
    results: list[Any] = [None] * len(models)

    def run(device: str) -> None:
        for i, place in enumerate(places):
            if place == device:
                given = inputs[i] if isinstance(inputs[i], tuple) else (inputs[i],)
                try:
                    with ag_device(device):
                        results[i] = models[i](*given, **named[i])
                except (AgError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
                    raise CommError(f"parallel_apply: replica {i} on {device} failed with "
                                    f"{type(error).__name__}: {error}") from error

    kinds = list(dict.fromkeys(places))
    if len(kinds) < 2:
        for device in kinds:
            run(device)
        return results
    with ThreadPoolExecutor(len(kinds), initializer=one_thread) as pool:
        futures = [pool.submit(copy_context().run, run, device) for device in kinds]
    for future in futures:  # all have ended; the first failure is the one to be told
        future.result()
    return results


def _device_of(model: Any) -> str:
    params = model.parameters() if hasattr(model, "parameters") else {}
    first = next(iter(params.values()), None)
    return first.device if first is not None else default_backend().name
