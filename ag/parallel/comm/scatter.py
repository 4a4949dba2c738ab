"""Scatter: a batch dealt out to devices along an axis.

Works on whole trees of arguments (`ag.parallel.comm.tree`), and gradients flow back.  Knows tensors and devices; no
model.  `DataParallel` and `Pipeline` call it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ag.autograd.tensor import Tensor
from ag.engine.device import backend_of
from ag.engine.shape import along
from ag.errors import ShapeError
from ag.ops.convert import ag_to_device
from ag.parallel.comm.tree import Leaf, Tree, tree_leaves, tree_map
from ag.parallel.comm.tree_reduction import shard_sizes

__all__ = ["cut", "moved", "scatter", "sizes_along"]


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
        parts.append(_part(tensor, device, dim, slice(start, start + n)))
        start += n
    return parts


def sizes_along(value: Tree, dim: int) -> set[int]:
    """The sizes that tensors and arrays in `value` have along an axis."""
    sizes = set()
    for x in tree_leaves(value):
        if x.ndim > 0:
            if not -x.ndim <= dim < x.ndim:
                raise ShapeError(f"scatter: dim is {dim} for a tensor of shape {x.shape}; "
                                 f"it must be in {-x.ndim}..{x.ndim - 1}.")
            sizes.add(x.shape[dim])
    return sizes


def _part(value: Tree, device: str, dim: int, places: slice) -> Tree:
    """The places of `value` on a device."""
    return moved(cut(value, dim, places), device)


def cut(value: Tree, dim: int, places: slice) -> Tree:
    """`value` with these places along an axis of the tensors and arrays in it that have axes."""
    return tree_map(lambda x: _cut(x, dim, places) if x.ndim > 0 else x, value)


def _cut(x: Leaf, dim: int, places: slice) -> Leaf:
    return x if places == slice(0, x.shape[dim]) else x[(slice(None),) * (dim % x.ndim) + (places,)]


def moved(value: Tree, device: str) -> Tree:
    """`value` with the tensors in it on a device."""
    return tree_map(lambda x: ag_to_device(x, device) if isinstance(x, Tensor) else x, value)
