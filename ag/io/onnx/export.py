"""Make an ONNX file of a model: its parameters under their names, and sizes that follow the batch.

The model runs with the example and with batches of other sizes made of it.  The graph is what all these runs have in
common (`ag.io.onnx.program`).  The model's mode, its tensors and the tape stay as they were.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.errors import AgError, DtypeError, ExportError
from ag.io.model_file import check_arguments
from ag.io.onnx.call import Call, called_with
from ag.io.onnx.graph import ELEMENT, Dims, Graph, Node, Size
from ag.io.onnx.initializers import onnx_package
from ag.io.onnx.operators import REFUSED, WRITERS
from ag.io.onnx.program import Program, merged
from ag.io.onnx.trace import Ref, Trace, traced
from ag.io.onnx.write import written
from ag.io.safetensors_file import replace_file
from ag.nn.layer import Model, named_tensors
from ag.nn.mode import ag_eval, modes_kept
from ag.version import __version__

if TYPE_CHECKING:
    from onnx import NodeProto, ValueInfoProto

_OPSET, _IR = 20, 9  # of onnx 1.15 and onnxruntime 1.17: the first that have Gelu
_MOST_BYTES = (1 << 31) - 1  # of a file of protobuf


def export(model: Callable[..., object], path: str | os.PathLike[str], example: object, dynamic: bool) -> None:
    """Write the graph of a model; see `export_onnx`."""
    onnx_package("export_onnx")
    if not callable(model):
        raise TypeError(f"export_onnx: the model is a {type(model).__name__}; a layer is required, or a function of "
                        f"tensors.")
    check_arguments("export_onnx(model, path, example)", path)
    tensors = named_tensors(cast(Model, model)) if hasattr(model, "parameters") else {}
    call = called_with("export_onnx", model, example, tensors)
    state = {name: x.numpy() for name, x in tensors.items()}
    batches = call.batches(dynamic)
    with modes_kept(model):
        ag_eval(model)
        try:
            tried = [_trace(model, call, tensors, batches, i) for i in range(len(batches))]
        finally:
            changed = _restored(tensors, state)
    if changed:
        raise ExportError(f"export_onnx: the model changes {', '.join(changed)} when it is called, which a graph "
                          f"cannot; leave that to training.")
    traces = [trace for trace in tried if trace is not None]
    program = merged(traces, [size for size, trace in zip(batches, tried, strict=True) if trace is not None])
    if sum(x.nbytes for x in (*state.values(), *(c.array for c in program.constants))) > _MOST_BYTES:
        raise ExportError(f"export_onnx: the model has more than {_MOST_BYTES} bytes, the most that a file of this "
                          f"format holds; export its parts, one by one.")
    graph, outputs = written(program, call, state)
    replace_file(path, lambda: _content(type(model).__name__, graph, program, call, outputs))


def _trace(model: Callable[..., object], call: Call, tensors: Mapping[str, Tensor], batches: Sequence[int],
           number: int) -> Trace | None:
    """Trace the model for a batch made of the example's; None if it takes no single sample."""
    inputs = call.inputs(batches, number)
    trace = Trace(tensors, inputs, _why_not)
    try:
        traced(lambda: call.run(model, inputs), trace)
    except (AgError, ValueError, IndexError, TypeError) as error:
        if isinstance(error, DtypeError) and any(x.is_whole for x in call.arguments):
            raise DtypeError(f"export_onnx: the model does not take the example's whole numbers ({_said(error)}); give "
                             f"it floats if they are no ids, as example.astype(\"f\").") from error
        if isinstance(error, ExportError) or number == 0:
            raise
        if batches[number] == 1 < batches[0]:
            return None
        raise ExportError(f"export_onnx: the model takes the example, and not a batch of {batches[number]} samples "
                          f"made of it ({_said(error)}); let it take a batch of any size, or export for the "
                          f"example's size with dynamic=False.") from error
    return trace


def _said(error: BaseException) -> str:
    return str(error).rstrip(".")


def _why_not(function: object) -> str | None:
    """Return the reason why an op cannot be exported; None if it can."""
    if function in WRITERS:
        return None
    return REFUSED.get(function, "has no ONNX operator; compute with other ops of ag.ops.")


def _restored(tensors: Mapping[str, Tensor], state: Mapping[str, Array]) -> list[str]:
    """Give tensors the values that they had; return the names of those that had others."""
    changed = [name for name, x in tensors.items() if not np.array_equal(x.numpy(), state[name], equal_nan=True)]
    for name in changed:
        tensors[name].data = state[name]
    return changed


# ---------------------------------------------------------------------------------------------- the file


def _content(name: str, g: Graph, program: Program, call: Call, outputs: Mapping[str, Ref]) -> bytes:
    """Return the file's bytes, checked by onnx."""
    from onnx import checker, helper, numpy_helper

    def info(name: str, dims: Dims, element: int) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, element, [str(n) if isinstance(n, Size) else n for n in dims])

    def node(n: Node) -> NodeProto:
        made = helper.make_node(n.operator, n.inputs, [n.output], n.output)
        made.attribute.extend(helper.make_attribute(key, value) for key, value in n.attributes.items())
        return made

    used = {x for node in g.nodes for x in node.inputs}
    model = helper.make_model(
        helper.make_graph(
            [node(n) for n in g.nodes], name,
            [info(x.name, program.dims[Ref("input", x.name)], x.element) for x in call.arguments],
            [info(x, program.dims[ref], ELEMENT[program.types[ref]]) for x, ref in outputs.items()],
            [numpy_helper.from_array(array, x) for x, array in g.initializers.items() if x in used]),
        opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR, producer_name="ag",
        producer_version=__version__)
    checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content
