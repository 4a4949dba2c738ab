"""Make an ONNX file of what calls of a model with batches of several sizes have in common, each op by its writer.

Sizes may differ, and a constant may be longer if it repeats itself.  Any other difference was made in Python.
"""

from __future__ import annotations

import inspect
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import numpy as np

from ag.autograd.operands import as_array, column, to_buffer
from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor
from ag.data.dataloader import DataLoader
from ag.engine.buffer import Device
from ag.engine.device import default_backend, default_dtype
from ag.engine.dtype import BF16, F32, I32, DType
from ag.engine.interpreter import Interpreter
from ag.engine.primitive import Array
from ag.engine.shape import Shape
from ag.errors import AgError, DtypeError, ExportError, ShapeError
from ag.io.checkpoint import check_arguments, unwrapped
from ag.io.onnx.operators import ELEMENT, REFUSED, WRITERS, Called, Dim, Dims, Graph, Node, Size, Value, needed
from ag.io.onnx.read import PROPERTY, onnx_package
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


class Argument(NamedTuple):
    """An input of the model."""

    name: str  # in the graph
    key: str  # of the argument
    array: Array  # the example
    dtype: DType  # of the tensor that the model gets
    is_long: bool = False  # whether the graph takes int64 and makes int32 of it


@dataclass(frozen=True)
class Call:
    """Arguments of a model, on one device; whether they are passed by name."""

    arguments: list[Argument]
    by_name: bool
    backend: Device

    @property
    def batch_of(self) -> tuple[str, int] | None:
        """Return the input whose last axis is the batch, and that axis; None without axes."""
        return next(((x.name, x.array.ndim - 1) for x in self.arguments if x.array.ndim), None)

    def batches(self, dynamic: bool) -> list[int]:
        """Return the numbers of samples to try; without a batch, twice the example's."""
        # three sizes tell a straight line from a square, and from an end as `min(n, 8)`; one sample may be special
        samples = next((x.array.shape[-1] for x in self.arguments if x.array.ndim), None)
        if not dynamic or samples is None:
            return [1 if samples is None else samples] * 2
        if samples == 0:
            raise ShapeError("export_onnx: the example has no sample along its last axis, the batch; give one.")
        return [samples, samples + 1, 2 * samples + 9, *([1] if samples > 1 else [])]

    def inputs(self, batches: Sequence[int], number: int) -> dict[str, Tensor]:
        """Make tensors by the graph's names for one of the batches; the first is the example itself."""
        rng = np.random.default_rng(number)
        inputs = {}
        for x in self.arguments:
            array = x.array
            if array.ndim and array.shape[-1] == batches[0] != batches[number]:
                array = array.take(np.arange(batches[number]) % batches[0], -1)
            if number > 0:
                array = np.flip(array)
                if x.dtype.is_float:  # no zero stays one, and no sign changes
                    array = array * rng.uniform(0.5, 1.5, array.shape) + (array == 0) * rng.uniform(0, 1, array.shape)
            inputs[x.name] = Tensor(to_buffer(array, self.backend, x.dtype))
        return inputs

    def run(self, model: Callable[..., object], inputs: Mapping[str, Tensor]) -> object:
        named = {x.key: inputs[x.name] for x in self.arguments}
        return model(**named) if self.by_name else model(*named.values())


def called_with(model: Callable[..., object], example: object, tensors: Mapping[str, Tensor]) -> Call:
    """Return the call that an example stands for."""
    if isinstance(example, Mapping):
        keys, values = [str(key) for key in example], [*example.values()]
    else:
        values = [*example] if isinstance(example, tuple) else [example]
        keys = _names(model, len(values))
    if not values:
        raise TypeError("export_onnx: the example is empty; an array is required, or a tuple or dict of them.")
    backend = next((x.buffer.backend for x in (*tensors.values(), *values) if isinstance(x, Tensor)), None)
    floating = next((t.buffer.dtype for t in tensors.values() if t.buffer.dtype.is_float), default_dtype())
    arguments = []
    for key, x in zip(keys, values, strict=True):
        array, dtype = (x.numpy(), x.buffer.dtype) if isinstance(x, Tensor) else (as_array(x, "export_onnx"), None)
        if dtype is None:
            array, dtype = (array, I32) if array.dtype.kind in "iu" else (column(array), floating)
        name = f"{key}_input" if key in tensors else key
        arguments.append(Argument(name, key, array, dtype, array.dtype == np.int64))
    return Call(arguments, isinstance(example, Mapping), backend or default_backend())


def _names(model: Callable[..., object], count: int) -> list[str]:
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    except (TypeError, ValueError):  # of a function written in C
        parameters = {}.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    return names + [f"input{i + 1}" for i in range(len(names), count)]


class Ref(NamedTuple):
    """A value by what it is (``"input"``, ``"parameter"``, ``"constant"``, ``"step"``) and its name or number."""

    kind: str
    key: str | int


class Step(NamedTuple):
    """One op: the function, what messages call it, its operands and its other arguments."""

    function: object
    name: str
    operands: tuple[Ref, ...]
    params: tuple[object, ...]


class Trace(Interpreter):
    """Lists the ops of one call, in order; a tensor that is no input, parameter or result is a constant."""

    exports = True

    def __init__(self, parameters: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
        self._refs: dict[int, Ref] = {}
        self._follow = {Ref("input", name) for name in inputs}  # what is computed from these, too
        self.steps: list[Step] = []
        self.constants: list[Array] = []
        self.shapes: dict[Ref, Shape] = {}
        self.types: dict[Ref, DType] = {}
        self.outputs: dict[str, Ref] = {}
        for kind, tensors in (("parameter", parameters), ("input", inputs)):
            for name, x in tensors.items():
                self._know(x, self._refs.get(x.id, Ref(kind, name)))

    def _know(self, x: Tensor, ref: Ref) -> None:
        self._refs[x.id], self.shapes[ref], self.types[ref] = ref, x.shape, x.buffer.dtype

    def _ref(self, x: Tensor) -> Ref:
        """Return the reference of a tensor; an unknown one is a constant."""
        if x.id not in self._refs:
            self._know(x, Ref("constant", len(self.constants)))
            self.constants.append(x.numpy())
        return self._refs[x.id]

    def after_op(self, function: object, name: str, operands: Sequence[object], params: Sequence[object],
                 out: object) -> None:
        if function not in WRITERS:
            reason = REFUSED.get(function, "has no ONNX operator; compute with other ops of ag.ops.")
            raise ExportError(f"export_onnx: {name} {reason}")
        refs = tuple(self._ref(x) for x in operands if isinstance(x, Tensor))
        others = tuple(self._ref(x) if isinstance(x, Tensor) else x for x in params)
        ref = Ref("step", len(self.steps))
        self.steps.append(Step(function, name, refs, others))
        if isinstance(out, Tensor):
            self._know(out, ref)
        if self._follow.intersection(x for x in (*refs, *others) if isinstance(x, Ref)):
            self._follow.add(ref)

    def same(self, x: object, other: object) -> None:
        """Let the second tensor stand for the first."""
        if isinstance(x, Tensor) and isinstance(other, Tensor) and x.id in self._refs:
            self._refs[other.id] = self._refs[x.id]

    def read(self, x: object) -> None:
        """Refuse to read a value that follows from an input."""
        if isinstance(x, Tensor) and self._refs.get(x.id) in self._follow:
            raise ExportError(f"export_onnx: the model reads the values of a tensor of shape {x.shape} that follows "
                              f"from its input, and what Python does with them cannot be in a graph; compute with "
                              f"ops, without numpy, float(t), item or comparing.")

    def fill(self, run: Callable[[], object]) -> None:
        """Call a model, list its ops and note its results under their names."""
        with self, no_grad():
            out = run()
        named: Mapping[object, object] = out if isinstance(out, dict) else {"output": out}
        if isinstance(out, (tuple, list)):
            named = {f"output{i}": x for i, x in enumerate(out, 1)}
        what = "nothing" if not named else next(
            (f"a {type(x).__name__} as {name!r}" for name, x in named.items() if not isinstance(x, Tensor)), None)
        if what is not None:
            raise ExportError(f"export_onnx: the model returns {what}; a tensor is required, or a tuple, list or dict.")
        for name, x in named.items():
            assert isinstance(x, Tensor)
            if x.id not in self._refs:
                raise ExportError(f"export_onnx: the model returns as {name!r} a tensor of shape {x.shape} that no op "
                                  f"of this call computed; return what ops compute, not captured steps or threads.")
            self.outputs[str(name)] = self._refs[x.id]


class Program(NamedTuple):
    """The ops of a model for any batch; numbers in `steps` may be a `Size`, constants are repeated to their dims."""

    steps: list[Step]
    constants: list[Array]
    dims: dict[Ref, Dims]
    types: dict[Ref, DType]
    outputs: dict[str, Ref]


def merged(traces: Sequence[Trace], batches: Sequence[int]) -> Program:
    """Return what the traces have in common; `batches` are their numbers of samples."""
    first = traces[0]
    names = [[step.name for step in trace.steps] for trace in traces]
    for trace, called, batch in zip(traces, names, batches, strict=True):
        if called != names[0] or trace.outputs != first.outputs:
            _refuse(f"calls {_first_other(names[0], called)} with a batch of {batches[0]}, and "
                    f"{_first_other(called, names[0])} with a batch of {batch}")
    steps = []
    for i, same in enumerate(zip(*(trace.steps for trace in traces), strict=True)):
        if any((s.function, s.operands) != (same[0].function, same[0].operands) for s in same):
            _refuse(f"calls {same[0].name} (op {i + 1}) on other tensors when the batch has another size")
        what = f"calls {same[0].name} (op {i + 1}) with numbers that change with its input or the batch"
        steps.append(same[0]._replace(params=_common([s.params for s in same], batches, what)))
    dims: dict[Ref, Dims] = {}
    for ref in first.shapes:
        shapes = [trace.shapes[ref] for trace in traces]
        made = first.steps[ref.key].name if isinstance(ref.key, int) and ref.kind == "step" else f"{ref.kind} {ref.key}"
        dims[ref] = _common(shapes, batches, f"makes a tensor ({made}) of shapes {', '.join(map(str, shapes))} of "
                            f"batches of {', '.join(map(str, batches))} samples")
    constants = [_constant(arrays, dims[Ref("constant", i)])
                 for i, arrays in enumerate(zip(*(trace.constants for trace in traces), strict=True))]
    return Program(steps, constants, dims, first.types, first.outputs)


def _refuse(what: str) -> NoReturn:
    raise ExportError(f"export_onnx: the model {what}, so no one graph is true for every batch; compute with ops "
                      f"alone, in the same way for every batch, or export for the example's size with dynamic=False.")


def _first_other(names: list[str], others: list[str]) -> str:
    """Name the first op that another call does not have at its place."""
    differing = (i for i, (name, other) in enumerate(zip(names, others, strict=False)) if name != other)
    return next((f"{names[i]} (op {i + 1})" for i in differing), f"{len(names)} ops")


def _common(values: Sequence[Any], batches: Sequence[int], what: str) -> Any:
    """Return the values' common one: themselves, or sizes in their place; an ExportError says what the model does.

        batches of 4, 5, 13 samples:    3, 3, 3 -> 3    4, 5, 13 -> Size(0, 1)    16, 25, 169 -> an error
    """
    first = values[0]
    if all(type(x) is type(first) and (x == first or (x != x and first != first)) for x in values):
        return first
    if all(isinstance(x, slice) for x in values):
        return slice(*_common([(x.start, x.stop, x.step) for x in values], batches, what))
    if all(isinstance(x, (tuple, list)) and not isinstance(x, Ref) and len(x) == len(first) for x in values):
        return tuple(_common(same, batches, what) for same in zip(*values, strict=True))
    is_whole = all(isinstance(x, (int, np.integer)) and not isinstance(x, bool) for x in values)
    if is_whole and batches[0] != batches[1]:
        slope = (int(values[1]) - int(first)) // (batches[1] - batches[0])
        size = Size(int(first) - slope * batches[0], slope)
        if all(size.fixed + slope * batch == n for n, batch in zip(values, batches, strict=True)):
            return size if slope else size.fixed
    _refuse(f"{what} ({first!r:.60} is {values[-1]!r:.60})")


def _constant(arrays: Sequence[Array], dims: Dims) -> Array:
    """Return one constant for all traces, whose axes of changing size repeat one element."""
    for axis, dim in enumerate(dims):
        if isinstance(dim, Size):
            if any(x.shape[axis] == 0 or not np.array_equal(x, np.broadcast_to(x.take([0], axis), x.shape), True)
                   for x in arrays):
                _refuse(f"makes a constant of shape {arrays[0].shape} whose values along axis {axis} depend on the "
                        f"batch")
            arrays = [x.take([0], axis) for x in arrays]
    if not all(np.array_equal(x, arrays[0], equal_nan=True) for x in arrays):
        _refuse(f"makes a constant of shape {arrays[0].shape} that is another one with other inputs, such as a number "
                f"of samples or what numpy, threads or captured steps compute")
    return arrays[0]


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
    if sum(x.nbytes for x in (*state.values(), *program.constants)) > _MOST_BYTES:
        raise ExportError(f"export_onnx: the model has more than {_MOST_BYTES} bytes, the most that a file of this "
                          f"format holds; export its parts, one by one.")
    graph, ends, moved = written(program, call, state, batch_first, Size(0, 1) if dynamic else batches[0])
    said = json.dumps({"trained": [x for x, t in tensors.items() if t.requires_grad], "batch_first": sorted(moved)})
    replace_file(path, lambda: _content(type(model).__name__, graph, ends, said), "export_onnx")


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
                            f"required. Call fit first; of a pipeline give the last step, pipeline[-1].")
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
    """Return a program's graph, its inputs and outputs, and which of these have their last axis, of `batch`, first."""
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
                array = program.constants[int(ref.key)]
                name = g.constant(array)
                name = name if array.shape == dims else g.node("Expand", name, g.sizes(dims))
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
    """Return the order of all operands' axes, if the operator may compute before they are transposed; None if not."""
    orders = [waiting.get(x, ("", []))[1] for x in node.inputs]
    orders = [order if order != sorted(order) else [] for order in orders]
    if node.operator in _ONE:
        return orders[0] or None
    if node.operator not in _TWO:
        return None
    known = [order for order, x in zip(orders, node.inputs, strict=True) if x not in axes]  # others have any order
    if not known or [] in known or any(axes.get(x, 0) not in (0, len(known[0])) for x in node.inputs):
        return None
    return max(known, key=lambda order: order == sorted(order, reverse=True))
