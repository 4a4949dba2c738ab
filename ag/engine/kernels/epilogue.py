"""Epilogues: a product of matrices puts its elements through a chain of functions before storing them.

`with_epilogue` declares the primitive that does so, beside one such as `matmul`:

    matmul_chain(out, a, b, c, d, e; chain)    is    y = matmul(a, b);  out = fused(y, c, d, e; chain)
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from math import prod
from typing import Literal, TypeVar

import numpy as np

from ag.engine.kernels.fused import Chain, fused, fused_pair
from ag.engine.primitive import Array, Call, Primitive, primitive
from ag.engine.primitive_types import LayoutRule, ShapeRule
from ag.engine.shape import Layout, Shape

P = TypeVar("P", bound=Primitive)
OTHERS = "c", "d", "e"  # operands beside the product, which is the chain's register 0


# ---------------------------------------------------------------------------------------------- the primitives


def with_epilogue(product: P) -> P:
    """Declare ``<product>_chain``, a chain of functions of each element of a product.

    Beside the product's operands it takes three of the shape of the result seen as a matrix, or of size 1 where they
    repeat.  Its rows are the first axis, its columns the others.
    """
    _declare(product, 1, f"{product.name}_chain")
    return product


def with_epilogue_pair(product: P) -> P:
    """`with_epilogue`, and ``<product>_chain_pair``, which stores another of the chain's registers, too."""
    _declare(product, 2, f"{product.name}_chain_pair")
    return with_epilogue(product)


def _declare(product: Primitive, outputs: Literal[1, 2], name: str) -> None:
    primitive(_shape(product, outputs), layout=_layout(product, outputs), outputs=outputs, bound=True)(
        _reference(product, outputs, name))


def as_matrix(shape: Shape) -> Shape:
    return shape[0], prod(shape[1:])


def _shape(product: Primitive, outputs: int) -> ShapeRule:
    def shape(*inputs: Shape, chain: Chain, kept: int | None = None, **params: object) -> object:
        found = product.shape(*inputs[: -len(OTHERS)], **params)
        return found if outputs == 1 else (found, found)

    return shape


def _layout(product: Primitive, outputs: int) -> LayoutRule:
    def layout(*operands: Shape, chain: Chain, kept: int | None = None, **params: object) -> Layout:
        out, inputs, others = operands[0], operands[outputs : -len(OTHERS)], operands[-len(OTHERS) :]
        whole = as_matrix(out)
        rule, of_pair = (fused, {}) if kept is None else (fused_pair, {"kept": kept})
        codes = rule.layout(*(whole,) * (outputs + 1), *others, chain=chain, **of_pair)
        along = {f"{name}_along": 2 * (x[0] > 1) + (x[1] > 1) for name, x in zip(OTHERS, others, strict=True)}
        chosen = {name: codes[name] for name in codes if name.startswith("op") or name in ("value", "result", "kept")}
        return {**product.layout(out, *inputs, **params), **chosen, **along}

    return layout


def _reference(product: Primitive, outputs: int, name: str) -> Callable[..., Call]:
    def bind(*arrays: Array, chain: Chain, kept: int | None = None, **params: object) -> Call:
        results, inputs, others = arrays[:outputs], arrays[outputs : -len(OTHERS)], arrays[-len(OTHERS) :]
        made = results[-1] if kept == 0 else np.empty_like(results[0])
        whole = as_matrix(made.shape)
        *flat, register = [x.reshape(whole) for x in (*results, made)]
        make = product.bind(made, *inputs, **params)
        follow = (fused.bind(flat[0], register, *others, chain=chain) if kept in (None, 0)
                  else fused_pair.bind(*flat, register, *others, chain=chain, kept=kept))

        def both() -> None:
            make()
            follow()

        return both

    operands = ["out", "also"][:outputs] + [*product.operands[1:], *OTHERS]
    params = [*product.params, "chain", "kept"][: len(product.params) + outputs]
    bind.__name__ = name
    bind.__dict__["__signature__"] = Signature(
        [Parameter(x, Parameter.POSITIONAL_OR_KEYWORD) for x in operands]
        + [Parameter(x, Parameter.KEYWORD_ONLY) for x in params])
    return bind
