"""scatter_add, the gradient of an embedding: every sum in the order of its places, whatever is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from ag.engine.device import backend_of
from ag.engine.dtype import F32, I32
from ag.engine.kernels.indexing import NOTHING, scatter_add

RNG = np.random.default_rng(7)


def in_order(g: np.ndarray, ids: np.ndarray, vocab: int) -> np.ndarray:
    """The sums, one place after the other."""
    out = np.zeros((g.shape[0], vocab), np.float32)
    for place, word in enumerate(ids):
        out[:, word] += g[:, place]
    return out


# In each layout, with edges; with more words than have a place, words that have all places, and others that have none.
@pytest.mark.parametrize(("dim", "places", "vocab"), [
    (1, 1, 1), (3, 200, 7), (129, 33, 50), (513, 1100, 3), (130, 2500, 40), (5, 0, 4), (128, 1024, 65), (17, 700, 33),
    (70, 300, 1), (65, 3000, 2100), (200, 700, 250),
    pytest.param(4, 64, 70_000, marks=pytest.mark.slow)])  # more workgroups than an axis has
def test_sums_in_the_order_of_places(vulkan: str, dim: int, places: int, vocab: int) -> None:
    backend = backend_of(vulkan)
    g = RNG.standard_normal((dim, places)).astype(np.float32) * np.float32(10.0) ** RNG.integers(-3, 4, places)
    g = g.astype(np.float32)
    text = np.minimum(RNG.geometric(0.1, places), vocab) - 1
    for ids in (RNG.integers(0, vocab, places), np.full(places, vocab - 1), text):
        buffers = backend.alloc(g.shape, F32), backend.alloc(ids.shape, I32)
        backend.upload(g, buffers[0])
        backend.upload(ids.astype(np.int32), buffers[1])
        for first, last in ((0, places), (places // 3, places - places // 4), (places // 2, places // 2)):
            three = buffers[0].view((dim, places, 1)), buffers[1]
            out = backend.launch(scatter_add, *three, length=vocab, first=first, last=last, wraps=False)
            wanted = in_order(g[:, first:last], ids[first:last], vocab)
            assert backend.download(out)[:, :, 0].tobytes() == wanted.tobytes()


@pytest.mark.parametrize(("outer", "inner"), [(1, 5), (3, 2), (2, 70)])
def test_columns_and_ids_that_are_no_place(device: str, outer: int, inner: int) -> None:
    backend, places, words = backend_of(device), 20, 7
    g = RNG.standard_normal((outer, places, inner)).astype(np.float32)
    for odd, wraps in ((NOTHING, False), (NOTHING, True), (words, True), (-1, False), (-1, True), (-8, True)):
        ids = RNG.integers(0, words, places).astype(np.int32)
        ids[3] = odd
        buffers = backend.alloc(g.shape, F32), backend.alloc(ids.shape, I32)
        for values, buffer in zip((g, ids), buffers, strict=True):
            backend.upload(values, buffer)
        found = backend.download(backend.launch(scatter_add, *buffers, length=words, first=0, last=places, wraps=wraps))
        wanted = np.zeros((outer, words, inner), np.float32)
        for place, word in enumerate(np.where(wraps & (ids < 0) & (ids >= -words), ids + words, ids)):
            if 0 <= word < words:
                wanted[:, word] += g[:, place]
        if odd != (-1 if wraps else NOTHING):
            wanted[:, 0] = np.nan
        np.testing.assert_array_equal(found, wanted)


def test_few_words_are_dealt_out_to_many_workgroups() -> None:
    def groups(dim: int, vocab: int) -> tuple[int, int]:
        layout = scatter_add.layout((dim, vocab, 1), (dim, 9, 1), (9,), length=vocab, first=0, last=9, wraps=False)
        assert layout["words"] * layout["rows"] == 128 * layout["each"]
        return layout["words"], -(-vocab // layout["words"]) * -(-dim // layout["rows"])

    assert groups(128, 65) == (8, 9 * 8)
    assert groups(768, 256) == (8, 32 * 12)
    assert groups(768, 50257) == (32, 1571 * 12)
    assert groups(65, 2100) == (32, 66 * 2)
