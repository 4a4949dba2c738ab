"""The primitives of attention, over [features, time, batch] with the features of heads side by side.

The numpy functions work on one matrix per sample and head, in all threads; rotary positions and caches follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ag.engine.cpu_threads import WIDE, scratch, shares, together
from ag.engine.kernels.random import drawn
from ag.engine.kernels.reduce import total
from ag.engine.primitive import Array, primitive
from ag.engine.shape import Layout, Shape

_TILE, _BLOCK = 64, 32  # times of which one workgroup has the results, and features that it does together
# What a workgroup does in a dispatch: about half a second's multiply-adds, where one unit of a slow card makes 4e9 per
# second.  Longer contexts are cut into pieces of keys, or of queries in the gradient of keys, whatever the device.
MOST_SECONDS, _MOST_WORK = 0.5, 2_000_000_000
_FORWARD, _BACKWARD = 4, 20  # multiply-adds per feature of a pair, as in the kernels' comments on work
_MOST_BLOCKS = 4  # of `_BLOCK` features, in a workgroup
_LINE = 16  # samples that share a line of the cache, which two threads must not write to


def _sizes(q: Shape, k: Shape, v: Shape, heads: int, rate: float, held: int, kv_heads: int = 0, samples: int = 1
           ) -> dict[str, Any]:
    """`held`: of how many operands a workgroup reads the same rows again and again."""
    d, dv = q[0] // (heads * samples), v[0] // ((kv_heads or heads) * samples)
    work, times = _TILE * max(d, dv) * _FORWARD, k[1]  # multiply-adds of a workgroup, for each of so many
    if held > 1:
        work, times = _TILE * max(d, dv) * _BACKWARD * (heads // (kv_heads or heads)), max(k[1], q[1])
    pieces = max(1, -(-times * work // _MOST_WORK)) if max(d, dv) <= _BLOCK * _MOST_BLOCKS else 1
    span = max(1, -(-times // (pieces * _BLOCK))) * _BLOCK
    return {"batch": q[2] * samples, "queries": q[1], "keys": k[1], "d": d, "dv": dv, "d_values": dv,
            "piece": 0, "pieces": max(1, -(-times // span)), "span": span, "dropped": int(rate > 0),
            "blocks": max(1, -(-max(d, dv) // _BLOCK)), "tiles": -(-q[1] // _TILE) - -k[1] // _TILE,
            "held": held, "vector": q[2] == 1 and q[1] % 4 == k[1] % 4 == 0}


@primitive(lambda q, _k, v, _key, *, heads, **_params: ((v[0], *q[1:]), (heads, *q[1:])), outputs=2,
           layout=lambda _out, _lse, q, k, v, _key, *, heads, rate, **_params: _sizes(q, k, v, heads, rate, 1))
def attention(
    out: Array, lse: Array, q: Array, k: Array, v: Array, key: Array, *,
    heads: int, factor: float, causal: bool, rate: float,
) -> None:
    # Per sample and head: out = v softmax(factor k^T q), and the logarithms of the softmax' denominators.
    kept = kept_ones(key, (q.shape[2], heads, q.shape[1], k.shape[1]), rate, q.dtype)
    together([partial(_attend, *part, factor, causal) for part in _parts((out, lse, q, k, v), kept, heads)])


def _attend(arrays: list[Array], kept: Array | None, heads: int, factor: float, causal: bool) -> None:
    """`attention` in one thread; what dropout keeps comes as a mask."""
    out, lse, q, k, v = arrays
    mq, mk, mv, result, logs = scratch(q.dtype, [_shape(x, heads) for x in (q, k, v, out, lse)])
    for matrices, x, scale in ((mq, q, factor), (mk, k, 1.0), (mv, v, 1.0)):
        _take(matrices, x, heads, scale)
    for m, i, j, hidden in _blocks(len(mq), q.shape[1], k.shape[1], causal, q.dtype):
        w = _scores(mk[m, :, j], mq[m, :, i], hidden)
        top = np.maximum.reduce(w, 1, keepdims=True)
        w -= top
        np.exp(w, out=w)
        mass = total(w, 1)
        if kept is not None:
            w *= kept[m, j, i]
        np.divide(mv[m, :, j] @ w, mass, out=result[m, :, i])
        np.add(np.log(mass), top, out=logs[m, :, i])
    _put(out, result, heads)
    _put(lse, logs, heads)


@primitive(lambda y, _g, *, heads: (heads, *y[1:]), layout=lambda _delta, y, _g, *, heads: {
    "features": y[0] // heads, "rest": y[1] * y[2]})
def attention_delta(delta: Array, y: Array, g: Array, *, heads: int) -> None:
    np.add.reduce((y * g).reshape(heads, y.shape[0] // heads, *y.shape[1:]), 1, out=delta)


@primitive(lambda q, k, v, *_others, **_params: (q, k, v), outputs=3,
           layout=lambda dq, dk, dv, *_others, heads, rate, **_params: _sizes(dq, dk, dv, heads, rate, 2))
def attention_grad(
    dq: Array, dk: Array, dv: Array, q: Array, k: Array, v: Array, g: Array, lse: Array, delta: Array, key: Array, *,
    heads: int, factor: float, causal: bool, rate: float,
) -> None:
    # The weights w are made again.  dv = g w^T; with the slopes s = w (v^T g - delta) of the scores, dq = k s factor
    # and dk = q s^T factor; delta is what the softmax' denominator sends back.
    kept = kept_ones(key, (q.shape[2], heads, q.shape[1], k.shape[1]), rate, q.dtype)
    arrays = (dq, dk, dv, q, k, v, g, lse, delta)
    together([partial(_send_back, *part, factor, causal) for part in _parts(arrays, kept, heads)])


def _send_back(arrays: list[Array], kept: Array | None, heads: int, factor: float, causal: bool) -> None:
    """`attention_grad` in one thread; what dropout keeps comes as a mask."""
    results, given = arrays[:3], arrays[3:]
    q, k = given[:2]
    matrices = scratch(q.dtype, [_shape(x, heads) for x in (*given, *results)])
    (mq, mk, mv, mg, logs, deltas), found = matrices[:6], matrices[6:]
    for matrix, x, scale in zip(matrices[:6], given, (factor, *[1.0] * 5), strict=True):
        _take(matrix, x, heads, scale)
    if not q.shape[1]:  # nothing would be added
        found[1].fill(0)
        found[2].fill(0)
    for m, i, j, hidden in _blocks(len(mq), q.shape[1], k.shape[1], causal, q.dtype):
        w = _scores(mk[m, :, j], mq[m, :, i], hidden)
        w -= logs[m, :, i]
        np.exp(w, out=w)
        s = mv[m, :, j].swapaxes(1, 2) @ mg[m, :, i]
        if kept is not None:
            s *= kept[m, j, i]
        s -= deltas[m, :, i]
        s *= w
        if kept is not None:
            w *= kept[m, j, i]
        np.matmul(mk[m, :, j], s, out=found[0][m, :, i])
        _add_product(found[1][m], j, mq[m, :, i], s, first=i.stop == q.shape[1])
        _add_product(found[2][m], j, mg[m, :, i], w, first=i.stop == q.shape[1])
    for out, result, scale in zip(results, found, (factor, 1.0, 1.0), strict=True):
        _put(out, result, heads, scale)


def _add_product(whole: Array, keys: slice, x: Array, y: Array, first: bool) -> None:
    """Add x y^T to what is there of some keys; the `first` product, of all keys that are seen, takes the place."""
    if first:
        np.matmul(x, y.swapaxes(1, 2), out=whole[:, :, keys])
        whole[:, :, keys.stop :] = 0
    else:
        whole[:, :, keys] += x @ y.swapaxes(1, 2)


def _parts(
    arrays: tuple[Array, ...], kept: Array | None, heads: int
) -> Iterator[tuple[list[Array], Array | None, int]]:
    """The heads and samples that each thread does: arrays, mask and number of heads."""
    batch = arrays[0].shape[2]
    large = sum(x.size for x in arrays) >= WIDE
    groups = shares(range(heads)) if large else [range(heads)]
    samples = shares(range(0, batch, _LINE)) if large and len(groups) == 1 else [range(0, batch, _LINE)]
    for of in groups:
        for first in samples:
            some = slice(first[0], min(batch, first[-1] + _LINE)) if first else slice(0)
            yield ([x[of[0] * (x.shape[0] // heads) : (of[-1] + 1) * (x.shape[0] // heads), :, some] for x in arrays],
                   None if kept is None else _joined(kept[some, of[0] : of[-1] + 1]), len(of))


def _joined(x: Array) -> Array:
    """With its first two axes as one, which may be empty, as -1 may not."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def _shape(x: Array, heads: int) -> Shape:
    """Of [heads * d, time, batch] as one matrix [d, time] per sample and head."""
    return x.shape[2] * heads, x.shape[0] // heads, x.shape[1]


def _by_head(x: Array, heads: int) -> Array:
    """`x` as [batch, heads, d, time], without a copy."""
    return x.reshape(heads, x.shape[0] // heads, *x.shape[1:]).transpose(3, 0, 1, 2)


def _take(matrices: Array, x: Array, heads: int, factor: float) -> None:
    """`factor` times `x`, as matrices."""
    given = _by_head(x, heads)
    np.multiply(given, factor, out=matrices.reshape(given.shape))


def _put(out: Array, matrices: Array, heads: int, factor: float = 1.0) -> None:
    """The reverse, into `out`."""
    wanted = _by_head(out, heads)
    np.multiply(matrices.reshape(wanted.shape), factor, out=wanted)


def _blocks(
    matrices: int, queries: int, keys: int, causal: bool, dtype: object
) -> Iterator[tuple[slice, slice, slice, Array | None]]:
    """Choose matrices, queries, the last first, and keys done together, and what hides the future from scores."""
    tall = max(1, min(queries, max(_TILE, WIDE // keys)))
    count = max(1, WIDE // (keys * tall))
    for first in reversed(range(0, queries, tall)):
        part = slice(first, min(first + tall, queries))
        seen = min(keys, part.stop) if causal else keys
        hidden = _hidden(seen, part.stop - first, first, dtype) if causal else None
        for m in range(0, matrices, count):
            yield slice(m, m + count), part, slice(seen), hidden


@lru_cache(maxsize=64)
def _hidden(keys: int, queries: int, first: int, dtype: np.dtype[Any]) -> Array:
    """Make the term that, added to scores, hides later keys from queries beginning with number `first`."""
    found: Array = np.where(np.tri(keys, queries, -first - 1), -np.inf, 0).astype(dtype)
    return found


def _scores(k: Array, q: Array, hidden: Array | None) -> Array:
    """Products of keys and queries, [matrices, keys, queries]."""
    w: Array = k.swapaxes(1, 2) @ q
    return w if hidden is None else np.add(w, hidden, out=w)


def kept_ones(key: Array, shape: Shape, rate: float, dtype: np.dtype[Any]) -> Array | None:
    """Draw dropout of ones [batch, heads, queries, keys], as [batch, heads, keys, queries]; None without it."""
    if not rate:
        return None
    kept = drawn(key, shape).swapaxes(2, 3) >= np.float32(rate)
    mask: Array = np.multiply(kept, dtype.type(1.0 / (1.0 - rate)), order="C")
    return mask


@primitive(layout=lambda out, _x, **_params: {"batch": out[0], "queries": out[1], "keys": out[2]})
def attention_weights(out: Array, x: Array, *, factor: float, causal: bool) -> None:
    np.multiply(x, factor, out=out)
    if causal:
        out[:, np.tri(x.shape[1], x.shape[2]) == 0] = -np.inf
    out -= np.maximum.reduce(out, 2, keepdims=True)
    np.exp(out, out=out)
    out /= np.add.reduce(out, 2, keepdims=True)


# ---------------------------------------------------------------------------------------------- terms of scores

# A bias, a mask, a window, segments, slopes, a soft cap.  Operands are those of `attention`, with `heads` of queries
# and `kv_heads` of keys and values.  `samples` above 1 are the first axis of [samples * heads * features, time, 1].
# Bias and mask are [heads, queries, keys, batch], or 1 along an axis; segments are [time, batch] or [time, 1], slopes
# [heads].  An absent term has shape (0,).

UNLIMITED = 1 << 30  # keys before or after its own that a query sees
_MASKED, _BIASED, _SEGMENTED, _BY_SAMPLE, _SLOPED, _FIRST = (1 << i for i in range(8, 14))
_COLUMNS = 32  # of a workgroup: keys beside `_TILE` queries


def _axes(x: Shape) -> int:
    """Along which axes an operand varies: 8 heads, 4 queries, 2 keys, 1 samples."""
    return sum(bit for bit, n in zip((8, 4, 2, 1), x, strict=False) if n != 1) if len(x) == 4 else 0


def _term_sizes(*shapes: Shape, first: int, held: int, heads: int, kv_heads: int, samples: int, rate: float,
           **_params: object) -> Layout:
    """`first`: where q is."""
    q, k, v = shapes[first : first + 3]
    bias, mask, q_segments, _, slopes = shapes[-5:]
    sizes, owners = _sizes(q, k, v, heads, rate, held, kv_heads, samples), bias[0] * bias[-1]
    blocks = sizes["blocks"]
    terms = (_axes(mask) | _axes(bias) << 4 | _MASKED * (len(mask) == 4) | _BIASED * (len(bias) == 4)
             | _SEGMENTED * (len(q_segments) == 2) | _BY_SAMPLE * (q_segments[-1] != 1)
             | _SLOPED * (slopes != (0,)) | _FIRST * (samples > 1))
    return {**sizes, "terms": terms, "group": heads // kv_heads, "blocks": min(blocks, _MOST_BLOCKS),
            "chunks": -(-blocks // _MOST_BLOCKS), "squares": -(-q[1] // _TILE) * -(-k[1] // _COLUMNS),
            "times": max(q[1], k[1]), "owners": owners, "added": heads * sizes["batch"] // max(1, owners),
            "held": held if blocks <= _MOST_BLOCKS else 0}


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
    (v[0] // kv_heads * heads, *q[1:]), (samples * heads, *q[1:])), outputs=2,
           layout=partial(_term_sizes, first=2, held=1))
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


@primitive(lambda q, k, v, *_others, **_params: (q, k, v), outputs=3, layout=partial(_term_sizes, first=3, held=2))
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
           layout=partial(_term_sizes, first=1, held=0))
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


# ---------------------------------------------------------------------------------------------- rotary positions

# Pairs of a head's features turn by an angle that grows with their position.  Frequencies are turns per position, in 64
# bits behind the point.  A product with a position drops the whole turns, so the angle of a large position is as exact
# as that of a small one.


def _layout(heads: int, x: Shape, positions: Shape, *, dim: int, rotary: int, more: int = 0) -> Layout:
    """Without `positions` of their own, times count; else these have an axis of times, and perhaps one of samples."""
    times, batch = x[1:]
    rows, columns = positions or (1, 1)
    return {"n": (heads + more) * (dim - rotary // 2) * times * batch, "heads": heads, "more": more, "times": times,
            "batch": batch, "counted": int(not positions), "time_step": columns if rows > 1 else 0,
            "batch_step": int(columns > 1)}


def _turned(out: Array, x: Array, cosine: Array, sine: Array, dim: int, rotary: int, interleaved: bool) -> None:
    shape = (x.shape[0] // dim, dim, *x.shape[1:])
    x, out = x.reshape(shape), out.reshape(shape)
    first, second = (slice(0, rotary, 2), slice(1, rotary, 2)) if interleaved else (
        slice(rotary // 2), slice(rotary // 2, rotary))
    a, b = x[:, first], x[:, second]
    out[:, rotary:] = x[:, rotary:]
    np.subtract(a * cosine, b * sine, out=out[:, first])
    np.add(a * sine, b * cosine, out=out[:, second])


def _cosine_sine(x: Array, positions: Array, frequencies: Array, offset: int, factor: float, way: float
                 ) -> tuple[Array, Array]:
    """Cosine and sine, [rotary / 2, times, batch or 1] each."""
    places = positions.astype(np.int64) if positions.ndim else int(positions) + np.arange(x.shape[1])[:, None]
    words = frequencies.astype(np.uint64)
    turns = (places + offset).astype(np.uint64) * (words[:, 0] | words[:, 1] << np.uint64(32))[:, None, None]
    angle = turns.view(np.int64) * (np.pi * 2.0**-63)  # the difference is a whole turn
    return (np.cos(angle) * factor).astype(x.dtype), (np.sin(angle) * (factor * way)).astype(x.dtype)


@primitive(layout=lambda _out, x, positions, _f, *, dim, rotary, **_params: _layout(
    x[0] // dim, x, positions, dim=dim, rotary=rotary))
def rope(
    out: Array, x: Array, positions: Array, frequencies: Array, *,
    dim: int, rotary: int, interleaved: bool, offset: int, factor: float, way: float,
) -> None:
    _turned(out, x, *_cosine_sine(x, positions, frequencies, offset, factor, way), dim, rotary, interleaved)


@primitive(lambda x, y, *_others, **_params: (x, y), outputs=2,
           layout=lambda _out, _also, x, y, positions, _f, *, dim, rotary, **_params: _layout(
               x[0] // dim, x, positions, dim=dim, rotary=rotary, more=y[0] // dim))
def rope_pair(
    out: Array, also: Array, x: Array, y: Array, positions: Array, frequencies: Array, *,
    dim: int, rotary: int, interleaved: bool, offset: int, factor: float, way: float,
) -> None:
    cosine, sine = _cosine_sine(x, positions, frequencies, offset, factor, way)
    _turned(out, x, cosine, sine, dim, rotary, interleaved)
    _turned(also, y, cosine, sine, dim, rotary, interleaved)


# ---------------------------------------------------------------------------------------------- caches

# Each sample's keys and values lie one behind the other, at positions that the device counts.  A chunk of tokens may
# have padding, before or behind the tokens of a sample, as `lengths` says.  Padding takes no place.


@primitive(lambda at, _lengths, *, times, left: (times, *at), updates=("at",), layout=lambda _out, at, lengths, **_p: {
    "batch": at[0], "length_step": int(bool(lengths))})
def cache_places(out: Array, at: Array, lengths: Array, *, times: int, left: bool) -> None:
    # Where each token of a chunk goes, -1 for padding; then `at`, where each sample ends, moves on.
    token = np.arange(times)[:, None] - (times - lengths if left else 0)
    np.copyto(out, np.where((token >= 0) & (token < lengths), at + token, -1))
    at += lengths


@primitive(outputs=0, updates=("keys", "values"), layout=lambda keys, values, k, v, places: {
    "n": prod(k) + prod(v), "features": k[0], "capacity": keys[1], "times": k[1], "batch": k[2]}, moves=True)
def cache_append(keys: Array, values: Array, k: Array, v: Array, places: Array) -> None:
    # keys[.., places[t, b], b] = k[.., t, b], and values likewise
    time, sample = np.nonzero((places >= 0) & (places < keys.shape[1]))
    for kept, new in ((keys, k), (values, v)):
        kept[:, places[time, sample], sample] = new[:, time, sample]


@primitive(lambda places, *, capacity: (1, places[0], capacity, places[1]), layout=lambda out, *_others, **_params: {
    "n": prod(out), "batch": out[3]})
def cache_mask(out: Array, places: Array, *, capacity: int) -> None:
    # 1 where a token sees a place: it and those before it.  Padding sees the first place, so that no softmax is empty.
    np.less_equal(np.arange(capacity)[:, None], np.maximum(places, 0)[:, None], out=out[0], casting="unsafe")
