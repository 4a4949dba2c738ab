"""Transposes that cancel are taken out of a graph, others moved behind what works on elements, so that more meet.

    Conv, Transpose, Relu, Transpose, Conv      ->      Conv, Relu, Conv
    Add(Transpose(a), Transpose(b))             ->      Transpose(Add(a, b))

A node never moves before one that it needs, and every step takes transposes nearer to the end, so it ends.  Knows
operators by name; `ag.io.onnx.export` calls it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ag.io.onnx.graph import Graph, Node

__all__ = ["without_transposes"]

_ONE = {"Relu", "Sigmoid", "Tanh", "Gelu", "LeakyRelu", "Exp", "Log", "Sqrt", "Abs", "Clip", "Cast", "Neg"}
_TWO = {"Add", "Sub", "Mul", "Div", "Pow"}


def without_transposes(g: Graph, outputs: list[str]) -> list[str]:
    """Take out what can be; the names of the outputs, which may be others then."""
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
