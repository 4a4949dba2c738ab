"""Products of matrices of random shapes and element types against float64, between guard words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.halves import on
from table.rows import Array

from ag.engine.backend import Backend
from ag.engine.dtype import BF16, F16, F32, DType
from ag.engine.kernels.convert import loaded, stored
from ag.engine.kernels.matmul import batched_matmul, matmul, matmul_sums, sample_matmul
from ag.engine.primitive import Primitive

SHAPES, AT_A_TIME = 300, 10
TYPES = F32, BF16, F16
DIGITS = {F32: 2.0**-24, BF16: 2.0**-8, F16: 2.0**-11}
SMALLEST = {F32: 0.0, BF16: 0.0, F16: 2.0**-24}
ODD = 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 200


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Numbers that the type holds, some of them special."""
    x = rng.normal(size=shape).astype(np.float32)
    if rng.random() < 0.2:
        special = np.float32([np.inf, -np.inf, np.nan, 0.0, 1e-30, -0.0])
        x.reshape(-1)[rng.integers(x.size, size=2)] = rng.choice(special, 2)
    return loaded(stored(x, dtype), dtype).astype(np.float32)


def launch_of(rng: np.random.Generator) -> tuple[Primitive, tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """A primitive, the shapes of its factors and its parameters."""
    rows, inner, cols = (int(rng.choice(ODD)) for _ in range(3))
    ta, tb = (bool(x) for x in rng.integers(2, size=2))
    a, b = (inner, rows) if ta else (rows, inner), (cols, inner) if tb else (inner, cols)
    primitive = (matmul, matmul, matmul_sums, batched_matmul, sample_matmul)[rng.integers(5)]
    more: dict[str, Any] = {"ta": ta, "tb": tb}
    if primitive is batched_matmul:
        batch = int(rng.integers(1, 4))
        return primitive, (batch, *a), (batch, *b), {**more, "chunk": int(rng.choice([inner, 16, 64]))}
    if primitive is sample_matmul:
        (rows, inner), cols = (min(n, 33) for n in a), min(b[0] if tb else b[1], 33)
        inner_of_b = inner if not ta else rows
        outer, samples = (int(x) for x in rng.integers(1, 20, 2))
        return primitive, (outer, rows, inner, samples), (
            outer, *((cols, inner_of_b) if tb else (inner_of_b, cols)), samples), more
    return primitive, a, b, more


LATER = [pytest.param(first, marks=pytest.mark.slow) for first in range(AT_A_TIME, SHAPES, AT_A_TIME)]


@pytest.mark.parametrize("first", [0, *LATER])
def test_equals_float64(backend: Backend, first: int) -> None:
    for seed in range(first, first + AT_A_TIME):
        rng = np.random.default_rng(seed)
        primitive, of_a, of_b, params = launch_of(rng)
        takes = backend.halves.get(primitive.name, (False,) * (primitive.outputs + 2))
        result, *types = (TYPES[rng.integers(3)] if half else F32 for half in (takes[0], *takes[primitive.outputs :]))
        a, b = drawn(rng, of_a, types[0]), drawn(rng, of_b, types[1])
        with np.errstate(all="ignore"):
            exact, sizes = (of_numpy(primitive, x, y, params) for x, y in ((a, b), (abs(a), abs(b))))
        out: Any = backend.alloc(exact.shape, result)
        sums = backend.alloc((of_a[1 if params["ta"] else 0],), F32) if primitive is matmul_sums else None
        operands = [on(backend, stored(x, kind), kind) for x, kind in zip((a, b), types, strict=True)]
        backend.launch(primitive, *operands, into=out if sums is None else (out, sums), **params)
        backend.check_guards()
        found = loaded(stored(backend.download(out), result), result).astype(np.float64)
        inner = of_a[-3 if params["ta"] else -2] if primitive is sample_matmul else of_a[-2 if params["ta"] else -1]
        allowed = sizes * inner * DIGITS[F32] + abs(exact) * DIGITS[result] + SMALLEST[result]
        name = f"{seed}: {primitive.name} {of_a} {of_b} {params} {types} -> {result}"
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(exact), name)
        np.testing.assert_array_equal(found[~finite & ~np.isnan(exact)], exact[~finite & ~np.isnan(exact)], name)
        assert (abs(found[finite] - exact[finite]) <= 1.01 * allowed[finite]).all(), name
        if sums is not None:
            with np.errstate(all="ignore"):
                want = a.astype(np.float64).sum(0 if params["ta"] else 1)
                np.testing.assert_allclose(backend.download(sums), want, 1e-5, 1e-4 + 1e-6 * inner, err_msg=name)


def of_numpy(primitive: Primitive, a: Array, b: Array, params: dict[str, Any]) -> Array:
    """The product in float64."""
    rule = matmul if primitive is matmul_sums else primitive
    out = np.zeros(rule.shape(a.shape, b.shape, **params))
    rule.reference(out, a.astype(np.float64), b.astype(np.float64), **params)
    return out
