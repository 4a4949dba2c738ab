"""The operators of tensors, as a base class: each is the public op of its name, which `ag.autograd.op` registers, or
looks it up.

Comparisons, and changing a parameter in place, are no ops: `ag.autograd.operators` has them.  Knows no op, and of a
tensor its shape and whether it is a parameter.  `ag.autograd.tensor.Tensor` derives from it; users call it by writing
``a + b``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Union

import numpy as np

from ag.engine.primitive import Array
from ag.engine.shape import Shape
from ag.errors import DtypeError
from ag.names import MissingNameError, Named
from ag.names.elsewhere import TENSOR

__all__ = ["HOST_OPERATORS", "OPS", "TensorOperators", "register"]

Same = TypeVar("Same", bound="TensorOperators")
Operand = Union[Same, Array, float, int]  # noqa: UP007 - a variable cannot be joined with | for mypy

Axes = int | tuple[int, ...] | None

# Public ops by name, filled by `register` at import and constant afterwards.
OPS: dict[str, Callable[..., Any]] = {}
# Operators that are no ops, likewise by `ag.autograd.operators`.
HOST_OPERATORS: dict[str, Callable[..., Any]] = {}


class TensorOperators(metaclass=Named):
    """Base of `Tensor`."""

    __slots__ = ()
    __pandas_priority__ = 5000  # pandas leaves the operators of a column or a table and a tensor to the tensor

    requires_grad: bool
    node: object

    @property
    def shape(self) -> Shape:
        """Sizes of the axes."""
        raise NotImplementedError

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> object:
            raise MissingNameError("Tensor", name, lambda: dir(type(self)), TENSOR, "t")

        @property
        def _data(self) -> object:
            """What `numpy.ma` asks of an operand, which it would compute with on the host, without a gradient."""
            raise DtypeError("numpy.ma: a masked array was combined with a tensor, which has no masks; fill what is "
                             "masked.")

        def __rpow__(self, base: object) -> object:
            raise TypeError(f"pow: {base!r:.80} to the power of a tensor was asked for; write ag.ops.exp(t * "
                            f"math.log(base)), to which gradients flow.")

        def __floordiv__(self, other: object) -> object:
            raise TypeError("floordiv: there is no whole division of tensors, as it has no gradient; write t / x, or "
                            "t.numpy() // x for a constant.")

        def __mod__(self, other: object) -> object:
            raise TypeError("mod: there is no remainder of tensors, as it has no gradient; write t.numpy() % x for a "
                            "constant.")

        def __divmod__(self, other: object) -> object:
            return self // other

        def __setitem__(self, key: object, value: object) -> None:
            raise TypeError("setitem: a part of a tensor was to be assigned; assign all of it, as in x = t.numpy(); "
                            "x[...] = ...; t.data = x, or make a new tensor.")

        def __delitem__(self, key: object) -> None:
            raise TypeError("delitem: a part of a tensor was to be deleted; make another of what is left, such as "
                            "ag.ops.concat([t[:2], t[3:]]).")

        __rfloordiv__, __rmod__, __rdivmod__ = __floordiv__, __mod__, __divmod__

    # -------------------------------------------------------------------------------------- comparison

    __hash__ = object.__hash__  # by identity, as tensors are keys

    def __eq__(self, other: object) -> Any:
        return HOST_OPERATORS["compare"](np.equal, self, other)

    def __ne__(self, other: object) -> Any:
        return HOST_OPERATORS["compare"](np.not_equal, self, other)

    def __lt__(self: Same, other: Operand[Same]) -> Any:
        return HOST_OPERATORS["compare"](np.less, self, other)

    def __le__(self: Same, other: Operand[Same]) -> Any:
        return HOST_OPERATORS["compare"](np.less_equal, self, other)

    def __gt__(self: Same, other: Operand[Same]) -> Any:
        return HOST_OPERATORS["compare"](np.greater, self, other)

    def __ge__(self: Same, other: Operand[Same]) -> Any:
        return HOST_OPERATORS["compare"](np.greater_equal, self, other)

    def __contains__(self, value: object) -> bool:
        return bool(HOST_OPERATORS["contains"](self, value))

    def __iter__(self: Same) -> Iterator[Same]:
        if not self.shape:
            raise TypeError("iter: a tensor of shape () has no axes; use .item().")
        return (self[i] for i in range(self.shape[0]))

    # -------------------------------------------------------------------------------------- arithmetic

    if TYPE_CHECKING:  # these are ops, see `register`
        def __add__(self: Same, other: Operand[Same]) -> Same: ...
        def __sub__(self: Same, other: Operand[Same]) -> Same: ...
        def __mul__(self: Same, other: Operand[Same]) -> Same: ...
        def __truediv__(self: Same, other: Operand[Same]) -> Same: ...
        def __matmul__(self: Same, other: Operand[Same]) -> Same: ...
        def __pow__(self: Same, p: float) -> Same: ...
        def __abs__(self: Same) -> Same: ...
        def __getitem__(self: Same, key: object) -> Same: ...

        def reshape(self: Same, *shape: int) -> Same:
            """`ag_reshape` as a method."""

    def __radd__(self: Same, other: Operand[Same]) -> Same:
        return _call(self, "ag_add", other, self)

    def __rsub__(self: Same, other: Operand[Same]) -> Same:
        return _call(self, "ag_sub", other, self)

    def __rmul__(self: Same, other: Operand[Same]) -> Same:
        return _call(self, "ag_mul", other, self)

    def __rtruediv__(self: Same, other: Operand[Same]) -> Same:
        return _call(self, "ag_div", other, self)

    def __rmatmul__(self: Same, other: Operand[Same]) -> Same:
        return _call(self, "ag_matmul", other, self)

    def __neg__(self: Same) -> Same:
        return _call(self, "ag_scale", self, -1.0)

    def __pos__(self: Same) -> Same:
        return self

    def __iadd__(self: Same, other: Operand[Same]) -> Same:
        return _changed("+=", self, self + other)

    def __isub__(self: Same, other: Operand[Same]) -> Same:
        return _changed("-=", self, self - other)

    def __imul__(self: Same, other: Operand[Same]) -> Same:
        return _changed("*=", self, self * other)

    def __itruediv__(self: Same, other: Operand[Same]) -> Same:
        return _changed("/=", self, self / other)

    def __imatmul__(self: Same, other: Operand[Same]) -> Same:
        return _changed("@=", self, self @ other)

    def __ipow__(self: Same, p: float) -> Same:
        return _changed("**=", self, self**p)

    # -------------------------------------------------------------------------------------- numpy's functions

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return HOST_OPERATORS["ufunc"](ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Callable[..., object], types: Sequence[type], args: tuple[object, ...],
                           options: dict[str, object]) -> Any:
        return HOST_OPERATORS["function"](function, types, args, options)

    # -------------------------------------------------------------------------------------- ops as methods

    @property
    def T(self: Same) -> Same:
        """The axes in reverse order."""
        return _call(self, "ag_transpose", self)

    def astype(self: Same, dtype: str) -> Same:
        """`ag_cast` as a method."""
        return _call(self, "ag_cast", self, dtype)

    def sum(self: Same, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False) -> Same:
        """`ag_sum` as a method; `axis` and `keepdims` are numpy's names."""
        return _call(self, "ag_sum", self, _one_of("sum", dim, axis), keepdim or keepdims)

    def mean(self: Same, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False) -> Same:
        """`ag_mean` as a method; `axis` and `keepdims` are numpy's names."""
        return _call(self, "ag_mean", self, _one_of("mean", dim, axis), keepdim or keepdims)


# What is an op itself, whose first operand is the tensor: nothing is called in between.
_METHODS = {"ag_add": "__add__", "ag_sub": "__sub__", "ag_mul": "__mul__", "ag_div": "__truediv__",
            "ag_matmul": "__matmul__", "ag_pow": "__pow__", "ag_abs": "__abs__", "ag_slice": "__getitem__",
            "ag_reshape": "reshape"}


def register(name: str, function: Callable[..., object]) -> None:
    """Let tensors find a public op by its name."""
    OPS[name] = function
    if name in _METHODS:
        setattr(TensorOperators, _METHODS[name], function)


def _one_of(function: str, dim: Axes, axis: Axes) -> Axes:
    if dim is not None and axis is not None:
        raise TypeError(f"{function}: dim is {dim} and axis {axis}, which mean the same; give one of them.")
    return axis if dim is None else dim


def _call(like: Same, name: str, *args: object) -> Same:
    result: Same = OPS[name](*args)
    return result


def _changed(operator: str, x: Same, result: Same) -> Same:
    """What `x` is after an operator such as ``+=`` with that result: a parameter is changed, any other name rebound."""
    if not x.requires_grad or x.node is not None:
        return result
    changed: Same = HOST_OPERATORS["change"](operator, x, result)
    return changed
