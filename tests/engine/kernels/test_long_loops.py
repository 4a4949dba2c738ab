"""Kernels whose loops grow with the operands, on a driver that ends loops: right up to its limit, refused beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.guarded import Launch, guarded, reference, run
from table.rows import Array

from ag import KernelError
from ag.engine.backends.shader.manifest import Needs, lacking
from ag.engine.primitive import PRIMITIVES

pytestmark = pytest.mark.vulkan
TURNS = 65_000


def normal(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def row(n: int) -> Array:
    return np.full((1, n), 1 / n, np.float32)


Operands = Callable[[int], list[Array]]

# Kernel, how many elements an invocation gets per turn of all its loops, the operands of so many elements, parameters.
LONG: list[tuple[str, float, Operands, dict[str, Any]]] = [
    ("softmax", 128 / 2, lambda n: [normal(n)], {"axis": 0}),
    ("softmax_grad", 128 / 2, lambda n: [row(n)[0], normal(n)], {"axis": 0}),
    ("log_softmax", 128 / 2, lambda n: [normal(n)], {"axis": 0}),
    ("log_softmax_grad", 128 / 2, lambda n: [np.log(row(n)[0]), normal(n)], {"axis": 0}),
    ("softmax_cross_entropy", 128 / 2, lambda n: [normal(n, 1), row(n).T.copy()], {"factor": 1.0}),
    ("softmax_cross_entropy_ids", 128 / 2, lambda n: [normal(n, 1), np.array([n - 1], np.int32)], {"factor": 1.0}),
    ("layer_norm", 128 / 2, lambda n: [normal(n, 1), normal(n, 1), normal(n, 1)], {"eps": 1e-5}),
    ("layer_norm_grad", 128 / 2, lambda n: [normal(n, 1), normal(n, 1), normal(n, 1), np.zeros((1, 1), np.float32),
                                           np.ones((1, 1), np.float32)], {"eps": 1e-5}),
    ("rms_norm", 128 / 2, lambda n: [normal(n, 1), normal(n, 1)], {"eps": 1e-6}),
    ("rms_norm_grad", 128 / 2, lambda n: [normal(n, 1), normal(n, 1), normal(n, 1), np.ones((1, 1), np.float32)],
     {"eps": 1e-6}),
    ("attention_weights", 16 / 3, lambda n: [normal(1, 1, n)], {"factor": 1.0, "causal": False}),
]


QUICK = {"softmax", "layer_norm", "rms_norm", "attention_weights"}  # one of each kind of loop


@pytest.mark.parametrize(("name", "rate", "operands", "params"), [
    pytest.param(*row, id=row[0], marks=() if row[0] in QUICK else pytest.mark.slow) for row in LONG])
def test_right_up_to_the_limit_and_refused_beyond(lavapipe: str, name: str, rate: float, operands: Operands,
                                                  params: dict[str, Any]) -> None:
    backend = guarded(lavapipe)
    longest = int(TURNS * rate)
    launch = Launch(PRIMITIVES[name], operands(longest), params)
    for got, want in zip(run(backend, launch), reference(launch), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * np.abs(want).max())
    with pytest.raises(KernelError, match=rf"{name} .*650\d\d turns of .* where the device has 65000"):
        run(backend, Launch(PRIMITIVES[name], operands(longest + 130), params))


def test_only_drivers_that_end_loops_have_the_limit() -> None:
    limits: Any = {"max_work_group_invocations": 256, "max_work_group_size": (256, 1, 1), "max_storage_buffers": 8,
                   "max_shared_memory": 16384, "driver_id": 4, "required_subgroup_sizes": (0, 0)}
    needs = Needs(128, 0, 2, TURNS + 1)
    assert lacking(needs, limits) == ""
    assert "65001 turns" in lacking(needs, {**limits, "driver_id": 13})
