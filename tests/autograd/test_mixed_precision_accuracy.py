"""16-bit training ends where float32 training does: within 0.5 points of accuracy."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

import ag

DIGITS: Any = run_path(str(Path(__file__).parents[2] / "examples" / "digits_cnn.py"))["load_digits"]()


@lru_cache
def accuracy(dtype: str) -> float:
    """Percent of all digits that are told right, after training on most of them in elements of this type."""
    images, digits = DIGITS[0].reshape(64, -1).astype(np.float32), DIGITS[1]
    picked = np.random.default_rng(3)
    previous = ag.ag_dtype(dtype)
    try:
        ag.ag_seed(1)
        model = ag.ag_sequential(ag.ag_linear(64, 64, activation="relu"), ag.ag_linear(64, 10))
        optimizer = ag.optimizer_adam(model, lr=0.01)
        for _ in range(100):
            chosen = picked.integers(0, 1438, 64)
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(images[:, chosen])), digits[chosen])
            optimizer.step(ag.backward(loss))
        told = model(ag.ag_tensor(images)).numpy().argmax(0)
    finally:
        ag.ag_dtype(previous)
    return 100 * float((told == digits).mean())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_within_half_a_point_of_float32(dtype: str) -> None:
    found, wanted = accuracy(dtype), accuracy("f32")
    assert wanted > 95
    assert abs(found - wanted) <= 0.5, (found, wanted)
