"""Oracles of normalisation, embedding and attention, one sample at a time, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def standardized(values: Array, eps: float) -> Array:
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    return np.array([(v - mean) / math.sqrt(variance + eps) for v in values])


def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    out = np.empty(x.shape)
    for sample in np.ndindex(x.shape[1:]):
        column = (slice(None), *sample)
        out[column] = gamma.ravel() * standardized(x[column], eps) + beta.ravel()
    return out


def batch_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Array:
    return np.array([g * standardized(row.ravel(), eps).reshape(row.shape) + b
                     for row, g, b in zip(x, gamma.ravel(), beta.ravel(), strict=True)])


def batch_norm_given(x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, eps: float = 1e-5) -> Array:
    rows = zip(x, gamma.ravel(), beta.ravel(), mean.ravel(), variance.ravel(), strict=True)
    return np.array([g * (row - m) / math.sqrt(v + eps) + b for row, g, b, m, v in rows])


def embedding(weight: Array, ids: Array) -> Array:
    out = np.empty((len(weight), *ids.shape))
    for place in np.ndindex(ids.shape):
        out[(slice(None), *place)] = weight[:, ids[place]]
    return out
