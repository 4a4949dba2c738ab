"""Collectives on tensors: moves between devices and sums in one fixed tree, with gradients through all of them.

Each is an ordinary function of tensors, so it has its adjoint without a rule of its own: that of a broadcast is a
reduction, that of a split a concatenation.  The others of the textbook are two of these in a row:

    all-reduce      broadcast(reduce(parts, device), devices)
    reduce-scatter  split(reduce(parts, device), sizes, devices)
    all-gather      ag_concat(on_device(parts, device), dim), on every device

Knows tensors and names of devices; no model and no replica.  The tensor parallel layers call it.  Between threads and
processes, `ag.parallel.comm.comm` does the same with arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

from ag.autograd.tensor import Tensor
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add
from ag.ops.convert import ag_to_device
from ag.parallel.comm.tree_reduction import tree_sum

__all__ = ["broadcast", "on_device", "reduce", "split"]


def reduce(tensors: Sequence[Tensor], device: str) -> Tensor:
    """The sum of tensors of one shape, on a device."""
    for i, t in enumerate(tensors):
        if t.shape != tensors[0].shape:
            raise ShapeError(f"reduce: tensor 0 is {tensors[0].shape} and tensor {i} is {t.shape}; the shapes must be "
                             f"equal.")
    return tree_sum(on_device(tensors, device), ag_add)


def broadcast(tensor: Tensor, devices: Sequence[str]) -> list[Tensor]:
    """A tensor on each device."""
    return [ag_to_device(tensor, device) for device in devices]


def on_device(tensors: Sequence[Tensor], device: str) -> list[Tensor]:
    """All tensors on one device."""
    return [ag_to_device(t, device) for t in tensors]


def split(tensor: Tensor, sizes: Sequence[int], devices: Sequence[str], dim: int = -1) -> list[Tensor]:
    """Parts of a tensor along an axis, of these sizes, each on its device."""
    parts, start = [], 0
    for n, device in zip(sizes, devices, strict=True):
        key = (slice(None),) * (dim % tensor.ndim) + (slice(start, start + n),)
        parts.append(ag_to_device(tensor[key], device))
        start += n
    return parts
