"""Write a program as a graph: each op by its writer, 16-bit tensors through float32, outputs under their names.

Transposes that cancel are taken out; others move behind operators on elements, so that more of them meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ag.engine.dtype import BF16, F32, I32
from ag.engine.primitive import Array
from ag.errors import DtypeError
from ag.io.onnx.call import Call
from ag.io.onnx.graph import Graph, Node, Value
from ag.io.onnx.operators import WRITERS
from ag.io.onnx.program import Program
from ag.io.onnx.trace import Ref, Step
from ag.ops.arithmetic import ag_add
from ag.ops.conv import _conv2d
from ag.ops.reshape import ag_reshape


def written(program: Program, call: Call, state: Mapping[str, Array]) -> tuple[Graph, dict[str, Ref]]:
    """Return the graph of a program, and each output's reference by its name; `state` are parameters by name."""
    if BF16 in program.types.values():
        raise DtypeError("export_onnx: the model computes with tensors of type bf16, for which runtimes have no "
                         "operators; let it cast to f16, or not at all.")
    inputs = [x.name for x in call.arguments]
    names = {f"{name}_output" if name in state or name in inputs else name: ref
             for name, ref in program.outputs.items()}
    g = Graph([*inputs, *state, *names], call.batch_of)
    values = {Ref("input", x.name): Value(g.cast(x.name, I32) if x.is_long else x.name,
                                          program.dims[Ref("input", x.name)], x.dtype) for x in call.arguments}

    def value(ref: Ref) -> Value:
        if ref not in values:
            dims, dtype = program.dims[ref], program.types[ref]
            if ref.kind == "parameter":
                name = str(ref.key)
                g.initializers[name] = state[name]
            else:
                constant = program.constants[int(ref.key)]
                name = g.constant(constant.array)
                if constant.array.shape != dims:
                    name = g.repeated(name, dims)
            values[ref] = Value(name, dims, dtype)
        return values[ref]

    def wide(ref: Ref) -> Value:
        x = value(ref)
        return x._replace(name=g.cast(x.name, F32)) if x.dtype.is_half else x

    for i, step in _with_bias(program).items():
        ref = Ref("step", i)
        dims, dtype = program.dims[ref], program.types[ref]
        params = [wide(p) if isinstance(p, Ref) else p for p in step.params]
        name = WRITERS[step.function](g, [wide(x) for x in step.operands], params, dims)
        values[ref] = Value(g.cast(name, dtype) if dtype.is_half else name, dims, dtype)
    _call_outputs(g, without_transposes(g, [value(ref).name for ref in names.values()]), list(names))
    return g, names


def _with_bias(program: Program) -> dict[int, Step]:
    """The steps by number, but a sum of a convolution and one number per feature is a convolution with a bias."""
    steps = dict(enumerate(program.steps))
    uses = Counter(ref for step in program.steps for ref in (*step.operands, *step.params) if isinstance(ref, Ref))
    uses.update(program.outputs.values())
    for j, step in enumerate(program.steps):
        if step.function is not ag_add or program.types[Ref("step", j)].is_half:  # 16 bits are rounded in between
            continue
        y, b = step.operands
        if y.kind != "step" or b.kind != "step":
            continue
        conv, bias = program.steps[int(y.key)], program.steps[int(b.key)]
        if (conv.function is _conv2d and uses[y] == 1 and bias.function is ag_reshape
                and program.dims[b] == (program.dims[y][0], 1, 1, 1)):
            del steps[int(y.key)]
            steps[j] = conv._replace(operands=(*conv.operands, bias.operands[0]))
    return steps


def _call_outputs(g: Graph, found: list[str], wanted: list[str]) -> None:
    """Give outputs the names that they shall have."""
    made = {node.output for node in g.nodes}
    counts = Counter(found)
    renamed = {old: new for old, new in zip(found, wanted, strict=True) if old in made and counts[old] == 1}
    for node in g.nodes:
        node.inputs = [renamed.get(x, x) for x in node.inputs]
        node.output = renamed.get(node.output, node.output)
    for old, new in zip(found, wanted, strict=True):
        if old not in renamed:
            g.nodes.append(Node("Identity", [old], new, {}))


# A node never moves before one that it needs, and each step moves transposes towards the end.
_ONE = {"Relu", "Sigmoid", "Tanh", "Gelu", "LeakyRelu", "Exp", "Log", "Sqrt", "Abs", "Clip", "Cast", "Neg"}
_TWO = {"Add", "Sub", "Mul", "Div", "Pow"}


# ---------------------------------------------------------------------------------------------- transposes


def without_transposes(g: Graph, outputs: list[str]) -> list[str]:
    """Take out transposes; return the outputs' names, which may be others then."""
    renamed: dict[str, str] = {}
    numbers = {name for name, array in g.initializers.items() if array.ndim == 0}
    made: dict[str, Node] = {}
    nodes: list[Node] = []

    def put(node: Node) -> None:
        nodes.append(node)
        made[node.output] = node

    for old in g.nodes:
        node = Node(old.operator, [renamed.get(x, x) for x in old.inputs], old.output, old.attributes)
        order = _order(node, made, numbers)
        if order is None:
            put(node)
            continue
        if node.operator == "Transpose":
            source = made[node.inputs[0]].inputs[0]
            order = [order[i] for i in _perm(node)]
            if order == sorted(order):
                renamed[node.output] = source
            else:
                put(Node("Transpose", [source], node.output, {"perm": order}))
            continue
        inside = [made[x].inputs[0] if x in made and made[x].operator == "Transpose" else x for x in node.inputs]
        put(Node(node.operator, inside, inner := g.fresh(node.operator.lower()), node.attributes))
        put(Node("Transpose", [inner], node.output, {"perm": order}))
    outputs = [renamed.get(name, name) for name in outputs]
    g.nodes = _needed(nodes, outputs)
    return outputs


def _perm(node: Node) -> list[int]:
    perm = node.attributes["perm"]
    assert isinstance(perm, list)
    return perm


def _order(node: Node, made: Mapping[str, Node], numbers: set[str]) -> list[int] | None:
    """The order of axes that the node's operands share, if it may be brought behind the node; None if not."""
    sources = [made.get(x) for x in node.inputs]
    orders = [_perm(x) if x is not None and x.operator == "Transpose" else None for x in sources]
    if not orders or (orders[0] is None and node.operator not in _TWO):
        return None
    if node.operator == "Transpose" or node.operator in _ONE:
        return orders[0]
    if node.operator not in _TWO:
        return None
    known = [order for order, x in zip(orders, node.inputs, strict=True) if x not in numbers]
    return known[0] if known and all(order is not None and order == known[0] for order in known) else None


def _needed(nodes: list[Node], outputs: list[str]) -> list[Node]:
    """The nodes that an output needs."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if node.output in needed:
            needed.update(node.inputs)
            kept.append(node)
    return kept[::-1]
