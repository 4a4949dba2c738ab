"""Weights, images and labels made of the raw words of numpy's Philox, whose streams never change.
`make.py` gives them to torchvision's models, the tests to `ag`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt

import numpy as np

Array = np.ndarray
CLASSES, BATCH, SIZE = 1000, 8, 32
KEPT = 6  # elements of each tensor's gradient


def uniform(shape: Sequence[int], stream: int) -> Array:
    """Numbers in [-1, 1)."""
    words = np.random.Philox(key=stream).random_raw(prod(shape))
    return ((words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)).reshape(tuple(shape))


def value(name: str, shape: Sequence[int], stream: int) -> Array:
    """A tensor called so in torchvision."""
    u = uniform(shape, stream)
    if name.endswith("running_var"):
        return 1 + u / 2
    if len(shape) == 4:  # a convolution, as He has it
        return u * np.float32(sqrt(6 / (shape[0] * shape[2] * shape[3])))
    if name == "fc.weight":
        return u / np.float32(sqrt(shape[1]))
    if name.endswith("weight"):  # of a batch norm; small, so that the sums of blocks do not grow without bound
        return (1 + u / 4) / 2
    return u / 8


def state(shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """All tensors of a model but the counters of batches."""
    return {name: value(name, shape, i) for i, (name, shape) in enumerate(shapes.items())}


def images() -> Array:
    """As torchvision takes them, the batch first."""
    return uniform((BATCH, 3, SIZE, SIZE), 1 << 40)


def labels() -> Array:
    return np.arange(BATCH) * 97 % CLASSES


def kept(array: Array) -> Array:
    """A few elements of an array, the same ones everywhere, and behind them the square root of its sum of squares."""
    flat = array.reshape(-1).astype(np.float64)
    chosen = flat[np.linspace(0, flat.size - 1, KEPT).astype(np.int64)]
    return np.append(chosen, sqrt((flat**2).sum())).astype(np.float32)
