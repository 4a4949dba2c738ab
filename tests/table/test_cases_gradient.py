"""Gradients: once in float64 against five-point difference quotients of the oracle, then in float32 on every device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np
import pytest
from table.cases import CASES
from table.cases_images import another_window
from table.rows import EPS, LARGE, Array, Case, loss_of, representatives, restart_generator, tensor, weights_like

import ag
from ag.engine.device import backend_of

STEP = 1e-4
STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
DIFFERENTIABLE = [case for case in CASES if case.want(*case.operands()).size]
FEW = representatives(DIFFERENTIABLE)
NAMES = [str(case) for case in DIFFERENTIABLE]


def gradients(case: Case, operands: Sequence[Array], device: str, dtype: str) -> list[Array | None]:
    """Return what `backward` gives for each operand; None for integer operands."""
    restart_generator(backend_of(device))
    given = case.on(backend_of(device), operands, dtype, params=True)
    with ag.with_grad_tape():
        out = case.call(*given)
        loss = loss_of(out, tensor(weights_like(out), out.buffer.backend, dtype))
    grads = ag.backward(loss)
    return [grads[x].numpy() if ag.is_ag_tensor(x) else None for x in given]


@cache
def exact_gradients(number: int) -> list[Array | None]:
    """In float64, by number of the case: the same for every device."""
    case = DIFFERENTIABLE[number]
    return gradients(case, case.operands(), "cpu", "f64")


def slope(case: Case, operands: Sequence[Array], i: int, direction: Array) -> tuple[float, float]:
    """Derivative of the oracle's loss along a direction of operand i, and how far rounding may put it off."""
    out = case.want(*operands)
    weights = weights_like(out)

    def loss(distance: float) -> float:
        moved = [x + distance * direction if k == i else x for k, x in enumerate(operands)]
        return float(np.sum(case.want(*moved) * weights))

    resolution = EPS["f64"] * float(np.sum(case.size(operands) * np.abs(weights))) / STEP
    return sum(factor * loss(k * STEP) for k, factor in STENCIL) / STEP, resolution


@pytest.mark.parametrize(("number", "case"), list(enumerate(DIFFERENTIABLE)), ids=NAMES)
def test_gradient_in_a_random_direction(number: int, case: Case) -> None:
    operands = case.operands()
    rng = np.random.default_rng(1)
    for i, g in enumerate(exact_gradients(number)):
        if g is None:
            continue
        assert g.shape == operands[i].shape
        typical = np.linalg.norm(g)  # of the slope along a direction of normal numbers
        direction = rng.standard_normal(g.shape)
        got = float(np.sum(g * direction))
        want, resolution = slope(case, operands, i, direction)
        allowed = 1e-6 * max(abs(want), typical) + resolution
        assert abs(got - want) <= allowed, f"{case}: operand {i}: {got}, not {want}"


@pytest.mark.parametrize(("number", "case"), [
    pytest.param(i, case, marks=[pytest.mark.slow_on("lavapipe")] * another_window(case)
                 + [pytest.mark.slow_on("lavapipe")] * (sum(map(prod, case.shapes)) > LARGE)
                 + [pytest.mark.slow_on("swiftshader")] * (case not in FEW or "multihead" in case.row.name))
    for i, case in enumerate(DIFFERENTIABLE)
], ids=NAMES)
def test_gradient_in_float32(device: str, number: int, case: Case) -> None:
    operands = case.operands()
    pairs = zip(gradients(case, operands, device, "f32"), exact_gradients(number), strict=True)
    for i, (got, exact) in enumerate(pairs):
        if got is not None and exact is not None:
            allowed = case.gradient_tolerance(i, operands, exact, "f32")
            assert np.all(np.abs(got - exact) <= allowed), (
                f"{case}: operand {i}: {np.abs(got - exact).max()} off, {allowed.min()} allowed")
