"""Collectives on tensors: one tensor per device in, one per device out, and gradients through all of them.

They are put together from moves between devices and sums in one fixed tree, so each has its adjoint without a rule of
its own: that of a broadcast is a reduction, that of an all-gather a reduce-scatter.  Between processes and threads,
`ag.parallel.comm.comm` does the same with arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

from ag.autograd.tensor import Tensor
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add
from ag.ops.convert import ag_to_device
from ag.ops.indexing import ag_concat
from ag.parallel.comm.tree_reduction import shard_sizes, tree_sum

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter"]


def reduce(tensors: Sequence[Tensor], device: str) -> Tensor:
    """The sum of tensors of one shape, on a device."""
    for i, t in enumerate(tensors):
        if t.shape != tensors[0].shape:
            raise ShapeError(f"reduce: tensor 0 is {tensors[0].shape} and tensor {i} is {t.shape}; the shapes must be "
                             f"equal.")
    return tree_sum(broadcast_to(tensors, device), ag_add)


def broadcast(tensor: Tensor, devices: Sequence[str]) -> list[Tensor]:
    """A tensor on each device."""
    return [ag_to_device(tensor, device) for device in devices]


def all_reduce(tensors: Sequence[Tensor]) -> list[Tensor]:
    """For each tensor, the sum of all on its device."""
    total = reduce(tensors, tensors[0].device)
    return broadcast(total, [t.device for t in tensors])


def all_gather(tensors: Sequence[Tensor], dim: int = -1) -> list[Tensor]:
    """For each tensor, all joined along an axis, on its device."""
    return [ag_concat(broadcast_to(tensors, t.device), dim) for t in tensors]


def reduce_scatter(tensors: Sequence[Tensor], dim: int = -1, weights: Sequence[float] | None = None) -> list[Tensor]:
    """For each tensor, its part along an axis of the sum of all; parts are in proportion to `weights`, or equal."""
    total = reduce(tensors, tensors[0].device)
    sizes = shard_sizes(total.shape[dim], weights or [1.0] * len(tensors))
    return split(total, sizes, [t.device for t in tensors], dim)


def broadcast_to(tensors: Sequence[Tensor], device: str) -> list[Tensor]:
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
