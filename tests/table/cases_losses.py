"""Rows of the case table: losses of `ag.ops` that have kernels, or branches, of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from table.rows import Array, Row, Shape, away_from, case, class_ids, distribution, normal

from ag import ops


def some_ignored(rng: np.random.Generator, shape: Shape, before: Sequence[Array]) -> Array:
    """Class ids, and among them -100."""
    ids = class_ids(rng, shape, before)
    ids.flat[::3] = -100
    return ids


def cross_entropy(x: Array, ids: Array, reduction: str = "mean", smoothing: float = 0.0, weight: Any = 1.0) -> Array:
    """Every column by itself."""
    n, w = len(x), np.ones(len(x)) * weight
    logs = x - np.log(np.exp(x).sum(0))
    total, counted = np.zeros(ids.shape), np.zeros(ids.shape)
    for place in zip(*np.nonzero(ids != -100), strict=True):
        column, wanted = logs[(slice(None), *place)], ids[place]
        counted[place] = w[wanted]
        total[place] = -(1 - smoothing) * w[wanted] * column[wanted] - smoothing / n * (w * column).sum()
    return total if reduction == "none" else total.sum() / (counted.sum() if reduction == "mean" else 1)


def called(x: Any, ids: Any, smoothing: float = 0.0, **options: Any) -> Any:
    return ops.cross_entropy(x, ids, label_smoothing=smoothing, **options)


def of_all(x: Array, *_others: Array, **_params: Any) -> Array:
    return np.asarray(1 + abs(x).max()) * 4 * max(1, x.size)


def terms(x: Array, *_others: Array, **_params: Any) -> int:
    return x.size


def focal(x: Array, t: Array) -> Array:
    p = 1 / (1 + np.exp(-x))
    missed, losses = t * (1 - p) + (1 - t) * p, -t * np.log(p) - (1 - t) * np.log(1 - p)
    return np.asarray((0.25 * t + 0.75 * (1 - t)) * losses * missed**2)


OPTIONS: dict[str, Any] = {"smoothing": 0.2, "weight": [0.5, 2.0, 1.0]}
ROWS = [
    Row("cross_entropy", cross_entropy, [
        case((3, 1), (1,), reduction="sum"), case((3, 5), (5,), **OPTIONS), case((7, 300), (300,), reduction="none"),
        case((3, 4, 5), (4, 5), reduction="sum", **OPTIONS)], [normal, some_ignored], 32, terms, of_all, called),
    Row("nll_loss", lambda x, ids, reduction: np.where(ids == -100, 0, -np.take_along_axis(
        x, np.maximum(ids, 0)[None], 0)[0]), [case((4, 7), (7,), reduction="none")], [normal, some_ignored],
        call=ops.nll_loss),
    Row("sigmoid_focal_loss", focal, [case((3, 5), (3, 5))], [normal, distribution], 64,
        size=lambda x, t: 1 + abs(x), call=ops.sigmoid_focal_loss),
    Row("huber_loss", lambda x, t, reduction: np.where(abs(x - t) < 1, (x - t) ** 2 / 2, abs(x - t) - 0.5),
        [case((3, 5), (3, 5), reduction="none")], [away_from(-1, 0, 1), lambda _rng, shape, _: np.zeros(shape)], 8,
        call=ops.huber_loss),
]
