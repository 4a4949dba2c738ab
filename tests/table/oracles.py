"""Oracles of the case table: the mathematics in plain numpy or plain Python, in float64, without any of `ag`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


def each(f: Any) -> Any:
    """A function of numbers as a function of arrays."""
    return np.vectorize(f, otypes=[np.float64])


def softmax(x: Array, dim: int = 0) -> Array:
    return np.apply_along_axis(lambda v: np.exp(v) / np.exp(v).sum(), dim, x) if x.size else x


def log_softmax(x: Array, dim: int = 0) -> Array:
    return x - np.log(np.exp(x).sum(dim, keepdims=True)) if x.size else x


ACTIVATIONS = {
    None: lambda x: x, "relu": each(lambda v: v if v > 0 else 0.0), "sigmoid": each(lambda v: 1 / (1 + math.exp(-v))),
    "tanh": each(math.tanh), "softmax": softmax,
    "leaky_relu": each(lambda v, slope=0.01: v if v > 0 else slope * v), "silu": each(lambda v: v / (1 + math.exp(-v))),
    "gelu": each(lambda v: 0.5 * v * math.erfc(-v / math.sqrt(2))),
    "log_softmax": log_softmax,
}


def summed(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return np.sum(x, axis=dim, keepdims=keepdim)


def averaged(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return np.mean(x, axis=dim, keepdims=keepdim)


def transposed(x: Array, axes: Shape = ()) -> Array:
    axes = axes or tuple(range(x.ndim))[::-1]
    out = np.empty([x.shape[a] for a in axes])
    for i in np.ndindex(x.shape):
        out[tuple(i[a] for a in axes)] = x[i]
    return out


def softmax_cross_entropy(x: Array, t: Array) -> float:
    """-sum t log softmax(x) / samples, with t a distribution or class numbers."""
    logs = log_softmax(x).reshape(len(x), -1)
    if t.shape == x.shape:
        return float(-(t.reshape(len(x), -1) * logs).sum() / logs.shape[1])
    return float(np.mean([-logs[c, i] for i, c in enumerate(t.flat)]))


def rising(n: int) -> Array:
    """Weights from 1 on."""
    return 1 + np.arange(n) / 4


def weighted_cross_entropy(x: Array, t: Array, of_samples: Array, smoothing: float) -> float:
    """The definition of PyTorch, sample by sample, where the classes have weights that rise."""
    classes, total, count = len(x), 0.0, 0.0
    logs, of_class = log_softmax(x).reshape(classes, -1), rising(classes)
    soft = t.shape == x.shape
    for i in range(logs.shape[1]):
        of_sample = of_samples[i % len(of_samples)]
        wanted = t.reshape(classes, -1)[:, i] if soft else np.eye(classes)[t.flat[i]]
        smooth = wanted * (1 - smoothing) + smoothing / classes
        total -= of_sample * (smooth * of_class * logs[:, i]).sum()
        count += of_sample * (1 if soft else of_class[t.flat[i]])
    return float(total / count)


def binary_cross_entropy(x: Array, t: Array, of_samples: Array | None = None) -> float:
    """The mean of -t log p - (1 - t) log (1 - p), with p = 1 / (1 + exp(-x)), and rising weights of targets 1."""
    rows, wanted = (each.reshape(len(x) if x.ndim > 1 else 1, -1) for each in (x, t))
    positive = 1.0 if of_samples is None else rising(len(rows))[:, None]
    losses = wanted * positive * np.logaddexp(0, -rows) + (1 - wanted) * np.logaddexp(0, rows)
    if of_samples is None:
        return float(losses.mean())
    return float((losses.reshape(-1, x.shape[-1]) * of_samples).mean() / of_samples.mean())


def linear(x: Array, W: Array, b: Array, activation: str | None = None) -> Array:
    y = np.einsum("ok,k...->o...", W, x)
    return ACTIVATIONS[activation](y + b.reshape(-1, *[1] * (y.ndim - 1)))


def dropout(x: Array, rate: float, train: bool = True) -> Array:
    return np.where(uniform(x.size).reshape(x.shape) >= np.float32(rate), x / (1 - rate), 0.0) if train else x


SEED = 20_140_801  # one word of the key; the other is 0


def philox_block(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 on Python integers, after the paper: one block of four words."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(high >> 32) ^ c[1] ^ k[0], high & 0xFFFFFFFF, (low >> 32) ^ c[3] ^ k[1], low & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def uniform(count: int, stream: int = 0) -> Array:
    """The numbers in [0, 1) that a device draws from a stream after `restart_generator`."""
    return (words(count, stream) >> 8) / 2**24


def words(count: int, stream: int = 0) -> Array:
    """The random words of 32 bits that a device draws from a stream after `restart_generator`."""
    blocks = [philox_block((block, 0, stream, 0), (SEED, 0)) for block in range(-(-count // 4))]
    return np.array([w for block in blocks for w in block][:count], np.int64)
