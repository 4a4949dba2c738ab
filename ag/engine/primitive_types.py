"""What a primitive is; `ag.engine.primitive` declares them, and re-exports what stands here.

Apart from it because buffers come in between: a device launches primitives, and a declaration says which buffers its
launch returns.  So buffers import from here; nearly all others from `ag.engine.primitive`.  Knows shapes only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from ag.engine.shape import Layout

__all__ = ["Array", "Call", "LayoutRule", "Params", "Primitive", "PrimitiveTo", "Reference", "Returned", "ShapeRule"]

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    Array = np.ndarray  # `numpy.typing` is no part of numpy's own import

Params = dict[str, Any]  # what a launch is given beside buffers, by name
Call = Callable[[], object]  # a computation with its arrays bound to it
Reference = Callable[..., None]
ShapeRule = Callable[..., Any]  # a Shape, or a tuple of them
LayoutRule = Callable[..., Layout]
Returned = TypeVar("Returned", covariant=True)  # of a launch: a buffer, a tuple of buffers, or None


class Primitive(NamedTuple):
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
        Whether computing the output again costs little more than reading and writing it, and gives the same: no
        primitive with `updates` is cheap.
    fusable : bool
        Whether a chain of elementwise functions may contain it.
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
    fusable: bool
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

    __eq__, __hash__ = object.__eq__, object.__hash__  # there is one of each
