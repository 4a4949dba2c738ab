"""Run a file's graph by onnxruntime, and compare the results with what `ag` computes, for the tests of ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.onnx_layout import as_in_file

import ag

Array = np.ndarray[Any, Any]
Runner = Callable[..., list[Array]]


def close(ours: Array, theirs: Array) -> None:
    """Equal to 1e-5 of the largest number, or of 1."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if ours.size:
        assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, float(np.abs(ours).max()))


@pytest.fixture
def run_onnx() -> Runner:
    """Run a file: ``run_onnx(path, x=array)``, with what its outputs are in order."""
    pytest.importorskip("onnx", reason="the package onnx is not installed, so nothing was exported")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed, so no graph was run")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3

    def run(path: Path, **inputs: Array) -> list[Array]:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return [np.asarray(y) for y in session.run(None, inputs)]

    return run


@pytest.fixture
def same_in_onnx(run_onnx: Runner, tmp_path: Path) -> Callable[..., Path]:
    """Export a model and compare what it computes with what onnxruntime does, for batches of other sizes, too.

    ``same_in_onnx(model, {"x": example})``; the model is in eval mode afterwards.  Both layouts are compared, and the
    file that stays has the batch first.
    """

    def check(model: Any, example: Mapping[str, Array], batches: tuple[int, ...] = (1, 2, 7), dynamic: bool = True
              ) -> Path:
        path = tmp_path / "model.onnx"
        last = next(x.shape[-1] for x in example.values())
        for batch_first in (False, True):
            ag.export_onnx(model, path, tuple(example.values()), dynamic, batch_first)
            names = [x.name for x in pytest.importorskip("onnx").load(str(path)).graph.output]
            for size in (last, *batches):
                inputs = {name: np.ascontiguousarray(x[..., np.arange(size) % last]) if x.shape[-1] == last else x
                          for name, x in example.items()}
                inputs = {name: x * 0.75 if x.dtype.kind == "f" else x for name, x in inputs.items()}
                ours = ag.ag_eval(model)(*(ag.ag_tensor(x) if x.dtype.kind == "f" else x for x in inputs.values()))
                ours = [y.numpy() for y in (ours if isinstance(ours, tuple) else (ours,))]
                theirs = run_onnx(path, **as_in_file(path, inputs))
                for y, z in zip(as_in_file(path, dict(zip(names, ours, strict=True))).values(), theirs, strict=True):
                    close(y, z)
        return path

    return check
