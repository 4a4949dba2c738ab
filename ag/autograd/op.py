"""Ops: what users call.  An op is a forward rule and a gradient rule over primitives.

`@op` turns a forward rule into the public function: it lifts numbers and arrays to the tensors' device, checks that
all operands live on one device and have one element type, runs the rule, and leaves a node on the tape.  The rule
receives `run`, the device's launch, and can reach nothing else.  Adding an op touches no other file of the core.

Of 16-bit operands the rule sees the values in float32 (`ag.engine.kernels.convert`), and the result is rounded once to
their type; a result without axes, such as a loss, stays float32.

Inside a rule the operands are buffers, which have the same ``shape``, ``ndim`` and ``dtype`` as the tensors that
the visible signature promises to callers.  Operands are the parameters annotated `Tensor` or `TensorLike`, which come
first; or one first parameter annotated `Sequence[TensorLike]` is a list of them, in the rule a list of buffers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, cast

from ag.autograd.create import lift
from ag.autograd.mixed_precision import Widening
from ag.autograd.slice_gradient import Partial
from ag.autograd.tape import is_recording
from ag.autograd.tensor import OPS, Node, Tensor
from ag.engine.buffer import Buffer, Device
from ag.engine.device import default_backend, default_dtype
from ag.engine.dtype import F32, DType
from ag.engine.kernels.convert import converted
from ag.errors import DeviceError, DtypeError, ShapeError

__all__ = ["Cotangents", "Need", "Op", "Run", "op", "operands_on_one_device", "part_of"]

P = ParamSpec("P")

Cotangents = tuple[Buffer | Partial | None, ...]  # what a gradient rule returns, one per tensor operand
Need = tuple[bool, ...]  # which of them are wanted


class Run(Protocol):
    """`Backend.launch` of the op's device."""

    def __call__(self, primitive: Any, *operands: Any, into: Any = None, **params: Any) -> Any: ...


class Op(Protocol[P]):
    """A public op: a function with a decorator `vjp` for its gradient rule."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...

    def vjp(self, rule: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        """Declare ``rule(run, g, saved, need, *params)``: one cotangent or None per tensor operand."""


def operands_on_one_device(
    function: str, operands: tuple[Any, ...], mixed: bool = False
) -> tuple[Device, tuple[Tensor, ...], DType]:
    """The device shared by the tensors among `operands`, everything as tensors there, and the result's element type.

    Raises
    ------
    DeviceError
        If tensors live on different devices.
    DtypeError
        If tensors have different element types, or an operand is not numeric.  Beside 16-bit tensors, float32 ones
        without axes are fine, and with `mixed` all float32 ones.
    """
    backend: Device | None = None
    dtype: DType | None = None
    plain = False
    for x in operands:
        if type(x) is not Tensor:
            plain = True
            continue
        b = x.buffer
        if backend is None:
            backend, dtype = b.backend, b.dtype
        elif b.backend is not backend:
            raise DeviceError(f"{function}: operands are on {backend.name} and {b.backend.name}; "
                              f"move one with ag_to_device first.")
        elif b.dtype is not dtype:
            dtype = _common_type(function, operands, mixed)
    if not plain:
        return cast(Device, backend), operands, cast(DType, dtype)
    if backend is None or dtype is None:
        backend, dtype = default_backend(), default_dtype()
    number = F32 if dtype.is_half else dtype  # a number keeps its digits, one of numpy's too
    return backend, tuple(x if type(x) is Tensor else lift(
        x, backend, number if isinstance(x, (int, float)) or getattr(x, "ndim", 1) == 0 else dtype, function)
        for x in operands), dtype


def _common_type(function: str, operands: tuple[Any, ...], mixed: bool) -> DType:
    """The element type of tensors that have not all the same."""
    buffers = [x.buffer for x in operands if isinstance(x, Tensor)]
    kinds = list(dict.fromkeys(b.dtype for b in buffers if b.dtype is not F32 or not (mixed or b.shape == ())))
    if len(kinds) == 1 and kinds[0].is_half:
        return kinds[0]
    first, second = list(dict.fromkeys(b.dtype for b in buffers))[:2]
    raise DtypeError(f"{function}: operands have element types {first} and {second}; they must be equal. "
                     f"Convert one with t.astype.")


def _items(function: str, argument: str, given: Any) -> tuple[Any, ...]:
    """The operands in a list."""
    if not isinstance(given, (list, tuple)) or not given:
        what = "empty" if isinstance(given, (list, tuple)) else f"a {type(given).__name__}"
        raise TypeError(f"{function}: {argument} is {what}; a list of at least one tensor is required.")
    return tuple(given)


class _Function(Generic[P]):
    """Builds the public function of one forward rule."""

    def __init__(self, forward: Callable[..., tuple[Any, Any]], name: str, mixed: bool = False) -> None:
        self.forward = forward
        self.name = name
        self.mixed = mixed
        signature = inspect.signature(forward)
        visible = list(signature.parameters.values())[1:]  # without `run`
        self.signature = signature.replace(parameters=visible, return_annotation="Tensor")
        self.tensors = sum(p.annotation in ("Tensor", "TensorLike") for p in visible)
        self.listed = visible[0].name if visible and visible[0].annotation == "Sequence[TensorLike]" else None
        self.rule: Callable[..., tuple[Any, ...]] | None = None

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments in order, defaults filled in."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}.") from None
        bound.apply_defaults()
        return bound.args

    def public(self) -> Op[P]:
        """The function users see."""
        name, forward, tensors, listed, mixed = self.name, self.forward, self.tensors, self.listed, self.mixed
        full = len(self.signature.parameters)
        if any(p.kind is p.VAR_POSITIONAL for p in self.signature.parameters.values()):
            full = -1  # let `bind` sort it out

        def call(*args: Any, **kwargs: Any) -> Tensor:
            if kwargs or len(args) != full:
                args = self.bind(args, kwargs)
            if listed is None:
                given, params = args[:tensors], args[tensors:]
            else:
                given, params = _items(name, listed, args[0]), args[1:]
            backend, inputs, dtype = operands_on_one_device(name, given, mixed)
            buffers: list[Any] = [x.buffer for x in inputs]
            half = dtype.is_half
            run = Widening(backend.launch) if half else backend.launch
            try:
                with backend.quiet():
                    out, saved = forward(run, *(buffers if listed is None else [buffers]), *params)
                    if half:
                        out, saved = _rounded(out, saved, dtype)
            except ShapeError as error:
                if str(error).startswith(name):
                    raise
                raise ShapeError(f"{name}: {error}") from None
            if is_recording():
                need = tuple(x.requires_grad for x in inputs)
                if True in need:
                    rule = self.rule
                    if rule is None:
                        raise NotImplementedError(f"{name} has no gradient rule")
                    return Tensor(out, True, Node(name, _widening(rule) if half else rule, inputs, need, saved, params))
            return Tensor(out)

        def vjp(rule: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
            self.rule = rule
            return rule

        update_wrapper(call, forward)
        del call.__wrapped__  # type: ignore[attr-defined]
        call.__signature__ = self.signature  # type: ignore[attr-defined]
        call.vjp = vjp  # type: ignore[attr-defined]
        return cast("Op[P]", call)


def _rounded(out: Buffer, saved: Any, dtype: DType) -> tuple[Buffer, Any]:
    """A rule's result in the 16-bit type of its operands, also where it is saved; in float32 if it has no axes."""
    result = converted(out, dtype if out.shape else F32)
    return result, saved if result is out else _swapped(saved, out, result)


def _swapped(saved: Any, old: Buffer, new: Buffer) -> Any:
    """What a rule saved, with `new` in the place of `old` and of its views."""
    if type(saved) is tuple:
        return tuple(_swapped(x, old, new) for x in saved)
    same = isinstance(saved, Buffer) and (saved.block, saved.address, saved.size) == (old.block, old.address, old.size)
    return new.view(saved.shape) if same else saved


def _widening(rule: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A gradient rule for an op on 16-bit tensors."""

    def wide(run: Run, *args: Any) -> tuple[Any, ...]:
        return rule(Widening(run), *args)

    return wide


def op(forward: Callable[Concatenate[Run, P], tuple[Any, Any]]) -> Op[P]:
    """Make a public op from a forward rule ``forward(run, *operands, *params) -> (output, saved)``."""
    function = _Function[P](forward, forward.__name__).public()
    OPS[forward.__name__] = function
    return function


def part_of(name: str, mixed: bool = False) -> Callable[[Callable[Concatenate[Run, P], tuple[Any, Any]]], Op[P]]:
    """Make an op that a public function calls; messages carry the public function's name.

    With `mixed`, some operands may be float32 where others are 16-bit tensors: statistics, for example.
    """

    def make(forward: Callable[Concatenate[Run, P], tuple[Any, Any]]) -> Op[P]:
        return _Function[P](forward, name, mixed).public()

    return make
