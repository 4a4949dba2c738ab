"""ONNX: `export_onnx` and `load_onnx`.  The package onnx, and what writes and reads, are loaded on first use."""

from __future__ import annotations

import os
from collections.abc import Callable

from ag.engine.device import ag_device, same_default
from ag.nn.layer import Layer


def export_onnx(model: Callable[..., object], path: str | os.PathLike[str], example: object = None,
                dynamic: bool = True, batch_first: bool = True) -> None:
    """Write what a model computes as an ONNX graph, for onnxruntime and other programs.

    The model is called with the example, and if `dynamic` with batches of three other sizes: these calls must differ in
    sizes alone.  docs/interop.md has names, types and operators.

    An ExportError says that the model calls an op without ONNX operator, draws random numbers, reads values in Python
    that follow from its input, or computes otherwise for another batch.  A DtypeError says that it computes in bf16,
    which runtimes lack, or takes no whole numbers such as the example's.
    Reference: PyTorch ``torch.onnx.export``.

    Parameters
    ----------
    model : Layer, or any callable that computes with ops
        Exported in eval mode; its own mode stays as it was.  Of a fitted `AgClassifier` or `AgRegressor` its network is
        exported, which gives logits or values, of a `DataParallel` its model.
    path : path
        File to write; replaced only once the new one is complete.
    example : array_like, Tensor or DataLoader, or a tuple or dict of arrays, optional
        One input, several, or several by name; of a loader its first batch.  Only shapes and types matter: whole
        numbers are ids, others have the type of the model's parameters.  An estimator needs none.
    dynamic : bool, optional
        Whether the graph takes any number of samples along the last axis of the first input, and of every other that is
        as long.  Otherwise it takes the example's shapes.
    batch_first : bool, optional
        Whether inputs and outputs of the graph have the batch on the first axis, as other programs expect.

    Examples
    --------
    >>> import ag, numpy
    >>> ag.export_onnx(ag.ag_linear(4, 3), "model.onnx", numpy.ones((4, 5)))  # doctest: +SKIP
    """
    from ag.io.onnx.export import export

    export(model, path, example, dynamic, batch_first)


def load_onnx(path: str | os.PathLike[str], device: str | None = None) -> Layer:
    """Read a model back from an ONNX file, to use it and to train it further.

    A CheckpointError says that the file cannot be read, or counts the operators that are not known.  Dropout is not in
    such files.  Of another program's file all floating-point initializers are trained but averages of batch norm, and
    an input has the batch first, unless its last axis alone is of any size.  For such a model, `ag_load_model` needs
    ``model_fn=lambda: ag.load_onnx(path)``.

    Parameters
    ----------
    path : path
        A file of `export_onnx`, or of another program that has the same operators.
    device : str, optional
        Default: the current default device.

    Returns
    -------
    Layer
        In eval mode, with the batch on the last axis, also of a file that has it first, and the file's names.

    Examples
    --------
    >>> import ag, numpy
    >>> ag.load_onnx("model.onnx")(numpy.ones((4, 2))).shape  # doctest: +SKIP
    (3, 2)
    """
    from ag.io.checkpoint import check_arguments
    from ag.io.onnx.read import read

    check_arguments("load_onnx(path)", path)
    with same_default():
        if device is not None:
            ag_device(device)
        return read(path)
