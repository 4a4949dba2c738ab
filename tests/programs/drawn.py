"""Numbers that a program begins with, the same here and in PyTorch: weights and data, in the order of the calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Batches = Sequence[tuple[Array, ...]]
Program = Callable[["Draw"], tuple[Callable[..., Any], Batches]]  # a step that returns a loss, and its arguments


class Draw:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, *shape: int, scale: float = 0.2) -> Array:
        """Normal numbers."""
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def uniform(self, *shape: int) -> Array:
        """Numbers from 0 to 1."""
        return self.rng.random(shape, np.float32)

    def ids(self, count: int, *shape: int) -> Array:
        """Whole numbers from 0 to ``count - 1``."""
        return np.asarray(self.rng.integers(0, count, shape))
