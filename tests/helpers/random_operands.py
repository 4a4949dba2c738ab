"""Operands of random shapes for products and convolutions, and how exact a product must be."""

from __future__ import annotations

import numpy as np
from helpers.tiled import normal
from table.rows import EPS, Array

from ag.engine.shape import Pair, Window, places
from ag.errors import ShapeError


def random_size(rng: np.random.Generator, largest: int) -> int:
    """Small sizes are as likely as large ones; some are multiples of 4, most are odd."""
    n = int(np.exp(rng.uniform(0, np.log(largest))))
    return n + -n % 4 if rng.random() < 0.4 else n


def random_operands(rng: np.random.Generator, batch: int, depth: int) -> tuple[Array, Array, bool, bool]:
    rows, cols = random_size(rng, 150), random_size(rng, 150)
    inner = rng.choice([0, 1, random_size(rng, 2 * depth + 8)], p=[0.03, 0.07, 0.9])
    ta, tb = bool(rng.integers(2)), bool(rng.integers(2))
    a, b = (inner, rows) if ta else (rows, inner), (cols, inner) if tb else (inner, cols)
    return normal(rng, batch, *a), normal(rng, batch, *b), ta, tb


def assert_product(got: Array, a: Array, b: Array, ta: bool, tb: bool) -> None:
    """Within the bound for sums of `inner` products in any order."""
    a, b = (a.swapaxes(1, 2) if ta else a).astype(float), (b.swapaxes(1, 2) if tb else b).astype(float)
    allowed = (a.shape[2] + 1) * EPS["f32"] * (np.abs(a) @ np.abs(b))
    assert np.all(np.abs(got - a @ b) <= allowed), f"{a.shape} {b.shape} {ta} {tb}"


def windows(rng: np.random.Generator, count: int) -> list[Window]:
    """For `geometry`: a device compiles a kernel for each, so tests of devices have fewer of them than of shapes."""
    return [_window(rng) for _ in range(count)]


def _window(rng: np.random.Generator) -> Window:
    pairs: list[Pair] = [(int(a), int(b)) for a, b in (rng.integers(low, high, 2) for low, high in (
        (1, 5), (1, 4), (0, 3), (1, 3)))]
    return Window(*pairs)


def geometry(
    rng: np.random.Generator, chosen: list[Window] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...], Window, int]:
    """Shapes of images and weights, a window that fits, if given one of the chosen, and groups."""
    while True:
        groups = int(rng.choice([1, 1, 2, 3]))
        channels, features = (int(n) for n in rng.integers(1, 10, 2))
        window = chosen[int(rng.integers(len(chosen)))] if chosen else _window(rng)
        high, wide = (int(n) for n in rng.integers(1, 10, 2))
        image = high, wide
        batch = int(rng.choice([1, 2, 3, 4, 5, 8, 12]))
        if rng.random() < 0.1:  # several tiles of channels or features; of places and samples there often are
            groups, batch, many = 1, min(batch, 4), int(rng.integers(50, 150))
            channels, features = (many, features) if rng.random() < 0.5 else (channels, many)
        try:
            places(image, window)
        except ShapeError:
            continue
        return (channels * groups, *image, batch), (features * groups, channels, *window.kernel), window, groups
