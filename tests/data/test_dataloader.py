"""The data loader: every sample once per epoch, in an order that the seed decides and that can be resumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

X = np.arange(40, dtype=np.float32).reshape(4, 10)  # sample k is column k, and starts with k
IDS = np.arange(10) * 7


def firsts(loader: ag.ag_dataloader) -> list[int]:
    """The numbers of the samples of the rest of an epoch, in order."""
    return [int(v) for batch in loader for v in batch.x.numpy()[0]]


def test_batches(device: str) -> None:
    loader = ag.ag_dataloader(X, IDS, batch_size=4, shuffle=False)
    batches = list(loader)
    assert [b.x.shape for b in batches] == [(4, 4), (4, 4), (4, 2)] and len(loader) == loader.n_batches() == 3
    assert {b.x.device for b in batches} == {device}
    assert np.array_equal(np.concatenate([b.x.numpy() for b in batches], axis=1), X)
    assert np.array_equal(np.concatenate([b.y for b in batches]), IDS)


def test_drop_last() -> None:
    loader = ag.ag_dataloader(X, batch_size=4, shuffle=False, drop_last=True)
    assert firsts(loader) == list(range(8)) and len(loader) == 2
    assert len(ag.ag_dataloader(X, batch_size=5, drop_last=True)) == 2
    assert len(ag.ag_dataloader(X, batch_size=20, drop_last=True)) == 0
    assert list(ag.ag_dataloader(X, batch_size=20, drop_last=True)) == []


def test_kinds_of_targets() -> None:
    def first(y: Any, **options: Any) -> Any:
        return next(iter(ag.ag_dataloader(X, y, batch_size=4, shuffle=False, **options))).y

    assert first(None) is None
    assert isinstance(first(IDS), np.ndarray) and first(IDS).tolist() == [0, 7, 14, 21]
    one_hot = np.eye(10, dtype=np.int64)[:3]
    assert isinstance(first(one_hot), np.ndarray) and first(one_hot).shape == (3, 4)
    assert isinstance(first(np.ones(10, bool)), np.ndarray)
    column = first(np.arange(10.0))
    assert ag.is_ag_tensor(column) and column.shape == (1, 4)
    assert ag.is_ag_tensor(first(np.ones((3, 10)))) and first(np.ones((3, 10))).shape == (3, 4)
    assert first(ag.ag_tensor(np.ones((3, 10)))).shape == (3, 4)
    assert first(list(range(10))).tolist() == [0, 1, 2, 3]


def test_samples_first() -> None:
    y = np.arange(30.0).reshape(10, 3)
    rows = ag.ag_dataloader(X.T, y, batch_size=4, shuffle=True, col_major=False, seed=3)
    columns = ag.ag_dataloader(X, y.T, batch_size=4, shuffle=True, seed=3)
    for a, b in zip(rows, columns, strict=True):
        assert np.array_equal(a.x.numpy(), b.x.numpy()) and np.array_equal(a.y.numpy(), b.y.numpy())


def test_images_and_vectors() -> None:
    images = np.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    assert [b.x.shape for b in ag.ag_dataloader(images, batch_size=4)] == [(2, 3, 5, 4), (2, 3, 5, 3)]
    assert [b.x.shape for b in ag.ag_dataloader(np.arange(5.0), batch_size=4)] == [(1, 4), (1, 1)]


def test_x_and_y_stay_together() -> None:
    for batch in ag.ag_dataloader(X, IDS, batch_size=3, seed=1):
        assert np.array_equal(batch.x.numpy()[0] * 7, batch.y)


# ---------------------------------------------------------------------------------------------- order


def test_every_epoch_has_its_own_order_of_all_samples() -> None:
    loader = ag.ag_dataloader(X, batch_size=3, seed=5)
    epochs = [firsts(loader) for _ in range(4)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    again = ag.ag_dataloader(X, batch_size=3, seed=5)
    assert [firsts(again) for _ in range(4)] == epochs
    assert firsts(ag.ag_dataloader(X, batch_size=3, seed=6)) != epochs[0]


def test_the_default_seed_is_ag_seeds() -> None:
    def order() -> list[int]:
        ag.ag_seed(8)
        return firsts(ag.ag_dataloader(X))

    assert order() == order()
    assert firsts(ag.ag_dataloader(X)) != order()


def test_any_integer_is_a_seed() -> None:
    orders = {tuple(firsts(ag.ag_dataloader(X, seed=seed))) for seed in (-1, 0, 1, 2**64 - 2, 2**70 + 5)}
    assert len(orders) == 5


def test_order_is_what_comes() -> None:
    loader = ag.ag_dataloader(X, batch_size=3, seed=5)
    expected = loader.order.tolist()
    assert firsts(loader) == expected != loader.order.tolist()


def test_one_by_one() -> None:
    loader = ag.ag_dataloader(X, batch_size=4, shuffle=False)
    seen = []
    while loader.has_next():
        seen.append(loader.next_batch().x.shape[1])
    assert seen == [4, 4, 2]
    with expect_error("next_batch at the end of an epoch", StopIteration, "reset()"):
        loader.next_batch()
    loader.reset()
    assert loader.has_next()


# ---------------------------------------------------------------------------------------------- resuming


@pytest.mark.parametrize("prefetch", [0, 2])
def test_resuming_in_the_middle_gives_the_same_sequence(prefetch: int) -> None:
    loader = ag.ag_dataloader(X, IDS, batch_size=3, seed=5, prefetch=prefetch)
    firsts(loader)
    for k, _ in enumerate(loader):
        if k == 1:
            break
    state = loader.state_dict()
    expected = [firsts(loader), firsts(loader)]
    assert len(expected[0]) == 4 and len(expected[1]) == 10
    resumed = ag.ag_dataloader(X, IDS, batch_size=3, seed=99)
    resumed.load_state_dict(state)
    assert [firsts(resumed), firsts(resumed)] == expected


def test_a_state_of_other_data_is_refused() -> None:
    loader = ag.ag_dataloader(X, batch_size=3, seed=5)
    loader.next_batch()
    other = ag.ag_dataloader(np.ones((4, 12)), batch_size=3)
    before = other.state_dict()
    with expect_error("a loader's state for other data", ag.CheckpointError, "10 samples", "12"):
        other.load_state_dict(loader.state_dict())
    with expect_error("a loader's state with a name missing", ag.CheckpointError, "missing next"):
        other.load_state_dict({k: v for k, v in other.state_dict().items() if k != "next"})
    assert other.state_dict() == before


@pytest.mark.parametrize("prefetch", [1, 3, 100])
def test_prefetching_changes_nothing(device: str, prefetch: int) -> None:
    plain, ahead = (ag.ag_dataloader(X, IDS, batch_size=3, seed=2, prefetch=p) for p in (0, prefetch))
    for _ in range(3):
        for a, b in zip(plain, ahead, strict=True):
            assert np.array_equal(a.x.numpy(), b.x.numpy()) and np.array_equal(a.y, b.y) and b.x.device == device
    assert plain.state_dict() == ahead.state_dict()


# ---------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(("args", "error", "fragments"), [
    ({"x": X, "y": IDS[:9]}, ag.ShapeError, ["10 samples", "y 9"]),
    ({"x": X, "batch_size": 0}, ValueError, ["batch_size is 0"]),
    ({"x": X, "prefetch": -1}, ValueError, ["prefetch -1"]),
    ({"x": np.ones((4, 0))}, ValueError, ["no samples"]),
    ({"x": 3.0}, ag.ShapeError, ["single number"]),
    ({"x": X, "y": 3.0}, ag.ShapeError, ["single number"]),
    ({"x": np.array(["a", "b"])}, ag.DtypeError, ["numbers"]),
], ids=["samples", "batch_size", "prefetch", "nothing", "a number", "a number for y", "strings"])
def test_refused(args: dict[str, Any], error: type[Exception], fragments: list[str],
                 request: pytest.FixtureRequest) -> None:
    with expect_error(f"ag_dataloader: {request.node.callspec.id}", error, "ag_dataloader", *fragments):
        ag.ag_dataloader(**args)
