"""The weights in an ONNX file: its initializers by name, and how the operators around them use them.

    MatMul(x, W), Gemm(x, W)       W is multiplied from the right: its columns are the features, not its rows
    MatMul(W, x), Gemm(x, W, transB=1)     rows are the features, as in `ag` and PyTorch
    Gather(W, ids, axis=1)         a word is a column, as in `ag`; by axis=0 a row

Knows no model; `ag.io.weights` calls it.
"""

from __future__ import annotations

import os

from ag.engine.primitive import Array
from ag.errors import CheckpointError
from ag.io.onnx.package import onnx_package

__all__ = ["initializers"]


def initializers(path: str | os.PathLike[str], function: str) -> tuple[dict[str, Array], set[str], set[str]]:
    """Arrays by name; those used with words as columns; those to be transposed.

    Single numbers and whole numbers, such as factors and axes, are no weights and left out.

    Raises
    ------
    CheckpointError
        If the file cannot be read.
    ImportError
        If the package onnx is not installed.
    """
    onnx_package(function)
    from google.protobuf.message import DecodeError
    from onnx import load, numpy_helper

    try:
        graph = load(os.fsdecode(path)).graph
        found = {x.name: numpy_helper.to_array(x) for x in graph.initializer}
    except (OSError, DecodeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{function}: {os.fsdecode(path)} cannot be read ({str(error).rstrip('.')}); a complete "
                              f"ONNX file is required.") from error
    arrays = {name: x for name, x in found.items() if x.ndim and x.dtype.kind not in "biu"}
    columns: set[str] = set()
    right: set[str] = set()
    left: set[str] = set()
    for node in graph.node:
        numbers = {a.name: a.i for a in node.attribute}
        if node.op_type == "Gather" and numbers.get("axis", 0) == 1:
            columns.add(node.input[0])
        elif node.op_type in ("MatMul", "Gemm"):
            (left if numbers.get("transA", 0) == 0 else right).add(node.input[0])
            (right if numbers.get("transB", 0) == 0 else left).add(node.input[1])
    both = sorted(right & left & set(arrays))
    if both:
        raise CheckpointError(f"{function}: {os.fsdecode(path)} multiplies {both[0]} from both sides, so it is not "
                              f"known which of its axes are features; give the arrays to load_state_dict.")
    return arrays, columns, right
