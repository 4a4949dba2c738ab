"""Embedding: columns of a matrix picked by word ids; checks of ids and class numbers.

Ids are checked on the host, as kernels cannot raise.  One invocation sums the gradient of a word in the order of its
places, so bits are reproducible without atomics.
"""

from __future__ import annotations

import numpy as np

from ag.autograd.op import Cotangents, Ids, Need, Result, Run, part_of
from ag.autograd.operands import checked_ids
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.kernels.convert import host_array
from ag.engine.kernels.elementwise import add
from ag.engine.kernels.indexing import gather_columns, scatter_columns
from ag.errors import ShapeError

__all__ = ["ag_embedding_lookup"]

_MOST_PLACES = 1 << 15  # per launch: a driver ends an invocation's loops after 65,535 iterations


def ag_embedding_lookup(weight: TensorLike, idx: ArrayLike) -> Tensor:
    """Columns of a matrix, by number.

    The gradient of a word that occurs several times is the sum over its places, in their order, with the same bits
    every time.
    Reference: ggmlR ``ag_embedding`` (which drops the id -1 without a word).

    Parameters
    ----------
    weight : Tensor of shape (dim, vocab)
        One column per word.
    idx : array_like of integers, of any shape S
        0-based ids of words; a tensor is read on the host.

    Returns
    -------
    Tensor of shape (dim, *S)

    Examples
    --------
    >>> ag.ag_embedding_lookup([[1.0, 2.0, 3.0]], [2, 0, 2]).numpy().tolist()
    [[3.0, 1.0, 3.0]]
    """
    shape = np.shape(weight if hasattr(weight, "shape") else host_array(weight, "ag_embedding_lookup"))
    if len(shape) != 2:
        raise ShapeError(f"ag_embedding_lookup: weight is {shape}; (dim, vocab) is required.")
    ids = checked_ids("ag_embedding_lookup", weight, idx, shape[1], "id", "ids are 0-based numbers of words")
    return _lookup(weight, ids)


@part_of("ag_embedding_lookup")
def _lookup(run: Run, weight: Buffer, ids: Ids) -> Result[tuple[Buffer, int]]:
    places = ids.view((ids.size,))
    return run(gather_columns, weight, places).view((weight.shape[0], *ids.shape)), (places, weight.shape[1])


@_lookup.vjp
def _lookup_vjp(run: Run, g: Buffer, saved: tuple[Buffer, int], need: Need) -> Cotangents:
    places, vocab = saved
    g = g.view((g.shape[0], places.size))
    total = None
    for first in range(0, max(1, places.size), _MOST_PLACES):
        last = min(first + _MOST_PLACES, places.size)
        part = run(scatter_columns, g, places, vocab=vocab, first=first, last=last)
        total = part if total is None else run(add, total, part)
    return total, None
