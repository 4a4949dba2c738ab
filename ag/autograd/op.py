"""Ops: a forward rule and a gradient rule over primitives become a function that users call.

`op` turns ``forward(run, *operands, *params) -> (output, saved)`` into a public function of tensors, whose ``vjp``
declares the gradient rule.  All operands are buffers to a rule; the annotation of each says what callers may pass.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from ag.autograd.frozen import FrozenTensor
from ag.autograd.half import Widening, rounded, widening
from ag.autograd.operands import KINDS, alike, as_numbers, number_given, operands_on_one_device
from ag.autograd.tape import Cotangent, Node, is_recording
from ag.autograd.tensor import OPS, Tensor, TensorLike, plain_tensor, register
from ag.engine.buffer import Buffer, Run
from ag.engine.interpreter import current
from ag.engine.kernels.elementwise import copied
from ag.engine.primitive import PrimitiveTo
from ag.errors import AgError, ShapeError
from ag.names import dedented, kinds_of, parameters_of, wrong_arguments

__all__ = ["AxisOp", "Cotangents", "Elements", "Ids", "Matrix", "Need", "Op", "Result", "RowOrColumn", "Run", "Wide",
           "along_axes", "documented", "launching", "op", "operands_on_one_device", "part_of"]

P = ParamSpec("P")
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., object])

# Operands of rules; `Buffer` itself is a float of the type of the others, of which a host vector is a column.
Elements = Buffer  # of any type, as the op only moves elements
Wide = Buffer  # float32 also beside 16-bit operands, such as statistics
Ids = Buffer  # int32 beside floats; `checked_ids` makes them
RowOrColumn = Buffer  # a host vector is what the other operands need
Matrix = Buffer  # a host vector is refused by the rule
Compared = Buffer  # as RowOrColumn, and numbers are rounded to the type of the others

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

    def frozen(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Declare what the op is where its first operand is a `FrozenTensor`: a function of the same arguments."""


Axes = int | tuple[int, ...] | None


class AxisOp(Op[P, S], Protocol):
    """An op along axes `dim`, which also accepts numpy's names `axis` and `keepdims`."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, x: TensorLike | Sequence[TensorLike], /, *, axis: Axes, keepdims: bool = ...) -> Tensor: ...


def along_axes(function: Op[P, S]) -> AxisOp[P, S]:
    """Tell type checkers that the op accepts `axis` for `dim`, and `keepdims`."""
    return cast("AxisOp[P, S]", function)


class OpDecorator:
    """A decorator that makes an op of a forward rule."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name  # in messages; None: the rule's own, by which tensors find it, as ``a + b`` finds ``ag_add``

    # One overload per number of operands; the parameters after them, P, are the same for the rule and for callers.
    @overload
    def __call__(self, forward: Callable[Concatenate[Run, Buffer, Buffer, Buffer, Buffer, Buffer, P], Result[S]]
                 ) -> Op[Concatenate[TensorLike, TensorLike, TensorLike, TensorLike, TensorLike, P], S]: ...
    @overload
    def __call__(self, forward: Callable[Concatenate[Run, Buffer, Buffer, Buffer, Buffer, P], Result[S]]
                 ) -> Op[Concatenate[TensorLike, TensorLike, TensorLike, TensorLike, P], S]: ...
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
        return self.of(forward, parameters_of(forward)[1:])  # without `run`

    def of(self, forward: Callable[..., Result[S]], arguments: Sequence[Parameter]) -> Op[..., S]:
        """Make an op of a forward rule that takes any arguments: these."""
        function = _Function(forward, self._name or forward.__name__, arguments).published()
        if self._name is None:
            register(forward.__name__, function)
        return function


op = OpDecorator()


def part_of(name: str) -> OpDecorator:
    """Make an internal op of the public function `name`, which its messages name."""
    return OpDecorator(name)


def no_gradient(run: Run, g: Buffer, saved: None, need: Need) -> Cotangents:
    """Stand for the gradient rule of an op whose result is constant, such as a comparison: it is not on the tape."""
    return (None,) * len(need)


def launching(primitive: PrimitiveTo[Buffer], *names: str) -> GradientRule[Buffer]:
    """Return a gradient rule of one launch: of what was saved, of the cotangent, and of parameters with these names."""
    def rule(run: Run, g: Buffer, saved: Buffer, need: Need, *params: Any) -> Cotangents:
        return (run(primitive, saved, g, **dict(zip(names, params, strict=True))),)

    return rule


def composed(function: F) -> F:
    """Make a public function of ops one itself: tensors have it as a method, and its errors begin with its name."""
    name, kinds, text = function.__name__, kinds_of(function), dedented(function)
    listed = next((key for key, kind in kinds.items() if kind is Parameter.VAR_POSITIONAL), "")
    if "Examples" not in text:
        text = text.replace("\n\n>>>", "\n\nExamples\n--------\n>>>", 1)
    if "Reference: " not in text:  # PyTorch has it under this name, then
        prose = text[: text.rfind("\n\n", 0, text.find("\n---"))] if "\n---" in text else text
        text = f"{prose}\n\nReference: PyTorch ``{name}``.{text[len(prose) :]}"
    function.__doc__ = text + "\n"

    @wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        for theirs, ours in _NUMPYS.items():
            if theirs in kwargs and ours in kinds and ours not in kwargs:
                kwargs[ours] = kwargs.pop(theirs)
        if listed in kwargs and len(args) == 1:  # PyTorch's ``x.flip(dims=(0, 1))``
            args = (*args, kwargs.pop(listed))
        try:
            return function(*args, **kwargs)
        except (AgError, TypeError, ValueError, IndexError) as error:
            signature = inspect.signature(function)  # only now, as it is slow
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                raise wrong_arguments(name, signature, args, kwargs) from None
            begin = re.match(r"(\w+)(?=: |\(\) )", str(error))
            if begin and begin[1] == name:
                raise
            raise type(error)(name + str(error)[begin.end() :] if begin else f"{name}: {error}") from None

    if call.__annotations__[next(iter(kinds))].split(" ")[0] in ("TensorLike", "Tensor"):
        register(name, call)
    else:
        OPS[name] = call
    return cast("F", call)


class _Function(Generic[S]):
    """Builds the public function of one forward rule."""

    def __init__(self, forward: Callable[..., Result[S]], name: str, visible: Sequence[Parameter]) -> None:
        self.forward = forward
        self.name = name
        self.rule: GradientRule[S] | None = None
        self.of_frozen: Callable[..., Tensor] | None = None  # what calls with a frozen tensor as first operand make
        self.kinds = [KINDS[p.annotation] for p in visible if p.annotation in KINDS]
        self.operands = len(self.kinds)
        self.params = [*visible[max(1, self.operands):]]
        self.listed: str | None = None  # the operand that is a list
        for p in visible[:1]:
            kind = str(p.annotation).removeprefix("Sequence[").removesuffix("]")
            if not self.kinds and kind in KINDS:
                self.listed, self.kinds = p.name, [KINDS[kind]]
        self.signature = inspect.Signature(
            [p.replace(annotation=_PUBLISHED[p.annotation]) if p.annotation in _PUBLISHED else p for p in visible],
            return_annotation="Tensor")
        ordinary = [p.kind is p.POSITIONAL_OR_KEYWORD for p in visible]
        self.names = [p.name for p in visible] if all(ordinary) else []
        self.defaults = tuple([p.default for p in visible]) if all(ordinary) else ()  # `_REQUIRED` where there is none
        self.fewest, self.most = 1, 0  # positional arguments of a call that needs no `bind`
        if all(ordinary):
            self.fewest, self.most = self.defaults.count(_REQUIRED), len(visible)
        elif visible[-1].kind is visible[-1].VAR_POSITIONAL and all(ordinary[:-1]):  # ``*sizes``
            self.fewest, self.most = len(visible) - 1, sys.maxsize

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        """Return all arguments in order with defaults; `axis` and `keepdims` stand for `dim` and `keepdim`."""
        for theirs, ours in _NUMPYS.items():
            if theirs in kwargs and ours in self.signature.parameters:
                if ours in kwargs:
                    raise TypeError(f"{self.name}: {ours} is {kwargs[ours]} and {theirs} {kwargs[theirs]}, which mean "
                                    f"the same; give one of them.")
                kwargs[ours] = kwargs.pop(theirs)
        rest = self.names[len(args):]
        if self.names and len(args) <= len(self.names) and kwargs.keys() <= {*rest}:  # `inspect` is slow
            values = [*map(kwargs.get, rest, self.defaults[len(args):])]
            if all(value is not _REQUIRED for value in values):
                return *args, *values
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            raise wrong_arguments(self.name, self.signature, args, kwargs) from None
        bound.apply_defaults()
        return bound.args

    def checked(self, params: tuple[object, ...]) -> tuple[object, ...]:
        """Return the arguments after the operands, numbers as floats; refuse tensors, which would get no gradient."""
        values = list(params)
        for i, value in enumerate(params):
            p = self.params[min(i, len(self.params) - 1)]
            if p.annotation == "float" or (type(value) is Tensor and p.annotation not in ("Tensor", "Index")):
                values[i] = number_given(self.name, p.name, value)
        return tuple(values)

    def published(self) -> Op[..., S]:
        """Return the function, with its public signature."""
        name, forward, operands, listed, kinds = self.name, self.forward, self.operands, self.listed, self.kinds
        integers = all(k.integers or k.ids for k in kinds)
        has_numbers = any(p.annotation == "float" for p in self.params)
        defaults, fewest, most = self.defaults, self.fewest, self.most

        def call(*args: object, **kwargs: object) -> Tensor:
            if not kwargs and fewest <= len(args) <= most:
                args += defaults[len(args):]
            else:
                args = self.bind(args, kwargs)
            if (found := alike(args, operands)) is not None and (found[1].is_float or integers):
                backend, dtype, buffers, inputs, params = found
                if has_numbers and params:
                    params = self.checked(params)
                values: tuple[object, ...] = inputs
            else:
                if self.of_frozen is not None and type(args[0]) is FrozenTensor:
                    return self.of_frozen(*args)
                if listed is None:
                    values, params = args[:operands], args[operands:]
                else:
                    values, params = _items(name, listed, args[0]), args[1:]
                if params and (has_numbers or Tensor in map(type, params)):
                    params = self.checked(params)
                backend, inputs, dtype = operands_on_one_device(name, values, kinds if listed is None else
                                                                kinds * len(values))
                buffers = [*map(_BUFFER, inputs)] if integers else [as_numbers(x.buffer, dtype) for x in inputs]
            half = dtype.is_half
            launch: Run = backend.launch
            if (here := current()) is not None:
                launch = here.before_op(name, inputs, values, params, launch)
            run = Widening(launch) if half else launch
            try:
                out, saved = forward(run, *(buffers if listed is None else [buffers]), *params)
                if half:
                    out, saved = rounded(out, saved, dtype)
                for b in buffers:
                    if b.block is out.block:  # assigning to one must not change the other
                        out = copied(out)
            except ShapeError as error:
                if str(error).startswith(name):
                    raise
                raise ShapeError(f"{name}: {error}") from None
            node = None
            if is_recording():
                need = (*map(_WANTS, inputs),)
                rule = self.rule
                if True in need and rule is not no_gradient:
                    if rule is None:
                        raise NotImplementedError(f"{name} has no gradient rule")
                    node = Node(name, widening(rule) if half else rule, inputs, need, saved, params, half)
            result = plain_tensor(out) if node is None else plain_tensor(out, node)
            if here is not None:
                here.after_op(call, name, inputs, params, result)
            return result

        def vjp(rule: GradientRule[S]) -> GradientRule[S]:
            self.rule = rule
            return rule

        def frozen(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
            self.of_frozen = function
            return function

        call.__module__, call.__doc__ = forward.__module__, forward.__doc__
        call.__name__, call.__qualname__ = forward.__name__, forward.__qualname__
        texts = {key: p.annotation for key, p in self.signature.parameters.items()}
        call.__annotations__ = {key: _KNOWN[text] if text in _KNOWN else _evaluated(text, forward.__globals__)
                                for key, text in texts.items()} | {"return": Tensor}
        call.__dict__.update(__signature__=self.signature, vjp=vjp, frozen=frozen)
        return cast("Op[..., S]", _filled(call, texts))


# Parameters that mean the same in every op: docstrings leave them out.
_SHARED = {text.partition(" : ")[0]: text for text in (
    "dim : int or tuple of int, optional\n    Axes that are reduced, as numpy's ``axis``; default: all.",
    "keepdim : bool, optional\n    Keep these axes with size 1.",
    "gamma : Tensor of shape (features, 1)\n    Factor of each feature.",
    "beta : Tensor of shape (features, 1)\n    Offset of each feature.",
    "eps : float, optional\n    Added to the variance; positive.",
    "sample_weight : Tensor or array_like of shape (batch,), optional\n    What each sample counts in the mean.",
    'reduction : {"mean", "sum", "none"}, optional\n    What becomes of the losses; "none" returns them.')}


def documented(function: F) -> F:
    """Fill in what the docstring of an op with an example leaves out: docs/adding_an_op.md says what."""
    return _filled(function, {key: function.__annotations__.get(key) for key in kinds_of(function)})


def _filled(function: F, parameters: Mapping[str, object]) -> F:
    if ">>>" not in (function.__doc__ or ""):
        return function
    prose, *parts = re.split(r"\n\n(\w+)\n-{3,}\n|\n\n(?=>>>)", dedented(function))
    given = {heading or "Examples": body for heading, body in zip(parts[::2], parts[1::2], strict=True)}
    said = _SHARED | {name.strip(" *"): entry for entry in re.split(r"\n(?=\S)", given.get("Parameters", ""))
                      for name in entry.partition(" : ")[0].split(",")}
    if "reduction" in parameters:  # losses have other numbers of these names, and PyTorch's names
        said = {name: said[name] for name in said.keys() - {"gamma", "beta", "eps"}}
        prose += "" if "Reference: " in prose else f"\n\nReference: PyTorch ``{function.__name__}``."
    operands = [name for name, text in parameters.items() if name not in said and text == "TensorLike"]
    of, result = ("shapes that broadcast", "broadcast") if len(operands) > 1 else ("any shape", "same")
    returned = "without these axes" if "keepdim" in parameters else f"of the {result} shape"
    if "reduction" in parameters:
        of, returned = "one shape", "of shape (); the losses without a reduction"
    elif function.__name__.endswith("_loss"):
        returned = "of shape ()"
    said |= dict.fromkeys(operands, f"{', '.join(operands)} : Tensor, array_like or float, of {of}")
    sections = {"Parameters": "", "Returns": f"Tensor {returned}"} | given
    sections["Parameters"] = "\n".join(dict.fromkeys(said[name] for name in parameters if name in said))
    filled = [f"{heading}\n{'-' * len(heading)}\n{body}" for heading, body in sections.items()]
    function.__doc__ = "\n\n".join([prose, *filled]) + "\n"
    return function


_REQUIRED = Parameter.empty
_BUFFER: Callable[[Tensor], Buffer] = attrgetter("buffer")  # hot path: runs no Python, unlike a comprehension
_WANTS: Callable[[Tensor], bool] = attrgetter("requires_grad")
_NUMPYS = {"axis": "dim", "keepdims": "keepdim"}  # numpy's names of arguments
_PUBLISHED = dict.fromkeys(KINDS, "TensorLike") | {f"Sequence[{kind}]": "Sequence[TensorLike]" for kind in KINDS}


_KNOWN = {"TensorLike": TensorLike, "float": float, "int": int, "bool": bool, "str": str}


def _evaluated(annotation: str, known: dict[str, object]) -> object:
    try:
        return eval(annotation, globals() | known)  # the op's own types are of the file of its rule
    except (NameError, TypeError):  # a name for type checkers only, or no text
        return annotation


def _items(function: str, argument: str, values: object) -> tuple[object, ...]:
    """Return the operands of an op that takes a list."""
    if not isinstance(values, (list, tuple)) or not values:
        what = "empty" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
        raise TypeError(f"{function}: {argument} is {what}; a list of at least one tensor is required.")
    return tuple(values)
