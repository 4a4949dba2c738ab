"""Oracles of normalisation, embedding and attention, one sample at a time, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from table.oracles import uniform

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


def rms_norm(x: Array, gamma: Array, eps: float = 1e-6) -> Array:
    out = np.empty(x.shape)
    for sample in np.ndindex(x.shape[1:]):
        column = (slice(None), *sample)
        square = sum(v * v for v in x[column]) / len(x)
        out[column] = [g * v / math.sqrt(square + eps) for g, v in zip(gamma.ravel(), x[column], strict=True)]
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


def attention(q: Array, k: Array, v: Array, causal: bool = False, dropout: float = 0.0, heads: int = 1) -> Array:
    """One sample, head, query and key at a time; uniform numbers are used up in that order."""
    shape = (len(v), *q.shape[1:])
    batch = q.shape[2] if q.ndim == 3 else 1
    q, k, v = (x.reshape(heads, len(x) // heads, x.shape[1], batch) for x in (q, k, v))
    out = np.zeros((*v.shape[:2], *q.shape[2:]))
    draws = uniform(out.shape[3] * heads * out.shape[2] * k.shape[2]) if dropout else None
    for i, (n, h, t) in enumerate(np.ndindex(out.shape[3], heads, out.shape[2])):
        keys = range(min(t + 1, k.shape[2]) if causal else k.shape[2])
        e = [math.exp(sum(q[h, :, t, n] * k[h, :, s, n]) / math.sqrt(q.shape[1])) for s in keys]
        for s in keys:
            kept = 1.0
            if draws is not None:
                kept = (draws[i * k.shape[2] + s] >= np.float32(dropout)) / (1 - dropout)
            out[h, :, t, n] += kept * e[s] / sum(e) * v[h, :, s, n]
    return out.reshape(shape)


def multihead(q: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array, b_o: Array, kv: Array | None = None,
              heads: int = 2, causal: bool = False, dropout: float = 0.0) -> Array:
    k = q if kv is None else kv
    q, k, v = (np.einsum("oi,i...->o...", W, x) for W, x in ((W_q, q), (W_k, k), (W_v, k)))
    y = np.einsum("oi,i...->o...", W_o, attention(q, k, v, causal, dropout, heads))
    return y + b_o.reshape(-1, *[1] * (y.ndim - 1))
