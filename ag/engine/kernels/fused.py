"""Chains of elementwise functions: as one launch, and as the epilogue of a product before it stores its elements.

A chain is a tuple of instructions (function, x, y, value).  Registers 0 to 3 are the operands, 4 + k is the result of
instruction k; x and y are registers, value is the function's parameter.

    relu(a * b + c)    is    ("mul", 0, 1, 0.0), ("add", 4, 2, 0.0), ("relu", 5, 5, 0.0)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any, Literal, TypeVar
from zlib import crc32

import numpy as np

from ag.engine.cpu_threads import BLOCK, WIDE, one_by_one, shares, together
from ag.engine.kernels.elementwise import signed
from ag.engine.primitive import PRIMITIVES, Array, Call, Primitive, primitive
from ag.engine.shape import Layout, Shape, broadcast, chain_layout

Instruction = tuple[str, int, int, float]
Chain = tuple[Instruction, ...]

OPERANDS, MOST_STEPS = 4, 6
_WORTH = 1 << 20  # elements times functions: below, waking other threads takes longer than they help


def _code(name: str, x: int, y: int) -> int:
    """An instruction for the kernel, where the checksum of its name says which function, as in kernels_build.py."""
    return crc32(name.encode()) >> 16 << 16 | x << 8 | y


def _layout(out: Shape, *shapes: Shape, chain: Chain, kept: int | None = None) -> Layout:
    codes = dict.fromkeys((f"op{k}" for k in range(1, MOST_STEPS + 1)), 0)
    codes |= {f"op{k}": _code(name, x, y) for k, (name, x, y, _) in enumerate(chain, 1)}
    values: Any = tuple(value for *_, value in chain) + (0.0,) * (MOST_STEPS - len(chain))
    ends: Layout = {"result": OPERANDS + len(chain) - 1}
    if kept is not None:
        shapes, ends["kept"] = shapes[1:], kept
    return {**chain_layout(out, dict(zip("abcd", shapes, strict=True))), **codes, "value": values, **ends}


@primitive(lambda *shapes, chain: broadcast(*shapes), layout=_layout, bound=True, in_place=True)
def fused(out: Array, a: Array, b: Array, c: Array, d: Array, *, chain: Chain) -> Call:
    return _calls(out, None, (a, b, c, d), chain, -1)


@primitive(lambda *shapes, chain, kept: (broadcast(*shapes),) * 2, layout=_layout, outputs=2, bound=True, in_place=True)
def fused_pair(out: Array, also: Array, a: Array, b: Array, c: Array, d: Array, *, chain: Chain, kept: int) -> Call:
    return _calls(out, also, (a, b, c, d), chain, kept)


def _calls(out: Array, also: Array | None, operands: tuple[Array, ...], chain: Chain, kept: int) -> Call:
    """The chain, block after block of the result."""
    used = {register for _, x, y, _ in chain for register in (x, y)}
    shape, arrays = out.shape, [x for i, x in enumerate(operands) if i in used]
    if all(x.shape == shape or x.size == 1 for x in arrays):
        shape = (out.size,)
    full = [x.reshape(-1) if len(shape) == 1 else x.reshape((1,) * (len(shape) - x.ndim) + x.shape) for x in operands]
    target, extra = out.reshape(shape), None if also is None else also.reshape(shape)
    shared_out = out.size * len(chain) >= _WORTH
    blocks = list(_blocks(shape, WIDE if shared_out else BLOCK))
    runs: list[Call] = []
    for part in shares(blocks) if shared_out else [blocks]:
        calls: list[Call] = []
        spare: dict[int, Array] = {}
        for block in part:
            registers: list[Array] = [
                x[tuple(s if n > 1 else slice(None) for s, n in zip(block, x.shape, strict=True))] for x in full]
            end, last = target[block], OPERANDS + len(chain) - 1
            for k, (name, x, y, value) in enumerate(chain, OPERANDS):
                into = end if k == last else extra[block] if k == kept and extra is not None else _temporary(
                    spare, k - OPERANDS, end)
                rule = PRIMITIVES[name]
                params = {rule.params[0]: value} if rule.params else {}
                count = len(rule.operands) - 1
                calls.append(rule.bind(into, *[registers[i] for i in (x, y)[:count]], **params))
                registers.append(into)
        runs.append(partial(one_by_one, calls))
    return partial(together, runs)


def _temporary(spare: dict[int, Array], k: int, like: Array) -> Array:
    """Scratch memory for the k-th result of a block, the same for all blocks."""
    if k not in spare or spare[k].size < like.size:
        spare[k] = np.empty(like.size, like.dtype)
    return spare[k][: like.size].reshape(like.shape)


def _blocks(shape: Shape, size: int) -> Iterator[tuple[slice, ...]]:
    """Pieces of an array of about `size` elements, in the order of memory."""
    axis = next((i for i, n in enumerate(shape) if n > 1), None)
    if axis is None or prod(shape) == 0:
        yield tuple(slice(0, n) for n in shape)
        return
    inner = prod(shape[axis + 1 :])
    rows = max(1, size // inner)
    for start in range(0, shape[axis], rows):
        stop = min(start + rows, shape[axis])
        head = (*(slice(0, 1),) * axis, slice(start, stop))
        if rows == 1 and inner > 2 * size:
            for rest in _blocks(shape[axis + 1 :], size):
                yield (*head, *rest)
        else:
            yield (*head, *(slice(0, n) for n in shape[axis + 1 :]))


P = TypeVar("P", bound=Primitive)
OTHERS = "c", "d", "e"  # operands beside the product, which is the chain's register 0


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


def as_matrix(shape: Shape) -> Shape:
    return shape[0], prod(shape[1:])


def _declare(product: Primitive, outputs: Literal[1, 2], name: str) -> None:
    def shape(*inputs: Shape, chain: Chain, kept: int | None = None, **params: object) -> object:
        found = product.shape(*inputs[: -len(OTHERS)], **params)
        return found if outputs == 1 else (found, found)

    def layout(*operands: Shape, chain: Chain, kept: int | None = None, **params: object) -> Layout:
        out, inputs, others = operands[0], operands[outputs : -len(OTHERS)], operands[-len(OTHERS) :]
        codes = _layout(as_matrix(out), *(as_matrix(out),) * outputs, *others, chain=chain, kept=kept)
        along = {f"{name}_along": 2 * (x[0] > 1) + (x[1] > 1) for name, x in zip(OTHERS, others, strict=True)}
        chosen = {name: codes[name] for name in codes if name.startswith("op") or name in ("value", "result", "kept")}
        return {**product.layout(out, *inputs, **params), **chosen, **along}

    def bind(*arrays: Array, chain: Chain, kept: int | None = None, **params: object) -> Call:
        results, inputs, others = arrays[:outputs], arrays[outputs : -len(OTHERS)], arrays[-len(OTHERS) :]
        made = results[-1] if kept == 0 else np.empty_like(results[0])
        *flat, register = [x.reshape(as_matrix(made.shape)) for x in (*results, made)]
        make = product.bind(made, *inputs, **params)
        follow = (fused.bind(flat[0], register, *others, chain=chain) if kept in (None, 0)
                  else fused_pair.bind(*flat, register, *others, chain=chain, kept=kept))
        return partial(one_by_one, [make, follow])

    signed(bind, name, ["out", "also"][:outputs] + [*product.operands[1:], *OTHERS],
           [*product.params, "chain", "kept"][: len(product.params) + outputs])
    primitive(shape, layout=layout, outputs=outputs, bound=True)(bind)
