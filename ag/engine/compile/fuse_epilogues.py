"""Epilogue fusion: elementwise launches go into the launch of the product whose elements they compute with.

`ag.engine.kernels.epilogue` declares for which primitives; this pass finds where these leave the same values behind as
the launches they replace.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

from ag.engine.buffer import Buffer
from ag.engine.compile.liveness import private_blocks
from ag.engine.kernels.epilogue import OTHERS, as_matrix
from ag.engine.kernels.fused import OPERANDS, Chain, fused, fused_pair
from ag.engine.primitive import PRIMITIVES
from ag.engine.program import Launch
from ag.engine.shape import Shape

__all__ = ["with_epilogues"]


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
        if rule.fusable:
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
            shape = _in_matrix(x.shape, self.out.shape, as_matrix(made.shape))
            if shape is None:
                return None
            others.append(x.view(shape))
            registers[k] = len(others)
        others += [inputs[0].view((1, 1))] * (len(OTHERS) - len(others))
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
