"""Embedding: columns of a matrix picked by word ids; checks of ids and class numbers.

Ids are checked on the host, as kernels cannot raise.  One invocation sums the gradient of a word in the order of its
places, so bits are reproducible without atomics.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ag.autograd.create import to_buffer
from ag.autograd.op import Cotangents, Need, Result, Run, operands_on_one_device, part_of
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.dtype import I32
from ag.engine.kernels.convert import array_to_upload, host_array
from ag.engine.kernels.elementwise import add
from ag.engine.kernels.indexing import gather_columns, scatter_columns
from ag.engine.primitive import Array
from ag.errors import CaptureError, DeviceError, DtypeError, ShapeError

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
def _lookup(run: Run, weight: Buffer, ids: Tensor) -> Result[tuple[Buffer, int]]:
    places = ids.buffer.view((ids.size,))
    return run(gather_columns, weight, places).view((weight.shape[0], *ids.shape)), (places, weight.shape[1])


@_lookup.vjp
def _lookup_vjp(run: Run, g: Buffer, saved: tuple[Buffer, int], need: Need, ids: Tensor) -> Cotangents:
    places, vocab = saved
    g = g.view((g.shape[0], places.size))
    total = None
    for first in range(0, max(1, places.size), _MOST_PLACES):
        last = min(first + _MOST_PLACES, places.size)
        part = run(scatter_columns, g, places, vocab=vocab, first=first, last=last)
        total = part if total is None else run(add, total, part)
    return (total,)


_UNSIGNED = {np.dtype(kind + size): np.dtype("u" + size) for kind in "iu" for size in "1248"}
_LIMITS = {dtype: int(np.iinfo(dtype).max) + 1 for dtype in _UNSIGNED}
CLASS_RULE = "labels are 0-based class numbers"


def refuse_outside(function: str, count: int, noun: str, rule: str, values: Array) -> None:
    """Each of `values` must be one of 0..count-1."""
    unsigned = _UNSIGNED.get(values.dtype)
    if unsigned is not None and values.size and (  # hot path, as every replay checks
            np.maximum.reduce(values.view(unsigned), axis=None) < min(count, _LIMITS[values.dtype])):
        return  # a negative number would be one of the limit or more
    with np.errstate(all="ignore"):
        whole = values.astype(np.int32)
    wrong = values[(whole != values) | (whole < 0) | (whole >= count)]
    if wrong.size:
        raise IndexError(f"{function}: the {noun} {wrong.flat[0]} is outside 0..{count - 1}; {rule}.")


def checked_ids(function: str, beside: TensorLike, ids: ArrayLike, count: int, noun: str, rule: str) -> Tensor:
    """`ids` as an int32 tensor on the device of `beside`; each must be one of 0..count-1, on replays too."""
    backend = operands_on_one_device(function, (beside,))[0]
    if isinstance(ids, Tensor) and ids.buffer.backend is not backend:
        raise DeviceError(f"{function}: operands are on {backend.name} and {ids.device} (the {noun}s); "
                          f"move one with ag_to_device first.")

    check = partial(refuse_outside, function, count, noun, rule)
    if isinstance(ids, Tensor) and backend.recording is not None:
        positions = " Of positions 0 to n - 1 the columns are weight[:, :n]." if noun == "id" else ""
        backend.recording.refuse(CaptureError(
            f"{function}: the {noun}s are a tensor, and a captured step cannot read it to check them; pass them to the "
            f"step as a numpy array.{positions}"))
    if isinstance(ids, Tensor) and ids.buffer.dtype is I32:
        check(backend.download(ids.buffer))  # which only looks at them; a listener is told of `numpy`
        return ids
    values = array_to_upload(ids, function)
    if values.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: the {noun}s are of type {values.dtype}; whole numbers are required.")
    check(values)
    buffer = to_buffer(values, backend, I32)
    if backend.recording is not None:
        backend.recording.value_checks.append((buffer, check))
    return Tensor(buffer)
