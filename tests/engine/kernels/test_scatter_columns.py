"""scatter_columns, the gradient of an embedding: every sum in the order of its places, whatever is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from ag.engine.device import backend_of
from ag.engine.dtype import F32, I32
from ag.engine.kernels.indexing import scatter_columns

RNG = np.random.default_rng(7)


def in_order(g: np.ndarray, ids: np.ndarray, vocab: int) -> np.ndarray:
    """The sums, one place after the other."""
    out = np.zeros((g.shape[0], vocab), np.float32)
    for place, word in enumerate(ids):
        out[:, word] += g[:, place]
    return out


@pytest.mark.parametrize(("dim", "places", "vocab"), [
    (1, 1, 1), (3, 200, 7), (129, 33, 50), (513, 4100, 3), (130, 9000, 40), (5, 0, 4),
    pytest.param(4, 64, 70_000, marks=pytest.mark.slow)])  # more workgroups than an axis has
def test_sums_in_the_order_of_places(vulkan: str, dim: int, places: int, vocab: int) -> None:
    backend = backend_of(vulkan)
    g = RNG.standard_normal((dim, places)).astype(np.float32) * np.float32(10.0) ** RNG.integers(-3, 4, places)
    g = g.astype(np.float32)
    for ids in (RNG.integers(0, vocab, places), np.full(places, vocab - 1)):
        buffers = backend.alloc(g.shape, F32), backend.alloc(ids.shape, I32)
        backend.upload(g, buffers[0])
        backend.upload(ids.astype(np.int32), buffers[1])
        out = backend.launch(scatter_columns, *buffers, vocab=vocab, first=0, last=places)
        assert backend.download(out).tobytes() == in_order(g, ids, vocab).tobytes()
        first, last = places // 3, places - places // 4
        out = backend.launch(scatter_columns, *buffers, vocab=vocab, first=first, last=last)
        assert backend.download(out).tobytes() == in_order(g[:, first:last], ids[first:last], vocab).tobytes()
