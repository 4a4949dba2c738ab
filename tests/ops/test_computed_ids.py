"""Ids that a captured step computes: from the end where a user may count so, and NaN where they are no place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ag

X = np.arange(12, dtype=np.float32).reshape(3, 4)
LOGITS = np.log(np.array([[0.2, 0.5], [0.3, 0.1], [0.5, 0.4]], np.float32))


def captured(function: Callable[..., ag.Tensor], ids: list[int], device: str, x: np.ndarray) -> np.ndarray:
    with ag.ag_device(device):
        step, t = ag.ag_capture(function), ag.ag_tensor(x)
        given = ag.ag_reshape(ag.ag_tensor(np.array(ids, np.int32), dtype="i32"), len(ids))
        return [step(t, given).numpy() for _ in range(3)][-1]


@pytest.mark.parametrize("last", [-5, 4, -(1 << 31)])
def test_places_of_an_axis(device: str, last: int) -> None:
    found = captured(lambda x, ids: ag.ops.index_select(x, 1, ids), [-1, 0, last], device, X)
    np.testing.assert_array_equal(found, np.stack([X[:, 3], X[:, 0], np.full(3, np.nan)], 1))
    found = captured(lambda x, ids: ag.ops.gather(x, 1, ag.ag_reshape(ids, 1, 3)), [-4, 3, last], device, X)
    np.testing.assert_array_equal(found, [[0.0, 3.0, np.nan]])
    found = captured(lambda x, ids: ag.ops.scatter_add(x[0] * 0.0, 0, ids, x[0, :3] * 0.0 + 1.0), [-1, 1, last], device,
                     X)
    np.testing.assert_array_equal(found, [np.nan, 1.0, 0.0, 1.0])


@pytest.mark.parametrize("label", [-1, -2, 3])
def test_a_class_is_not_counted_from_the_end(device: str, label: int) -> None:
    for loss in (lambda x, ids: ag.ops.nll_loss(x, ids, reduction="none"),
                 lambda x, ids: ag.ops.nll_loss(x, ids, weight=x[:, 0], reduction="none"),
                 lambda x, ids: ag.ops.multi_margin_loss(x, ids, reduction="none"),
                 lambda x, ids: ag.ops.cross_entropy(x, ids, weight=x[:, 0] * x[:, 0], reduction="none")):
        found = captured(loss, [1, label], device, LOGITS)
        assert np.isfinite(found[0]) and np.isnan(found[1])
    found = captured(lambda x, ids: ag.ag_embedding_lookup(x, ids), [1, -1 if label == 3 else label], device, X)
    assert (found[:, 0] == X[:, 1]).all() and np.isnan(found[:, 1]).all()
