"""Tensors, and the nodes that tie them into a record: what users hold.

Operators are the public ops of their names, which `ag.autograd.op` registers; comparisons and ``+=`` are in
`ag.autograd.operands`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from ag.engine.buffer import HOLDERS, Buffer
from ag.engine.interpreter import current
from ag.engine.kernels.convert import host_array
from ag.engine.kernels.elementwise import copied
from ag.engine.primitive import Array
from ag.engine.shape import Shape
from ag.errors import DtypeError, ShapeError, TapeError
from ag.names import Making, MissingNameError, Named
from ag.names.elsewhere import TENSOR
from ag.native import code

ArrayLike = Any  # whatever numpy.asarray accepts
Axes = int | tuple[int, ...] | None

IDS = count(1)  # of all tensors of the process

# Public ops by name, filled by `register` at import and constant afterwards.
OPS: dict[str, Callable[..., Any]] = {}
# Operators that are not ops, filled by the modules above at import.
HOST_OPERATORS: dict[str, Callable[..., Any]] = {}


def grads_of(tensors: Iterable[Tensor]) -> Iterator[Tensor | PendingGrad | None]:
    """Return ``.grad`` of each tensor; a recording does not note it."""
    return map(_GRAD, tensors)


_GRAD: Callable[[Tensor], Tensor | PendingGrad | None] = operator.attrgetter("_grad")


class PendingGrad:
    """A gradient that a replay left in program memory, not yet read."""

    buffer: Buffer

    def tensor(self) -> Tensor:
        """Make the tensor that ``.grad`` returns."""
        raise NotImplementedError


def _compared(relation: np.ufunc) -> Callable[[Tensor, object], Any]:
    return lambda x, other: HOST_OPERATORS["compare"](relation, x, other)


def _power(x: Tensor, p: TensorLike) -> Tensor:
    return _call("ag_pow" if isinstance(p, (int, float, np.number)) else "power", x, p)


def _operator(name: str) -> Callable[[Tensor, TensorLike], Tensor]:
    return lambda x, other: _call(name, x, other)


def _reflected(name: str) -> Callable[[Tensor, TensorLike], Tensor]:
    return lambda x, other: _call(name, other, x)


def _in_place(sign: str, function: Callable[[Tensor, TensorLike], Tensor]) -> Callable[[Tensor, TensorLike], Tensor]:
    return lambda x, other: _changed(sign, x, function(x, other))


def _refused(message: str) -> Callable[..., object]:
    def refuse(x: Tensor, other: object, *more: object) -> object:
        raise TypeError(message.format(other=other))

    return refuse


class Tensor(metaclass=Named):
    """An n-dimensional array on a device.

    Made by `ag_tensor`, `ag_param` and the ops; not directly.

    Operators change only parameters in place, frozen ones too.  For others, ``t += 1`` makes a new tensor and rebinds
    the name, as with numbers.  ``p -= 0.1 * g`` changes the parameter `p`, and is refused inside `with_grad_tape`.
    Comparisons (``==``, ``<``, ...) give tensors of truth values.  Tensors hash by identity.

    Attributes
    ----------
    id : int
        Unique in the process.
    requires_grad : bool
        Whether `backward` computes a gradient for it or through it.
    grad : Tensor or None
        For parameters: the gradients summed over all calls of `backward` since the last `zero_grad`.
    name : str or None
        For parameters of a model: the name it has there.

    Examples
    --------
    >>> t = ag.ag_tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> (2 * t + 1).mean().item(), t.T[0].numpy().tolist(), t.sum(dim=0).shape
    (6.0, [1.0, 3.0], (2,))
    """

    __signature__ = Making()
    __slots__ = ("__weakref__", "_grad", "buffer", "id", "name", "node", "requires_grad")
    __pandas_priority__ = 5000  # pandas leaves operators between its objects and tensors to the tensor

    node: Any  # of the op that computed it (`ag.autograd.tape.Node`), or None

    def __init__(self, buffer: Buffer, requires_grad: bool = False, node: Any = None) -> None:
        if type(buffer) is not Buffer:
            raise TypeError(f"Tensor: a {type(buffer).__name__} was given; tensors are made of values by "
                            f"ag_tensor(values), and parameters by ag_param(values).")
        self.id = next(IDS)
        self.buffer = buffer
        self.requires_grad = requires_grad
        self.node = node
        self._grad: Tensor | PendingGrad | None = None
        self.name: str | None = None
        if requires_grad and node is None:
            HOLDERS[id(self)] = self

    def __copy__(self) -> Tensor:
        """Copy like `__deepcopy__`: two tensors never share values or an `id`."""
        return self.__deepcopy__({})

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        """Copy values and gradient; raises a `TapeError` for a tensor computed on the tape."""
        self._refuse_on_tape("deepcopy")
        twin = Tensor(copied(self.buffer), self.requires_grad)
        memo[id(self)], twin.name = twin, self.name
        if HOLDERS.get(id(self)) is self:  # a parameter, though it may be frozen
            HOLDERS[id(twin)] = twin
        if self.grad is not None:
            twin.grad = deepcopy(self.grad, memo)
        return twin

    def __reduce__(self) -> tuple[Callable[..., Tensor], tuple[object, ...]]:
        """Pickle values, gradient and device; raises a `TapeError` for a tensor computed on the tape."""
        self._refuse_on_tape("pickle")
        return HOST_OPERATORS["unpickled"], (self.numpy(), self.dtype, self.device, self.requires_grad, self.name,
                                             self.grad)

    def _refuse_on_tape(self, function: str) -> None:
        if self.node is not None:
            raise TapeError(f"{function}: a tensor of shape {self.shape} was computed on the tape, and its copy would "
                            f"not be; copy t.detach().")

    # -------------------------------------------------------------------------------------- state

    @property
    def grad(self) -> Tensor | None:
        """For parameters: the gradients summed over all calls of `backward` since the last `zero_grad`."""
        grad = self._grad
        if isinstance(grad, PendingGrad):
            grad = self._grad = grad.tensor()
        here = current()
        seen: Tensor | None = grad if here is None else here.grad_read(self, grad)
        return seen

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self._grad = value
        if (here := current()) is not None:
            here.grad_written(self)

    def set_grad(self, grad: Tensor | PendingGrad | None) -> None:
        """Set ``.grad`` on behalf of a captured step; a recording does not note it."""
        self._grad = grad

    def peek_grad(self) -> Tensor | PendingGrad | None:
        """Return ``.grad`` as it was left; a recording does not note it."""
        return self._grad

    def rebind(self, buffer: Buffer) -> None:
        """Move to another buffer of the same shape, in an optimizer or on another device."""
        self.buffer = buffer

    # -------------------------------------------------------------------------------------- description

    @property
    def shape(self) -> Shape:
        """Sizes of the axes."""
        return self.buffer.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.buffer.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.buffer.size

    @property
    def dtype(self) -> str:
        """Short name of the element type, such as ``"f32"``; what a device cannot hold is refused, never replaced."""
        return self.buffer.dtype.name

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.buffer.backend.name

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: a tensor of shape () has no axes; use .size.")
        return self.shape[0]

    def __repr__(self) -> str:
        kind = "param" if self.requires_grad and self.node is None else "tensor"
        head = f"ag_{kind} {self.shape} {self.dtype} on {self.device}"
        if self.buffer.backend.recording is not None:
            return f"<{head}, being captured>"
        return f"<{head}\n{np.array2string(self.numpy(), precision=4, threshold=100)}>"

    # -------------------------------------------------------------------------------------- host access

    def numpy(self) -> Array:
        """Return a host copy, float32 for bfloat16; waits.  Assign to `data` to change the tensor."""
        if (here := current()) is not None:
            here.read(self)
        array: Array = self.buffer.backend.download(self.buffer)
        return array

    def item(self) -> float:
        """Return the value of a one-element tensor, an int for integer types; waits for the device."""
        return self._number("item")

    def _number(self, function: str, instead: str = "t.numpy()") -> float:
        if self.size != 1:
            raise ShapeError(f"{function}: the tensor has shape {self.shape}; only one element can become a number. "
                             f"Write {instead} for all of them.")
        value: float = self.numpy().item()
        return value

    def __float__(self) -> float:
        return float(self._number("float"))

    def __int__(self) -> int:
        return int(self._number("int"))

    def __bool__(self) -> bool:
        return bool(self._number("bool", "t.any() or t.all()"))

    def __round__(self, digits: int | None = None) -> float:
        return round(self._number("round", "t.numpy().round(...)"), digits)

    def __format__(self, spec: str) -> str:
        return format(self._number("format"), spec) if spec else str(self)

    def __array__(self, dtype: np.dtype[np.generic] | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("asarray: copy=False was given, and an array of a tensor is a copy of what is on its "
                             "device; leave it out.")
        array: Array = HOST_OPERATORS["array"](self)
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> object:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    @property
    def data(self) -> Array:
        """The values as a read-only host copy; waits.  ``t.data = t.data * 2`` copies an array into the tensor."""
        array = self.numpy()
        array.flags.writeable = False
        return array

    @data.setter
    def data(self, value: ArrayLike) -> None:
        array = to_array(host_array, value.numpy() if isinstance(value, Tensor) else value, "data")
        if array.dtype.kind not in "biuf":
            raise DtypeError(f"data: an array of type {array.dtype} was assigned; numbers are required.")
        if array.ndim == 1 and self.shape == (array.size, 1):
            array = array.reshape(self.shape)  # a vector is a column, as in ag_tensor
        if array.shape != self.shape:
            raise ShapeError(f"data: an array of shape {array.shape} was assigned to a tensor of shape {self.shape}; "
                             f"the shapes must be equal.")
        backend = self.buffer.backend
        backend.refuse_while_recording("assigns to a tensor's data")
        backend.upload(array, self.buffer)

    def detach(self) -> Tensor:
        """Return a copy of the values that is not on the tape."""
        if (here := current()) is not None:
            here.uses((self,), False)
        apart = Tensor(copied(self.buffer))
        if here is not None:
            here.same(self, apart)
        return apart

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> object:
            raise MissingNameError("Tensor", name, lambda: dir(type(self)), TENSOR, "t")

        @property
        def _data(self) -> object:
            """Refuse `numpy.ma`, which would compute on the host, without a gradient."""
            raise DtypeError("numpy.ma: a masked array was combined with a tensor, which has no masks; fill what is "
                             "masked.")

        __setitem__ = _refused("setitem: a part of a tensor was to be assigned; assign all of it, as in x = t.numpy(); "
                               "x[...] = ...; t.data = x, or make a new tensor.")
        __delitem__ = _refused("delitem: a part of a tensor was to be deleted; make another of what is left, such as "
                               "ag.ops.concat([t[:2], t[3:]]).")

    __hash__ = object.__hash__  # by identity, as tensors are keys

    __eq__, __ne__ = _compared(np.equal), _compared(np.not_equal)
    __lt__, __le__ = _compared(np.less), _compared(np.less_equal)
    __gt__, __ge__ = _compared(np.greater), _compared(np.greater_equal)

    def __invert__(self) -> Tensor:
        return _truth("~", "logical_not", self)

    def __and__(self, other: TensorLike) -> Tensor:
        return _truth("&", "logical_and", self, other)

    def __or__(self, other: TensorLike) -> Tensor:
        return _truth("|", "logical_or", self, other)

    def __xor__(self, other: TensorLike) -> Tensor:
        return _truth("^", "logical_xor", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __contains__(self, value: object) -> bool:
        return bool(HOST_OPERATORS["contains"](self, value))

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iter: a tensor of shape () has no axes; use .item().")
        return (self[i] for i in range(self.shape[0]))

    # -------------------------------------------------------------------------------------- arithmetic

    if TYPE_CHECKING:  # ops, set by `register`
        def __add__(self, other: TensorLike) -> Tensor: ...
        def __sub__(self, other: TensorLike) -> Tensor: ...
        def __mul__(self, other: TensorLike) -> Tensor: ...
        def __truediv__(self, other: TensorLike) -> Tensor: ...
        def __matmul__(self, other: TensorLike) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __getitem__(self, key: object) -> Tensor: ...

        def reshape(self, *shape: int) -> Tensor:
            """`ag_reshape` as a method."""

        def _of_one(self) -> Tensor: ...
        def _of_two(self, other: TensorLike) -> Tensor: ...
        def _along(self, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False,
                   correction: float = 1) -> Tensor: ...

        def _with(self, *args: object, **options: object) -> Tensor: ...
        def _several(self, *args: object, **options: object) -> tuple[Tensor, ...]: ...

        # functions of ag.ops that are methods, too
        sin = cos = tan = asin = acos = atan = sinh = cosh = asinh = acosh = atanh = erf = erfc = erfinv = _of_one
        log1p = expm1 = log2 = log10 = exp2 = rsqrt = reciprocal = square = sign = floor = ceil = trunc = frac = _of_one
        round = isnan = isinf = isfinite = signbit = logical_not = _of_one
        atan2 = hypot = logaddexp = maximum = minimum = fmod = remainder = floor_divide = copysign = _of_two
        gt = ge = lt = le = eq = ne = logical_and = logical_or = logical_xor = _of_two
        abs = exp = log = sqrt = relu = sigmoid = tanh = softmax = log_softmax = bernoulli = clamp = _with
        add = sub = mul = div = matmul = outer = kron = bmm = inner = mv = _of_two
        amax = amin = max = min = prod = var = std = logsumexp = any = all = count_nonzero = _along
        argmax = argmin = norm = diag = diagonal = rot90 = multinomial = _with
        lerp = addcmul = addcdiv = baddbmm = masked_fill = nan_to_num = prelu = hardshrink = _with
        broadcast_to = expand = flip = movedim = permute = repeat = repeat_interleave = roll = squeeze = _with
        swapaxes = tile = tril = triu = unsqueeze = _with
        argwhere = gather = index_add = index_copy = index_fill = index_select = masked_scatter = masked_select = _with
        nonzero = scatter = scatter_add = scatter_reduce = take = take_along_dim = _with
        aminmax = chunk = hsplit = split = unbind = vsplit = _several

    __radd__, __rsub__, __rmul__ = _reflected("ag_add"), _reflected("ag_sub"), _reflected("ag_mul")
    __rtruediv__, __rmatmul__ = _reflected("ag_div"), _reflected("ag_matmul")
    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _reflected("floor_divide")
    __pow__ = _power
    __mod__, __rmod__, __rpow__ = _operator("remainder"), _reflected("remainder"), _reflected("power")

    def __neg__(self) -> Tensor:
        return _call("ag_scale", self, -1.0)

    def __pos__(self) -> Tensor:
        return self

    __iadd__, __isub__ = _in_place("+=", operator.add), _in_place("-=", operator.sub)
    __imul__, __itruediv__ = _in_place("*=", operator.mul), _in_place("/=", operator.truediv)
    __imod__, __ifloordiv__ = _in_place("%=", operator.mod), _in_place("//=", operator.floordiv)
    __imatmul__, __ipow__ = _in_place("@=", operator.matmul), _in_place("**=", operator.pow)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object) -> object:
        return HOST_OPERATORS["ufunc"](ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Callable[..., object], types: Sequence[type], args: tuple[object, ...],
                           options: dict[str, object]) -> object:
        return HOST_OPERATORS["function"](function, types, args, options)

    # -------------------------------------------------------------------------------------- ops as methods

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        return _call("ag_transpose", self)

    def astype(self, dtype: str) -> Tensor:
        """`ag_cast` as a method."""
        return _call("ag_cast", self, dtype)

    def pow(self, p: TensorLike) -> Tensor:
        """Raise to a power: ``t ** p``."""
        return _power(self, p)

    def where(self, mask: TensorLike, other: TensorLike) -> Tensor:
        """Keep elements where the mask is true, and take `other` elsewhere: ``ops.where(mask, t, other)``."""
        return _call("where", mask, self, other)

    def sum(self, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """`ag_sum` as a method; `axis` and `keepdims` are numpy's names."""
        return _call("ag_sum", self, _one_of("sum", dim, axis), keepdim or keepdims)

    def mean(self, dim: Axes = None, keepdim: bool = False, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
        """`ag_mean` as a method; `axis` and `keepdims` are numpy's names."""
        return _call("ag_mean", self, _one_of("mean", dim, axis), keepdim or keepdims)


TensorLike = Tensor | Array | float | int


def to_array(convert: Callable[[object, str], Array], data: ArrayLike, function: str) -> Array:
    """Convert host data to an array by `host_array` or the like; endless lists raise a `ShapeError`."""
    try:
        return convert(data, function)
    except RecursionError:
        raise ShapeError(f"{function}: lists are nested too deep, or one contains itself; an array has at most 64 axes."
                         ) from None


def type_name(x: object) -> str:
    """Return the name of the type of `x`, with its module if that is not Python's: ``torch.Tensor``."""
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


# hot path, in op.c, for what ops ask of tensors.  `plain_tensor` is ``Tensor(buffer)``, and with a node
# ``Tensor(buffer, True, node)``.
CODE = None if code is None else code.Operands(Tensor, Buffer, IDS)
plain_tensor: Callable[..., Tensor] = CODE.tensor if CODE is not None else (
    lambda buffer, *node: Tensor(buffer, bool(node), *node))


def tensor_given(function: str, x: object) -> Tensor:
    """Return `x`, or raise a `TypeError` if it is not a tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{function}: a {type_name(x)} was given; a tensor is required. Make one with ag_tensor.")
    return x


# Methods that are ops with a prefix themselves: hot path, without a call in between.
_METHODS = {"ag_add": "__add__ add", "ag_sub": "__sub__ sub", "ag_mul": "__mul__ mul", "ag_div": "__truediv__ div",
            "ag_matmul": "__matmul__ matmul", "ag_abs": "__abs__ abs",
            **{f"ag_{name}": name for name in (
                "clamp", "exp", "log", "log_softmax", "max", "relu", "reshape", "sigmoid", "softmax", "sqrt", "tanh")}}


def register(name: str, function: Callable[..., object]) -> None:
    """Let tensors find a public op by its name."""
    OPS[name] = function
    for method in _METHODS.get(name, "" if name.startswith("ag_") or name in vars(Tensor) else name).split():
        setattr(Tensor, method, function)


def _one_of(function: str, dim: Axes, axis: Axes) -> Axes:
    if dim is not None and axis is not None:
        raise TypeError(f"{function}: dim is {dim} and axis {axis}, which mean the same; give one of them.")
    return axis if dim is None else dim


def _call(name: str, *args: object) -> Tensor:
    result: Tensor = OPS[name](*args)
    return result


def _truth(sign: str, name: str, *operands: object) -> Tensor:
    """Combine truth values; other numbers, of which numpy would take the bits, are refused."""
    for x in operands:
        if str(x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype) != "bool":
            what = f"a tensor of type {x.dtype}" if isinstance(x, Tensor) else f"a {type_name(x)}"
            example = f"(a > 0) {sign} (b > 0)" if len(operands) > 1 else f"{sign}(a > 0)"
            raise TypeError(f"{sign}: {what} was given; truth values are required, such as {example}.")
    return _call(name, *operands)


def _changed(sign: str, x: Tensor, result: Tensor) -> Tensor:
    """Finish an operator such as ``+=``: change a parameter in place, else return the result for rebinding."""
    if x.node is not None or not (x.requires_grad or HOLDERS.get(id(x)) is x):  # a frozen parameter is one, too
        return result
    changed: Tensor = HOST_OPERATORS["change"](sign, x, result)
    return changed
