"""Declare primitives: a name, a shape rule and a numpy function that defines what is computed.

Its signature is the contract: outputs first, then inputs, all positional; parameters are keyword-only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from inspect import Parameter
from typing import Any, Literal, overload

from ag.engine.buffer import Buffer
from ag.engine.primitive_types import (
    Array,
    Call,
    DtypeRule,
    LayoutRule,
    Params,
    Primitive,
    PrimitiveTo,
    Returned,
    ShapeRule,
)
from ag.engine.shape import broadcast_layout, elementwise_layout, same
from ag.names import kinds_of

__all__ = ["PRIMITIVES", "Array", "Call", "Params", "Primitive", "PrimitiveTo", "Returned", "primitive"]


def _calling(bind: Callable[..., Call]) -> Callable[..., None]:
    @wraps(bind)
    def reference(*arrays: Array, **params: object) -> None:
        bind(*arrays, **params)()

    return reference


def _names(function: Callable[..., object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    kinds = kinds_of(function)
    return tuple([name for name in kinds if kinds[name] is not Parameter.KEYWORD_ONLY]), tuple([
        name for name in kinds if kinds[name] is Parameter.KEYWORD_ONLY])


PRIMITIVES: dict[str, Primitive] = {}
Declare = Callable[[Callable[..., object]], PrimitiveTo[Returned]]
Scaling = tuple[Primitive, str, str]


@overload
def primitive(
    shape: ShapeRule = ..., *, outputs: Literal[1] = ..., layout: LayoutRule = ..., updates: tuple[str, ...] = ...,
    bound: bool = ..., moves: bool = ..., copies: bool = ..., neutral: float | None = ...,
    in_place: bool | tuple[str, str] | None = ..., cheap: bool | None = ..., fusable: bool = ...,
    scaling: Scaling | None = ..., dtype: DtypeRule | None = ...) -> Declare[Buffer]: ...
@overload
def primitive(
    *, outputs: Literal[0], layout: LayoutRule = ..., updates: tuple[str, ...], bound: bool = ..., moves: bool = ...,
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
    shape: ShapeRule = same, *, layout: LayoutRule = elementwise_layout, outputs: int = 1,
    updates: tuple[str, ...] = (), bound: bool = False, moves: bool = False, copies: bool = False,
    neutral: float | None = None, in_place: bool | tuple[str, str] | None = None, cheap: bool | None = None,
    fusable: bool = False, scaling: Scaling | None = None, dtype: DtypeRule | None = None) -> Declare[Any]:
    """Declare the decorated numpy function as a primitive."""

    def declare(function: Callable[..., Any]) -> PrimitiveTo[Any]:
        operands, params = vars(function).get("names") or _names(function)
        name = function.__name__
        if name in PRIMITIVES:
            raise ValueError(f"primitive {name} is declared twice; names must be unique.")
        if fusable and (outputs != 1 or len(operands) > 3 or len(params) > 1):
            raise ValueError(f"primitive {name}, with operands {operands} and parameters {params}, cannot be fusable; "
                             f"a chain's functions have one output, one or two inputs and at most one parameter.")
        if cheap and updates:
            raise ValueError(f"primitive {name} writes {', '.join(updates)} in place and is declared cheap; what is "
                             f"cheap may be made twice, so it must leave its operands as they are.")
        reference, bind = (_calling(function), function) if bound else (function, partial(partial, function))
        elementwise = outputs == 1 and layout in (elementwise_layout, broadcast_layout)
        shared = elementwise if in_place is None else in_place
        if isinstance(shared, bool):
            pairs = tuple((0, i) for i in range(outputs, len(operands)) if shared and operands[i] not in updates)
        else:
            pairs = ((operands.index(shared[0]), operands.index(shared[1])),)
        declared: PrimitiveTo[Any] = PrimitiveTo(
            name, reference, bind, shape, layout, dtype, outputs, tuple(operands.index(u) for u in updates), moves,
            copies, neutral, pairs, elementwise and not updates if cheap is None else cheap, fusable,
            scaling and (scaling[0], operands.index(scaling[1]), operands.index(scaling[2])), operands, params)
        PRIMITIVES[name] = declared
        return declared

    return declare
