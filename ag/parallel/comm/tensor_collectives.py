"""Moves of tensors between devices, with gradients through all of them; and averages of gradients, also over ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite, prod
from operator import add

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.operands import column
from ag.autograd.tape import Gradients
from ag.autograd.tensor import Tensor, TensorLike
from ag.autograd.tree import Leaf, Tree, sequence_of, tree_leaves, tree_map
from ag.engine.device import backend_of
from ag.engine.primitive import Array
from ag.engine.shape import along
from ag.errors import CommError, ShapeError
from ag.ops.arithmetic import ag_add
from ag.ops.creation import ag_to_device
from ag.ops.indexing import ag_concat
from ag.optim.flat import flat_layout
from ag.parallel.comm.comm import Comm, HasComm, comm_of, everyone
from ag.parallel.comm.tree_reduction import shard_sizes, tree_sum

__all__ = ["gather", "scatter", "syncgrads"]


def scatter(tensor: Tree, devices: Sequence[str], dim: int = -1, *, axis: int | None = None) -> list[Tree]:
    """Deal a tensor out to devices, in nearly equal parts.

    Reference: torch-dl ``TorchDL.scatter``; PyTorch ``torch.nn.parallel.scatter``.

    Parameters
    ----------
    tensor : Tensor, array, or list, tuple or dict of them
        All have one size along `dim`.  Whatever else is there, or has no axes, goes to every device as it is.
    devices : sequence of str
        A device may occur several times.
    dim, axis : int, optional
        The axis to cut; default -1, the batch.

    Returns
    -------
    list
        Like `tensor`, for each device; fewer than devices if there are fewer samples.  Gradients flow back.

    Raises
    ------
    ShapeError
        If there is no such axis, or the sizes along it differ.
    ValueError, DeviceError
        If there is no device, or one is not there.

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
    return [moved(cut(tensor, dim, slice(end - n, end)), device)
            for device, n, end in zip(devices, sizes, accumulate(sizes), strict=False)]


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

    Reference: torch-dl ``TorchDL.gather``; PyTorch ``torch.nn.parallel.gather``.

    Parameters
    ----------
    tensors : sequence
        One per replica: tensors, arrays, or lists, tuples or dicts of them, alike in structure.  Of what is neither,
        the first replica's is taken.
    device : str
        Where the result shall be.
    dim : int, optional
        The axis along which they are joined; default -1, the batch.
    weights : sequence of float, optional
        How much each replica counts where results are losses, without axes, such as its samples; default: all the same.
    axis : int, optional
        Another name of `dim`.

    Returns
    -------
    Tensor or ndarray, or list, tuple or dict of them
        Joined; of losses, the weighted mean.  Gradients flow back.

    Raises
    ------
    ShapeError, ValueError
        If shapes, but along `dim`, or structures differ, there is nothing to gather, or weights are others.

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
    first, kinds = values[0], dict.fromkeys(map(_kind, values))
    if len(kinds) > 1:
        raise ValueError(f"gather: the replicas returned {' and '.join(kinds)}; their results must be alike.")
    if isinstance(first, (Tensor, np.ndarray)):
        return _one(values, device, dim, shares)
    if isinstance(first, dict):
        return {name: _joined([x[name] for x in values], device, dim, shares) for name in first}
    if isinstance(first, (list, tuple)):
        items = [_joined(list(column), device, dim, shares) for column in zip(*values, strict=True)]
        return sequence_of(type(first), items)
    return first


def _kind(x: Tree) -> str:
    keys = f" with the keys {sorted(map(str, x))}" if isinstance(x, dict) else ""
    return f"a {type(x).__name__}{keys}" + (f" of {len(x)} items" if isinstance(x, (list, tuple)) else "")


def _one(parts: list[Tree], device: str, dim: int, shares: list[float]) -> Tree:
    here = moved(parts, device)
    if any(t.ndim != here[0].ndim for t in here):
        raise ShapeError(f"gather: the replicas returned tensors of shape {' and '.join(str(t.shape) for t in here)}; "
                         f"they must have as many axes.")
    if len(here) == 1:
        return here[0]
    if here[0].ndim == 0:
        return functools.reduce(add, [t * share for t, share in zip(here, shares, strict=True)])
    if isinstance(here[0], Tensor):
        return ag_concat(here, dim)
    try:
        return np.concatenate(here, dim)
    except ValueError as error:
        raise ShapeError(f"gather: arrays of shape {', '.join(str(x.shape) for x in here)}: {error}.") from error


def reduce(tensors: Sequence[Tensor], device: str) -> Tensor:
    """Return the sum of tensors of one shape, on a device."""
    for i, t in enumerate(tensors):
        if t.shape != tensors[0].shape:
            raise ShapeError(f"reduce: tensor 0 is {tensors[0].shape} and tensor {i} is {t.shape}; the shapes must be "
                             f"equal.")
    return tree_sum([ag_to_device(t, device) for t in tensors], ag_add)


def split(tensor: Tensor, sizes: Sequence[int], devices: Sequence[str], dim: int = -1) -> list[Tensor]:
    """Cut a tensor along an axis into parts of these sizes, each on its device."""
    return [ag_to_device(_cut(tensor, dim, slice(end - n, end)), device)
            for n, end, device in zip(sizes, accumulate(sizes), devices, strict=True)]


def syncgrads(grad_sets: Sequence[Gradients | Mapping[str, TensorLike]], weights: Sequence[float] | None = None,
              world: Comm | HasComm | None = None) -> dict[str, Tensor]:
    """Average sets of gradients, such as those of several replicas or micro-batches.

    Reference: ResNetImageNet.jl ``syncgrads`` (which divides by 4 whatever the number of workers is).

    Parameters
    ----------
    grad_sets : sequence of Gradients, or of dicts of str to Tensor or array
        A name that a set lacks counts as zeros there.  An array of shape (n,) counts as a column.
    weights : sequence of float, optional
        What each set counts, such as the number of its samples; default: all the same.  One of weight 0 is left out.
    world : communicator or DistributedWorld, optional
        Average over the sets of all its ranks, which all make this call; each may have any number of sets.

    Returns
    -------
    dict of str to Tensor
        The averages by name, which ``optimizer.step`` and `clip_grad_norm` take; the same to the bit on every rank.
        Each is where the first set that has it is, or on the default device.

    Raises
    ------
    ValueError
        If the weights are not as many as the sets, negative or not finite, or all 0.
    ShapeError, CommError
        If a gradient differs in shape between sets, or between ranks.

    Examples
    --------
    >>> import ag
    >>> sets = [{"W": ag.ag_tensor([[1.0]])}, {"W": ag.ag_tensor([[4.0]])}]
    >>> ag.syncgrads(sets)["W"].item(), ag.syncgrads(sets, weights=[2, 1])["W"].item()
    (2.5, 2.0)
    """
    if not isinstance(grad_sets, Sequence):
        raise TypeError(f"syncgrads: grad_sets is a {type(grad_sets).__name__}; a list of gradients is required.")
    counts = [1.0] * len(grad_sets) if weights is None else [float(w) for w in weights]
    if len(counts) != len(grad_sets):
        raise ValueError(f"syncgrads: there are {len(grad_sets)} sets and {len(counts)} weights; give one for each.")
    if not all(isfinite(w) and w >= 0 for w in counts):
        raise ValueError(f"syncgrads: weights are {counts}; all must be finite and at least 0.")
    group = comm_of(world, "syncgrads")
    named = [_by_name(i, grads) for i, grads in enumerate(grad_sets)]
    mine = _merged(map(_layout, named), "in set", ShapeError)
    layout = _merged(everyone(group, mine), "on rank", CommError)
    total = np.array([sum(counts)], np.float64)
    group.all_reduce(total)
    if total[0] == 0:
        raise ValueError("syncgrads: all weights are 0; at least one set must count.")
    dtype = np.result_type(np.float32, *[kind for _, kind in layout.values()])
    starts, size = flat_layout({name: prod(shape) for name, (shape, _) in layout.items()})
    flat = np.zeros(size, dtype)
    with np.errstate(all="ignore"):
        if named:
            rows = (_flat(g, weight, starts, np.zeros_like(flat)) for g, weight in zip(named, counts, strict=True))
            flat[:] = tree_sum(rows, np.add)
        group.all_reduce(flat)
        flat /= total[0]
    averages = {}
    for name, (shape, kind) in layout.items():
        sets = (grads.get(name) for grads in named)
        device = next((g.device for g in sets if isinstance(g, Tensor)), None)
        average = flat[starts[name] : starts[name] + prod(shape)]
        averages[name] = ag_tensor(average, device, "f64" if kind == "float64" else "f32").reshape(*shape)
    return averages


def _by_name(i: int, grads: Gradients | Mapping[str, TensorLike]) -> dict[str, TensorLike]:
    if not isinstance(grads, Gradients):
        return dict(grads)
    named: dict[str, TensorLike] = {}
    for p, g in grads.items():
        if p.name is None or p.name in named:
            raise ValueError(f"syncgrads: set {i} has a gradient of {'two parameters' if p.name else 'a parameter'} "
                             f"called {p.name}; call parameters() of their model, which names them, or pass a dict.")
        named[p.name] = g
    return named


Layout = Mapping[str, tuple[Sequence[int], str]]  # of gradients: shape and type


def _layout(grads: dict[str, TensorLike]) -> Layout:
    layout = {}
    for name, g in grads.items():
        x = g if isinstance(g, Tensor) else column(np.asarray(g))  # as the optimizers take it
        layout[name] = x.shape, "float64" if x.dtype in ("f64", np.float64) else "float32"
    return layout


def _merged(layouts: Iterable[Layout], where: str, error: type[Exception]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the gradients of any set or rank, of the widest type; raise `error` where shapes differ."""
    merged: dict[str, tuple[tuple[int, ...], str]] = {}
    for i, layout in enumerate(layouts):
        for name, (sizes, kind) in layout.items():
            shape, known = merged.get(name, (tuple(sizes), kind))
            if shape != tuple(sizes):
                raise error(f"syncgrads: the gradient of {name!r} is {tuple(sizes)} {where} {i} and {shape} in one "
                            f"before; the shapes must be equal.")
            merged[name] = shape, max(known, kind)
    return merged


def _flat(grads: dict[str, TensorLike], weight: float, starts: Mapping[str, int], row: Array) -> Array:
    """Write a set's gradients times its weight to a row of zeros."""
    for name, g in grads.items() if weight else ():
        values = (g.numpy() if isinstance(g, Tensor) else np.asarray(g)).reshape(-1)
        np.multiply(values, row.dtype.type(weight), out=row[starts[name] : starts[name] + values.size])
    return row
