"""Gather: the results of replicas, put together on one device.

The counterpart of `scatter`: tensors are joined along the batch axis, losses become their weighted mean, and gradients
flow back to every replica.  Knows tensors and devices; no model.  `DataParallel` calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ag.autograd.tensor import Tensor
from ag.engine.shape import along
from ag.errors import ShapeError
from ag.ops.arithmetic import ag_add, ag_mul
from ag.ops.convert import ag_to_device
from ag.ops.indexing import ag_concat
from ag.parallel.comm.tree import Tree, sequence_of

__all__ = ["gather"]


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
    here = [ag_to_device(t, device) for t in tensors]
    if any(t.ndim != here[0].ndim for t in here):
        raise ShapeError(f"gather: the replicas returned tensors of shape {' and '.join(str(t.shape) for t in here)}; "
                         f"they must have as many axes.")
    if len(here) == 1:
        return here[0]
    if here[0].ndim == 0:
        return reduce(ag_add, [ag_mul(t, share) for t, share in zip(here, shares, strict=True)])
    return ag_concat(here, dim)
