"""Elementwise arithmetic and functions, and chains of them: as one launch, and as the epilogue of a product.

The kernels of those that are `fusable` are rows of shaders/functions.glsl.  The others have shaders of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, Literal, TypeVar
from zlib import crc32

import numpy as np

from ag.engine.buffer import Buffer
from ag.engine.cpu_threads import BLOCK, WIDE, in_blocks, one_by_one, shares, together
from ag.engine.primitive import PRIMITIVES, Array, Call, Primitive, PrimitiveTo, primitive
from ag.engine.shape import Layout, Shape, broadcast, broadcast_layout, chain_layout, same


@primitive(same, bound=True, copies=True)
def copy(out: Array, x: Array) -> Call:
    return partial(out.__setitem__, Ellipsis, x)


def copied(x: Buffer) -> Buffer:
    """The same values in memory of their own."""
    if not x.dtype.is_half:
        return x.backend.launch(copy, x)
    words = x.words()
    out = x.backend.alloc(x.shape, x.dtype)
    x.backend.launch(copy, words, into=out.words())
    return out


def signed(rule: Callable[..., Call], name: str, operands: Iterable[str], params: Iterable[str]) -> None:
    """Give the rule of a primitive with any operands its name, and theirs."""
    rule.__name__ = name
    rule.__dict__["names"] = tuple(operands), tuple(params)


def of_numpy(name: str, function: Callable[..., object], operands: Sequence[str] = ("x",), params: Iterable[str] = (),
             neutral: float | None = None) -> PrimitiveTo[Buffer]:
    """Declare a function of numpy as a primitive of one operand, or of two that broadcast."""
    def bind(out: Array, *xs: Array, **numbers: float) -> Call:
        if isinstance(function, np.ufunc):
            return partial(function, *xs, out=out)  # numpy wants the name of the result of some
        return lambda: out.__setitem__(Ellipsis, function(*xs, **numbers))

    signed(bind, name, ("out", *operands), params)
    rules: dict[str, Any] = {"shape": broadcast, "layout": broadcast_layout} if len(operands) == 2 else {}
    return primitive(**rules, bound=True, neutral=neutral, fusable=True)(bind)


add, sub, div = of_numpy("add", np.add, "ab"), of_numpy("sub", np.subtract, "ab"), of_numpy("div", np.divide, "ab")
mul = of_numpy("mul", np.multiply, "ab", neutral=1.0)
exp, log, sqrt = of_numpy("exp", np.exp), of_numpy("log", np.log), of_numpy("sqrt", np.sqrt)
abs = of_numpy("abs", np.abs)


@primitive(broadcast, layout=broadcast_layout, fusable=True)
def target_log(out: Array, a: Array, b: Array) -> None:
    # log b, but 0 where a target a of 0 meets a probability b of 0: their product is 0, not NaN.  `out` may be a or b.
    none = (a == 0) & ((b == 0) | (b == np.inf))
    np.log(b, out=out)
    np.copyto(out, 0, where=none)


@primitive(broadcast, layout=broadcast_layout, fusable=True)
def target_div(out: Array, a: Array, b: Array) -> None:
    none = (a == 0) & (b == 0)
    np.divide(a, b, out=out)
    np.copyto(out, 0, where=none)


@primitive(bound=True, fusable=True)
def scale(out: Array, x: Array, *, factor: float) -> Call:
    return partial(np.multiply, x, factor, out)


@primitive(bound=True, fusable=True)
@in_blocks
def abs_grad(out: Array, x: Array, g: Array) -> None:
    np.multiply(g, np.sign(x), out=out)


@primitive()
def pow(out: Array, x: Array, *, p: float) -> None:
    _power(x, p, out)


@primitive(bound=True)
@in_blocks
def pow_grad(out: Array, x: Array, g: Array, *, p: float) -> None:
    np.multiply(g, p * _power(x, p - 1) if p != 0 else 0.0, out=out)


def _power(x: Array, p: float, out: Array | None = None) -> Array:
    # Whether the power 1/2 is the root at -0 and -inf depends on numpy's version; here it is.
    result: Array = np.sqrt(x, out=out) if p == 0.5 else np.power(x, p, out=out)
    return result


@primitive()
def clamp(out: Array, x: Array, *, lo: float, hi: float) -> None:
    np.minimum(np.maximum(x, lo, out=out), hi, out=out)


@primitive()
def clamp_grad(out: Array, x: Array, g: Array, *, lo: float, hi: float) -> None:
    np.multiply(g, (x >= lo) & (x <= hi), out=out)


# ---------------------------------------------------------------------------------------------- chains

# A chain is a tuple of instructions (function, x, y, value).  Registers 0 to 3 are the operands, 4 + k is the result of
# instruction k; x and y are registers, value is the function's parameter.
#
#     relu(a * b + c)    is    ("mul", 0, 1, 0.0), ("add", 4, 2, 0.0), ("relu", 5, 5, 0.0)

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
