"""Every op equals its oracle: on every device, in float64 on the CPU, and wherever its inputs live."""

from __future__ import annotations

import inspect
from importlib import import_module

import numpy as np
import pytest
from table import cases_losses
from table.cases import CASES, ROWS
from table.rows import Case, representatives, restart_generator

import ag
from ag.engine.device import backend_of

COMPOSED = ("compositions", "conv", "einsum", "functions", "images", "normalization", "reduce", "rotary",
            "selection", "shapes")
FEW = representatives(CASES)
OPS = {name for name in ag.__all__ if getattr(ag, name).__module__.startswith("ag.ops.")}


def check(case: Case, device: str, dtype: str) -> None:
    """Shape, type and device of the result are right, its elements within tolerance, the operands unchanged."""
    backend, operands = backend_of(device), case.operands()
    restart_generator(backend)
    given = case.on(backend, operands, dtype)
    out = case.call(*given)
    want = case.want(*operands)
    assert (out.shape, out.dtype, out.device) == (want.shape, dtype, device)
    assert np.all(np.abs(out.numpy() - want) <= case.tolerance(operands, dtype)), (
        f"{case}: {np.abs(out.numpy() - want).max()} off, {case.tolerance(operands, dtype).min()} allowed")
    for x, t in zip(operands, given, strict=True):
        np.testing.assert_array_equal(np.asarray(t), x)


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=() if case in FEW else pytest.mark.slow_on("swiftshader")) for case in CASES], ids=str)
def test_equals_the_oracle(device: str, case: Case) -> None:
    check(case, device, "f32")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_oracle_in_float64(case: Case) -> None:
    check(case, "cpu", "f64")


@pytest.mark.parametrize("case", {case.row.name: case for case in CASES}.values(), ids=str)
def test_runs_where_its_inputs_are(device: str, case: Case) -> None:
    with ag.ag_device("cpu:1"):
        check(case, device, "f32")


def test_every_op_has_a_row() -> None:
    layers = {n for n, x in vars(ag).items() if n.startswith("ag_") and inspect.isclass(x) and issubclass(x, ag.Layer)}
    # which have tests of their own
    own = {"ag_cast", "ag_resnet", "aminmax", "all", "any", "argmin", "argwhere", "count_nonzero", "nonzero", "one_hot",
           "var_mean"}
    composed = {name for file in COMPOSED for name in import_module(f"ag.ops.{file}").__all__ if name[:3] != "ag_"}
    composed |= {"normal", "randint", "uniform"}  # of those that draw
    composed -= {name for name in composed if "pool" in name and "_with_indices" in name}  # tests/ops/test_pooling.py
    composed |= {row.name for row in cases_losses.ROWS}  # tests/ops/losses has all
    assert {row.name for row in ROWS} == (OPS | layers | composed) - own


def test_case_names_are_unique() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)
