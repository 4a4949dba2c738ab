"""16-bit types: every op gives the float32 op's result, rounded once; gradients of parameters are float32."""

from __future__ import annotations

import numpy as np
import pytest
from table.cases import CASES
from table.rows import Array, Case, loss_of, on_devices, restart_generator, tensor, weights_like

import ag
from ag.engine.device import backend_of
from ag.engine.dtype import as_dtype
from ag.engine.kernels.convert import loaded, stored

EPS = {"f16": 2.0**-10, "bf16": 2.0**-7}
HALF = sorted(EPS)
SINGLE_OPS = {name for name in dir(ag) if hasattr(getattr(ag, name), "vjp")}


def rounded(array: Array, dtype: str) -> Array:
    """Floating numbers as the 16-bit type holds them, in float32."""
    if array.dtype.kind != "f":
        return array
    return np.asarray(loaded(stored(array, as_dtype(dtype, "tests")), as_dtype(dtype, "tests")), np.float32)


def result(case: Case, operands: list[Array], device: str, dtype: str) -> ag.Tensor:
    restart_generator(backend_of(device))
    return case.call(*case.on(backend_of(device), operands, dtype))


@pytest.mark.slow_on("swiftshader")
@pytest.mark.parametrize("dtype", HALF)
@on_devices(CASES, pytest.mark.slow)
def test_is_the_float32_result_rounded_once(device: str, case: Case, dtype: str) -> None:
    operands = [rounded(x, dtype) for x in case.operands()]
    want, got = result(case, operands, device, "f32"), result(case, operands, device, dtype)
    assert (got.shape, got.device) == (want.shape, device)
    if case.row.name in SINGLE_OPS:
        assert got.dtype == (dtype if got.shape else "f32")
        np.testing.assert_array_equal(got.numpy(), rounded(want.numpy(), dtype) if got.shape else want.numpy())
    else:  # each op of several rounds its own result
        allowed = 4 * EPS[dtype] * np.maximum(1, np.abs(want.numpy()).max(initial=0))
        assert np.all(np.abs(got.numpy() - want.numpy()) <= allowed)


@pytest.mark.slow_on("swiftshader")
@pytest.mark.parametrize("dtype", HALF)
@on_devices([case for case in CASES if case.want(*case.operands()).size], pytest.mark.slow)
def test_gradients_are_float32(device: str, case: Case, dtype: str) -> None:
    operands = [rounded(x, dtype) for x in case.operands()]
    found = []
    for kind in ("f32", dtype):
        restart_generator(backend_of(device))
        given = case.on(backend_of(device), operands, kind, params=True)
        with ag.with_grad_tape():
            out = case.call(*given)
            weights = tensor(rounded(weights_like(out), dtype), out.buffer.backend, out.dtype)
            loss = loss_of(out, weights)
        grads = ag.backward(loss)
        found.append([grads[x] for x in given if ag.is_ag_tensor(x)])
    for i, (want, got) in enumerate(zip(*found, strict=True)):
        assert got.dtype == "f32"
        exact = want.numpy()
        last = EPS[dtype] * np.abs(exact).max(initial=0)
        digits = 8 if "attention" in case.row.name else 4  # whose rule reads the rounded result, as PyTorch's does
        allowed = case.gradient_tolerance(i, operands, exact, "f32") + digits * last
        assert np.all(np.abs(got.numpy() - exact) <= allowed), f"{case}: {np.abs(got.numpy() - exact).max()} off"
