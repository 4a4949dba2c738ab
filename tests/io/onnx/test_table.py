"""Every row of the case table that can be exported gives the same in onnxruntime; of the others it is said why not."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.onnx_layout import as_in_file
from table.cases import CASES
from table.rows import Case, tensor

import ag
import ag.ops
from ag.engine.device import backend_of
from ag.io.onnx.operators import REFUSED, WRITERS

ROWS = {name: list(cases) for name, cases in groupby(CASES, key=lambda case: case.row.name + case.row.label)}
AVERAGES = "moves running averages"
RANDOM = "draws random numbers"


def all_ops() -> set[object]:
    """The functions that callers see."""
    modules = [importlib.import_module(f"ag.ops.{m.name}") for m in pkgutil.iter_modules(ag.ops.__path__)]
    ops = {f for m in modules for f in vars(m).values() if hasattr(f, "vjp") and f.__module__ == m.__name__}
    return ops | {ag.ag_cast}


OPS = all_ops()
WAITING = OPS - WRITERS.keys() - REFUSED.keys()


NOT_YET = {
    "_flattened", "_last_of", "_met", "_spread", "_sums", "_turned", "_turned_along", "all", "any", "argmax", "argmin",
    "atan2", "attention_with_bias", "attention_with_terms", "cdist", "celu", "copysign", "cosine_similarity",
    "cross_entropy", "diag", "elu", "eq", "erfc", "erfinv", "exp2", "expm1", "floor_divide", "fmod", "fold", "frac",
    "ge", "gt", "hardshrink", "hardsigmoid", "hardtanh", "hypot", "index_add", "index_copy", "index_fill",
    "index_put", "isfinite", "isinf", "isnan", "le", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logsumexp", "lt", "masked_fill", "masked_scatter",
    "max_with_indices", "min_with_indices", "nan_to_num", "ne", "nll_loss", "norm", "normalize", "one_hot", "prelu",
    "randint", "relu6", "remainder", "rope", "scatter", "scatter_add", "scatter_reduce", "selu", "signbit",
    "softplus", "softshrink", "std", "threshold", "tril", "triu", "trunc", "where", "without_ignored"}


def why_not(case: Case) -> str | None:
    """Return what the error says of a case that cannot be exported, or None if the case can be."""
    if getattr(ag, case.row.name, None) in WAITING or case.row.name + case.row.label == "ag_attention(terms)":
        return "has no ONNX operator"
    if case.row.name == "ag_batch_norm":
        return AVERAGES  # the row is about train mode
    if case.row.name in ("ag_max_pool2d", "ag_avg_pool2d") and case.shapes[0][0] == 0:
        return "pools images without channels"
    if case.row.name in ("normal", "uniform"):
        return "another one with other inputs"
    if case.row.name == "conv_transpose2d" and "dilation" in case.params:
        return "need less than the stride"
    if case.params.get("dropout") or (case.row.name == "ag_dropout" and case.params.get("train", True)
                                      and case.params["rate"]):
        return RANDOM
    return None


def exported(case: Case, path: Path, batch_first: bool) -> list[Any]:
    """Write a case's op as a file; its operands."""
    operands = case.operands()
    given = [x if x.dtype.kind == "i" else tensor(x, backend_of("cpu")) for x in operands]
    ag.export_onnx(lambda *xs: case.call(*xs), path, tuple(given), dynamic=False, batch_first=batch_first)
    return given


def assert_equal(found: Any, want: Any, what: str) -> None:
    assert found.shape == want.shape and found.dtype == want.dtype, what
    if want.size:
        off = np.abs(found - want).max()
        assert off <= 1e-5 * max(1.0, float(np.abs(want).max())), f"{what}: {off}"


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_the_same_in_onnxruntime(name: str, batch_first: bool, run_onnx: Callable[..., Any], tmp_path: Path
                                          ) -> None:
    for case in ROWS[name]:
        path = tmp_path / "op.onnx"
        kind = case.row.label or case.params.get("p") or len(case.shapes[0])
        alone = kind in ("1.0", "inf") or (name, kind) in (("diag", 2), ("cdist", 1.0))
        if case.row.name in NOT_YET and not alone:  # sums and maxima
            with pytest.raises(ag.ExportError, match="has no ONNX operator"):
                exported(case, path, batch_first)
            continue
        if (reason := why_not(case)) is not None:
            with pytest.raises(ag.ExportError, match=reason):
                exported(case, path, batch_first)
            continue
        given = exported(case, path, batch_first)
        want = as_in_file(path, {"output": case.call(*given).numpy()})["output"]
        (found,) = run_onnx(path, **as_in_file(path, {f"input{i}": np.asarray(x) for i, x in enumerate(given, 1)}))
        assert_equal(found, want, str(case))
        if "_loss" not in name and name != "ag_batch_norm_op(given)":  # are no part of a network with parameters
            assert_equal(ag.load_onnx(path)(*given).numpy(), case.call(*given).numpy(), f"{case} read back")


def test_only_these_rows_are_not_exported_at_all() -> None:
    waiting = {name for name, cases in ROWS.items() if getattr(ag, cases[0].row.name, None) in WAITING}
    never = {name for name, cases in ROWS.items() if all(map(why_not, cases))}
    assert never == {"ag_attention(terms)", "ag_batch_norm", "normal", "uniform"} | waiting


def test_every_op_has_a_writer_or_a_reason() -> None:
    assert not WRITERS.keys() & REFUSED.keys() and WRITERS.keys() | REFUSED.keys() <= OPS
    assert {getattr(f, "__name__", "") for f in WAITING} <= NOT_YET | {"ag_softplus"}  # of the page on adding an op


def test_targets_of_zero_have_no_loss(run_onnx: Callable[..., Any], tmp_path: Path) -> None:
    target, logits = np.float32([[1, 0.5], [0, 0.5]]), np.float32([[2, 1], [-np.inf, 1]])
    for op, given in ((ag.ag_cross_entropy_loss, target), (ag.ag_softmax_cross_entropy_loss, logits)):
        ag.export_onnx(lambda x, t, op=op: op(x, t), tmp_path / "op.onnx", (given, target), False, False)
        (found,) = run_onnx(tmp_path / "op.onnx", x=given, t=target)
        assert found == pytest.approx(np.log(2) / 2, rel=1e-6)
