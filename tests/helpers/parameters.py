"""Parameters of several shapes, and sixty gradients for them: for tests of optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np

import ag

RNG = np.random.default_rng(11)
SHAPES = {"W": (5, 3), "b": (5, 1), "one": (1, 1), "long": (1, 301)}
START = {name: RNG.standard_normal(shape) for name, shape in SHAPES.items()}
GRADS = [{name: RNG.standard_normal(shape) for name, shape in SHAPES.items()} for _ in range(60)]


def parameters(dtype: str = "f32", **values: Any) -> dict[str, ag.Tensor]:
    return {name: ag.ag_param(value, dtype=dtype) for name, value in (values or START).items()}


def gradients(k: int, params: dict[str, ag.Tensor]) -> dict[str, ag.Tensor]:
    return {name: ag.ag_tensor(GRADS[k][name], dtype=p.dtype) for name, p in params.items()}
