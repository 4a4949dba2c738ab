"""Epilogues: elementwise launches of a recording go into the launch of the product whose elements they compute with.

`with_epilogue` declares, for a primitive that makes a product of matrices, another that puts its elements through a
chain of functions (`ag/engine/kernels/fused.py`) before they are stored.  The pass `with_epilogues` finds where these
leave the same values behind as the launches they replace.  Knows of products only what was declared;
`ag.engine.backend` calls the pass.
"""

from __future__ import annotations

from collections import defaultdict
from inspect import Parameter, Signature
from math import prod
from typing import Any

import numpy as np

from ag.engine.buffer import Buffer, Launch
from ag.engine.compile.liveness import private_blocks
from ag.engine.kernels.fused import FUNCTIONS, OPERANDS, Chain, fused, fused_pair
from ag.engine.primitive import PRIMITIVES, Call, Primitive, primitive
from ag.engine.shape import Layout, Shape

__all__ = ["with_epilogue", "with_epilogue_pair", "with_epilogues"]

Array = np.ndarray[Any, Any]

_FUNCTIONS = frozenset(FUNCTIONS)
_OTHERS = "c", "d", "e"  # operands beside the product, which is the chain's register 0


# ---------------------------------------------------------------------------------------------- the primitives


def with_epilogue(product: Primitive) -> Primitive:
    """Declare ``<product>_chain``, a chain of functions of each element of a product.

    Beside the product's operands it takes three of the shape of the result seen as a matrix, or of size 1 where they
    repeat: its rows are the first axis, its columns the others.
    """
    _declare(product, 1, f"{product.name}_chain")
    return product


def with_epilogue_pair(product: Primitive) -> Primitive:
    """`with_epilogue`, and ``<product>_chain_pair``, which stores another of the chain's registers, too."""
    _declare(product, 2, f"{product.name}_chain_pair")
    return with_epilogue(product)


def _declare(product: Primitive, outputs: int, name: str) -> None:
    primitive(_shape(product, outputs), layout=_layout(product, outputs), outputs=outputs, bound=True)(
        _reference(product, outputs, name))


def _matrix(shape: Shape) -> Shape:
    return shape[0], prod(shape[1:])


def _shape(product: Primitive, outputs: int) -> Any:
    def shape(*inputs: Shape, chain: Chain, kept: int | None = None, **params: Any) -> Any:
        found = product.shape(*inputs[: -len(_OTHERS)], **params)
        return found if outputs == 1 else (found, found)

    return shape


def _layout(product: Primitive, outputs: int) -> Any:
    def layout(*operands: Shape, chain: Chain, kept: int | None = None, **params: Any) -> Layout:
        out, inputs, others = operands[0], operands[outputs : -len(_OTHERS)], operands[-len(_OTHERS) :]
        whole = _matrix(out)
        rule, of_pair = (fused, {}) if kept is None else (fused_pair, {"kept": kept})
        codes = rule.layout(*(whole,) * (outputs + 1), *others, chain=chain, **of_pair)
        along = {f"{name}_along": 2 * (x[0] > 1) + (x[1] > 1) for name, x in zip(_OTHERS, others, strict=True)}
        chosen = {name: codes[name] for name in codes if name.startswith("op") or name in ("value", "result", "kept")}
        return {**product.layout(out, *inputs, **params), **chosen, **along}

    return layout


def _reference(product: Primitive, outputs: int, name: str) -> Any:
    def bind(*arrays: Array, chain: Chain, kept: int | None = None, **params: Any) -> Call:
        results, inputs, others = arrays[:outputs], arrays[outputs : -len(_OTHERS)], arrays[-len(_OTHERS) :]
        made = results[-1] if kept == 0 else np.empty_like(results[0])
        whole = _matrix(made.shape)
        *flat, register = [x.reshape(whole) for x in (*results, made)]
        make = product.bind(made, *inputs, **params)
        follow = (fused.bind(flat[0], register, *others, chain=chain) if kept in (None, 0)
                  else fused_pair.bind(*flat, register, *others, chain=chain, kept=kept))

        def both() -> None:
            make()
            follow()

        return both

    operands = ["out", "also"][:outputs] + [*product.operands[1:], *_OTHERS]
    params = [*product.params, "chain", "kept"][: len(product.params) + outputs]
    bind.__name__ = name
    bind.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(x, Parameter.POSITIONAL_OR_KEYWORD) for x in operands]
        + [Parameter(x, Parameter.KEYWORD_ONLY) for x in params])
    return bind


# ---------------------------------------------------------------------------------------------- the pass


def with_epilogues(launches: list[Launch]) -> list[Launch]:
    """The launches with elementwise ones taken into the products that make their operands.

    A product moves to where it is read first.  What others read of it later is stored as well.
    """
    private = private_blocks(launches)
    readers: dict[int, list[int]] = defaultdict(list)
    writers: dict[int, int] = defaultdict(int)
    for i, launch in enumerate(launches):
        for address in {b.block.address for b in launch.operands}:
            readers[address].append(i)
        for b in launch.written:
            writers[b.block.address] += 1
    products: dict[int, int] = {}  # by the address of the block that they alone write
    result = dict(enumerate(launches))
    for i, launch in enumerate(launches):
        place = launch.buffers[0].block.address
        if f"{launch.primitive.name}_chain" in PRIMITIVES and place in private and writers[place] == 1:
            products[place] = i
        for j in sorted({products.get(b.block.address, -1) for b in launch.buffers}, reverse=True):
            found = _in_one(launches, j, i, readers) if 0 <= j < i else None
            if found is not None:
                del result[j], products[launches[j].buffers[0].block.address]
                result[i] = found
                break
    return [result[i] for i in sorted(result)]


def _in_one(launches: list[Launch], j: int, i: int, readers: dict[int, list[int]]) -> Launch | None:
    """Product `j` with elementwise launch `i` as its epilogue; None if they have to stay apart."""
    product, chain = launches[j], _Chain.of(launches[i])
    made, *inputs = product.buffers
    first, *later = readers[made.block.address]
    if chain is None or first != i or not product.fresh or not all(x.size for x in inputs):
        return None
    if any(x.overlaps(b) for launch in launches[j + 1 : i + 1] for b in launch.written for x in inputs):
        return None
    if later:
        if chain.kept is not None:
            return None
        chain.kept = made, 0
    return chain.behind(product)


class _Chain:
    """What an elementwise launch computes.

    Attributes
    ----------
    out : Buffer
    kept : (Buffer, int) or None
        A second result and its register.
    operands : tuple of Buffer
        The first registers.
    steps : tuple
        The instructions.
    """

    def __init__(self, out: Buffer, kept: tuple[Buffer, int] | None, operands: tuple[Buffer, ...],
                 steps: Chain) -> None:
        self.out, self.kept, self.operands, self.steps = out, kept, operands, steps

    @classmethod
    def of(cls, launch: Launch) -> _Chain | None:
        """None if the launch is not elementwise."""
        rule, buffers, params = launch.primitive, launch.buffers, launch.params
        if not launch.fresh:
            return None
        if rule is fused:
            return cls(buffers[0], None, buffers[1:], params["chain"])
        if rule is fused_pair:
            return cls(buffers[0], (buffers[1], params["kept"]), buffers[2:], params["chain"])
        if rule.name in _FUNCTIONS:
            value = float(params[rule.params[0]]) if rule.params else 0.0
            return cls(buffers[0], None, buffers[1:], ((rule.name, 0, len(buffers) - 2, value),))
        return None

    def behind(self, product: Launch) -> Launch | None:
        """A launch of the product with the chain as its epilogue; None if an operand has another shape than it may."""
        made, *inputs = product.buffers
        others: list[Buffer] = []
        registers = {k: k for k in range(OPERANDS, OPERANDS + len(self.steps))}
        for k in sorted({k for _, x, y, _ in self.steps for k in (x, y)} - registers.keys()):
            x = self.operands[k]
            if x.block is made.block:
                if (x.address, x.size) != (made.address, made.size):
                    return None
                registers[k] = 0
                continue
            shape = _in_matrix(x.shape, self.out.shape, _matrix(made.shape))
            if shape is None:
                return None
            others.append(x.view(shape))
            registers[k] = len(others)
        others += [inputs[0].view((1, 1))] * (len(_OTHERS) - len(others))
        steps = tuple((name, registers[x], registers[y], value) for name, x, y, value in self.steps)
        out, params = self.out.view(made.shape), {**product.params, "chain": steps}
        if self.kept is None:
            return Launch(PRIMITIVES[f"{product.primitive.name}_chain"], (out, *inputs, *others), params, True)
        rule, (also, register) = PRIMITIVES.get(f"{product.primitive.name}_chain_pair"), self.kept
        if rule is None:
            return None
        return Launch(rule, (out, also.view(made.shape), *inputs, *others), {**params, "kept": register}, True)


def _in_matrix(shape: Shape, whole: Shape, matrix: Shape) -> Shape | None:
    """The shape in which what broadcasts to `whole` broadcasts to `matrix`; None if there is none."""
    if prod(shape) in (1, prod(matrix)):
        return (1, 1) if prod(shape) == 1 else matrix
    aligned = (1,) * (len(whole) - len(shape)) + shape
    for k in range(len(whole) + 1):
        found = _split(aligned, k)
        if _split(whole, k) == matrix and all(n in (1, size) for n, size in zip(found, matrix, strict=True)):
            return found
    return None


def _split(shape: Shape, k: int) -> Shape:
    return prod(shape[:k]), prod(shape[k:])
