"""Programs of a few launches: which kernels they have, and that they compute what the launches do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from helpers.programs import buffer, kernels

from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record

Compute = Callable[..., list[Buffer]]  # of a backend's `launch` and the operands: the results that are held


def check(backend: Backend, compute: Compute, shapes: Sequence[tuple[int, ...]], *expected: str) -> None:
    """Record launches on operands of these shapes; on other numbers, too, the program gives what the launches do.

    Its kernels are the `expected` ones, if any are given.
    """
    rng = np.random.default_rng(len(shapes))
    first, second = ([rng.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(2))
    operands = [buffer(backend, x) for x in first]
    with record(backend) as recording:
        held = compute(backend.launch, *operands)
    program = recording.finished()
    assert not expected or kernels(program) == [*expected]
    for values in (first, second):
        others = [buffer(backend, x) for x in values]
        want = [*compute(backend.launch, *others), *others]
        if values is second:
            for x, b in zip(second, operands, strict=True):
                backend.upload(x, b)
            program.run()
        for i, (got, exact) in enumerate(zip([*held, *operands], want, strict=True)):
            assert backend.download(got).tobytes() == backend.download(exact).tobytes(), (i, values is second)


def random_plan(rng: np.random.Generator, names: Sequence[str], inputs: int, steps: int) -> list[tuple[str, Any, Any]]:
    """Names of launches, and the numbers of two operands of each."""
    return [(str(rng.choice(names)), *rng.integers(0, inputs + i, 2)) for i in range(steps)]
