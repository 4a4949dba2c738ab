"""Ops: what users call.  An op is a forward rule and a gradient rule over primitives.

Knows no op, no layer and no device by name.  The files of `ag.ops` make their ops with it, the trainer those of
synchronized samples (`ag.parallel.trainer`); users call what it makes.

`op` turns a forward rule ``forward(run, *operands, *params) -> (output, saved)`` into the public function: it lifts
numbers and arrays to the tensors' device, checks that all operands live on one device and have one element type, runs
the rule, and leaves a node on the tape.  The gradient rule is declared below it by ``@ag_exp.vjp``, and the node calls
it when the tape does.  The rule receives `run`, the device's launch, and can reach nothing else.
Adding an op changes neither this nor the tape, capture or a backend; docs/adding_an_op.md says what it does.

A rule works on buffers and says so; callers pass tensors, and `op` publishes that signature, to `help`, to
`inspect.signature` and to type checkers:

    def ag_exp(run: Run, x: Buffer) -> Result[Buffer]   ->   def ag_exp(x: TensorLike) -> Tensor

Operands are the parameters annotated `Buffer`, which come first; or one first parameter annotated `Sequence[Buffer]`
is a list of them.  The rules of 16-bit tensors compute in float32: `ag.autograd.mixed_precision`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import ag.autograd.operators  # noqa: F401 - where tensors look operators up that are no ops
from ag.autograd.captured.overheard import listening
from ag.autograd.cotangent import Cotangent
from ag.autograd.mixed_precision import Widening, rounded, widening
from ag.autograd.operands import (
    Vectors,
    alike,
    number_given,
    operands_on_one_device,
    plain_tensor,
    refuse_integers,
)
from ag.autograd.tape import is_recording
from ag.autograd.tensor import Node, Tensor, TensorLike
from ag.autograd.tensor_operators import register
from ag.autograd.unchanged import checked, repeated_since, telling
from ag.autograd.watched import note_tensors
from ag.engine.buffer import Buffer, Run
from ag.engine.kernels.elementwise import copied
from ag.engine.program import OPEN
from ag.errors import ShapeError

__all__ = ["AxisOp", "Cotangents", "Need", "Op", "Result", "Run", "along_axes",
           "elementwise_op", "moving_op", "op", "operands_on_one_device", "part_of", "product_op"]

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


Axes = int | tuple[int, ...] | None


class AxisOp(Op[P, S], Protocol):
    """An op along axes, which `dim` names; numpy's names for its arguments are taken, too."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, x: TensorLike | Sequence[TensorLike], /, *, axis: Axes, keepdims: bool = ...) -> Tensor: ...


def along_axes(function: Op[P, S]) -> AxisOp[P, S]:
    """Tell type checkers that the op takes `axis` for its `dim`, and `keepdims`."""
    return cast("AxisOp[P, S]", function)


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
    integers : bool, optional
        Whether operands may be of an integer type: for ops that move elements and compute nothing.
    vectors : str, optional
        What a list or array of one axis is among the operands (`ag.autograd.operands.Vectors`).
    """

    def __init__(self, name: str | None = None, mixed: bool = False, public: bool = False, integers: bool = False,
                 vectors: Vectors = "column") -> None:
        self._name, self._mixed, self._public = name, mixed, public
        self._integers, self._vectors = integers, vectors

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
        function = _Function(forward, self._name or forward.__name__, self._mixed, self._integers,
                             self._vectors).published()
        if self._public:
            register(forward.__name__, function)
        return function


op = OpDecorator(public=True)
moving_op = OpDecorator(public=True, integers=True)  # of ops that move elements and compute nothing
elementwise_op = OpDecorator(public=True, vectors="broadcast")  # of ops whose operands broadcast
product_op = OpDecorator(public=True, vectors="second")  # of products, whose first operand is a matrix


def part_of(name: str, mixed: bool = False) -> OpDecorator:
    """Make an op that the public function `name` calls; messages carry that function's name.

    With `mixed`, some operands may be float32 where others are 16-bit tensors: statistics, for example.
    """
    return OpDecorator(name, mixed)


class _Function(Generic[S]):
    """Builds the function that callers see of one forward rule."""

    def __init__(self, forward: Callable[..., Result[S]], name: str, mixed: bool, integers: bool,
                 vectors: Vectors) -> None:
        self.forward = forward
        self.name = name
        self.mixed = mixed
        self.integers = integers
        self.vectors = vectors
        self.rule: GradientRule[S] | None = None
        _, *visible = inspect.signature(forward).parameters.values()  # without `run`
        self.operands = sum(p.annotation == "Buffer" for p in visible)
        self.params = visible[max(1, self.operands):]
        self.listed = visible[0].name if visible and visible[0].annotation == "Sequence[Buffer]" else None
        self.signature = inspect.Signature(
            [p.replace(annotation=_PUBLISHED[p.annotation]) if p.annotation in _PUBLISHED else p for p in visible],
            return_annotation="Tensor")
        self._is_ordinary = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in visible)
        # Where the last one is `*sizes`: from how many on arguments that are given by position alone are in order.
        *before, last = visible
        self._in_order_from = (len(before) if last.kind is last.VAR_POSITIONAL and
                               all(p.kind is p.POSITIONAL_OR_KEYWORD for p in before) else None)

    def _defaults(self) -> _Defaults:
        """What the other arguments are by default, by how many are given by position, where none of them must be."""
        found = _Defaults(self._in_order_from)
        rest: tuple[object, ...] = ()
        if not self._is_ordinary:
            return found
        visible = [*self.signature.parameters.values()]
        for given in range(len(visible), -1, -1):
            found[given] = rest
            if given == 0 or visible[given - 1].default is inspect.Parameter.empty:
                break
            rest = visible[given - 1].default, *rest
        return found

    @cached_property  # only unusual calls ask, and most ops are never called
    def _behind(self) -> list[tuple[list[tuple[str, object]], frozenset[str], frozenset[str]]]:
        """By how many arguments are given by position: the others with their defaults, and which must be given.

        Empty if some are not ordinary ones.
        """
        visible = [*self.signature.parameters.values()]
        return [([(p.name, p.default) for p in rest], frozenset(p.name for p in rest),
                 frozenset(p.name for p in rest if p.default is p.empty))
                for rest in (visible[k:] for k in range(len(visible) + 1)) if self._is_ordinary]

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        """All arguments in order, defaults filled in; `axis` and `keepdims` are taken for `dim` and `keepdim`."""
        for theirs, ours in _NUMPYS.items():
            if theirs in kwargs and ours in self.signature.parameters:
                if ours in kwargs:
                    raise TypeError(f"{self.name}: {ours} is {kwargs[ours]} and {theirs} {kwargs[theirs]}, which mean "
                                    f"the same; give one of them.")
                kwargs[ours] = kwargs.pop(theirs)
        if len(args) < len(self._behind):  # most calls need no `inspect`, which takes as long as a launch
            rest, known, needed = self._behind[len(args)]
            if needed <= kwargs.keys() <= known:
                return *args, *[kwargs.get(name, default) for name, default in rest]
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(self.signature.parameters)
            raise TypeError(f"{self.name}: {error}; its arguments are {names}.") from None
        bound.apply_defaults()
        return bound.args

    def checked(self, params: tuple[object, ...]) -> tuple[object, ...]:
        """The arguments behind the operands, numbers as floats; a tensor, which would get no gradient, is refused."""
        values = list(params)
        for i, value in enumerate(params):
            p = self.params[min(i, len(self.params) - 1)]
            if p.annotation == "float" or (type(value) is Tensor and p.annotation not in ("Tensor", "Index")):
                values[i] = number_given(self.name, p.name, value)
        return tuple(values)

    def published(self) -> Op[..., S]:
        """The function, with the signature that is true for callers."""
        name, forward, operands, listed, mixed = self.name, self.forward, self.operands, self.listed, self.mixed
        integers, vectors, has_numbers = self.integers, self.vectors, any(p.annotation == "float" for p in self.params)
        defaults = self._defaults()

        def call(*args: object, **kwargs: object) -> Tensor:
            if not kwargs and (rest := defaults[len(args)]) is not None:
                args += rest
            else:
                args = self.bind(args, kwargs)
            if (found := alike(args, operands)) is not None:
                backend, dtype, buffers, inputs, params = found
                if has_numbers and params:
                    params = self.checked(params)
                if not (dtype.is_float or integers):
                    refuse_integers(name, dtype)
                values: tuple[object, ...] = inputs
            else:
                if listed is None:
                    values, params = args[:operands], args[operands:]
                else:
                    values, params = _items(name, listed, args[0]), args[1:]
                if params and (has_numbers or Tensor in map(type, params)):
                    params = self.checked(params)
                backend, inputs, dtype = operands_on_one_device(name, values, mixed, integers, vectors)
                buffers = [*map(_BUFFER, inputs)]
            if OPEN:
                note_tensors(inputs)
            half = dtype.is_half
            launch: Run = backend.launch
            if (told := telling.get()) is not None:
                told.note(name, [params, [x for x in values if isinstance(x, (int, float))]])
                told.use(inputs, is_recording() is not False)
                if since := repeated_since():
                    launch = checked(launch, since, name, inputs, buffers)
            run = Widening(launch) if half else launch
            try:
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
            result = None
            if is_recording():
                need = (*map(_WANTS, inputs),)
                if True in need:
                    rule = self.rule
                    if rule is None:
                        raise NotImplementedError(f"{name} has no gradient rule")
                    result = Tensor(out, True, Node(name, widening(rule) if half else rule, inputs, need, saved, params,
                                                    half))
            if result is None:
                result = plain_tensor(out)
            if (listener := listening.get()) is not None:
                listener.op(call, name, inputs, params, result)
            return result

        def vjp(rule: GradientRule[S]) -> GradientRule[S]:
            self.rule = rule
            return rule

        call.__module__, call.__doc__ = forward.__module__, forward.__doc__
        call.__name__, call.__qualname__ = forward.__name__, forward.__qualname__
        call.__annotations__ = {p.name: p.annotation for p in self.signature.parameters.values()} | {"return": "Tensor"}
        call.__dict__.update(__signature__=self.signature, vjp=vjp)
        return cast("Op[..., S]", call)


class _Defaults(dict[int, "tuple[object, ...] | None"]):
    """The defaults of the arguments that are not given, by how many are; None where one of these must be.

    Parameters
    ----------
    in_order_from : int or None
        From how many on there are none, as an op takes any number; None: it does not.
    """

    def __init__(self, in_order_from: int | None) -> None:
        super().__init__()
        self._from = in_order_from

    def __missing__(self, given: int) -> tuple[object, ...] | None:
        found = self[given] = () if self._from is not None and given >= self._from else None
        return found


_BUFFER: Callable[[Tensor], Buffer] = attrgetter("buffer")  # runs no Python, as a comprehension would
_WANTS: Callable[[Tensor], bool] = attrgetter("requires_grad")
_NUMPYS = {"axis": "dim", "keepdims": "keepdim"}  # what numpy calls an argument
_PUBLISHED = {"Buffer": "TensorLike", "Sequence[Buffer]": "Sequence[TensorLike]"}


def _items(function: str, argument: str, values: object) -> tuple[object, ...]:
    """The operands in a list."""
    if not isinstance(values, (list, tuple)) or not values:
        what = "empty" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
        raise TypeError(f"{function}: {argument} is {what}; a list of at least one tensor is required.")
    return tuple(values)
