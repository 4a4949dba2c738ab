"""The types of primitives, apart from `ag.engine.primitive` because a device launches them and they return buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from ag.engine.dtype import DType
from ag.engine.shape import Layout

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
else:
    Array = np.ndarray  # `numpy.typing` is no part of numpy's own import

Params = dict[str, Any]  # what a launch is given beside buffers, by name
Call = Callable[[], object]  # a computation with its arrays bound to it
ShapeRule = Callable[..., Any]  # a Shape, or a tuple of them
LayoutRule = Callable[..., Layout]
DtypeRule = Callable[..., DType]
Returned = TypeVar("Returned", covariant=True)  # of a launch: a buffer, a tuple of buffers, or None


class Primitive(NamedTuple):
    """A named array function that every backend can run."""

    name: str  # name of the numpy function and of the shader file
    reference: Callable[..., None]  # `reference(*outputs, *inputs, **params)`; writes its outputs, any floating type
    # `bind(*outputs, *inputs, **params)`: the same as a call without arguments, to be made many times
    bind: Callable[..., Call]
    # `shape(*input_shapes, **params)`: the output's shape, or a tuple of shapes if there are several outputs
    shape: ShapeRule
    # `layout(*output_shapes, *input_shapes, **params)`: the sizes and strides a kernel is given by name
    layout: LayoutRule
    # `dtype(**params)`: the outputs' element type in fresh memory; None: the first input's, float32 in place of 16 bits
    # unless the primitive `moves`
    dtype: DtypeRule | None
    outputs: int  # how many leading operands are freshly allocated outputs
    updates: tuple[int, ...]  # positions (among all operands) of inputs that are written in place
    moves: bool  # whether the output has elements of the inputs, in their type
    copies: bool  # whether the output is the input, element for element
    neutral: float | None  # for two inputs: a value of the second that makes the output equal to the first
    # positions of an output and of an input that may be one buffer, if shape and type are the same: the input is not
    # read any more where the output was written
    in_place: tuple[tuple[int, int], ...]
    # whether computing the output again costs little more than reading and writing it, and gives the same: no
    # primitive with `updates` is cheap
    cheap: bool
    fusable: bool  # whether a chain of elementwise functions may contain it
    # A product, and the positions of an input and of a number: it begins as if by `input = product(input, number)`
    scaling: tuple[Primitive, int, int] | None
    operands: tuple[str, ...]  # `operands` and `params`: names, read from the signature of `reference`
    params: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"


class PrimitiveTo(Primitive, Generic[Returned]):
    """A primitive whose launch returns a `Returned`: ``PrimitiveTo[None]`` only updates its operands."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # there is one of each
