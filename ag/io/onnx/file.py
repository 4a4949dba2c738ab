"""Read ONNX files: the graph, and the arrays that it begins with, also those that lie in files beside it."""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ag.engine.primitive import Array
from ag.errors import CheckpointError
from ag.io.safetensors_file import read_regular
from ag.version import install_line

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

PROPERTY = "ag"  # of a file: which initializers are trained, which inputs and outputs have the batch first

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

    where = f"{function}: {os.fsdecode(path)}"
    try:
        model = ModelProto.FromString(read_regular(path))
        arrays: dict[str, Array] = {}
        for x in model.graph.initializer:
            if not isinstance(x.name, str) or x.name in arrays:  # bytes where they are no UTF-8
                raise ValueError(f"it has {x.name!r:.60} as the name of an initializer, or has it twice")
            arrays[x.name] = _array(x, os.path.dirname(os.fsdecode(path)))
    except (OSError, DecodeError, TypeError, ValueError, KeyError, OverflowError, AttributeError, MemoryError) as error:
        raise CheckpointError(f"{where} cannot be read ({str(error).rstrip('.')}); a complete ONNX file is "
                              f"required, with the files of its external data in the same folder.") from error
    return model, arrays


def initializers(path: str | os.PathLike[str], function: str) -> tuple[dict[str, Array], set[str], set[str]]:
    """Return the arrays by name, the names of those with words as columns, and of those to be transposed.

        MatMul(x, W), Gemm(x, W)              W is multiplied from the right: its columns are the features
        MatMul(W, x), Gemm(x, W, transB=1)    its rows are the features, as here
        Gather(W, ids, axis=1)                a word is a column, as here; by axis=0 a row

    Single numbers and whole numbers, such as factors and axes, are no weights and left out.
    """
    model, arrays = read_graph(path, function)
    arrays = {name: x for name, x in arrays.items() if x.ndim and x.dtype.kind == "f"}
    if any(x.key == PROPERTY for x in model.metadata_props):  # of export_onnx: all lie as here
        return arrays, set(arrays), set()
    columns: set[str] = set()
    right: set[str] = set()
    left: set[str] = set()
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
