"""Make an ONNX file of what all calls of a model have in common: each op by its writer, 16-bit tensors in float32."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ag.autograd.tensor import Tensor
from ag.data.dataloader import DataLoader
from ag.engine.dtype import BF16, F32, I32
from ag.engine.primitive import Array
from ag.errors import AgError, DtypeError, ExportError
from ag.io.model_file import check_arguments, unwrapped
from ag.io.onnx.graph import ELEMENT, Dim, Dims, Graph, Node, Size, Value, needed
from ag.io.onnx.operators import WRITERS, Called
from ag.io.onnx.read import PROPERTY, onnx_package
from ag.io.onnx.trace import Call, Program, Ref, Step, Trace, called_with, merged
from ag.io.safetensors_file import replace_file
from ag.nn.layer import Model, named_tensors
from ag.nn.mode import ag_eval, modes_kept
from ag.ops.arithmetic import ag_add
from ag.ops.conv import _conv2d
from ag.ops.indexing import ag_reshape
from ag.version import __version__

if TYPE_CHECKING:
    from onnx import ValueInfoProto

End = tuple[str, Dims, int]  # an input or output: its name, its shape in the graph, its element type

_INT64 = 7  # onnx.TensorProto's number of it
_OPSET, _IR = 20, 9  # of onnx 1.15 and onnxruntime 1.17: the first that have Gelu
_MOST_BYTES = (1 << 31) - 1  # of a file of protobuf


def export(model: Callable[..., object], path: str | os.PathLike[str], example: object, dynamic: bool,
           batch_first: bool) -> None:
    """Write the graph of a model, see `export_onnx`; its mode, its tensors and the tape stay as they were."""
    onnx_package("export_onnx")
    model, example, after = _asked(unwrapped(model), example)
    check_arguments("export_onnx(model, path, example)", path)
    tensors = named_tensors(cast(Model, model)) if hasattr(model, "parameters") else {}
    call = called_with(model, example, tensors)
    state = {name: x.numpy() for name, x in tensors.items()}
    batches = call.batches(dynamic)
    with modes_kept(model):
        ag_eval(model)
        try:
            tried = [_trace(lambda inputs: after(call.run(model, inputs)), call, tensors, batches, i)
                     for i in range(len(batches))]
        finally:
            changed = [name for name, x in tensors.items()
                       if not np.array_equal(x.numpy(), state[name], equal_nan=True)]
            for name in changed:
                tensors[name].data = state[name]
    if changed:
        raise ExportError(f"export_onnx: the model changes {', '.join(changed)} when it is called, which a graph "
                          f"cannot; leave that to training.")
    traces = [trace for trace in tried if trace is not None]
    program = merged(traces, [size for size, trace in zip(batches, tried, strict=True) if trace is not None])
    if sum(x.nbytes for x in (*state.values(), *(c.array for c in program.constants))) > _MOST_BYTES:
        raise ExportError(f"export_onnx: the model has more than {_MOST_BYTES} bytes, the most that a file of this "
                          f"format holds; export its parts, one by one.")
    graph, ends, moved = written(program, call, state, batch_first, Size(0, 1) if dynamic else batches[0])
    said = json.dumps({"trained": [x for x, t in tensors.items() if t.requires_grad], "batch_first": sorted(moved)})
    replace_file(path, lambda: _content(type(model).__name__, graph, ends, said))


def _asked(model: Any, example: object) -> tuple[Callable[..., object], object, Callable[[Any], object]]:
    """Return the function to export, its example and what follows: an estimator's network, a loader's first batch."""
    scale: Any = None
    is_estimator, is_class = hasattr(model, "get_params") and hasattr(model, "fit"), isinstance(model, type)
    if is_class or not (is_estimator or callable(model)):
        what = f"the class {model.__name__}" if is_class else f"a {type(model).__name__}"
        raise TypeError(f"export_onnx: the model is {what}; a layer is required, or a function of tensors.")
    if is_estimator:
        if not hasattr(model, "model_"):
            raise TypeError(f"export_onnx: a {type(model).__name__} was given; a fitted AgClassifier or AgRegressor is "
                            f"required. Call fit first; of a pipeline give the last step, pipeline[-1]: a graph has no "
                            f"other.")
        if hasattr(model, "target_scale_"):  # of a regressor, whose network has scaled targets
            scale, mean = (np.reshape(x, (-1, 1)).astype("f") for x in (model.target_scale_, model.target_mean_))
        model, example = model.model_, np.zeros((model.n_features_in_, 3), "f") if example is None else example
    if isinstance(example, DataLoader):
        loader = copy(example)
        loader.reset()
        example = loader.next_batch().x
    if example is None:
        raise TypeError("export_onnx: no example was given; an input of the model with the batch on its last axis is "
                        "required, or a loader, as in export_onnx(model, path, x).")
    return model, example, lambda y: y if scale is None else y * scale + mean


def _trace(run: Callable[..., object], call: Call, tensors: Mapping[str, Tensor], batches: Sequence[int],
           number: int) -> Trace | None:
    """Trace the model for a batch made of the example's; None if it takes no single sample."""
    inputs = call.inputs(batches, number)
    trace = Trace(tensors, inputs)
    try:
        trace.fill(lambda: run(inputs))
    except (AgError, ValueError, IndexError, TypeError) as error:
        said = str(error).rstrip(".")
        if isinstance(error, DtypeError) and not all(x.dtype.is_float for x in call.arguments):
            raise DtypeError(f"export_onnx: the model does not take the example's whole numbers ({said}); give "
                             f"it floats if they are no ids, as example.astype(\"f\").") from error
        if isinstance(error, ExportError) or number == 0:
            raise
        if batches[number] == 1 < batches[0]:
            return None
        raise ExportError(f"export_onnx: the model takes the example, and not a batch of {batches[number]} samples "
                          f"made of it ({said}); let it take a batch of any size, or export for the "
                          f"example's size with dynamic=False.") from error
    return trace


def _content(name: str, g: Graph, ends: Sequence[Sequence[End]], said: str) -> bytes:
    """Return the file's bytes, checked by onnx; `said` is what `load_onnx` needs to know."""
    from onnx import checker, helper, numpy_helper

    def info(name: str, dims: Dims, element: int) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, element, [str(n) if isinstance(n, Size) else n for n in dims])

    used = {x for node in g.nodes for x in node.inputs}
    nodes = [helper.make_node(operator, inputs, [output], output, **attributes)
             for operator, inputs, output, attributes in map(astuple, g.nodes)]
    model = helper.make_model(
        helper.make_graph(nodes, name, [info(*x) for x in ends[0]], [info(*x) for x in ends[1]],
                          [numpy_helper.from_array(array, x) for x, array in g.initializers.items() if x in used]),
        opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR, producer_name="ag",
        producer_version=__version__)
    helper.set_model_props(model, {PROPERTY: said})
    checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


def written(program: Program, call: Call, state: Mapping[str, Array], batch_first: bool, batch: Dim
            ) -> tuple[Graph, Sequence[Sequence[End]], set[str]]:
    """Return the graph of a program, its inputs and outputs, and which of these have the batch first.

    `state` are parameters by name.  With `batch_first` an axis of the size `batch` that is last comes first.
    """
    for ref, dtype in program.types.items():
        if dtype is BF16:
            what = f"{ref.key} is" if ref.kind in ("parameter", "input") else "the model computes with tensors"
            raise DtypeError(f"export_onnx: {what} of type bf16, for which runtimes have no operators; compute in f32 "
                             f"or f16: load_state_dict gives the values to such a model.")
    inputs = {x.name: Ref("input", x.name) for x in call.arguments}
    names = {f"{name}_output" if name in state or name in inputs else name: ref
             for name, ref in program.outputs.items()}
    dims_of = {name: program.dims[ref] for name, ref in (inputs | names).items()}
    moved = {name for name, dims in dims_of.items() if batch_first and len(dims) > 1 and dims[-1] == batch}
    dims_of |= {name: (dims_of[name][-1], *dims_of[name][:-1]) for name in moved}
    ends = ([(x.name, dims_of[x.name], _INT64 if x.is_long else ELEMENT[x.dtype]) for x in call.arguments],
            [(name, dims_of[name], ELEMENT[program.types[ref]]) for name, ref in names.items()])
    batch_of = call.batch_of
    g = Graph([*inputs, *state, *names], (batch_of[0], 0) if batch_of and batch_of[0] in moved else batch_of)
    values = {}
    for x in call.arguments:
        name = g.cast(x.name, I32) if x.is_long else x.name
        name = g.from_first(name, x.array.ndim) if x.name in moved else name
        values[inputs[x.name]] = Value(name, program.dims[inputs[x.name]], x.dtype)

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
                    name = g.node("Expand", name, g.sizes(dims))
            values[ref] = Value(name, dims, dtype)
        return values[ref]

    def wide(ref: Ref) -> Value:
        x = value(ref)
        return x._replace(name=g.cast(x.name, F32)) if x.dtype.is_half else x

    for i, step in _with_bias(program).items():
        ref = Ref("step", i)
        dims, dtype = program.dims[ref], program.types[ref]
        params = [wide(p) if isinstance(p, Ref) else p for p in step.params]
        name = WRITERS[step.function](g, Called([wide(x) for x in step.operands], params, dims))
        g.axes[name] = len(dims)
        values[ref] = Value(g.cast(name, dtype) if dtype.is_half else name, dims, dtype)
    found = [g.to_first(value(ref).name, len(program.dims[ref])) if name in moved else value(ref).name
             for name, ref in names.items()]
    _call_outputs(g, without_transposes(g, found), list(names))
    return g, ends, moved


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


_ONE = {"Relu", "Sigmoid", "Tanh", "Gelu", "LeakyRelu", "Exp", "Log", "Sqrt", "Abs", "Clip", "Cast", "Neg"}
_TWO = {"Add", "Sub", "Mul", "Div", "Pow"}


def without_transposes(g: Graph, outputs: list[str]) -> list[str]:
    """Write transposes only where a node or an output needs them; return the outputs' names, which may be others then.

    Those that cancel are gone, and operators on elements compute before them, as each waits until it is needed.
    """
    waiting: dict[str, tuple[str, list[int]]] = {}  # transposes by name: of what, and the order of its axes
    axes = {name: array.ndim for name, array in g.initializers.items()}  # of what follows from initializers alone
    made: dict[tuple[str, str], str] = {}
    nodes: list[Node] = []

    def transposed(source: str, order: list[int]) -> str:
        if order == sorted(order):
            return source
        if (key := (source, str(order))) not in made:
            made[key] = g.fresh("transpose")
            nodes.append(Node("Transpose", [source], made[key], {"perm": order}))
        return made[key]

    for node in g.nodes:
        if node.operator == "Transpose":
            perm = node.attributes["perm"]
            assert isinstance(perm, list)
            source, own = waiting.get(node.inputs[0], (node.inputs[0], [*range(len(perm))]))
            waiting[node.output] = source, [own[i] for i in perm]
            continue
        order = _order(node, waiting, axes)
        if order is None:
            inside = [transposed(*waiting.get(x, (x, []))) for x in node.inputs]
            nodes.append(Node(node.operator, inside, node.output, node.attributes))
            if node.output in g.axes and all(x in axes for x in node.inputs):
                axes[node.output] = g.axes[node.output]
            continue
        inside = []
        for x in node.inputs:
            source, own = waiting.get(x, (x, [*range(len(order))]))
            is_number = not x or axes.get(x) == 0
            inside.append(x if is_number else transposed(source, [own[order.index(i)] for i in range(len(order))]))
        inner = g.fresh(node.operator.lower())
        nodes.append(Node(node.operator, inside, inner, node.attributes))
        waiting[node.output] = inner, order
    outputs = [transposed(*waiting.get(name, (name, []))) for name in outputs]
    g.nodes = needed(nodes, outputs)
    return outputs


def _order(node: Node, waiting: Mapping[str, tuple[str, list[int]]], axes: Mapping[str, int]) -> list[int] | None:
    """Return the order of the operands' axes, if the operator may compute before they are brought in it; None if not.

    All operands must be transposed.  What follows from initializers, whose numbers of axes are given, has any order.
    """
    orders = [waiting.get(x, ("", []))[1] for x in node.inputs]
    orders = [order if order != sorted(order) else [] for order in orders]
    if node.operator in _ONE:
        return orders[0] or None
    if node.operator not in _TWO:
        return None
    known = [order for order, x in zip(orders, node.inputs, strict=True) if x not in axes]
    if not known or [] in known or any(axes.get(x, 0) not in (0, len(known[0])) for x in node.inputs):
        return None
    return max(known, key=lambda order: order == sorted(order, reverse=True))
