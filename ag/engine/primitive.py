"""Primitives: what backends know how to run.

A primitive is a name, a shape rule and a numpy function that defines what it computes.  That one function is the
CPU backend's implementation, the documentation, and the oracle for the Vulkan kernel of the same name.  Its
signature is the contract: outputs first, then inputs, all positional; parameters are keyword-only.  Nothing here
knows tensors, gradients or devices; `ag.ops` declares primitives and the backends run them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

import numpy.typing as npt

from ag.engine.buffer import Buffer
from ag.engine.shape import Layout, broadcast_layout, elementwise_layout, same

__all__ = ["PRIMITIVES", "Array", "Call", "Params", "Primitive", "PrimitiveTo", "Returned", "Run", "primitive"]

Array = npt.NDArray[Any]
Params = dict[str, Any]  # what a launch is given beside buffers, by name
Call = Callable[[], object]  # a computation with its arrays bound to it
Reference = Callable[..., None]
ShapeRule = Callable[..., Any]  # a Shape, or a tuple of them
LayoutRule = Callable[..., Layout]
Returned = TypeVar("Returned", covariant=True)  # of a launch: a buffer, a tuple of buffers, or None


@dataclass(frozen=True, eq=False)
class Primitive:
    """A named array function that every backend can run.

    Attributes
    ----------
    name : str
        Name of the numpy function and of the shader file.
    reference : callable
        ``reference(*outputs, *inputs, **params)``; writes its outputs, any floating type.
    bind : callable
        ``bind(*outputs, *inputs, **params)``: the same as a call without arguments, to be made many times.
    shape : callable
        ``shape(*input_shapes, **params)``: the output's shape, or a tuple of shapes if there are several outputs.
    layout : callable
        ``layout(*output_shapes, *input_shapes, **params)``: the sizes and strides a kernel is given by name.
    outputs : int
        How many leading operands are freshly allocated outputs.
    updates : tuple of int
        Positions (among all operands) of inputs that are written in place.
    copies : bool
        Whether the output is the input, element for element.
    neutral : float or None
        For two inputs: a value of the second that makes the output equal to the first.
    in_place : tuple of (int, int)
        Positions of an output and of an input that may be one buffer, if shape and type are the same: the input is
        not read any more where the output was written.
    cheap : bool
        Whether computing the output again costs little more than reading and writing it.
    scaling : tuple of (Primitive, int, int), or None
        A product, and the positions of an input and of a number: it begins as if by ``input = product(input, number)``.
    operands, params : tuple of str
        Names, read from the signature of `reference`.
    """

    name: str
    reference: Reference
    bind: Callable[..., Call]
    shape: ShapeRule
    layout: LayoutRule
    outputs: int
    updates: tuple[int, ...]
    copies: bool
    neutral: float | None
    in_place: tuple[tuple[int, int], ...]
    cheap: bool
    scaling: tuple[Primitive, int, int] | None
    operands: tuple[str, ...]
    params: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"


class PrimitiveTo(Primitive, Generic[Returned]):
    """A primitive whose launch returns a `Returned`: the type says what `outputs` does.

    ``exp: PrimitiveTo[Buffer]``, ``layer_norm: PrimitiveTo[tuple[Buffer, Buffer, Buffer]]`` and, as it only updates an
    operand, ``sgd: PrimitiveTo[None]``.
    """


class Run(Protocol):
    """`Backend.launch` of a device, or what stands for it: all of the engine that a rule or a launch helper sees."""

    def __call__(self, primitive: PrimitiveTo[Returned], *operands: Buffer, into: Returned | None = None,
                 **params: object) -> Returned: ...


def _calling(bind: Callable[..., Call]) -> Reference:
    @wraps(bind)
    def reference(*arrays: Array, **params: object) -> None:
        bind(*arrays, **params)()

    return reference


PRIMITIVES: dict[str, Primitive] = {}
Declare = Callable[[Callable[..., object]], PrimitiveTo[Returned]]
Scaling = tuple[Primitive, str, str]


@overload
def primitive(
    shape: ShapeRule = ..., *, outputs: Literal[1] = ..., layout: LayoutRule = ..., updates: tuple[str, ...] = ...,
    bound: bool = ..., copies: bool = ..., neutral: float | None = ..., in_place: bool | tuple[str, str] | None = ...,
    cheap: bool | None = ..., scaling: Scaling | None = ...) -> Declare[Buffer]: ...
@overload
def primitive(
    *, outputs: Literal[0], layout: LayoutRule = ..., updates: tuple[str, ...], bound: bool = ...,
    scaling: Scaling | None = ...) -> Declare[None]: ...
@overload
def primitive(
    shape: ShapeRule, *, outputs: Literal[2], layout: LayoutRule = ..., bound: bool = ...,
    in_place: bool | tuple[str, str] | None = ..., cheap: bool | None = ...) -> Declare[tuple[Buffer, Buffer]]: ...
@overload
def primitive(
    shape: ShapeRule, *, outputs: Literal[3], layout: LayoutRule = ..., bound: bool = ...,
    in_place: bool | tuple[str, str] | None = ..., cheap: bool | None = ...,
) -> Declare[tuple[Buffer, Buffer, Buffer]]: ...
def primitive(
    shape: ShapeRule = same,
    *,
    layout: LayoutRule = elementwise_layout,
    outputs: int = 1,
    updates: tuple[str, ...] = (),
    bound: bool = False,
    copies: bool = False,
    neutral: float | None = None,
    in_place: bool | tuple[str, str] | None = None,
    cheap: bool | None = None,
    scaling: Scaling | None = None,
) -> Declare[Any]:
    """Declare the decorated numpy function as a primitive.

    Parameters
    ----------
    shape : callable, optional
        Shape rule; default: the output has the first input's shape.
    layout : callable, optional
        Layout rule; default: ``n``, the number of elements of the first operand.
    outputs : int, optional
        Number of leading output operands; 0 for primitives that only update in place.
    updates : tuple of str, optional
        Names of the inputs that are written in place.
    bound : bool, optional
        The decorated function does not compute but returns the call that does: worth it where that is a single
        numpy call, which a recorded program then makes directly.
    copies : bool, optional
        Whether the output is the input, element for element.
    neutral : float, optional
        For two inputs: a value of the second that makes the output equal to the first.
    in_place : bool or (str, str), optional
        Whether the first output may be any input, or which output may be which; default: True for the layouts of
        elementwise functions.
    cheap : bool, optional
        Whether computing the output again costs little more than reading and writing it; default: True for the layouts
        of elementwise functions.
    scaling : tuple of (Primitive, str, str), optional
        A product, and the names of an input and of a number that it is multiplied with first; where the input is in
        `updates`, the product is stored there.
    """

    def declare(function: Callable[..., Any]) -> PrimitiveTo[Any]:
        signature = inspect.signature(function).parameters.values()
        operands = tuple(p.name for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD)
        params = tuple(p.name for p in signature if p.kind is p.KEYWORD_ONLY)
        name = function.__name__
        if name in PRIMITIVES:
            raise ValueError(f"primitive {name} is declared twice; names must be unique.")
        reference, bind = (_calling(function), function) if bound else (function, partial(partial, function))
        elementwise = outputs == 1 and layout in (elementwise_layout, broadcast_layout)
        shared = elementwise if in_place is None else in_place
        if isinstance(shared, bool):
            pairs = tuple((0, i) for i in range(outputs, len(operands)) if shared and operands[i] not in updates)
        else:
            pairs = ((operands.index(shared[0]), operands.index(shared[1])),)
        declared: PrimitiveTo[Any] = PrimitiveTo(
            name, reference, bind, shape, layout, outputs, tuple(operands.index(u) for u in updates), copies, neutral,
            pairs, elementwise if cheap is None else cheap,
            scaling and (scaling[0], operands.index(scaling[1]), operands.index(scaling[2])), operands, params)
        PRIMITIVES[name] = declared
        return declared

    return declare
