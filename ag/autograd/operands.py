"""Operands of ops: lift host values, check that tensors share a device and a type, turn host vectors into columns.

A host vector is a column, as in `ag_tensor`, so that adding one never makes an outer product (`_as_vectors`).  Ids are
checked on the host, as kernels cannot raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Number, Real
from typing import Any, Literal, NamedTuple, NoReturn, cast

import numpy as np

from ag.autograd.frozen import FrozenTensor
from ag.autograd.tape import is_recording
from ag.autograd.tensor import CODE, HOST_OPERATORS, OPS, ArrayLike, Tensor, TensorLike, to_array
from ag.engine.arena import now
from ag.engine.buffer import Buffer, Device
from ag.engine.device import default_backend, default_dtype, was_named
from ag.engine.dtype import BF16, BOOL, F32, F64, I32, DType
from ag.engine.interpreter import current
from ag.engine.kernels.convert import Placeholder, array_to_upload, converted, host_array, loaded, narrow, stored
from ag.engine.kernels.elementwise import copy
from ag.engine.primitive_types import Array
from ag.engine.shape import broadcast
from ag.errors import CaptureError, DeviceError, DtypeError, ShapeError, TapeError

Args = tuple[object, ...]

# hot path, in op.c: device, type, buffers, operands and other arguments of a call, if the first `n` arguments are
# tensors of one device and type; None for other calls, and without a compiler.
alike: Callable[[Args, int], tuple[Device, DType, list[Buffer], tuple[Tensor, ...], Args] | None] = (
    CODE.alike if CODE is not None else lambda args, operands: None)


class Kind(NamedTuple):
    """The values that callers may pass for an operand."""

    # what a host vector is: a column; column or row, as the other operands need; or what it is, as a matrix is required
    vector: Literal["column", "either", "matrix"] = "column"
    integers: bool = False  # any element type, as the op only moves elements
    wide: bool = False  # float32 also beside 16-bit operands
    ids: bool = False  # int32, whatever the type of the others
    rounded: bool = False  # numbers are rounded to the type of the others, also to 16 bits


KINDS = {"Buffer": Kind(), "Elements": Kind(integers=True), "Wide": Kind(wide=True), "Ids": Kind(ids=True),
         "RowOrColumn": Kind("either"), "Matrix": Kind("matrix"),
         "Compared": Kind("either", rounded=True)}  # by the annotations of forward rules
_PLAIN = Kind()


def to_buffer(array: Array, backend: Device, dtype: DType) -> Buffer:
    """Upload a host array, or return the input slot that it stands for in a captured step."""
    if (here := current()) is not None and (slot := here.uploaded(array, dtype, backend)) is not None:
        return cast(Buffer, slot)
    buffer = backend.alloc(array.shape, dtype)
    buffer.block.made = 0  # the upload must not count as a change of older memory
    backend.upload(array, buffer)
    buffer.block.made = now()
    return buffer


def lift(value: object, backend: Device, dtype: DType, function: str) -> Tensor:
    """Return `value` as a tensor on `backend`; numbers become shared constants."""
    if dtype is BOOL and (kind := str(getattr(value, "dtype", None) or np.asarray(value).dtype)) != "bool":
        raise DtypeError(f"{function}: operands are of types bool and {kind}; convert one: t.astype(\"f32\").")
    if isinstance(value, (int, float)) and not isinstance(value, Placeholder):
        try:
            return Tensor(backend.constant(value, dtype))
        except OverflowError:
            raise DtypeError(f"{function}: a whole number beyond the range of floats was given; a smaller one is "
                             f"required.") from None
    return Tensor(to_buffer(as_array(value, function), backend, dtype))


def device_beside(weight: FrozenTensor) -> Device:
    """Return where host values beside a frozen tensor go: the default device, if it was named, or the tensor's."""
    return default_backend() if was_named() else weight.memory.home.backend


def as_input(x: TensorLike, weight: Tensor | FrozenTensor) -> Tensor:
    """Return `x`; host values become a tensor on the device and of the type of a layer's `weight`."""
    if isinstance(x, Tensor):
        return x
    if isinstance(weight, FrozenTensor):
        return Tensor(to_buffer(column(as_array(x, "ag_tensor")), device_beside(weight), F32))
    return Tensor(to_buffer(column(as_array(x, "ag_tensor")), weight.buffer.backend, weight.buffer.dtype))


def as_array(data: ArrayLike, function: str) -> Array:
    """Return host data as an array of numbers."""
    array = to_array(_without_variables, data, function)
    if array.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: data of type {array.dtype} was given; numbers are required.")
    return array


def host_values(x: object, function: str) -> Array:
    """Return the values of a tensor, an array or nested lists on the host."""
    return x.numpy() if isinstance(x, Tensor) else to_array(host_array, x, function)


def column(array: Array) -> Array:
    return array.reshape(-1, 1) if array.ndim == 1 else array


def _without_variables(data: object, function: str) -> Array:
    if isinstance(data, (list, tuple)) and _holds_a_variable(data):
        raise TypeError(f"{function}: a {type(data).__name__} was given that holds a tensor which requires a gradient; "
                        f"in an array it would get none. Join tensors with ag_concat, or use their t.numpy().")
    return array_to_upload(data, function)


def _holds_a_variable(data: Sequence[object]) -> bool:
    kinds = set(map(type, data))
    if Tensor in kinds and any(type(x) is Tensor and x.requires_grad for x in data):
        return True
    return not kinds.isdisjoint((list, tuple)) and any(
        isinstance(x, (list, tuple)) and _holds_a_variable(x) for x in data)


def number_given(function: str, argument: str, value: object) -> float:
    """Return a constant of an op as a float; a tensor, which would get no gradient, is refused."""
    if type(value) is not float and type(value) is not int:  # hot path: most are
        if isinstance(value, Tensor):
            raise TypeError(f"{function}: {argument} is a tensor of shape {value.shape}; a number is required, to "
                            f"which no gradient flows. Use float(t) for a constant, or compute with ag_mul, ag_exp, "
                            f"... instead.")
        is_array = isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf"
        if not (is_array or isinstance(value, (Real, np.bool_))):
            raise TypeError(f"{function}: {argument} is {value!r:.80}; a number is required.")
    try:
        return float(cast(float, value))
    except OverflowError:
        raise ValueError(f"{function}: {argument} is a whole number beyond the range of floats; a smaller one is "
                         f"required.") from None


def vector_beside(function: str, n: int, others: list[tuple[int, ...]]) -> bool:
    """Return whether a vector of `n` is a column, as beside columns, or a row, as beside vectors and rows like it."""
    for shape in others:
        if len(shape) > 1 and n > 1 and shape[-1] == n and n in shape[:-1]:
            raise ShapeError(f"{function}: operands are a vector of {n} numbers and {shape}, where it could be a row "
                             f"or a column; give it the shape (1, {n}) or ({n}, 1).")
    return all(len(shape) != 1 and (not shape or shape[-1] == 1) for shape in others)


def _as_vectors(function: str, operands: tuple[object, ...], kinds: Sequence[Kind]) -> tuple[object, ...]:
    """Turn host vectors among the operands into columns where they are columns."""
    arrays = [x if isinstance(x, (Tensor, int, float)) else as_array(x, function) for x in operands]
    flat = [i for i, x in enumerate(arrays) if isinstance(x, np.ndarray) and x.ndim == 1]
    others = [x.shape for i, x in enumerate(arrays) if isinstance(x, (Tensor, np.ndarray)) and i not in flat]
    needs = {kind.vector for kind in kinds}
    if "matrix" not in needs and any(len(shape) == 1 for shape in others):
        return tuple(arrays)
    for i in flat:
        x = cast("np.ndarray[tuple[int], np.dtype[np.generic]]", arrays[i])
        if kinds[i].vector == "column" or (kinds[i].vector == "either" and vector_beside(function, len(x), others)):
            arrays[i] = x.reshape(-1, 1)
    return tuple(arrays)


def closed_or_elsewhere(function: str, first: Device, second: Device) -> DeviceError:
    """Make the error about operands on two devices; raises first if one is closed."""
    for device in (first, second):
        device.check_open()
    return DeviceError(f"{function}: operands are on {first.name} and {second.name}; "
                       f"move one with ag_to_device first.")


def operands_on_one_device(
    function: str, operands: tuple[Any, ...], kinds: Sequence[Kind] = ()
) -> tuple[Device, tuple[Tensor, ...], DType]:
    """Return the operands' device, the operands as tensors there, and the result's element type, by their `kinds`."""
    kinds = kinds or [_PLAIN] * len(operands)
    backend: Device | None = None
    dtype: DType | None = None
    plain = arrays = False
    for x, kind in zip(operands, kinds, strict=True):
        if type(x) is not Tensor:
            if type(x) is FrozenTensor:
                x.refuse(function)
            plain, arrays = True, arrays or not isinstance(x, (int, float))
            continue
        b = x.buffer
        if backend is not None and b.backend is not backend:
            raise closed_or_elsewhere(function, backend, b.backend)
        backend = b.backend
        if not kind.ids and b.dtype is not dtype and (b.dtype is not BOOL or kind.integers):
            dtype = b.dtype if dtype is None else _common_type(function, operands, kinds)
    if dtype is None:  # of masks alone, 0 and 1 are float32
        dtype = F32 if any(type(x) is Tensor and x.buffer.dtype is BOOL for x in operands) else default_dtype()
    if backend is None:
        backend = default_backend(dtype)
    if not (dtype.is_float or all(kind.integers or kind.ids for kind in kinds)):
        refuse_integers(function, dtype)
    if not plain:
        return backend, operands, dtype
    if arrays:
        operands = _as_vectors(function, operands, kinds)
    number = dtype.wide  # numbers keep their digits
    return backend, tuple([x if type(x) is Tensor else lift(x, backend, dtype if kind.rounded or not (
        isinstance(x, (int, float)) or getattr(x, "ndim", 1) == 0) else number, function)
        for x, kind in zip(operands, kinds, strict=True)]), dtype


def as_numbers(b: Buffer, dtype: DType) -> Buffer:
    """Return a mask as 0 and 1 beside operands of an element type, and other buffers as they are."""
    if b.dtype is not BOOL:
        return b
    numbers = b.view(b.shape, dtype=F32)
    return converted_on_host(numbers, dtype) if dtype is F64 else numbers


def as_mask(b: Buffer) -> Buffer:
    return (converted_on_host(b, F32) if b.dtype is F64 else b).view(b.shape, dtype=BOOL)


def converted_on_host(b: Buffer, dtype: DType) -> Buffer:
    """Return float32 as float64, which only CPU devices have, or the other way round."""
    out = b.backend.alloc(b.shape, dtype)
    b.backend.launch(copy, b, into=out)
    return out


def refuse_integers(function: str, dtype: DType) -> NoReturn:
    """Raise the error about integer operands of an op that computes with floats."""
    raise DtypeError(f"{function}: operands are of type {dtype}, which is for class numbers and ids; floats are "
                     f"required. Convert with t.astype(\"f32\").")


def _common_type(function: str, operands: tuple[object, ...], kinds: Sequence[Kind]) -> DType:
    """Return the element type of operands of several types, or raise."""
    given = [(x.buffer, kind) for x, kind in zip(operands, kinds, strict=True)
             if isinstance(x, Tensor) and not kind.ids and (x.buffer.dtype is not BOOL or kind.integers)]
    types = list(dict.fromkeys(b.dtype for b, kind in given if b.dtype is not F32 or not (kind.wide or b.shape == ())))
    if len(types) == 1 and types[0].is_half:
        return types[0]
    first, second = list(dict.fromkeys(b.dtype for b, _ in given))[:2]
    raise DtypeError(f"{function}: operands have element types {first} and {second}; they must be equal. "
                     f"Convert one with t.astype.")


# ------------------------------------------------------------------------------------------ ids

CLASS_RULE = "labels are 0-based class numbers"


def refuse_outside(function: str, count: int, noun: str, rule: str, values: Array, ignore: int | None = None) -> None:
    """Each of `values` must be one of 0..count-1, or `ignore`."""
    values = values if ignore is None else values[values != ignore]
    if values.dtype.kind in "iu" and values.size and values.min() >= 0 and values.max() < count:
        return
    with np.errstate(all="ignore"):
        whole = values.astype(np.int32)
    wrong = values[(whole != values) | (whole < 0) | (whole >= count)]
    if wrong.size:
        raise IndexError(f"{function}: the {noun} {wrong.flat[0]} is outside 0..{count - 1}; {rule}.")


def checked_ids(function: str, beside: TensorLike | FrozenTensor, ids: ArrayLike, count: int, noun: str, rule: str,
                computed: bool = False, ignore: int | None = None) -> Tensor:
    """`ids` as an int32 tensor beside another; each must be one of 0..count-1, unless `ignore` or `computed` here."""
    if isinstance(beside, FrozenTensor):
        backend = ids.buffer.backend if isinstance(ids, Tensor) else device_beside(beside)
    else:
        backend = operands_on_one_device(function, (beside,))[0]
    check = partial(refuse_outside, function, count, noun, rule, ignore=ignore)
    if isinstance(ids, Tensor):
        if ids.buffer.backend is not backend:
            raise DeviceError(f"{function}: operands are on {backend.name} and {ids.device} (the {noun}s); "
                              f"move one with ag_to_device first.")
        if backend.recording is not None:
            if computed and ids.buffer.dtype is I32:
                return ids
            positions = " Of positions 0 to n - 1 the columns are weight[:, :n]." if noun == "id" else ""
            backend.recording.refuse(CaptureError(
                f"{function}: the {noun}s are a tensor, and a captured step cannot read it to check them; pass them to "
                f"the step as a numpy array.{positions}"))
        if ids.buffer.dtype is I32:
            check(backend.download(ids.buffer))  # which only looks at them; a listener is told of `numpy`
            return ids
    values = array_to_upload(ids, function)
    if values.dtype.kind not in "biuf":
        raise DtypeError(f"{function}: the {noun}s are of type {values.dtype}; whole numbers are required.")
    check(values)
    buffer = to_buffer(values, backend, I32)
    if backend.recording is not None:
        backend.recording.limits.append((buffer, count, check))
    return Tensor(buffer)


# ------------------------------------------------------------------------------------------ operators that are not ops


_RELATIONS: dict[np.ufunc, str] = {
    np.equal: "eq", np.not_equal: "ne", np.less: "lt", np.less_equal: "le", np.greater: "gt", np.greater_equal: "ge"}


def _compare(relation: np.ufunc, x: Tensor, other: object) -> Any:
    """Compare by an op; two integers, and tensors of other types or devices, on the host."""
    if x.buffer.dtype is I32 and isinstance(other, (int, np.integer)) and abs(int(other)) < 1 << 24:
        x, other = x.astype("f32"), int(other)  # only numbers beyond 2^24 are rounded, and to no smaller ones
    dtype, b = x.buffer.dtype, other.buffer if isinstance(other, Tensor) else None
    if b is None and not _is_numeric(other):
        return NotImplemented
    kinds = {dtype, b.dtype if b is not None else dtype} - {BOOL}
    if len(kinds) <= 1 and all(kind.is_float for kind in kinds) and (b is None or b.backend is x.buffer.backend):
        return OPS[_RELATIONS[relation]](x, other)
    with np.errstate(all="ignore"):  # NaN compares, whatever the user's `np.seterr`
        found = _compared(relation, x, other)
    return found if found is NotImplemented else Tensor(to_buffer(np.asarray(found), x.buffer.backend, BOOL))


def _compared(relation: np.ufunc, x: Tensor, other: object) -> Any:
    name, dtype = relation.__name__, x.buffer.dtype
    if isinstance(other, Tensor):
        values = other.numpy()
    elif isinstance(other, (int, float)) and not dtype.is_float:
        return relation(x.numpy(), other)
    elif not _is_numeric(other):
        return NotImplemented
    else:
        values = as_array(number_given(name, "the operand", other) if isinstance(other, int) else other, name)
        if values.ndim == 1 and vector_beside(name, len(values), [x.shape]):
            values = values.reshape(-1, 1)
        if dtype.is_float:
            values = loaded(stored(values, dtype), dtype)
    try:
        broadcast(x.shape, values.shape)
    except ShapeError as error:
        raise ShapeError(f"{name}: {error}") from None
    return relation(x.numpy(), values)


def _is_numeric(other: object) -> bool:
    """Return whether arithmetic takes `other` for numbers: a number, an array, or a sequence."""
    return isinstance(other, (Number, np.generic)) or hasattr(other, "__array__") or (
        isinstance(other, Sequence) and not isinstance(other, (str, bytes, bytearray)))


def _contains(x: Tensor, value: object) -> bool:
    found = _compared(np.equal, x, value)
    if found is NotImplemented:
        raise TypeError(f"in: a {type(value).__name__} was looked for in a tensor; a number is required.")
    return bool(np.any(found))


def _change(operator: str, p: Tensor, result: Tensor) -> Tensor:
    if is_recording():
        raise TapeError(f"{operator}: a parameter of shape {p.shape} is to be changed inside with_grad_tape, where it "
                        f"may have been used; change it after the block, or write p = p + x for a new tensor.")
    if result.shape != p.shape:
        raise ShapeError(f"{operator}: a parameter of shape {p.shape} was to become {result.shape}; the shapes must be "
                         f"equal.")
    launch, dtype = p.buffer.backend.launch, p.buffer.dtype
    if dtype.is_half:
        launch(narrow, converted(result.buffer, F32), into=p.buffer, bfloat=dtype is BF16)
    else:
        launch(copy, converted(result.buffer, dtype), into=p.buffer)
    return p


HOST_OPERATORS.update(compare=_compare, contains=_contains, change=_change)
