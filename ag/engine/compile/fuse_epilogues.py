"""Epilogue fusion: a product puts its elements through the elementwise launches that read them before it stores them.

    p = matmul(W, x); y = fused(add, relu)(p, b)   ->   y = matmul_chain(add, relu)(W, x, b)
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ag.engine.buffer import Buffer
from ag.engine.compile.fuse_elementwise import Chain
from ag.engine.compile.graph import Graph
from ag.engine.kernels.elementwise import OPERANDS, OTHERS, as_matrix
from ag.engine.primitive import PRIMITIVES
from ag.engine.program import Launch
from ag.engine.shape import Shape
from ag.engine.target import Target


def fuse_epilogues(graph: Graph, target: Target) -> None:
    """Take elementwise launches into the products that make their operands; a product moves to its first reader."""
    products: dict[int, int] = {}  # positions, by the block that they alone write
    fused: dict[int, tuple[int, Launch]] = {}  # by the elementwise launch's position: the product's, and both in one
    for i, launch in graph:
        place = launch.buffers[0].block.address
        has_epilogue = f"{launch.primitive.name}_chain" in PRIMITIVES
        if has_epilogue and len(graph.writers[place]) == 1 and graph.is_private(place):
            products[place] = i
        for j in sorted({products.get(b.block.address, i) for b in launch.buffers}, reverse=True):
            both = _in_one(graph, j, i) if j < i else None
            if both is not None:
                del products[graph[j].buffers[0].block.address]
                fused[i] = j, both
                break
    for i, (j, both) in fused.items():
        graph.remove(j)
        graph.replace(i, both)


def _in_one(graph: Graph, j: int, i: int) -> Launch | None:
    """Product `j` with elementwise launch `i` as its epilogue; None if they have to stay apart."""
    product, chain = graph[j], Chain.of(graph[i], i)
    out, *inputs = product.buffers
    first, *later = graph.readers[out.block.address]
    if chain is None or first != i or not product.fresh or not all(x.size for x in inputs):
        return None
    if chain.out.size != out.size:  # the product is broadcast
        return None
    if any(graph.is_written(x, j + 1, i + 1) for x in inputs) or (later and chain.kept is not None):
        return None
    return _behind(product, replace(chain, kept=(out, 0)) if later else chain)


def _behind(product: Launch, chain: Chain) -> Launch | None:
    """A launch of the product with the chain behind it; None if an operand has another shape than it may."""
    made, *inputs = product.buffers
    others: list[Buffer] = []
    registers = {k: k for k in range(OPERANDS, OPERANDS + len(chain.steps))}
    for k in sorted({k for _, x, y, _ in chain.steps for k in (x, y)} - registers.keys()):
        x = chain.operands[k]
        if x.block is made.block:
            if (x.address, x.size) != (made.address, made.size):
                return None
            registers[k] = 0
            continue
        shape = _in_matrix(x.shape, chain.out.shape, as_matrix(made.shape))
        if shape is None:
            return None
        others.append(x.view(shape))
        registers[k] = len(others)
    others += [inputs[0].view((1, 1))] * (len(OTHERS) - len(others))
    steps = tuple((name, registers[x], registers[y], value) for name, x, y, value in chain.steps)
    out, params = chain.out.view(made.shape), {**product.params, "chain": steps}
    if chain.kept is None:
        return Launch(PRIMITIVES[f"{product.primitive.name}_chain"], (out, *inputs, *others), params, True)
    rule, (also, register) = PRIMITIVES.get(f"{product.primitive.name}_chain_pair"), chain.kept
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
