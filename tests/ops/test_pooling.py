"""Places of the largest values of windows, beside a search of every window."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import ag
from ag import ops

KINDS = {1: ops.max_pool1d_with_indices, 2: ops.max_pool2d_with_indices, 3: ops.max_pool3d_with_indices}
ADAPTIVE = {1: ops.adaptive_max_pool1d_with_indices, 2: ops.adaptive_max_pool2d_with_indices,
            3: ops.adaptive_max_pool3d_with_indices}


def searched(x: Any, windows: list[list[range]]) -> Any:
    """Return the place of the first maximum of each window in each image of (channels, ..., batch)."""
    image = x.shape[1:-1]
    out = np.zeros((x.shape[0], *map(len, windows), x.shape[-1]), dtype=int)
    for at in product(*[range(len(along)) for along in windows]):
        seen = product(*[[i for i in along[k] if 0 <= i < n]
                         for along, k, n in zip(windows, at, image, strict=True)])
        places = [np.ravel_multi_index(place, image) for place in seen]
        values = x.reshape(x.shape[0], -1, x.shape[-1])[:, places]
        out[(slice(None), *at)] = np.array(places)[values.argmax(1)]
    return out


@pytest.mark.parametrize("axes", KINDS)
def test_places_are_those_of_a_search(device: str, axes: int) -> None:
    size, stride, padding, dilation = 3, 2, 1, 2
    rng = np.random.default_rng(axes)
    x = rng.integers(0, 4, (2, *(9, 8, 7)[:axes], 3)).astype("f")  # equal ones, too
    windows = [[range(first, first + dilation * size, dilation)
                for first in range(-padding, n + padding - dilation * (size - 1), stride)] for n in x.shape[1:-1]]
    with ag.ag_device(device):
        p = ag.ag_param(x)
        with ag.with_grad_tape():
            y, places = KINDS[axes](p, size, stride, padding, dilation)
            loss = ag.ag_sum(y)
        assert places.dtype == "i32" and np.array_equal(places.numpy(), searched(x, windows))
        flat = x.reshape(2, -1, 3)
        read = np.take_along_axis(flat, places.numpy().reshape(2, -1, 3), 1).reshape(y.shape)
        assert np.array_equal(y.numpy(), read)
        sent = np.zeros_like(flat)
        for c, n in product(range(2), range(3)):
            np.add.at(sent[c, :, n], places.numpy()[c, ..., n].ravel(), 1)
        assert np.array_equal(ag.backward(loss)[p].numpy(), sent.reshape(x.shape))


@pytest.mark.parametrize("axes", ADAPTIVE)
def test_places_of_adaptive_windows(device: str, axes: int) -> None:
    x = np.random.default_rng(axes).normal(size=(2, *(7, 5, 4)[:axes], 3)).astype("f")
    windows = [[range(k * n // 3, -(-(k + 1) * n // 3)) for k in range(3)] for n in x.shape[1:-1]]
    with ag.ag_device(device):
        y, places = ADAPTIVE[axes](x, 3)
        assert np.array_equal(places.numpy(), searched(x, windows)) and y.shape == places.shape
        assert (ADAPTIVE[axes](ag.ag_tensor(x, dtype="f16"), 3)[1].dtype, y.dtype) == ("i32", "f32")


def test_places_in_a_captured_step(device: str) -> None:
    with ag.ag_device(device):
        step = ag.ag_capture(lambda x: ops.max_pool2d_with_indices(x, 2, 1, 1))
        for seed in range(3):
            x = ag.ag_tensor(np.random.default_rng(seed).normal(size=(2, 5, 4, 3)))
            for replayed, eager in zip(step(x), ops.max_pool2d_with_indices(x, 2, 1, 1), strict=True):
                assert np.array_equal(replayed.numpy(), eager.numpy())


def test_windows_of_minus_infinity_and_nan(device: str) -> None:
    with ag.ag_device(device):
        low = np.full((1, 4, 1), -np.inf, "f")
        assert ops.max_pool1d_with_indices(low, 2, 2, 1)[1].numpy().ravel().tolist() == [0, 1, 3]
        low[0, 2] = np.nan
        assert ops.max_pool1d_with_indices(low, 2)[1].numpy().ravel().tolist() == [0, 2]
