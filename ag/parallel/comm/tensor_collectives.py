"""Moves of tensors between devices, with gradients through all of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ag.autograd.tensor import Tensor
from ag.autograd.tree import Leaf, Tree, sequence_of, tree_leaves, tree_map
from ag.engine.device import backend_of
from ag.engine.shape import along
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add, ag_mul
from ag.ops.convert import ag_to_device
from ag.ops.indexing import ag_concat
from ag.parallel.comm.tree_reduction import shard_sizes, tree_sum

__all__ = ["gather", "scatter"]


def scatter(tensor: Tree, devices: Sequence[str], dim: int = -1, *, axis: int | None = None) -> list[Tree]:
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
    axis : int, optional
        Another name of `dim`, which is numpy's.

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
    dim = along("scatter", dim, axis)
    if not devices:
        raise ValueError("scatter: devices is empty; name at least one.")
    for device in devices:
        backend_of(device)
    counts = sizes_along(tensor, dim)
    if len(counts) > 1:
        raise ShapeError(f"scatter: the sizes along dim {dim} are {' and '.join(map(str, sorted(counts)))}; "
                         f"they must be equal.")
    size = counts.pop() if counts else len(devices)
    sizes = [n for n in shard_sizes(size, [1.0] * len(devices)) if n > 0] or [0]
    parts, start = [], 0
    for device, n in zip(devices, sizes, strict=False):
        parts.append(moved(cut(tensor, dim, slice(start, start + n)), device))
        start += n
    return parts


def sizes_along(value: Tree, dim: int) -> set[int]:
    """Return the sizes that tensors and arrays in `value` have along an axis."""
    sizes = set()
    for x in tree_leaves(value):
        if x.ndim > 0:
            if not -x.ndim <= dim < x.ndim:
                raise ShapeError(f"scatter: dim is {dim} for a tensor of shape {x.shape}; "
                                 f"it must be in {-x.ndim}..{x.ndim - 1}.")
            sizes.add(x.shape[dim])
    return sizes


def cut(value: Tree, dim: int, places: slice) -> Tree:
    """Cut these places along an axis out of the tensors and arrays in `value` that have axes."""
    return tree_map(lambda x: _cut(x, dim, places) if x.ndim > 0 else x, value)


def _cut(x: Leaf, dim: int, places: slice) -> Leaf:
    return x if places == slice(0, x.shape[dim]) else x[(slice(None),) * (dim % x.ndim) + (places,)]


def moved(value: Tree, device: str) -> Tree:
    """Move the tensors in `value` to a device."""
    return tree_map(lambda x: ag_to_device(x, device) if isinstance(x, Tensor) else x, value)


def gather(tensors: Sequence[Tree], device: str, dim: int = -1, weights: Sequence[float] | None = None, *,
           axis: int | None = None) -> Tree:
    """Put the results of replicas together on a device.

    Parameters
    ----------
    tensors : sequence
        One per replica: tensors, or lists, tuples or dicts of them, alike in structure.  Of what is no tensor, the
        first replica's is taken.
    device : str
        Where the result shall be.
    dim : int, optional
        The axis along which tensors are joined; default -1, the batch.
    weights : sequence of float, optional
        How much each replica counts where results are losses, without axes; samples of each, for instance.
        Default: all the same.
    axis : int, optional
        Another name of `dim`, which is numpy's.

    Returns
    -------
    Tensor, or list, tuple or dict of them
        Tensors joined; of losses, the weighted mean.  Gradients flow back.

    Raises
    ------
    ShapeError
        If shapes differ in another axis than `dim`.
    ValueError
        If there is nothing to gather, structures differ, or there are not as many weights, adding up to more than 0.

    References
    ----------
    torch-dl ``TorchDL.gather``; PyTorch ``torch.nn.parallel.gather``.

    Examples
    --------
    >>> import ag
    >>> parts = ag.scatter(ag.ag_tensor([[1.0, 2.0, 3.0]]), ["cpu", "cpu:1"])
    >>> ag.gather(parts, "cpu").numpy().tolist()
    [[1.0, 2.0, 3.0]]
    """
    dim = along("gather", dim, axis)
    if not len(tensors):
        raise ValueError("gather: there is nothing to gather; pass at least one tensor.")
    counts = [1.0] * len(tensors) if weights is None else list(weights)
    if len(counts) != len(tensors) or not sum(counts) > 0 or min(counts) < 0:
        raise ValueError(f"gather: weights are {counts} for {len(tensors)} results; one per result is required, none "
                         f"negative and not all 0.")
    return _joined(list(tensors), device, dim, [n / sum(counts) for n in counts])


def _joined(values: list[Tree], device: str, dim: int, shares: list[float]) -> Tree:
    first = values[0]
    if any(type(x) is not type(first) for x in values):
        kinds = " and ".join(sorted({type(x).__name__ for x in values}))
        raise ValueError(f"gather: the replicas returned {kinds}; their results must be alike.")
    if isinstance(first, Tensor):
        return _one(values, device, dim, shares)
    if isinstance(first, dict):
        if any(x.keys() != first.keys() for x in values):
            raise ValueError(f"gather: the replicas returned dicts with the keys "
                             f"{' and '.join(str(sorted(map(str, x))) for x in values)}; they must be equal.")
        return {name: _joined([x[name] for x in values], device, dim, shares) for name in first}
    if isinstance(first, (list, tuple)):
        if any(len(x) != len(first) for x in values):
            raise ValueError(f"gather: the replicas returned {' and '.join(str(len(x)) for x in values)} items; "
                             f"the numbers must be equal.")
        items = [_joined(list(column), device, dim, shares) for column in zip(*values, strict=True)]
        return sequence_of(type(first), items)
    return first


def _one(tensors: list[Tensor], device: str, dim: int, shares: list[float]) -> Tensor:
    here = on_device(tensors, device)
    if any(t.ndim != here[0].ndim for t in here):
        raise ShapeError(f"gather: the replicas returned tensors of shape {' and '.join(str(t.shape) for t in here)}; "
                         f"they must have as many axes.")
    if len(here) == 1:
        return here[0]
    if here[0].ndim == 0:
        return functools.reduce(ag_add, [ag_mul(t, share) for t, share in zip(here, shares, strict=True)])
    return ag_concat(here, dim)


def reduce(tensors: Sequence[Tensor], device: str) -> Tensor:
    """Return the sum of tensors of one shape, on a device."""
    for i, t in enumerate(tensors):
        if t.shape != tensors[0].shape:
            raise ShapeError(f"reduce: tensor 0 is {tensors[0].shape} and tensor {i} is {t.shape}; the shapes must be "
                             f"equal.")
    return tree_sum(on_device(tensors, device), ag_add)


def broadcast(tensor: Tensor, devices: Sequence[str]) -> list[Tensor]:
    """Copy a tensor to each device."""
    return [ag_to_device(tensor, device) for device in devices]


def on_device(tensors: Sequence[Tensor], device: str) -> list[Tensor]:
    """Move all tensors to one device."""
    return [ag_to_device(t, device) for t in tensors]


def split(tensor: Tensor, sizes: Sequence[int], devices: Sequence[str], dim: int = -1) -> list[Tensor]:
    """Cut a tensor along an axis into parts of these sizes, each on its device."""
    parts, start = [], 0
    for n, device in zip(sizes, devices, strict=True):
        key = (slice(None),) * (dim % tensor.ndim) + (slice(start, start + n),)
        parts.append(ag_to_device(tensor[key], device))
        start += n
    return parts
