"""`summary`: what a model is made of, what its layers compute, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from threading import get_ident
from typing import NamedTuple
from weakref import ref

import numpy as np

from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor
from ag.engine.device import ag_default_device, ag_device
from ag.engine.interpreter import Above, Interpreter
from ag.engine.random import draws_from
from ag.engine.shape import counts
from ag.nn.layer import Layer, nested, own_tensors
from ag.nn.mode import ag_eval, modes_kept

# How often an op multiplies and adds, of its operands and its result.
_PRODUCTS: dict[str, Callable[[Sequence[Tensor], Tensor], int]] = {
    "ag_matmul": lambda x, _: x[0].shape[0] * x[1].size,
    "ag_attention": lambda x, out: (x[0].size + out.size) * x[1].shape[1],  # with all keys, also where it is causal
    "ag_conv2d": lambda x, out: out.size * prod(x[1].shape[1:]),
    "conv_transpose2d": lambda x, _: x[0].size * prod(x[1].shape[1:])}
_PRODUCTS |= {"ag_linear": _PRODUCTS["ag_matmul"], "ag_multihead_attention": _PRODUCTS["ag_attention"]}


class LayerRow(NamedTuple):
    """A layer of a summary; numbers are its own, without those of the layers inside it."""

    name: str  # to the right of that of the layer around it
    output: object  # the shape, or None for a layer that was not called
    trained: int = 0
    other: int = 0  # elements of buffers and frozen parameters
    memory: int = 0  # bytes of its tensors, and of all that it computes
    multiply_adds: int = 0


class Summary(list[LayerRow]):
    """A row for each layer, shown as a table."""

    def total(self, column: str) -> int:
        """Return the sum of a column."""
        return sum(getattr(row, column) for row in self)

    def __repr__(self) -> str:
        from ag.log import aligned  # which takes time to load

        last = LayerRow("total", "", *map(self.total, LayerRow._fields[2:]))
        cells = [("layer", "output", "trained", "other", "bytes", "multiply-adds")]
        cells += [(row.name, "not called" if row.output is None else str(row.output).replace("'", ""),
                   *(f"{number:,}" if number else "" for number in row[2:])) for row in (*self, last)]
        return aligned(cells, 2)

    def _repr_html_(self) -> str:
        from html import escape  # which takes time to load

        return f"<pre>{escape(repr(self))}</pre>"


class _Counts(Interpreter):
    """Counts what the ops of each layer compute, while it is in the model's forward pass."""

    def __init__(self) -> None:
        self._running: list[int] = []
        self.found: dict[int, LayerRow] = {}
        self._thread = get_ident()

    def after_op(self, function: object, name: str, inputs: Sequence[Above], params: Sequence[object],
                 out: Above) -> None:
        """Add the result of an op to what the innermost layer computes."""
        super().after_op(function, name, inputs, params, out)
        row = self.found[self._running[-1]]
        products = _PRODUCTS[name](inputs, out) if name in _PRODUCTS else 0
        self.found[self._running[-1]] = row._replace(
            memory=row.memory + out.buffer.nbytes, multiply_adds=row.multiply_adds + products)

    def watching(self, layer: Layer) -> Callable[..., object]:
        """Return the layer's forward method, which now also notes who computes and what comes out."""
        own, key = vars(layer).get("forward"), id(layer)
        held, method = ref(layer), type(layer).forward  # a function in an attribute must not have a layer in it

        def watched(*args: object, **kwargs: object) -> object:
            if get_ident() != self._thread:
                raise TypeError("summary: the model computes in several threads, so nobody knows which layer does "
                                "what; give the model inside, such as model.module.")
            self._running.append(key)
            row = self.found.setdefault(key, LayerRow("", None))
            try:
                out = method(held(), *args, **kwargs) if own is None else own(*args, **kwargs)
            finally:
                self._running.pop()
            shape = out.shape if isinstance(out, Tensor) else type(out).__name__
            self.found[key] = self.found.get(key, row)._replace(output=shape)
            return out

        return watched


def summary(model: Layer, x: object) -> Summary:
    """Describe a model: layers, output shapes, parameters, memory, and multiply-adds of a forward pass.

    Reference: Keras ``Model.summary``, torchinfo ``summary``.

    Parameters
    ----------
    model : Layer
        It is called once, in eval mode; its modes and tensors stay as they are.  A model that computes in several
        threads is a TypeError.
    x : tuple of int, or array_like
        Shape of a sample, without the batch, such as ``(3, 32, 32)``; or an input, such as a batch of word ids.

    Returns
    -------
    list of LayerRow
        Shown as a table, with ``total(column)``.  Bytes are those of parameters, buffers and all results of operations.
        Multiply-adds are those of matrix products, convolutions and attention.

    Examples
    --------
    >>> ag.summary(ag.nn.Sequential(ag.nn.Linear(4, 8), ag.nn.Linear(8, 3)), (4,)).total("multiply_adds")
    56
    """
    if not isinstance(model, Layer):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise TypeError(f"summary: model is {what}; a layer is required, such as ag.nn.Sequential(...).")
    of_shape = isinstance(x, tuple) and counts(*x)
    inside = nested(model)
    layers = {id(layer): layer for _, _, layer in inside}
    before = {key: vars(layer)["forward"] for key, layer in layers.items() if "forward" in vars(layer)}
    device = next((t.device for t in model.named_tensors().values()), ag_default_device())
    with modes_kept(model), no_grad(), ag_device(device), draws_from(0), (counted := _Counts()):
        ag_eval(model)
        try:
            for layer in layers.values():
                object.__setattr__(layer, "forward", counted.watching(layer))
            model.forward(np.zeros((*x, 1), np.float32) if isinstance(x, tuple) and of_shape else x)
        finally:
            for key, layer in layers.items():
                object.__delattr__(layer, "forward")
                if key in before:
                    object.__setattr__(layer, "forward", before[key])
    rows, known = Summary(), set[int]()
    for depth, name, layer in inside:
        if layers.pop(id(layer), None) is None:  # it stands in two places
            continue
        own = {t.id: t for t in own_tensors(layer).values() if t.id not in known}
        known.update(own)
        row = counted.found.get(id(layer), LayerRow("", None))
        shape = row.output
        rows.append(row._replace(
            name=f"{'  ' * depth}{name}{': ' * bool(name)}{type(layer).__name__}",
            output=(*shape[:-1], "batch") if of_shape and isinstance(shape, tuple) and shape[-1:] == (1,) else shape,
            trained=sum(t.size for t in own.values() if t.requires_grad),
            other=sum(t.size for t in own.values() if not t.requires_grad),
            memory=row.memory + sum(t.buffer.nbytes for t in own.values())))
    return rows
