"""Read ONNX files: their arrays, or their graph as a layer; whole numbers, as ids and shapes, stay numpy arrays."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import signature
from math import inf, prod, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ag.autograd.create import ag_param, ag_tensor
from ag.autograd.tensor import Tensor, TensorLike
from ag.engine.device import ag_device
from ag.engine.primitive import Array
from ag.errors import CheckpointError, ShapeError
from ag.io.onnx.operators import ELEMENT, SAME, Node, needed
from ag.io.safetensors_file import read_regular
from ag.nn.layer import Layer
from ag.nn.mode import ag_eval
from ag.ops import activation, arithmetic, conv, images, normalization, reduce
from ag.ops.attention import ag_attention
from ag.ops.creation import ag_cast
from ag.ops.einsum import einsum
from ag.ops.functions import softplus
from ag.ops.indexing import ag_reshape, ag_transpose
from ag.ops.matmul import ag_matmul
from ag.ops.selection import gather, index_select
from ag.version import install_line

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto, ValueInfoProto

PROPERTY = "ag"  # of a file: which initializers are trained, which inputs and outputs have the batch first
_FLOATS = {number: dtype.name for dtype, number in ELEMENT.items() if dtype.is_float}
_OLDEST = 13  # the first opset whose operators are those of today, as far as they are known here
# Attributes that `RUN` does not have, where they say nothing.
_USUAL = {"auto_pad": "NOTSET", "ceil_mode": 0, "storage_order": 0, "training_mode": 0, "stash_type": 1}
Value = Any  # a tensor, an array of whole numbers, a number, or None for an input that is left out


def onnx_package(function: str) -> None:
    """Load the package, or say how to get it."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{function}: the package onnx cannot be loaded ({error}); {install_line('onnx')} installs "
                          f"it.") from error


def read_graph(path: str | os.PathLike[str], function: str) -> tuple[ModelProto, dict[str, Array]]:
    """Return a file's model and its initializers by name; a CheckpointError if it cannot be read."""
    onnx_package(function)
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    try:
        model = ModelProto.FromString(read_regular(path))
        arrays: dict[str, Array] = {}
        for x in model.graph.initializer:
            if not isinstance(x.name, str) or x.name in arrays:  # bytes where they are no UTF-8
                raise ValueError(f"it has {x.name!r:.60} as the name of an initializer, or has it twice")
            arrays[x.name] = _array(x, os.path.dirname(os.fsdecode(path)))
    except (OSError, DecodeError, TypeError, ValueError, KeyError, OverflowError, AttributeError, MemoryError) as error:
        raise CheckpointError(f"{function}: {os.fsdecode(path)} cannot be read ({str(error).rstrip('.')}); a complete "
                              f"ONNX file is required, with its external data in the same folder.") from error
    return model, arrays


def initializers(path: str | os.PathLike[str], function: str) -> tuple[dict[str, Array], set[str], set[str]]:
    """Return the arrays by name, the names of those with words as columns, and of those to be transposed.

        MatMul(x, W), Gemm(x, W)              W is multiplied from the right: its columns are the features.
        MatMul(W, x), Gemm(x, W, transB=1)    Its rows are the features, as here.
        Gather(W, ids, axis=1)                A word is a column, as here; by axis=0 a row.
    """
    model, arrays = read_graph(path, function)
    arrays = {name: x for name, x in arrays.items() if x.ndim and x.dtype.kind == "f"}  # no factors, no axes
    if any(x.key == PROPERTY for x in model.metadata_props):  # of export_onnx: all lie as here
        return arrays, set(arrays), set()
    columns, right, left = set[str](), set[str](), set[str]()
    made: dict[str, tuple[str, bool]] = {}  # in another type, or turned: the initializer, and whether turned
    for node in model.graph.node:
        numbers = {a.name: a.i for a in node.attribute}
        used = [made.get(x, (x, False)) for x in (*node.input, "", "")]
        name, is_turned = used[0]
        if node.op_type in ("Cast", "Identity", "Transpose") and name in arrays:
            made[node.output[0]] = name, is_turned != (node.op_type == "Transpose" and arrays[name].ndim == 2)
        elif node.op_type == "Gather" and (numbers.get("axis", 0) == 1) != is_turned:
            columns.add(name)
        elif node.op_type in ("MatMul", "Gemm"):
            for (name, is_turned), is_right, key in ((used[0], False, "transA"), (used[1], True, "transB")):
                (right if is_right ^ is_turned ^ bool(numbers.get(key, 0)) else left).add(name)
    both = sorted(right & left & set(arrays))
    if both:
        raise CheckpointError(f"{function}: {os.fsdecode(path)} multiplies {both[0]} from both sides, so it is not "
                              f"known which of its axes are features; give the arrays to load_state_dict.")
    return arrays, columns, right


def _array(x: TensorProto, folder: str) -> Array:
    """Return the values of an initializer, those of bfloat16 as float32."""
    from onnx import TensorProto, helper, numpy_helper

    if x.data_location == TensorProto.EXTERNAL:
        most = prod(x.dims) * helper.tensor_dtype_to_np_dtype(x.data_type).itemsize
        x.raw_data = _external(x.name, {entry.key: entry.value for entry in x.external_data}, folder, most)
        x.data_location = TensorProto.DEFAULT
    array = numpy_helper.to_array(x)
    return array.astype(np.float32) if x.data_type == TensorProto.BFLOAT16 else array


def _external(name: str, entry: dict[str, str], folder: str, most: int) -> bytes:
    """Return the bytes of an initializer, at most so many, that lie in a file in or below the same folder."""
    location = entry.get("location", "")
    path = os.path.join(folder, location)
    if not location or os.path.isabs(location) or os.path.realpath(folder) != os.path.commonpath(
            [os.path.realpath(folder), os.path.realpath(path)]):
        raise ValueError(f"{name!r:.60} lies in {location!r:.60}, which is not in the folder of the file")
    start, size = (int(entry[key]) if key in entry else None for key in ("offset", "length"))
    if min(start or 0, size or 0, most) < 0 or (size or 0) > most:
        raise ValueError(f"{name!r:.60} has a part of {location!r:.60} that begins at {start} with {size} bytes")
    return read_regular(path, start or 0, min(max(0, os.path.getsize(path) - (start or 0)), most) if size is None
                        else size)


def _last(x: Value) -> Value:
    """Bring the first axis, the batch of other programs, to the last place."""
    return x if x.ndim < 2 else np.transpose(x, (*range(1, x.ndim), 0))


def _first(x: Value) -> Value:
    """Bring the last axis to the first place."""
    return x if x.ndim < 2 else np.transpose(x, (x.ndim - 1, *range(x.ndim - 1)))


def _pool(f: Callable[..., Tensor]) -> Callable[..., Value]:
    def run(x: Tensor, kernel_shape: Any, strides: Any = (1, 1), padding: Any = (0, 0)) -> Value:
        return _first(f(_last(x), tuple(kernel_shape), tuple(strides), tuple(padding)))
    return run


def _conv(x: Tensor, w: Tensor, b: Tensor | None = None, strides: Sequence[int] = (1, 1),
          padding: Sequence[int] = (0, 0), dilations: Sequence[int] = (1, 1), group: int = 1,
          kernel_shape: object = None) -> Value:
    return _first(conv.ag_conv2d(_last(x), w, b, [*strides], [*padding], [*dilations], group))


def _conv_transpose(x: Tensor, w: Tensor, b: Tensor | None = None, strides: Sequence[int] = (1, 1),
                    padding: Sequence[int] = (0, 0), dilations: Sequence[int] = (1, 1), group: int = 1,
                    output_padding: Sequence[int] = (0, 0), kernel_shape: object = None) -> Value:
    return _first(conv.conv_transpose2d(_last(x), w, b, [*strides], [*padding], [*output_padding], group, [*dilations]))


def _batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor, epsilon: float = 1e-5,
                momentum: float = 0.9, training: bool = False) -> Value:
    """Normalise by the batch in train mode, and move the averages, as `BatchNorm` does."""
    if training:
        return _first(normalization.batch_norm_train(_last(x), gamma, beta, mean, variance, epsilon, 1 - momentum))
    return _first(normalization.ag_batch_norm_op(_last(x), gamma, beta, epsilon, mean, variance))


def _layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, axis: int = -1, epsilon: float = 1e-5) -> Value:
    if axis % x.ndim != x.ndim - 1:
        raise ShapeError(f"load_onnx: LayerNormalization of {x.shape} from axis {axis} on; the last axis alone is "
                         f"required.")
    column = (x.shape[-1], 1)
    gamma, beta = ag_reshape(gamma, *column), ag_reshape(beta, *column)
    return _last(normalization.ag_layer_norm_op(_first(x), gamma, beta, epsilon))


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    if b.ndim > 2:
        return einsum("...ij,...jk->...ik", a, b)
    rows = a if a.ndim == 2 else ag_reshape(a, prod(a.shape[:-1]), a.shape[-1])
    out = ag_matmul(rows, b)
    return out if a.ndim == 2 else ag_reshape(out, *a.shape[:-1], *b.shape[1:])


def _gemm(a: Tensor, b: Tensor, c: Value = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
          transB: int = 0) -> Value:
    out = ag_matmul(a.T if transA else a, b.T if transB else b)
    out = out if alpha == 1 else out * alpha
    return out if c is None else out + (c if beta == 1 else c * beta)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """Attend with queries and values (..., time, features), and keys (..., features, time)."""
    n, rest = q.ndim, range(q.ndim - 2)
    out, keys, values = (ag_transpose(x, *axes, *rest) for x, axes in (
        (q, (n - 1, n - 2)), (k, (n - 2, n - 1)), (v, (n - 1, n - 2))))
    shape, factor = out.shape, scale * sqrt(out.shape[0])  # of which the op takes 1 / sqrt(features) itself
    out = out if abs(factor - 1) < 1e-6 else out * factor
    out, keys, values = (ag_reshape(x, *x.shape[:2], prod(x.shape[2:])) for x in (out, keys, values))
    out = ag_attention(out, keys, values, causal)
    return ag_transpose(ag_reshape(out, *out.shape[:2], *shape[2:]), *range(2, n), 1, 0)


def _reduce(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, axes: Sequence[int] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        given = tuple(map(int, () if axes is None else axes))
        return x if noop_with_empty_axes and not given else f(x, given or None, bool(keepdims))
    return run


def _reshape(x: Value, shape: Array, allowzero: int = 0) -> Value:
    sizes = [np.shape(x)[i] if n == 0 and not allowzero else int(n) for i, n in enumerate(shape)]
    return np.reshape(np.float32(x) if isinstance(x, float) else x, tuple(sizes))  # numbers have no type here


def _gather(x: Value, ids: Value, axis: int = 0) -> Value:
    if isinstance(x, np.ndarray) and isinstance(ids, np.ndarray):  # of shapes
        return np.take(x, ids, axis)
    return index_select(x, axis, ids)


def _slice(x: Value, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Value:
    key = [slice(None)] * np.ndim(x)
    for i, a in enumerate(range(len(starts)) if axes is None else axes):
        step, end = 1 if steps is None else int(steps[i]), int(ends[i])
        key[a] = slice(int(starts[i]), None if step < 0 and end < -np.shape(x)[a] else end, step)
    return x[tuple(key)]


def _expand(x: Value, shape: Array) -> Value:
    zeros = np.zeros(tuple(map(int, shape)), np.float32)
    return x + ag_tensor(zeros, x.device, x.dtype) if isinstance(x, Tensor) else np.broadcast_to(x, zeros.shape)


def _cast(x: Value, to: int) -> Value:
    if not isinstance(x, Tensor):
        from onnx import helper

        x = x if isinstance(x, np.ndarray) else np.asarray(x)  # an argument of a captured step stays one
        return x.astype(helper.tensor_dtype_to_np_dtype(to))
    if to not in _FLOATS and x.buffer.dtype.is_float:
        raise ShapeError(f"load_onnx: Cast of a tensor of shape {x.shape} to whole numbers or truth values; only "
                         f"arrays can be.")
    return ag_cast(x, _FLOATS[to]) if to in _FLOATS else x


def _clip(x: Tensor, lo: Value = None, hi: Value = None) -> Tensor:
    return arithmetic.ag_clamp(x, -inf if lo is None else float(lo), inf if hi is None else float(hi))


def _divided(a: Value, b: Value) -> Value:
    """Divide; whole numbers towards zero, as the operator does."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a / b
    out = np.divide(a, b)
    return out if np.result_type(a, b).kind == "f" else np.trunc(out).astype(np.result_type(a, b))


# Of each operator: what is understood of it are the arguments, inputs first and then attributes by name.
RUN: Mapping[str, Callable[..., Value]] = {
    **{operator: function for function, operator in SAME.items()},  # but for some:
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Pow": lambda a, b: a**b,
    "Div": _divided, "Neg": lambda x: -x, "Clip": _clip, "Softplus": lambda x: softplus(x),
    "LeakyRelu": lambda x, alpha=0.01: activation.ag_leaky_relu(x, alpha),
    "Gelu": lambda x, approximate="none": activation.ag_gelu(x, approximate),
    "Softmax": lambda x, axis=-1: activation.ag_softmax(x, axis),
    "LogSoftmax": lambda x, axis=-1: activation.ag_log_softmax(x, axis),
    "ReduceSum": _reduce(reduce.ag_sum), "ReduceMean": _reduce(reduce.ag_mean), "ReduceMax": _reduce(reduce.ag_max),
    "ReduceMin": _reduce(reduce.min), "ReduceProd": _reduce(reduce.prod),
    "MatMul": _matmul, "Gemm": _gemm, "Attention of ag": _attention, "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool(images.ag_max_pool2d), "AveragePool": _pool(images.ag_avg_pool2d),
    "GlobalAveragePool": lambda x: reduce.ag_mean(x, (2, 3), True),
    "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm, "Identity": lambda x: x, "Cast": _cast,
    "Reshape": _reshape, "Flatten": lambda x, axis=1: ag_reshape(x, prod(x.shape[:axis]), prod(x.shape[axis:])),
    "Transpose": lambda x, perm=None: np.transpose(x, perm), "Concat": lambda *xs, axis: np.concatenate(xs, axis),
    "Slice": _slice, "Gather": _gather, "Expand": _expand,
    "GatherElements": lambda x, ids, axis=0: gather(x, axis, ids),
    "Unsqueeze": lambda x, axes: np.reshape(x, np.expand_dims(np.broadcast_to(0, np.shape(x)), tuple(axes)).shape),
    "Squeeze": lambda x, axes=None: np.squeeze(x, None if axes is None else tuple(map(int, axes))),
    "Shape": lambda x, start=None, end=None: np.array(np.shape(x))[slice(start, end)],
}

# These also compute with arrays, such as shapes; to others arrays of floating-point numbers go as tensors.
_ALSO_OF_ARRAYS = {"Add", "Sub", "Mul", "Div", "Neg", "Pow", "Cast", "Identity", "Reshape", "Transpose", "Concat",
                   "Slice", "Gather", "Unsqueeze", "Expand", "Squeeze", "Shape"}


def _tensor(x: Value) -> Value:
    """Return an array of floating-point numbers as a tensor of its type and shape; anything else as it is."""
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
        return x
    return ag_reshape(ag_tensor(x, dtype=f"f{8 * x.dtype.itemsize}"), *x.shape)


class End(NamedTuple):
    """An input or output: its name, its element type, and whether its first axis is the batch, which is last here."""

    name: str
    element: int
    is_moved: bool
    is_vector: bool  # which is no column then


class OnnxModel(Layer):
    """A model read by `load_onnx`: it runs the operators of a graph.  Its parameters have the names of the file."""

    def __init__(self, nodes: list[Node], inputs: list[End], outputs: list[End], arrays: dict[str, Array],
                 trained: set[str]) -> None:
        self._nodes, self._inputs, self._outputs = nodes, inputs, outputs
        self._constants: dict[str, Value] = {"": None}
        self._tensors: dict[str, tuple[str, tuple[int, ...]]] = {}  # attribute and shape, by names of the file
        for name, x in arrays.items():
            if x.dtype.kind != "f" or not (x.ndim or name in trained):
                self._constants[name] = float(x) if x.dtype.kind == "f" else x
                continue
            own = re.sub(r"\W", "_", name, flags=re.ASCII).lstrip("_")
            own = own if own.isidentifier() and not hasattr(Layer, own) else f"tensor_{own}"
            while hasattr(self, own):
                own += "_"
            self._tensors[name] = own, x.shape
            setattr(self, own, (ag_param if name in trained else ag_tensor)(x, dtype=f"f{8 * x.itemsize}"))

    def forward(self, *xs: TensorLike) -> Any:
        """Outputs of the graph for its inputs, with the batch on the last axis."""
        if len(xs) != len(self._inputs):
            raise TypeError(f"load_onnx: the model was called with {len(xs)} inputs; it takes "
                            f"{', '.join(x.name for x in self._inputs)}.")
        tensors: dict[str, Tensor] = {name: getattr(self, own) for name, (own, _) in self._tensors.items()}
        device = next((x.device for x in (*tensors.values(), *xs) if isinstance(x, Tensor)), None)
        values: dict[str, Value] = {**self._constants, **tensors}
        values |= {name: ag_reshape(tensors[name], *shape) for name, (_, shape) in self._tensors.items()
                   if shape != tensors[name].shape}  # a vector, which is a column in a model
        for end, given in zip(self._inputs, xs, strict=True):
            x: Any = given if hasattr(given, "shape") else np.array(given)
            if end.element in _FLOATS and not isinstance(x, Tensor):
                x = ag_tensor(x, device, _FLOATS[end.element])
                x = ag_reshape(x, x.size) if end.is_vector else x
            values[end.name] = _first(x) if end.is_moved else x  # ids stay an array, which a captured step takes
        with nullcontext() if device is None else ag_device(device):  # where arrays are computed with, too
            for node in self._nodes:
                run, operands = RUN[node.operator], [values[x] for x in node.inputs]
                if node.operator not in _ALSO_OF_ARRAYS or any(isinstance(x, Tensor) for x in operands):
                    operands = [_tensor(x) for x in operands]
                if node.operator == "BatchNormalization":  # takes the columns, as the averages move in place
                    operands[1:], run = [tensors[x] for x in node.inputs[1:]], partial(run, training=self.training)
                values[node.output] = run(*operands, **node.attributes)
        found = {x.name: _last(values[x.name]) if x.is_moved else values[x.name] for x in self._outputs}
        if len(found) == 1:
            return next(iter(found.values()))
        return tuple(found.values()) if [*found] == [f"output{i}" for i in range(1, len(found) + 1)] else found


def read(path: str | os.PathLike[str]) -> OnnxModel:
    """Return the model of a file, see `load_onnx`."""
    model, arrays = read_graph(path, "load_onnx")
    try:
        return ag_eval(_model(model, arrays))
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"load_onnx: {os.fsdecode(path)} cannot be read ({str(error).rstrip('.')}); a network "
                              f"of the operators that export_onnx writes is required. Build the model otherwise, and "
                              f"call load_weights.") from error


def _model(model: ModelProto, arrays: dict[str, Array]) -> OnnxModel:
    from onnx import helper, numpy_helper

    graph, weights, nodes = model.graph, set(arrays), []
    opset = max((x.version for x in model.opset_import if x.domain in ("", "ai.onnx")), default=0)
    if opset < _OLDEST:
        raise ValueError(f"it has operators of opset {opset}, and {_OLDEST} is the oldest that is known; "
                         f"onnx.version_converter makes a newer one")
    for x in graph.node:
        given = {a.name: helper.get_attribute_value(a) for a in x.attribute}
        if x.op_type == "Constant" and "value" in given:
            arrays[x.output[0]] = numpy_helper.to_array(given["value"])
            continue
        name = f"{x.domain}:{x.op_type}" if x.domain not in ("", "ai.onnx") else x.op_type
        nodes.append(Node(f"{name} with several outputs" if any(x.output[1:]) else name, list(x.input), x.output[0],
                          _attributes(x.op_type, given)))
    nodes = needed(_with_attention(nodes, arrays), [x.name for x in graph.output])
    refused = Counter(filter(None, map(_unlike, nodes)))
    if refused:
        raise ValueError(f"it has operators that are not known: "
                         f"{', '.join(f'{name} ({n})' for name, n in refused.most_common())}")
    made, fixed = {node.output: node for node in nodes}, set[str]()
    for node in nodes:
        if node.operator == "BatchNormalization":
            node.inputs[1:] = [_source(x, made) for x in node.inputs[1:]]
            if not {*node.inputs[1:]} <= arrays.keys():
                raise ValueError("it computes the factors or averages of a BatchNormalization")
            fixed |= {*node.inputs[3:]}
    inputs = [x for x in graph.input if x.name not in arrays]
    known = {"", *arrays, *(x.name for x in inputs)}
    for node in nodes:
        if lost := {*node.inputs} - known:
            raise ValueError(f"{node.operator} takes {min(lost)!r:.60}, which nothing before it makes")
        known.add(node.output)
    used = {x for node in nodes for x in node.inputs} | {x.name for x in graph.output}
    said = json.loads(next((x.value for x in model.metadata_props if x.key == PROPERTY), "{}"))
    ends = [[End(x.name, x.type.tensor_type.elem_type, _is_moved(x, said.get("batch_first")),
                 len(x.type.tensor_type.shape.dim) == 1) for x in some] for some in (inputs, graph.output)]
    trained = said.get("trained", [name for name in weights - fixed if arrays[name].ndim])
    return OnnxModel(nodes, ends[0], ends[1], {name: x for name, x in arrays.items() if name in used}, set(trained))


def _is_moved(end: ValueInfoProto, moved: Sequence[str] | None) -> bool:
    """Return whether the batch is first: as the file says, or unless the last axis alone is of any size."""
    if moved is not None:
        return end.name in moved
    known = [bool(dim.dim_value) for dim in end.type.tensor_type.shape.dim]
    return len(known) != 1 and (not known or known[-1] or not known[0])


def _attributes(operator: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that say something; pads that are the same on both sides are called `padding`."""
    found = {name: x.decode() if isinstance(x, bytes) else x for name, x in given.items()}
    found = {name: x for name, x in found.items() if x != _USUAL.get(name)}
    if operator.endswith("Pool") and set(found.get("dilations", ())) == {1}:
        del found["dilations"]
    pads, counts = found.get("pads", []), found.pop("count_include_pad", 0)
    half = len(pads) // 2
    if pads and pads[:half] == pads[half:] and (counts or not any(pads) or operator != "AveragePool"):
        found["padding"] = found.pop("pads")[:half]
    return found


def _unlike(node: Node) -> str | None:
    """Name an operator, or its attributes, that `RUN` does not know."""
    if node.operator not in RUN:
        return node.operator
    try:
        signature(RUN[node.operator]).bind(*node.inputs, **node.attributes)
    except (TypeError, ValueError):
        return f"{node.operator} with {', '.join(f'{name}={x}' for name, x in node.attributes.items())}"
    return None


def _source(name: str, made: Mapping[str, Node]) -> str:
    """Return the initializer that a vector was reshaped from."""
    while name in made and made[name].operator in ("Reshape", "Identity"):
        name = made[name].inputs[0]
    return name


def _with_attention(nodes: list[Node], arrays: Mapping[str, Array]) -> list[Node]:
    """Write ``Softmax(q @ k * scale) @ v``, perhaps with the mask of `export_onnx`, as one operator."""
    made = {node.output: node for node in nodes}
    nothing = Node("", [""] * 3, "", {})

    def by(name: str, operator: str) -> Node:
        return found if (found := made.get(name, nothing)).operator == operator else nothing

    found = []
    for node in nodes:
        softmax = by(node.inputs[0], "Softmax") if node.operator == "MatMul" else nothing
        scores = softmax.inputs[0]
        masked = by(scores, "Where")
        seen = by(masked.inputs[0], "LessOrEqual")
        rows = by(seen.inputs[1], "Unsqueeze")
        keys, queries = by(seen.inputs[0], "Range"), by(rows.inputs[0], "Range")
        is_causal = all(np.all(arrays.get(name) == number) for name, number in (
            (keys.inputs[0], 0), (keys.inputs[2], 1), (queries.inputs[0], 0), (queries.inputs[2], 1),
            (rows.inputs[1], 1), (masked.inputs[2], -inf)))
        scaled = by(masked.inputs[1] if is_causal else scores, "Mul")
        product, scale = by(scaled.inputs[0], "MatMul"), arrays.get(scaled.inputs[1])
        if product.operator and scale is not None and scale.ndim == 0 and softmax.attributes.get("axis", -1) == -1:
            node = Node("Attention of ag", [*product.inputs, node.inputs[1], scaled.inputs[1]], node.output,
                        {"causal": is_causal})
        found.append(node)
    return found
