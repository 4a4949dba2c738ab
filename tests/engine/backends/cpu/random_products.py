"""Launches of random shapes for products of matrices, convolutions, attention and pooling: `PRODUCTS`, by primitive."""

from __future__ import annotations

from functools import partial
from math import isqrt, prod, sqrt
from typing import Any

import numpy as np
from engine.backends.cpu.random_sizes import Random, size
from helpers import packed
from helpers.guarded import Launch
from helpers.random_operands import geometry, random_operands
from table.rows import Array

from ag.engine.kernels.attention import UNLIMITED
from ag.engine.kernels.conv import conv2d, max_pool2d
from ag.engine.kernels.packing import PACKINGS
from ag.engine.primitive import PRIMITIVES
from ag.engine.shape import Window, places
from ag.errors import ShapeError

BATCHES = (1, 1, 2, 3, 8, 16, 17, 32, 65)  # whole registers, less than one, and some more than one


def normal(rng: Random, *sizes: int) -> Array:
    return rng.standard_normal(sizes).astype(np.float32)


def launch(name: str, *operands: Array, **params: Any) -> Launch:
    return Launch(PRIMITIVES[name], list(operands), params)


def matrices(name: str, rng: Random) -> Launch:
    """Now and then vectors, and inner axes that are added up in several pieces."""
    batched = name == "batched_matmul"
    a, b, ta, tb = random_operands(rng, int(rng.integers(1, 5)) if batched else 1, 700 if rng.random() < 0.2 else 100)
    if rng.random() < 0.2:
        a = a[:, :, :1].copy() if ta else a[:, :1].copy()
    if rng.random() < 0.2:
        b = b[:, :1].copy() if tb else b[:, :, :1].copy()
    if rng.is_empty():
        a = a[:, :, :0].copy() if ta else a[:, :0].copy()
    if rng.is_empty():
        b = b[:, :0].copy() if tb else b[:, :, :0].copy()
    if batched and rng.is_empty():
        a, b = a[:0], b[:0]
    if not batched:
        return launch(name, a[0], b[0], ta=ta, tb=tb)
    return launch(name, a, b, ta=ta, tb=tb, chunk=int(rng.integers(1, 2 * b.shape[2 if tb else 1] + 2)))


def packed_matrices(name: str, rng: Random) -> Launch:
    sizes = [size(rng, most) for most in (120, 300, 80)]
    return packed.product(rng, name, str(rng.choice([*PACKINGS])), *sizes, ta=bool(rng.integers(2)))


def packed_rows(rng: Random) -> Launch:
    sizes = [size(rng, most) for most in (50, 300, 80)]
    return packed.lookup(rng, str(rng.choice([*PACKINGS])), *sizes)


def of_samples(rng: Random) -> Launch:
    outer, rows, inner, cols = (0 if rng.is_empty() else int(rng.integers(1, 12)) for _ in range(4))
    samples, ta, tb = int(rng.choice(BATCHES)), *(bool(x) for x in rng.integers(0, 2, 2))
    a, b = (normal(rng, outer, *(shape[::-1] if turned else shape), samples)
            for shape, turned in (((rows, inner), ta), ((inner, cols), tb)))
    return launch("sample_matmul", a, b, ta=ta, tb=tb)


def convolution(name: str, rng: Random) -> Launch:
    """Now and then one that is a product of matrices: its windows see a pixel each."""
    image, weights, window, groups = geometry(rng, [Window((1, 1))] if rng.random() < 0.15 else None)
    image = (*image[:3], int(rng.choice(BATCHES)) if prod(image) < 4000 else image[3])
    if rng.is_empty():
        image = (*image[:3], 0)
    if rng.is_empty():
        image, weights = (0, *image[1:]), (weights[0], 0, *weights[2:])
    if rng.is_empty():
        weights = (0, *weights[1:])
    x, w = normal(rng, *image), normal(rng, *weights)
    g = normal(rng, *conv2d.shape(image, weights, window=window, groups=groups))
    if name == "conv2d":
        return launch(name, x, w, window=window, groups=groups)
    if name == "conv2d_input_grad":
        return launch(name, w, g, window=window, groups=groups, image=image[1:3])
    inner = max(1, prod(g.shape[1:]))
    return launch(name, x, g, window=window, groups=groups, chunk=int(rng.choice([inner, 64, isqrt(inner) + 1])))


def heads_of(rng: Random) -> tuple[int, dict[str, int]]:
    q, v, queries, keys = (int(np.exp(rng.uniform(0, np.log(most)))) for most in (40, 40, 100, 100))
    sizes = {"q": q, "v": v, "queries": queries, "keys": keys, "batch": int(rng.choice(BATCHES[:-1]))}
    for name in sizes.keys() - {"keys"}:
        sizes[name] *= not rng.is_empty()
    return int(rng.integers(1, 5)), sizes


def attention(name: str, rng: Random) -> Launch:
    heads, n = heads_of(rng)
    rate = float(rng.choice([0.0, 0.0, 0.3]))
    q = normal(rng, heads * n["q"], n["queries"], n["batch"])
    k, v = (normal(rng, heads * n[x], n["keys"], n["batch"]) for x in "qv")
    key = rng.integers(0, 1 << 32, 4, np.uint32) if rate else q
    params = {"heads": heads, "factor": 1 / sqrt(max(1, n["q"])), "causal": bool(rng.integers(2)), "rate": rate}
    if name == "attention":
        return launch(name, q, k, v, key, **params)
    g = normal(rng, heads * n["v"], n["queries"], n["batch"])
    out, lse, delta = np.zeros_like(g), *np.zeros((2, heads, *g.shape[1:]), np.float32)
    PRIMITIVES["attention"].reference(out, lse, q, k, v, key, **params)
    PRIMITIVES["attention_delta"].reference(delta, out, g, heads=heads)
    return launch(name, q, k, v, g, lse, delta, key, **params)


def masked_attention(name: str, rng: Random) -> Launch:
    """Each term in about half of the launches, and it varies along about half of the axes."""
    kv_heads, n = heads_of(rng)
    heads, rate = kv_heads * int(rng.integers(1, 4)), float(rng.choice([0.0, 0.0, 0.3]))
    q = normal(rng, heads * n["q"], n["queries"], n["batch"])
    k, v = (normal(rng, kv_heads * n[x], n["keys"], n["batch"]) for x in "qv")
    g = normal(rng, heads * n["v"], n["queries"], n["batch"])
    sizes, none = (heads, n["queries"], n["keys"], n["batch"]), np.zeros(0, np.float32)
    bias, mask = (normal(rng, *[size if rng.integers(2) else 1 for size in sizes]) for _ in range(2))
    samples, segmented = n["batch"] if rng.integers(2) else 1, rng.integers(2)
    ids = [np.sort(rng.integers(0, 3, (n[x] * segmented, samples), np.int32), 0) if segmented else np.zeros(0, np.int32)
           for x in ("queries", "keys")]
    terms = [bias if name == "attention_bias_grad" or rng.integers(2) else none,
             np.float32(mask > -0.5) if rng.integers(2) else none, *ids,
             np.abs(normal(rng, heads)) if rng.integers(2) else none]
    key = rng.integers(0, 1 << 32, 4, np.uint32) if rate else q
    before, after = (int(rng.choice([0, 3, 40, UNLIMITED])) for _ in range(2))
    params = {"heads": heads, "kv_heads": kv_heads, "samples": 1, "factor": 1 / sqrt(max(1, n["q"])),
              "softcap": float(rng.choice([0.0, 1.5])), "before": before, "after": after, "rate": rate}
    if name == "masked_attention":
        return launch(name, q, k, v, key, *terms, **params)
    out, lse, delta = np.zeros_like(g), *np.zeros((2, heads, *g.shape[1:]), np.float32)
    PRIMITIVES["masked_attention"].reference(out, lse, q, k, v, key, *terms, **params)
    PRIMITIVES["attention_delta"].reference(delta, out, g, heads=heads)
    return launch(name, q, k, v, g, lse, delta, key, *terms, **params)


def attention_delta(rng: Random) -> Launch:
    heads, n = heads_of(rng)
    y, g = normal(rng, 2, heads * n["v"], n["queries"], n["batch"])
    return launch("attention_delta", y, g, heads=heads)


def attention_weights(rng: Random) -> Launch:
    _, n = heads_of(rng)
    return launch("attention_weights", normal(rng, n["batch"], n["queries"], n["keys"]), factor=float(rng.normal()),
                  causal=bool(rng.integers(2)))


def pooling(name: str, rng: Random) -> Launch:
    """Ties are as likely as not; no window sees padding alone, where the largest value is -inf."""
    while True:
        kernel, stride, padding, dilation, image = (
            (int(a), int(b)) for a, b in (rng.integers(low, high, 2) for low, high in (
                (1, 5), (1, 4), (0, 4), (1, 3), (1, 12))))
        window = Window(kernel, stride, padding, dilation)
        try:
            seen = places(image, window)
        except ShapeError:
            continue
        channels, batch = (n * (not rng.is_empty()) for n in (int(rng.integers(1, 5)), int(rng.choice(BATCHES))))
        x = rng.integers(-3, 4, (channels, *image, batch)).astype(np.float32)
        out, tap = np.zeros((2, channels, *seen, batch), np.float32)
        max_pool2d.reference(out, tap, x, window=window)
        if np.isfinite(out).all():
            break
    if not name.endswith("_grad"):
        return launch(name, x, window=window)
    g = normal(rng, channels, *seen, batch)
    if name == "avg_pool2d_grad":
        return launch(name, g, window=window, image=image)
    return launch(name, tap, g, window=window, image=image)


PRODUCTS = {
    "sample_matmul": of_samples,
    **{name: partial(matrices, name) for name in ("matmul", "matmul_sums", "batched_matmul")},
    **{name: partial(packed_matrices, name) for name in ("packed_matmul", "packed_matmul_pieces")},
    "gather_rows": packed_rows,
    **{name: partial(convolution, name) for name in ("conv2d", "conv2d_input_grad", "conv2d_weight_grad")},
    **{name: partial(attention, name) for name in ("attention", "attention_grad")},
    **{name: partial(masked_attention, name) for name in (
        "masked_attention", "masked_attention_grad", "attention_bias_grad")},
    "attention_delta": attention_delta,
    "attention_weights": attention_weights,
    **{name: partial(pooling, name) for name in ("max_pool2d", "max_pool2d_grad", "avg_pool2d", "avg_pool2d_grad")},
}
