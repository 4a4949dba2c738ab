"""ONNX: `export_onnx`.  The package onnx, and what writes graphs, are loaded when the first graph is written.

    a model -> trace (its ops, for several batches, and what these have in common) -> export (a graph, by `operators`)
"""

from __future__ import annotations

import os
from collections.abc import Callable


def export_onnx(model: Callable[..., object], path: str | os.PathLike[str], example: object,
                dynamic: bool = True) -> None:
    """Write what a model computes as an ONNX graph, for onnxruntime and other programs.

    Reference: PyTorch ``torch.onnx.export``.

    Parameters
    ----------
    model : Layer, or any callable that computes with ops
        Exported in eval mode; its own mode stays as it was.
    path : path
        File to write; replaced only once the new one is complete.
    example : array_like or Tensor, or a tuple or dict of them
        What the model is called with: one input, several, or several by name.  Only shapes and types matter.  Whole
        numbers stay whole numbers, as ids for an embedding; others have the type of the model's parameters.
    dynamic : bool, optional
        Whether the graph takes any number of samples: the last axis of the first input is the batch, as that of every
        other input that is as long.  Otherwise it takes the example's shapes.

    Raises
    ------
    ExportError
        If the model calls an op that has no ONNX operator, draws random numbers, reads values in Python that follow
        from its input, or computes something else for a batch of another size.
    DtypeError
        If the model computes in bf16, which runtimes lack, or takes no whole numbers and the example has such.

    Notes
    -----
    The model is called with the example, and if `dynamic` with batches of three other sizes: these calls must differ in
    sizes alone.

    The graph takes and gives what the model does, with the batch on the last axis.  Its inputs are called as the
    arguments of the model's `forward`, its outputs ``output``, ``output1`` and so on, or as in the dict that the model
    returns, and its initializers as in `state_dict`.  Operators are those of opset 20.  A 16-bit model computes in
    float32 and rounds after every op, as here.

    Examples
    --------
    >>> import ag, numpy, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.onnx")
    >>> model = ag.ag_sequential(ag.ag_linear(4, 8, activation="relu"), ag.ag_linear(8, 3))
    >>> ag.export_onnx(model, path, numpy.ones((4, 5)))  # doctest: +SKIP
    """
    from ag.io.onnx.export import export

    export(model, path, example, dynamic)
