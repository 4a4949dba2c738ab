"""Element types: names, sizes and aliases; `ag.engine.kernels.convert` computes with the two 16-bit ones."""

from __future__ import annotations

from ag.errors import DtypeError


class DType:
    """An element type; there is one object for each, compared by identity."""

    __slots__ = ("code", "is_float", "is_half", "itemsize", "name", "numpy_name", "wide")

    def __init__(self, name: str, numpy_name: str, itemsize: int, is_float: bool, code: int = 0,
                 wide: DType | None = None) -> None:
        self.name = name  # short, as users write it
        self.numpy_name = numpy_name  # of stored elements; bfloat16, which numpy does not know, are words of 16 bits
        self.itemsize = itemsize  # bytes per element
        self.is_float = is_float  # true for floating-point types, the only ones gradients flow through
        self.code = code  # in the number `types` of kernels: what a 16-bit operand is; 0 for other types
        self.is_half = code > 0  # true for the 16-bit ones
        self.wide = wide or self  # the type in which kernels compute with such numbers

    def __repr__(self) -> str:
        return self.name


F32 = DType("f32", "float32", 4, True)
F16 = DType("f16", "float16", 2, True, 2, F32)
BF16 = DType("bf16", "uint16", 2, True, 1, F32)
F64 = DType("f64", "float64", 8, True)
I32 = DType("i32", "int32", 4, False)
U32 = DType("u32", "uint32", 4, False)
BOOL = DType("bool", "float32", 4, False)  # 0.0 and 1.0, which kernels compute with as they are

_ALL = (F16, BF16, F32, F64, I32, U32, BOOL)
_BY_NAME = {d.name: d for d in _ALL} | {d.numpy_name: d for d in _ALL if d not in (BF16, BOOL)} | {"bfloat16": BF16}


def as_dtype(name: object, function: str) -> DType:
    """The element type called `name` (a `DType`, a short or numpy name, or a numpy dtype)."""
    if isinstance(name, DType):
        return name
    spelling = name if isinstance(name, str) else getattr(name, "name", getattr(name, "__name__", None))
    if isinstance(spelling, str) and spelling in _BY_NAME:
        return _BY_NAME[spelling]
    known = ", ".join(d.name for d in _ALL)
    raise DtypeError(f"{function}: unknown element type {name!r}; use one of {known}.")
