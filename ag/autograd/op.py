"""Ops: what users call.  An op is a forward rule and a gradient rule over primitives.

`op` turns a forward rule ``forward(run, *operands, *params) -> (output, saved)`` into the public function: it lifts
numbers and arrays to the tensors' device, checks that all operands live on one device and have one element type, runs
the rule, and leaves a node on the tape.  The rule receives `run`, the device's launch, and can reach nothing else.
Adding an op touches no other file of the core.

A rule works on buffers and says so; callers pass tensors, and `op` publishes that signature, to `help`, to
`inspect.signature` and to type checkers:

    def ag_exp(run: Run, x: Buffer) -> Result[Buffer]   ->   def ag_exp(x: TensorLike) -> Tensor

Operands are the parameters annotated `Buffer`, which come first; or one first parameter annotated `Sequence[Buffer]`
is a list of them.  The rules of 16-bit tensors compute in float32: `ag.autograd.mixed_precision`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from ag.autograd.cotangent import Cotangent
from ag.autograd.create import lift
from ag.autograd.mixed_precision import Widening, rounded, widening
from ag.autograd.tape import is_recording
from ag.autograd.tensor import OPS, Node, Tensor, TensorLike
from ag.autograd.unchanged import checked, repeated_since
from ag.engine.buffer import Buffer, Device, Run
from ag.engine.device import default_backend, default_dtype
from ag.engine.dtype import F32, DType
from ag.engine.kernels.elementwise import copied
from ag.errors import DeviceError, DtypeError, ShapeError

__all__ = ["Cotangents", "Need", "Op", "Result", "Run", "op", "operands_on_one_device", "part_of"]

P = ParamSpec("P")
S = TypeVar("S")

Result = tuple[Buffer, S]  # what a forward rule returns: the output, and what the gradient rule wants to see again
Need = tuple[bool, ...]  # which tensor operands want a cotangent
Cotangents = tuple[Cotangent | None, ...]  # what a gradient rule returns, one per tensor operand
if TYPE_CHECKING:  # Python 3.10 cannot evaluate it
    GradientRule = Callable[Concatenate[Run, Buffer, S, Need, ...], Cotangents]


class Op(Protocol[P, S]):
    """A public op: a function with a decorator `vjp` for its gradient rule."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...

    def vjp(self, rule: GradientRule[S]) -> GradientRule[S]:
        """Declare ``rule(run, g, saved, need, *params)``: one cotangent or None per tensor operand."""


class OpDecorator:
    """Makes an op of a forward rule; `op` and `part_of` are two of it.

    Parameters
    ----------
    name : str, optional
        Of the function that messages name; default: the rule's own.
    mixed : bool, optional
        Whether some operands may be float32 where others are 16-bit tensors.
    public : bool, optional
        Whether tensors find the op by its name, as ``a + b`` finds ``ag_add``.
    """

    def __init__(self, name: str | None = None, mixed: bool = False, public: bool = False) -> None:
        self._name, self._mixed, self._public = name, mixed, public

    # One overload per number of operands; what follows them, P, is the same to the rule and to callers.
    @overload
    def __call__(self, forward: Callable[Concatenate[Run, Buffer, Buffer, Buffer, Buffer, Buffer, P], Result[S]]
                 ) -> Op[Concatenate[TensorLike, TensorLike, TensorLike, TensorLike, TensorLike, P], S]: ...
    @overload
    def __call__(self, forward: Callable[Concatenate[Run, Buffer, Buffer, Buffer, P], Result[S]]
                 ) -> Op[Concatenate[TensorLike, TensorLike, TensorLike, P], S]: ...
    @overload
    def __call__(self, forward: Callable[Concatenate[Run, Buffer, Buffer, P], Result[S]]
                 ) -> Op[Concatenate[TensorLike, TensorLike, P], S]: ...
    @overload
    def __call__(self, forward: Callable[Concatenate[Run, Buffer, P], Result[S]]
                 ) -> Op[Concatenate[TensorLike, P], S]: ...
    @overload
    def __call__(self, forward: Callable[Concatenate[Run, Sequence[Buffer], P], Result[S]]
                 ) -> Op[Concatenate[Sequence[TensorLike], P], S]: ...
    def __call__(self, forward: Callable[..., Result[S]]) -> Op[..., S]:
        function = _Function(forward, self._name or forward.__name__, self._mixed).published()
        if self._public:
            OPS[forward.__name__] = function
        return function


op = OpDecorator(public=True)


def part_of(name: str, mixed: bool = False) -> OpDecorator:
    """Make an op that the public function `name` calls; messages carry that function's name.

    With `mixed`, some operands may be float32 where others are 16-bit tensors: statistics, for example.
    """
    return OpDecorator(name, mixed)


class _Function(Generic[S]):
    """Builds the function that callers see of one forward rule."""

    def __init__(self, forward: Callable[..., Result[S]], name: str, mixed: bool) -> None:
        self.forward = forward
        self.name = name
        self.mixed = mixed
        self.rule: GradientRule[S] | None = None
        _, *visible = inspect.signature(forward).parameters.values()  # without `run`
        self.operands = sum(p.annotation == "Buffer" for p in visible)
        self.listed = visible[0].name if visible and visible[0].annotation == "Sequence[Buffer]" else None
        self.signature = inspect.Signature(
            [p.replace(annotation=_PUBLISHED.get(p.annotation, p.annotation)) for p in visible],
            return_annotation="Tensor")

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        """All arguments in order, defaults filled in."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}.") from None
        bound.apply_defaults()
        return bound.args

    def published(self) -> Op[..., S]:
        """The function, with the signature that is true for callers."""
        name, forward, operands, listed, mixed = self.name, self.forward, self.operands, self.listed, self.mixed
        full = len(self.signature.parameters)
        if any(p.kind is p.VAR_POSITIONAL for p in self.signature.parameters.values()):
            full = -1  # let `bind` sort it out

        def call(*args: object, **kwargs: object) -> Tensor:
            if kwargs or len(args) != full:
                args = self.bind(args, kwargs)
            if listed is None:
                values, params = args[:operands], args[operands:]
            else:
                values, params = _items(name, listed, args[0]), args[1:]
            backend, inputs, dtype = operands_on_one_device(name, values, mixed)
            buffers = [x.buffer for x in inputs]
            half = dtype.is_half
            launch: Run = backend.launch
            if since := repeated_since():
                launch = checked(launch, since, name, inputs, buffers)
            run = Widening(launch) if half else launch
            try:
                with backend.quiet():
                    out, saved = forward(run, *(buffers if listed is None else [buffers]), *params)
                    if half:
                        out, saved = rounded(out, saved, dtype)
                    for b in buffers:
                        if b.block is out.block:  # whoever assigns to one must not change the other
                            out = copied(out)
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
                    return Tensor(out, True, Node(name, widening(rule) if half else rule, inputs, need, saved, params,
                                                  half))
            return Tensor(out)

        def vjp(rule: GradientRule[S]) -> GradientRule[S]:
            self.rule = rule
            return rule

        call.__module__, call.__doc__ = forward.__module__, forward.__doc__
        call.__name__, call.__qualname__ = forward.__name__, forward.__qualname__
        call.__annotations__ = {p.name: p.annotation for p in self.signature.parameters.values()} | {"return": "Tensor"}
        call.__dict__.update(__signature__=self.signature, vjp=vjp)
        return cast("Op[..., S]", call)


_PUBLISHED = {"Buffer": "TensorLike", "Sequence[Buffer]": "Sequence[TensorLike]"}


def _items(function: str, argument: str, values: object) -> tuple[object, ...]:
    """The operands in a list."""
    if not isinstance(values, (list, tuple)) or not values:
        what = "empty" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
        raise TypeError(f"{function}: {argument} is {what}; a list of at least one tensor is required.")
    return tuple(values)


def operands_on_one_device(
    function: str, operands: tuple[object, ...], mixed: bool = False
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
        return cast(Device, backend), cast("tuple[Tensor, ...]", operands), cast(DType, dtype)
    if backend is None or dtype is None:
        backend, dtype = default_backend(), default_dtype()
    number = F32 if dtype.is_half else dtype  # a number keeps its digits, one of numpy's too
    return backend, tuple(x if type(x) is Tensor else lift(
        x, backend, number if isinstance(x, (int, float)) or getattr(x, "ndim", 1) == 0 else dtype, function)
        for x in operands), dtype


def _common_type(function: str, operands: tuple[object, ...], mixed: bool) -> DType:
    """The element type of tensors that have not all the same."""
    buffers = [x.buffer for x in operands if isinstance(x, Tensor)]
    kinds = list(dict.fromkeys(b.dtype for b in buffers if b.dtype is not F32 or not (mixed or b.shape == ())))
    if len(kinds) == 1 and kinds[0].is_half:
        return kinds[0]
    first, second = list(dict.fromkeys(b.dtype for b in buffers))[:2]
    raise DtypeError(f"{function}: operands have element types {first} and {second}; they must be equal. "
                     f"Convert one with t.astype.")
