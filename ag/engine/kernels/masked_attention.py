"""The primitives of attention whose scores have terms: a bias, a mask, a window, segments, slopes, a soft cap.

Operands are those of `attention`, with `heads` of queries and `kv_heads` of keys and values.  `samples` above 1 are the
first axis of [samples * heads * features, time, 1].  Bias and mask are [heads, queries, keys, batch], or 1 along an
axis; segments are [time, batch] or [time, 1], slopes [heads].  An absent term has shape (0,).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from ag.engine.kernels.attention import kept_ones
from ag.engine.kernels.reduce import total
from ag.engine.primitive import Array, primitive
from ag.engine.shape import Layout, Shape

UNLIMITED = 1 << 30  # keys before or after its own that a query sees
_MASKED, _BIASED, _SEGMENTED, _BY_SAMPLE, _SLOPED, _FIRST = (1 << i for i in range(8, 14))
_ROWS, _COLUMNS, _BLOCK, _MOST_BLOCKS = 64, 32, 32, 4  # of a workgroup: queries or keys, and features


def _axes(x: Shape) -> int:
    """Along which axes an operand varies: 8 heads, 4 queries, 2 keys, 1 samples."""
    return sum(bit for bit, n in zip((8, 4, 2, 1), x, strict=False) if n != 1) if len(x) == 4 else 0


def _sizes(*shapes: Shape, first: int, held: int, heads: int, kv_heads: int, samples: int, rate: float,
           **_params: object) -> Layout:
    """`first`: where q is; `held`: of how many operands a workgroup reads the same rows again and again."""
    q, k, v = shapes[first : first + 3]
    bias, mask, q_segments, _, slopes = shapes[-5:]
    d, dv, batch = q[0] // (heads * samples), v[0] // (kv_heads * samples), q[2] * samples
    blocks, owners = max(1, -(-max(d, dv) // _BLOCK)), bias[0] * bias[-1]
    terms = (_axes(mask) | _axes(bias) << 4 | _MASKED * (len(mask) == 4) | _BIASED * (len(bias) == 4)
             | _SEGMENTED * (len(q_segments) == 2) | _BY_SAMPLE * (q_segments[-1] != 1)
             | _SLOPED * (slopes != (0,)) | _FIRST * (samples > 1))
    return {"batch": batch, "queries": q[1], "keys": k[1], "d": d, "dv": dv, "d_values": dv, "terms": terms,
            "group": heads // kv_heads, "dropped": int(rate > 0), "blocks": min(blocks, _MOST_BLOCKS),
            "chunks": -(-blocks // _MOST_BLOCKS), "tiles": -(-q[1] // _ROWS) - -k[1] // _ROWS,
            "squares": -(-q[1] // _ROWS) * -(-k[1] // _COLUMNS), "times": max(q[1], k[1]), "owners": owners,
            "added": heads * batch // max(1, owners), "held": held if blocks <= _MOST_BLOCKS else 0,
            "vector": q[2] == 1 and q[1] % 4 == k[1] % 4 == 0}


class _Scores(NamedTuple):
    """The terms and numbers that make scores of products."""

    bias: Array
    mask: Array
    q_segments: Array
    k_segments: Array
    slopes: Array
    factor: float
    softcap: float
    before: int
    after: int

    def of(self, product: Array, n: int) -> tuple[Array, Array]:
        """Return scores [heads, queries, keys] of sample `n`, and their slopes along the products."""
        x, bend = product * self.factor, np.full_like(product, self.factor)
        if self.softcap:
            t = np.tanh(x / self.softcap)
            x, bend = t * self.softcap, (1 - t * t) * self.factor
        i, j = np.arange(x.shape[1])[:, None], np.arange(x.shape[2])
        seen: Array = (j <= i + self.after) & (i <= j + self.before)
        if self.bias.ndim == 4:
            x += _sample(self.bias, n)
        if self.slopes.size:
            x -= self.slopes[:, None, None] * abs(i - j).astype(x.dtype)
        if self.mask.ndim == 4:
            seen = seen & (_sample(self.mask, n) != 0)
        if self.q_segments.ndim == 2:
            seen = seen & (_sample(self.q_segments, n)[:, None] == _sample(self.k_segments, n))
        return np.where(seen, x, x.dtype.type(-np.inf)), bend

    def slopes_of(self, product: Array, along: Array, lse: Array, delta: Array, kept: Array, n: int) -> list[Array]:
        """Return weights after dropout, the slopes of scores and those of products, [heads, queries, keys] each."""
        x, bend = self.of(product, n)
        w = np.exp(x - lse.swapaxes(1, 2))
        s = w * (along * kept - delta.swapaxes(1, 2))
        return [w * kept, s, s * bend]


def _sample(x: Array, n: int) -> Array:
    """Return a sample of an operand whose last axis are the samples, or 1."""
    part: Array = x[..., n if x.shape[-1] > 1 else 0]
    return part


def _matrices(x: Array, heads: int, samples: int, group: int = 1) -> list[Array]:
    """Per sample [heads, features, time]: a view, which may be written to, or each head `group` times."""
    whole = x.reshape(samples, heads, x.shape[0] // (samples * heads), *x.shape[1:])
    views = [whole[n, ..., 0] for n in range(samples)] if samples > 1 else [whole[0, ..., n] for n in range(x.shape[2])]
    return [np.repeat(view, group, axis=0) for view in views] if group > 1 else views


def _operands(
    of_queries: list[Array], of_keys: list[Array], key: Array, heads: int, kv_heads: int, samples: int, rate: float
) -> Iterator[tuple[int, Array, list[Array]]]:
    """Yield number, factors of dropout and matrices of each sample; the last of the first list is q."""
    q, k = of_queries[-1], of_keys[0]
    batch, group = q.shape[2] * samples, heads // kv_heads
    kept = kept_ones(key, (batch, heads, q.shape[1], k.shape[1]), rate, q.dtype)
    ones = np.ones((1, 1, 1), q.dtype)
    matrices = [_matrices(x, heads, samples) for x in of_queries] + [
        _matrices(x, kv_heads, samples, group) for x in of_keys]
    for n, xs in enumerate(zip(*matrices, strict=True)):
        yield n, ones if kept is None else kept[n].swapaxes(1, 2), [*xs]


@primitive(lambda q, _k, v, *_terms, heads, kv_heads, samples, **_params: (
    (v[0] // kv_heads * heads, *q[1:]), (samples * heads, *q[1:])), outputs=2, layout=partial(_sizes, first=2, held=1))
def masked_attention(
    out: Array, lse: Array, q: Array, k: Array, v: Array, key: Array, bias: Array, mask: Array, q_segments: Array,
    k_segments: Array, slopes: Array, *, heads: int, kv_heads: int, samples: int, factor: float, softcap: float,
    before: int, after: int, rate: float,
) -> None:
    # Per sample and head: out = v softmax(scores), and the logarithms of denominators; both 0 where nothing is seen.
    scores = _Scores(bias, mask, q_segments, k_segments, slopes, factor, softcap, before, after)
    for n, kept, (result, logs, mq, mk, mv) in _operands([out, lse, q], [k, v], key, heads, kv_heads, samples, rate):
        w = scores.of(mq.swapaxes(1, 2) @ mk, n)[0]
        top = np.maximum.reduce(w, 2, keepdims=True)
        top[top == -np.inf] = 0
        np.exp(np.subtract(w, top, out=w), out=w)
        mass = total(w, 2)
        mass[mass == 0] = 1
        np.divide(mv @ (w * kept).swapaxes(1, 2), mass.swapaxes(1, 2), out=result)
        logs[...] = (np.log(mass) + top).swapaxes(1, 2)


@primitive(lambda q, k, v, *_others, **_params: (q, k, v), outputs=3, layout=partial(_sizes, first=3, held=2))
def masked_attention_grad(
    dq: Array, dk: Array, dv: Array, q: Array, k: Array, v: Array, g: Array, lse: Array, delta: Array, key: Array,
    bias: Array, mask: Array, q_segments: Array, k_segments: Array, slopes: Array, *, heads: int, kv_heads: int,
    samples: int, factor: float, softcap: float, before: int, after: int, rate: float,
) -> None:
    # As `attention_grad`; heads that share keys add up what they send back to these.
    scores = _Scores(bias, mask, q_segments, k_segments, slopes, factor, softcap, before, after)
    shared = [*zip(_matrices(dk, kv_heads, samples), _matrices(dv, kv_heads, samples), strict=True)]
    for n, kept, (to_q, logs, deltas, mg, mq, mk, mv) in _operands(
            [dq, lse, delta, g, q], [k, v], key, heads, kv_heads, samples, rate):
        w, _, s = scores.slopes_of(mq.swapaxes(1, 2) @ mk, mg.swapaxes(1, 2) @ mv, logs, deltas, kept, n)
        np.matmul(mk, s.swapaxes(1, 2), out=to_q)
        for to, product in zip(shared[n], (mq @ s, mg @ w), strict=True):
            np.add.reduce(product.reshape(kv_heads, heads // kv_heads, *product.shape[1:]), 1, out=to)


@primitive(lambda _q, k, _v, g, _lse, _delta, _key, bias, *_others, **_params: (bias[0], g[1], k[1], bias[3]),
           layout=partial(_sizes, first=1, held=0))
def attention_bias_grad(
    dbias: Array, q: Array, k: Array, v: Array, g: Array, lse: Array, delta: Array, key: Array, bias: Array,
    mask: Array, q_segments: Array, k_segments: Array, slopes: Array, *, heads: int, kv_heads: int, samples: int,
    factor: float, softcap: float, before: int, after: int, rate: float,
) -> None:
    # The slopes of scores, [heads, queries, keys, batch], added up over heads and samples where the bias has 1.
    scores = _Scores(bias, mask, q_segments, k_segments, slopes, factor, softcap, before, after)
    dbias.fill(0)
    for n, kept, (logs, deltas, mg, mq, mk, mv) in _operands(
            [lse, delta, g, q], [k, v], key, heads, kv_heads, samples, rate):
        s = scores.slopes_of(mq.swapaxes(1, 2) @ mk, mg.swapaxes(1, 2) @ mv, logs, deltas, kept, n)[1]
        target = _sample(dbias, n)
        target += s if len(dbias) == heads else np.add.reduce(s, 0, keepdims=True)
