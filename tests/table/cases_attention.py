"""Rows of the case table: attention with terms of its scores, beside attention written out in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from table.oracles import uniform
from table.rows import Array, Row, Shape, case, normal

from ag import ops


def bits(rng: np.random.Generator, shape: Shape, _before: Any) -> Array:
    return np.asarray(rng.integers(0, 3, shape))


def oracle(q: Array, k: Array, v: Array, bias: Array, mask: Array, heads: int = 1, kv_heads: int = 1,
           dropout: float = 0.0, softcap: float = 0.0, window: tuple[int, int] = (99, 99), slope: float = 0.0,
           segments: bool = False, absolute: bool = False) -> Array:
    """One sample, head and query at a time; with `absolute`, the sum of the terms' magnitudes."""
    shape = (heads * len(v) // kv_heads, *q.shape[1:])
    q, k, v = (x.reshape(n, len(x) // n, *x.shape[1:]) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    out = np.zeros((heads, v.shape[1], *q.shape[2:]))
    queries, keys, batch = out.shape[2], k.shape[2], out.shape[3]
    sizes = heads, queries, keys, batch
    bias, mask = np.broadcast_to(bias, sizes), np.broadcast_to(mask, sizes)
    draws = np.reshape(uniform(batch * heads * queries * keys), (batch, heads, queries, keys)) if dropout else None
    j = np.arange(keys)
    for h, i, n in np.ndindex(heads, queries, batch):
        x = k[h * kv_heads // heads, :, :, n].T @ q[h, :, i, n] / np.sqrt(q.shape[1])
        x = softcap * np.tanh(x / softcap) if softcap else x
        x = x + bias[h, i, :, n] - slope * (h + 1) * abs(i - j)
        seen = (mask[h, i, :, n] > 0) & (j >= i - window[0]) & (j <= i + window[1])
        if segments:
            seen &= j // 2 == i // 2
        w = np.where(seen, np.exp(x), 0)
        w /= w.sum() or 1
        if draws is not None:
            w = w * (draws[n, h, i] >= np.float32(dropout)) / (1 - dropout)
        values = v[h * kv_heads // heads, :, :, n]
        out[h, :, i, n] = (abs(values) if absolute else values) @ w
    return out.reshape(shape)


def size(q: Array, k: Array, v: Array, bias: Array, mask: Array, **params: Any) -> Array:
    lengths = [np.linalg.norm(x, axis=0).max(initial=0) for x in (q, k)]
    score = lengths[0] * lengths[1] + abs(bias).max(initial=0)
    return np.asarray((1 + score) * oracle(q, k, v, bias, mask, **params, absolute=True))


def call(q: Any, k: Any, v: Any, bias: Any, mask: Any, slope: float = 0.0, segments: bool = False,
         **params: Any) -> Any:
    heads = params.get("heads", 1)
    terms = {"alibi": [slope * (h + 1) for h in range(heads)]} if slope else {}
    if segments:
        terms["segments"] = tuple([i // 2 for i in range(x.shape[1])] for x in (q, k))
    one = k[:1, :1, :1]
    return ops.attention(q, k, v, attn_bias=bias, attn_mask=ops.ge(mask, ops.eq(one, one)), **params, **terms)


def shared(*terms: Shape, **params: Any) -> Any:
    """Two heads that share keys."""
    return case((8, 5, 2), (4, 7, 2), (6, 7, 2), *terms, heads=2, kv_heads=1, **params)


ROWS = [Row("ag_attention", oracle, [
    case((4, 3, 1), (4, 3, 1), (3, 3, 1), (1, 1, 3, 1), (1, 3, 3, 1)),
    shared((2, 5, 7, 1), (1, 1, 7, 2)),
    shared((1, 1, 7, 2), (2, 5, 1, 1), dropout=0.3),
    shared((1, 5, 7, 1), (1, 1, 1, 1), softcap=1.5, window=(2, 1)),
    shared((2, 1, 7, 1), (2, 5, 7, 2), slope=0.25, segments=True),
    case((10, 70, 1), (10, 68, 1), (6, 68, 1), (1, 70, 68, 1), (1, 70, 68, 1), heads=2, kv_heads=2, window=(20, 9)),
    case((180, 3, 2), (180, 5, 2), (200, 5, 2), (1, 3, 5, 1), (1, 1, 5, 2)),
    case((4, 0, 2), (4, 3, 2), (2, 3, 2), (1, 0, 3, 1), (1, 1, 3, 2))],
    [normal, normal, normal, normal, bits], ulps=32, terms=lambda q, k, *_, **__: len(q) + k.shape[1], size=size,
    call=call, label="(terms)")]
