"""Gradient synchronization: the weighted average of sets of gradients, within a process and over a group of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, prod

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.operands import column
from ag.autograd.tape import Gradients
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.primitive import Array
from ag.errors import CommError, ShapeError
from ag.optim.flat import flat_layout
from ag.parallel.comm.comm import Comm, HasComm, comm_of, everyone
from ag.parallel.comm.tree_reduction import tree_sum

__all__ = ["syncgrads"]


def syncgrads(grad_sets: Sequence[Gradients | Mapping[str, TensorLike]], weights: Sequence[float] | None = None,
              world: Comm | HasComm | None = None) -> dict[str, Tensor]:
    """Average sets of gradients, such as those of several replicas or micro-batches.

    Parameters
    ----------
    grad_sets : sequence of Gradients, or of dicts of str to Tensor or array
        A name that a set lacks counts as zeros there.  An array of shape (n,) counts as a column, (n, 1), as in
        `ag_tensor`; a tensor keeps its shape.
    weights : sequence of float, optional
        What each set counts, such as the number of its samples; default: all the same.  A set of weight 0, of a
        replica without samples, is left out.
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
    ShapeError
        If a gradient differs in shape between sets.
    CommError
        If it differs in shape between ranks.

    References
    ----------
    ResNetImageNet.jl ``syncgrads`` (which divides by 4 whatever the number of workers is).

    Examples
    --------
    >>> import ag
    >>> sets = [{"W": ag.ag_tensor([[1.0]])}, {"W": ag.ag_tensor([[4.0]])}]
    >>> ag.syncgrads(sets)["W"].item(), ag.syncgrads(sets, weights=[2, 1])["W"].item()
    (2.5, 2.0)
    """
    counts = [1.0] * len(grad_sets) if weights is None else [float(w) for w in weights]
    if len(counts) != len(grad_sets):
        raise ValueError(f"syncgrads: there are {len(grad_sets)} sets and {len(counts)} weights; give one for each.")
    if not all(isfinite(w) and w >= 0 for w in counts):
        raise ValueError(f"syncgrads: weights are {counts}; all must be finite and at least 0.")
    group = comm_of(world, "syncgrads")
    named = [_by_name(i, grads) for i, grads in enumerate(grad_sets)]
    layout = _agreed(_layout(named), group)
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


def _layout(named: list[dict[str, TensorLike]]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and type of every gradient of any set."""
    layout: dict[str, tuple[tuple[int, ...], str]] = {}
    for i, grads in enumerate(named):
        for name, g in grads.items():
            shape = g.shape if isinstance(g, Tensor) else column(np.asarray(g)).shape  # as the optimizers take it
            kind = "float64" if (g.dtype if isinstance(g, Tensor) else np.asarray(g).dtype) in ("f64", np.float64) \
                else "float32"
            known = layout.setdefault(name, (shape, kind))
            if known[0] != shape:
                raise ShapeError(f"syncgrads: the gradient of {name!r} is {shape} in set {i} and {known[0]} in one "
                                 f"before; the shapes must be equal.")
    return layout


def _agreed(mine: dict[str, tuple[tuple[int, ...], str]], group: Comm) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the gradients of any rank, in the same order on all of them."""
    agreed: dict[str, tuple[tuple[int, ...], str]] = {}
    for rank, layout in enumerate(everyone(group, mine)):
        for name, (sizes, kind) in layout.items():
            known = agreed.setdefault(name, (tuple(sizes), kind))
            if known != (tuple(sizes), kind):
                raise CommError(f"syncgrads: the gradient of {name!r} is {tuple(sizes)} {kind} on rank {rank} and "
                                f"{known[0]} {known[1]} on one before; they must be equal.")
    return agreed


def _flat(grads: dict[str, TensorLike], weight: float, starts: Mapping[str, int], row: Array) -> Array:
    """Write a set's gradients times its weight to a row of zeros."""
    for name, g in grads.items() if weight else ():
        values = (g.numpy() if isinstance(g, Tensor) else np.asarray(g)).reshape(-1)
        np.multiply(values, row.dtype.type(weight), out=row[starts[name] : starts[name] + values.size])
    return row
