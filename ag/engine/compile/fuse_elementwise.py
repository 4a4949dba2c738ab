"""Elementwise fusion: a launch joins the only reader of its result, in one launch over a chain of functions.

    t = x + b; y = relu(t); z = y * m              ->   z = fused(add, relu, mul)(x, b, m)
    p = matmul(W, x); y = fused(add, relu)(p, b)   ->   y = matmul_chain(add, relu)(W, x, b)

One result per chain may have later readers; the chain stores it, too.  The order of computation stays, and the bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from ag.engine.buffer import Buffer
from ag.engine.compile.graph import Graph
from ag.engine.dtype import BF16
from ag.engine.kernels.convert import rounded
from ag.engine.kernels.elementwise import MOST_STEPS, OPERANDS, OTHERS, Instruction, as_matrix, fused, fused_pair
from ag.engine.primitive import PRIMITIVES
from ag.engine.program import Launch
from ag.engine.shape import Shape, chain_axes
from ag.engine.target import Target


@dataclass
class Chain:
    """Launches that compute one result, and perhaps store another on the way."""

    shape: Shape  # to which all operands broadcast
    operands: list[Buffer]  # the first registers
    steps: list[Instruction]
    out: Buffer  # the result
    kept: tuple[Buffer, int] | None = None  # another result that is stored too, and its register
    members: list[int] = field(default_factory=list)  # positions of the launches it stands for, in order

    @classmethod
    def of(cls, launch: Launch, position: int) -> Chain | None:
        """Make the chain of one launch; None if it is not elementwise, or writes where it was told to."""
        rule, buffers, params = launch.primitive, launch.buffers, launch.params
        if not launch.fresh:
            return None
        out, members = buffers[0], [position]
        if rule is fused:
            return cls(out.shape, [*buffers[1:]], [*params["chain"]], out, None, members)
        if rule is fused_pair:
            return cls(out.shape, [*buffers[2:]], [*params["chain"]], out, (buffers[1], params["kept"]), members)
        if not rule.fusable:
            return None
        operands = [*dict.fromkeys(buffers[1:])]
        value = float(params[rule.params[0]]) if rule.params else 0.0
        step = (rule.name, operands.index(buffers[1]), operands.index(buffers[-1]), value)
        return cls(out.shape, operands, [step], out, None, members)

    @property
    def flat(self) -> bool:
        """Return whether all operands have as many elements as the result, or 1, so that its shape does not matter."""
        return all(x.size in (1, prod(self.shape)) for x in self.operands)

    @property
    def rounded(self) -> Chain:
        """The chain with its result as it is read from memory."""
        if self.steps[-1][0] == rounded.name:
            return self
        return replace(self, steps=[*self.steps, *_rounding(self.out, OPERANDS + len(self.steps) - 1)])

    def launch(self) -> Launch:
        operands = (*self.operands, *(self.operands[0],) * (OPERANDS - len(self.operands)))
        out, steps = shaped(self.out, self.out.shape, self.shape), tuple(self.steps)
        if self.kept is None:
            return Launch(fused, (out, *operands), {"chain": steps}, True)
        kept, register = self.kept
        also = kept if kept.shape == self.shape else kept.view(self.shape)
        return Launch(fused_pair, (out, also, *operands), {"chain": steps, "kept": register}, True)


def _rounding(result: Buffer, register: int) -> tuple[Instruction, ...]:
    """The instruction that makes of a register what is read from memory where it is stored, if these differ."""
    bfloat = float(result.dtype is BF16)
    return ((rounded.name, register, register, bfloat),) if result.dtype.is_half else ()


def shaped(x: Buffer, old: Shape, new: Shape) -> Buffer:
    """An operand of a chain over `old` as one of a chain over `new`."""
    if old == new or x.shape == new:
        return x
    return x.view(() if x.size == 1 else new)


def fuse_elementwise(graph: Graph, target: Target) -> None:
    """Make chains of elementwise launches that are large enough for the target one launch each."""
    chains: dict[int, Chain] = {}  # by the block of their result
    fused: dict[int, Chain] = {}  # by the position of their last member
    for i, launch in graph:
        single = launch.primitive.fusable and launch.buffers[0].size >= target.fuse_from
        chain = Chain.of(launch, i) if single else None
        if chain is None:
            continue
        for source in dict.fromkeys(launch.buffers[1:]):
            joined = _with_source(graph, chains, chain, source)
            if joined is not None:
                fused.pop(chains.pop(source.block.address).members[-1], None)
                chain = joined
        chains[launch.buffers[0].block.address] = chain
        if len(chain.members) > 1:
            fused[i] = chain
    for i, chain in fused.items():
        for k in chain.members[:-1]:
            graph.remove(k)
        graph.replace(i, chain.launch())


def _with_source(graph: Graph, chains: dict[int, Chain], chain: Chain, source: Buffer) -> Chain | None:
    """The chain, which ends at the present launch, with the one that makes its operand `source`; None if not to be."""
    place, i = source.block.address, chain.members[-1]
    earlier = chains.get(place)
    if earlier is None or len(graph.writers[place]) > 1 or source.size != chain.out.size or not graph.is_private(place):
        return None
    readers = graph.readers[place]
    if readers[0] != i or any(graph.is_written(x, earlier.members[-1], i) for x in earlier.operands):
        return None
    joined = _joined(earlier.rounded, chain, stored=len(readers) > 1)
    if joined is None or joined.kept is None:
        return joined
    others = [k for k in graph.readers[joined.kept[0].block.address] if k not in joined.members]
    if others and others[0] < i:
        return None  # it is read before the chain runs, which is at the present launch
    if not others:
        joined.kept = None  # all who read it are in the chain by now
    return joined


def _joined(first: Chain, then: Chain, stored: bool) -> Chain | None:
    """Both chains as one, `then` reading the results of `first` from their registers; None if it does not fit."""
    if (stored and (first.kept or then.kept)) or (first.kept and then.kept):
        return None
    computed = [(first.out, OPERANDS + len(first.steps) - 1), *([first.kept] if first.kept else [])]
    results = [next((result for result in computed if x.block is result[0].block), None) for x in then.operands]
    others = [x for x, result in zip(then.operands, results, strict=True) if result is None]
    if then.kept and any(x.block is then.kept[0].block for x in first.operands):
        return None  # it would be read from memory before it is there
    if any(r and (x.address, x.size) != (r[0].address, r[0].size) for x, r in zip(then.operands, results, strict=True)):
        return None  # a part of a result, which is in no register
    if first.shape == then.shape or first.flat:
        shape = then.shape
    elif all(x.size in (1, prod(then.shape)) for x in others):
        shape = first.shape
    else:
        return None
    operands = _distinct([shaped(x, first.shape, shape) for x in first.operands]
                         + [shaped(x, then.shape, shape) for x in others])
    steps = len(first.steps) + len(then.steps)
    if len(operands) > OPERANDS or steps > MOST_STEPS or chain_axes(shape, [x.shape for x in operands]) is None:
        return None

    def register(chain: Chain, k: int) -> int:
        """The number, in both together, of a register of one."""
        if k >= OPERANDS:
            return k if chain is first else k + len(first.steps)
        result = results[k] if chain is then else None
        if result is not None:
            return result[1]
        return _index(operands, shaped(chain.operands[k], chain.shape, shape))

    code = [(name, register(chain, x), register(chain, y), value)
            for chain in (first, then) for name, x, y, value in chain.steps]
    kept = (first.out, OPERANDS + len(first.steps) - 1) if stored else None
    for chain in (first, then):
        if chain.kept is not None:
            kept = chain.kept[0], register(chain, chain.kept[1])
    return Chain(shape, operands, code, then.out, kept, sorted(first.members + then.members))


def _same(x: Buffer, y: Buffer) -> bool:
    return x is y or (x.address, x.shape) == (y.address, y.shape)


def _distinct(buffers: list[Buffer]) -> list[Buffer]:
    different: list[Buffer] = []
    for x in buffers:
        if not any(_same(x, y) for y in different):
            different.append(x)
    return different


def _index(operands: list[Buffer], x: Buffer) -> int:
    return next(i for i, y in enumerate(operands) if _same(x, y))


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
            if both is not None and _is_taken(both, target):
                del products[graph[j].buffers[0].block.address]
                fused[i] = j, both
                break
    for i, (j, both) in fused.items():
        graph.remove(j)
        graph.replace(i, both)


def _is_taken(launch: Launch, target: Target) -> bool:
    """Return whether the kernel takes the 16-bit operands."""
    takes = target.halves.get(launch.primitive.name, (False,) * len(launch.buffers))
    return all(taken or not b.dtype.is_half for b, taken in zip(launch.buffers, takes, strict=True))


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
    first = _rounding(made, 0)  # of what is read from memory in 16 bits
    if len(first) + len(chain.steps) > MOST_STEPS:
        return None
    registers = {k: k + len(first) for k in range(OPERANDS, OPERANDS + len(chain.steps))}
    for k in sorted({k for _, x, y, _ in chain.steps for k in (x, y)} - registers.keys()):
        x = chain.operands[k]
        if x.block is made.block:
            if (x.address, x.size) != (made.address, made.size):
                return None
            registers[k] = OPERANDS if first else 0
            continue
        shape = _in_matrix(x.shape, chain.out.shape, as_matrix(made.shape))
        if shape is None:
            return None
        others.append(x.view(shape))
        registers[k] = len(others)
    others += [inputs[0].view((1, 1))] * (len(OTHERS) - len(others))
    steps = (*first, *((name, registers[x], registers[y], value) for name, x, y, value in chain.steps))
    out, params = chain.out.view(made.shape), {**product.params, "chain": steps}
    if chain.kept is None:
        return Launch(PRIMITIVES[f"{product.primitive.name}_chain"], (out, *inputs, *others), params, True)
    rule, (also, register) = PRIMITIVES.get(f"{product.primitive.name}_chain_pair"), chain.kept
    if rule is None:
        return None
    register = registers[register] if register >= OPERANDS else OPERANDS if first else 0  # else it is the product
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
