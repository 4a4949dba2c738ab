"""Folding of factors: the optimizer's kernel multiplies as it reads, unless somebody else sees a scaled gradient."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.programs import replay
from helpers.programs import values as buffer

import ag
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import copy, exp, scale
from ag.engine.kernels.optimizer import sgd_update
from ag.engine.program import Program
from ag.ops.arithmetic import mul


@pytest.fixture
def backend(device: str) -> Backend:
    return backend_of(device)


def clipped_step(backend: Backend, between: str = "") -> tuple[Program, dict[str, Buffer]]:
    """Two gradients, 2 x and 3 y, scaled in place, gathered, and taken from parameters; `between` may happen, too."""
    kept = {"x": buffer(backend, 1, 2), "y": buffer(backend, 1, 2, 3), "factor": buffer(backend, 0.5),
            "p": buffer(backend, *[0.0] * 16), "flat": buffer(backend, *[0.0] * 16)}
    state, settings = buffer(backend, 0, 0), buffer(backend, 1, 0, 0, 0)
    one, zero = constant(backend, 1.0), constant(backend, 0.0)
    with record(backend) as recording:
        grads = [backend.launch(scale, kept["x"], factor=2.0), backend.launch(scale, kept["y"], factor=3.0)]
        factor = backend.launch(scale, kept["factor"], factor=1.0)
        other = backend.launch(scale, kept["factor"], factor=4.0) if between == "two factors" else factor
        for g, by in zip(grads if between != "half" else grads[:1], (factor, other), strict=False):
            backend.launch(mul, g, by, into=g)
        if between == "read":
            kept["seen"] = backend.launch(exp, grads[0])
        if between == "changed factor":
            backend.launch(scale, factor, factor=10.0, into=factor)
        if between == "view":
            kept["seen"] = grads[1].view((3, 1))
        for g, at in zip(grads, (0, 8), strict=True):
            if between != "gap" or at == 0:
                backend.launch(copy, g, into=kept["flat"].view(g.shape, at))
        if between == "gathered read":
            kept["seen"] = backend.launch(exp, kept["flat"])
        backend.launch(sgd_update, kept["p"], kept["p"], state, settings, kept["flat"], one, zero, kept["p"],
                       last=True)
    return recording.finished(), kept | {"g": grads[0], "h": grads[1]}


def constant(backend: Backend, value: float) -> Buffer:
    return ag.autograd.operands.lift(value, backend, F32, "test").buffer


def test_an_update_multiplies_with_the_factor(backend: Backend) -> None:
    program, kept = clipped_step(backend)
    assert program.launches == 4  # two gradients, the factor, the update
    replay(backend, program, x=(kept["x"], [5, 6]), factor=(kept["factor"], [0.25]), p=(kept["p"], [0.0] * 16))
    assert backend.download(kept["p"]).tolist() == [-2.5, -3, *[0] * 6, -0.75, -1.5, -2.25, *[0] * 5]
    assert backend.download(kept["g"]).tolist() == [2.5, 3]  # who holds a gradient sees the clipped one
    assert backend.download(kept["h"]).tolist() == [0.75, 1.5, 2.25]


@pytest.mark.parametrize(("between", "launches"), [
    ("half", 5), ("read", 7), ("changed factor", 7), ("two factors", 7), ("view", 7), ("gap", 7), ("gathered read", 7)])
def test_factors_that_stay_where_they_are(backend: Backend, between: str, launches: int) -> None:
    program, kept = clipped_step(backend, between)
    eager = {name: backend.download(b) for name, b in kept.items()}
    assert program.launches >= launches
    replay(backend, program, p=(kept["p"], [0.0] * 16), factor=(kept["factor"], [0.5]))
    for name, b in kept.items():
        np.testing.assert_array_equal(backend.download(b), eager[name], name)
