"""Scatter: what a call is given, dealt out to devices along the batch axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ag.device import backend_of
from ag.errors import ShapeError
from ag.ops.convert import ag_to_device
from ag.parallel.reduction import shard_sizes
from ag.tensor import Tensor

__all__ = ["moved", "scatter", "sizes_along"]


def scatter(tensor: Any, devices: Sequence[str], dim: int = -1) -> list[Any]:
    """Deal a tensor out to devices, in nearly equal parts.

    Parameters
    ----------
    tensor : Tensor, array, or list, tuple or dict of them
        Of any shape; all have one size along `dim`.  What is not a tensor or array goes to every device as it is, and
        so do tensors and arrays without axes.
    devices : sequence of str
        A device may occur several times.
    dim : int, optional
        The axis to cut; default -1, the batch.

    Returns
    -------
    list
        Like `tensor`, for each device; fewer than devices if there are fewer samples.  Gradients flow back.

    Raises
    ------
    ShapeError
        If there is no such axis, or the sizes along it differ.
    ValueError
        If there is no device.
    DeviceError
        If a device is not there.

    References
    ----------
    torch-dl ``TorchDL.scatter``; PyTorch ``torch.nn.parallel.scatter``.

    Examples
    --------
    >>> import ag
    >>> [t.numpy().tolist() for t in ag.scatter(ag.ag_tensor([[1.0, 2.0, 3.0]]), ["cpu", "cpu:1"])]
    [[[1.0, 2.0]], [[3.0]]]
    """
    if not devices:
        raise ValueError("scatter: devices is empty; name at least one.")
    for device in devices:
        backend_of(device)
    found = sizes_along(tensor, dim)
    if len(found) > 1:
        raise ShapeError(f"scatter: the sizes along dim {dim} are {' and '.join(map(str, sorted(found)))}; "
                         f"they must be equal.")
    size = found.pop() if found else len(devices)
    sizes = [n for n in shard_sizes(size, [1.0] * len(devices)) if n > 0] or [0]
    parts, start = [], 0
    for device, n in zip(devices, sizes, strict=False):
        parts.append(_part(tensor, device, dim, slice(start, start + n)))
        start += n
    return parts


def sizes_along(value: Any, dim: int) -> set[int]:
    """The sizes that tensors and arrays in `value` have along an axis."""
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0:
        if not -value.ndim <= dim < value.ndim:
            raise ShapeError(f"scatter: dim is {dim} for a tensor of shape {value.shape}; "
                             f"it must be in {-value.ndim}..{value.ndim - 1}.")
        return {value.shape[dim]}
    return {size for item in _items(value) for size in sizes_along(item, dim)}


def _items(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()


def _part(value: Any, device: str, dim: int, places: slice) -> Any:
    """The places of `value` on a device."""
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0:
        key = (slice(None),) * (dim % value.ndim) + (places,)
        return moved(value[key] if places != slice(0, value.shape[dim]) else value, device)
    if isinstance(value, dict):
        return {name: _part(item, device, dim, places) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _like(value, [_part(item, device, dim, places) for item in value])
    return moved(value, device)


def moved(value: Any, device: str) -> Any:
    """`value` with the tensors in it on a device."""
    if isinstance(value, Tensor):
        return ag_to_device(value, device)
    if isinstance(value, dict):
        return {name: moved(item, device) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _like(value, [moved(item, device) for item in value])
    return value


def _like(value: Any, items: list[Any]) -> Any:
    """`items` in a list, tuple or named tuple like `value`."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
