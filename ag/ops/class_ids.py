"""Class numbers and word ids: whole numbers from the host, checked there, because a kernel cannot raise an error.

`ag.ops.loss` and `ag.ops.embedding` call `checked_ids`, and say what the numbers are called in messages; metrics, which
stay on the host, call `refuse_outside`.  It knows no op, but for one message that helps with the ids of an embedding.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ag.autograd.create import to_buffer
from ag.autograd.op import operands_on_one_device
from ag.autograd.tensor import ArrayLike, Tensor, TensorLike
from ag.engine.dtype import I32
from ag.engine.kernels.convert import array_to_upload
from ag.engine.primitive import Array
from ag.errors import CaptureError, DeviceError, DtypeError

__all__ = ["CLASS_RULE", "checked_ids", "refuse_outside"]

_UNSIGNED = {np.dtype(kind + size): np.dtype("u" + size) for kind in "iu" for size in "1248"}
_LIMITS = {dtype: int(np.iinfo(dtype).max) + 1 for dtype in _UNSIGNED}
CLASS_RULE = "labels are 0-based class numbers"


def refuse_outside(function: str, count: int, noun: str, rule: str, values: Array) -> None:
    """Each of `values` must be one of 0..count-1.

    Raises
    ------
    IndexError
        Naming the first that is not, as a `noun`, and the `rule`.
    """
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
    """`ids` as an int32 tensor on the device of `beside`; each must be one of 0..count-1, on replays too.

    Raises
    ------
    IndexError
        Naming the first id that is not, as a `noun`, and the `rule`.
    DtypeError
        If `ids` are no numbers.
    DeviceError
        If `ids` is a tensor on another device.
    CaptureError
        If `ids` is a tensor in a captured step.
    """
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
