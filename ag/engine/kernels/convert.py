"""Conversions between float32 and the 16-bit types f16 and bf16, which are for storage only.

Rounding is to the nearest, ties to even, with the same bits on every device.  `widen` and `narrow` convert buffers;
`stored` and `loaded` convert host values.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import numpy as np

from ag.engine.buffer import Buffer
from ag.engine.dtype import BF16, BOOL, F16, F32, DType
from ag.engine.primitive import Array, Params, Primitive, primitive
from ag.errors import CheckpointError, DtypeError, ShapeError

BFLOAT16 = np.dtype("V2")  # of arrays that hold bfloat16 elements: files have them, and numpy has no such type
_QUIET_BIT = np.uint16(0x0040)
_EXPONENT = np.uint32(0x7F800000)


def stored(array: Array, dtype: DType) -> Array:
    """Host numbers as the elements a buffer of type `dtype` holds."""
    if dtype is BOOL:
        return np.asarray(np.not_equal(array, 0), dtype.numpy_name)
    if not dtype.is_float:
        return _whole(array, dtype)
    if array.dtype == dtype.numpy_name and dtype is not BF16:
        return np.asarray(array)
    with np.errstate(all="ignore"):  # what is too large becomes infinite, what is too small 0
        if dtype is not BF16:
            return np.asarray(array, dtype.numpy_name)
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    upper = (bits >> np.uint32(16)).astype(np.uint16)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    nan = (bits & ~np.uint32(1 << 31)) > _EXPONENT
    return np.where(nan, upper | _QUIET_BIT, rounded).reshape(np.shape(array))


def _whole(array: Array, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        whole = array.astype(dtype.numpy_name)
    changed = whole != array
    if changed.any():
        limits = np.iinfo(dtype.numpy_name)
        raise DtypeError(f"dtype {dtype}: the number {array[changed].flat[0]} was given; whole numbers in "
                         f"{limits.min}..{limits.max} are required.")
    return whole


def loaded(elements: Array, dtype: DType) -> Array:
    """The elements of a buffer as host numbers: float32 for bfloat16, which numpy does not know."""
    if dtype is BOOL:
        return np.asarray(np.not_equal(elements, 0))
    if dtype is not BF16:
        return elements
    return (elements.astype(np.uint32) << np.uint32(16)).view(np.float32)


def numbers(array: Array) -> Array:
    """An array from a file as host numbers."""
    return loaded(array.view(np.uint16), BF16) if array.dtype == BFLOAT16 else array


def known(array: Array) -> Array:
    """An array of the user's in a type that numpy computes with: bfloat16 of the package ``ml_dtypes`` as float32."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def refuse_masked(given: object, function: str) -> None:
    """Refuse a masked array, of which numpy would make an array without the mask."""
    if _is_masked(given):
        raise DtypeError(f"{function}: a masked array was given; numbers are required. Fill what is masked.")


def _is_masked(given: object) -> bool:
    """Return whether something is a masked array, or a list with one in it."""
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())  # which takes time to load; till then, nothing is
    if isinstance(given, (list, tuple)):
        kinds = set(map(type, given))
        return any(issubclass(kind, masked) for kind in kinds) or (
            not kinds.isdisjoint((list, tuple)) and any(map(_is_masked, given)))
    return isinstance(given, masked)


class Placeholder:
    """Stands for an array whose values must not be read; uploading code opens it."""

    __slots__ = ()

    def opened(self) -> Array:
        """The array."""
        raise NotImplementedError


def array_to_upload(given: object, function: str) -> Array:
    """`host_array` for who looks at values only to upload them, and to check them then and in every replay."""
    return known(given.opened()) if isinstance(given, Placeholder) else host_array(given, function)


def host_array(given: object, function: str) -> Array:
    """Convert what the user gave to an array of a type that numpy computes with."""
    refuse_masked(given, function)
    try:
        return known(np.asarray(given))
    except ValueError as error:  # rows of different lengths
        raise ShapeError(f"{function}: a {type(given).__name__} is no array ({error}); every row must have the same "
                         f"length.") from None


def number_arrays(state: object, refusal: str) -> dict[str, Array]:
    """The arrays of a state by name; `refusal` begins the message if it is none."""
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{refusal}: it is a {type(state).__name__}; a dict of arrays by name is required.")
    arrays, wrong = {}, []
    for name, value in state.items():
        try:
            array = numbers(host_array(value, refusal))
        except DtypeError:
            wrong.append(f"{name} is a masked array, which has to be filled")
            continue
        except ValueError:
            wrong.append(f"{name} has rows of different lengths")
            continue
        if array.dtype.kind not in "biuf":
            wrong.append(f"{name} is of type {array.dtype} and holds no real numbers")
        arrays[name] = array
    if wrong:
        raise CheckpointError(f"{refusal}: {', '.join(wrong)}.")
    return arrays


def refuse_unlike(arrays: Mapping[str, Array], types: Mapping[str, DType], refusal: str) -> None:
    """Refuse numbers that an element type cannot hold: they would become infinite, or lose their fractions."""
    wrong = []
    for name, dtype in types.items():
        array = arrays[name]
        kept = loaded(stored(array, dtype), dtype)
        if (np.isfinite(array) & ~np.isfinite(kept)).any() if dtype.is_float else (kept != array).any():
            wrong.append(f"{name} has numbers that {dtype} cannot hold")
    if wrong:
        raise CheckpointError(f"{refusal}: {', '.join(wrong)}.")


def computes_in_halves(primitive: Primitive, dtypes: Iterable[DType]) -> bool:
    """Return whether a primitive computes with operands of 16 bits, and does not only move or convert them."""
    converts = "bfloat" in primitive.params or "stored" in primitive.operands
    return not converts and not primitive.moves and any(dtype.is_half for dtype in dtypes)


def compute_in_float32(primitive: Primitive, arrays: list[Array], dtypes: list[DType], params: Params) -> None:
    """Run the reference of a primitive with 16-bit operands, and round its results once."""
    wide = [loaded(x, dtype).astype(np.float32) if dtype.is_half else x
            for x, dtype in zip(arrays, dtypes, strict=True)]
    primitive.reference(*wide, **params)
    for i in (*range(primitive.outputs), *primitive.updates):
        if dtypes[i].is_half:
            arrays[i][...] = stored(wide[i], dtypes[i])


@primitive()
def widen(out: Array, x: Array, *, bfloat: bool) -> None:
    out[...] = loaded(x, BF16) if bfloat else x


def half(bfloat: float) -> DType:
    """Return the 16-bit type that a kernel's parameter names."""
    return BF16 if bfloat else F16


@primitive(dtype=half)
def narrow(out: Array, x: Array, *, bfloat: bool) -> None:
    out[...] = stored(x, half(bfloat))


@primitive(fusable=True)
def rounded(out: Array, x: Array, *, bfloat: float) -> None:
    out[...] = loaded(stored(x, half(bfloat)), half(bfloat))


@primitive()
def from_whole(out: Array, x: Array, *, is_signed: int) -> None:
    np.copyto(out, x)  # whole numbers of 32 bits as float32; the type of x says whether it has a sign


def converted(x: Buffer, dtype: DType) -> Buffer:
    """`x` itself if it has element type `dtype`, else its values in a fresh buffer; for float32 and 16-bit types."""
    if x.dtype is dtype:
        return x
    if x.dtype.is_half and dtype.is_half:
        x = converted(x, F32)
    rule, kind = (widen, x.dtype) if x.dtype.is_half else (narrow, dtype)
    return x.backend.launch(rule, x, bfloat=kind is BF16)


@primitive(outputs=0, updates=("master",))
def reconcile(master: Array, x: Array, *, bfloat: bool) -> None:
    # Where x is not what master rounds to, somebody changed it: that is the value from now on.
    same = stored(master, half(bfloat)) == x
    np.copyto(master, loaded(x, BF16) if bfloat else x, where=~same)
