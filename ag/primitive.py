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
from typing import Any

from ag.shape import Layout, elementwise_layout, same

__all__ = ["PRIMITIVES", "Primitive", "primitive"]

Reference = Callable[..., None]
ShapeRule = Callable[..., Any]
LayoutRule = Callable[..., Layout]


@dataclass(frozen=True, eq=False)
class Primitive:
    """A named array function that every backend can run.

    Attributes
    ----------
    name : str
        Name of the numpy function and of the shader file.
    reference : callable
        ``reference(*outputs, *inputs, **params)``; writes its outputs, any floating type.
    shape : callable
        ``shape(*input_shapes, **params)``: the output's shape, or a tuple of shapes if there are several outputs.
    layout : callable
        ``layout(*output_shapes, *input_shapes, **params)``: the sizes and strides a kernel is given by name.
    outputs : int
        How many leading operands are freshly allocated outputs.
    updates : tuple of int
        Positions (among all operands) of inputs that are written in place.
    operands, params : tuple of str
        Names, read from the signature of `reference`.
    """

    name: str
    reference: Reference
    shape: ShapeRule
    layout: LayoutRule
    outputs: int
    updates: tuple[int, ...]
    operands: tuple[str, ...]
    params: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<primitive {self.name}>"


PRIMITIVES: dict[str, Primitive] = {}


def primitive(
    shape: ShapeRule = same,
    *,
    layout: LayoutRule = elementwise_layout,
    outputs: int = 1,
    updates: tuple[str, ...] = (),
) -> Callable[[Reference], Primitive]:
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
    """

    def declare(reference: Reference) -> Primitive:
        signature = inspect.signature(reference).parameters.values()
        operands = tuple(p.name for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD)
        params = tuple(p.name for p in signature if p.kind is p.KEYWORD_ONLY)
        name = reference.__name__
        if name in PRIMITIVES:
            raise ValueError(f"primitive {name} is declared twice; names must be unique.")
        found = Primitive(name, reference, shape, layout, outputs,
                          tuple(operands.index(u) for u in updates), operands, params)
        PRIMITIVES[name] = found
        return found

    return declare
