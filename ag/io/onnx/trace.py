"""List the ops that a model calls for one example.

A tensor that is no input, parameter or result is a constant.  Reading values that follow from the input is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor
from ag.engine.dtype import DType
from ag.engine.interpreter import Interpreter
from ag.engine.primitive import Array
from ag.engine.shape import Shape
from ag.errors import ExportError


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
    """Lists the ops of one call, in order."""

    exports = True

    def __init__(self, parameters: Mapping[str, Tensor], inputs: Mapping[str, Tensor],
                 refused: Callable[[object], str | None]) -> None:
        self._refs: dict[int, Ref] = {}
        self._refused = refused  # returns the reason why a function cannot be exported, or None
        self._follow: set[Ref] = set()  # what is computed from the inputs
        self.steps: list[Step] = []
        self.constants: list[Array] = []
        self.shapes: dict[Ref, Shape] = {}
        self.types: dict[Ref, DType] = {}
        self.outputs: dict[str, Ref] = {}
        for kind, tensors in (("parameter", parameters), ("input", inputs)):
            for name, x in tensors.items():
                self._know(x, self._refs.get(x.id, Ref(kind, name)))
        self._follow |= {Ref("input", name) for name in inputs}

    def _know(self, x: Tensor, ref: Ref) -> Ref:
        self._refs[x.id], self.shapes[ref], self.types[ref] = ref, x.shape, x.buffer.dtype
        return ref

    def _ref(self, x: Tensor) -> Ref:
        """Return the reference of a tensor; an unknown one is a constant."""
        known = self._refs.get(x.id)
        if known is None:
            known = self._know(x, Ref("constant", len(self.constants)))
            self.constants.append(x.numpy())
        return known

    def after_op(self, function: object, name: str, operands: Sequence[object], params: Sequence[object],
                 out: object) -> None:
        """Append an op."""
        if isinstance(out, Tensor) and out.buffer.backend.recording is not None:
            raise ExportError(f"export_onnx: the model calls {name} in a captured step, which is run otherwise than op "
                              f"by op; export the function without ag_capture.")
        if (reason := self._refused(function)) is not None:
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

    def result(self, name: str, x: object) -> None:
        """Note a result of the model under its name."""
        if not isinstance(x, Tensor):
            raise ExportError(f"export_onnx: the model returns a {type(x).__name__} as {name!r}; a tensor is "
                              f"required, or a tuple, list or dict of tensors.")
        ref = self._refs.get(x.id)
        if ref is None:
            raise ExportError(f"export_onnx: the model returns as {name!r} a tensor of shape {x.shape} that no op of "
                              f"this call computed; return what ops compute, outside of captured steps and threads.")
        self.outputs[name] = ref


def traced(run: Callable[[], object], trace: Trace) -> None:
    """Call a model and fill the trace."""
    with trace, no_grad():
        out = run()
    if isinstance(out, dict):
        named: Mapping[str, object] = {str(key): x for key, x in out.items()}
    elif isinstance(out, (tuple, list)):
        named = {f"output{i}": x for i, x in enumerate(out, 1)}
    else:
        named = {"output": out}
    if not named:
        raise ExportError("export_onnx: the model returns nothing; a tensor is required, or a tuple, list or dict of "
                          "tensors.")
    for name, x in named.items():
        trace.result(name, x)
