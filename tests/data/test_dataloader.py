"""The data loader: every sample once per epoch, in an order that the seed decides and that can be resumed."""

from __future__ import annotations

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
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
    with pytest.raises(ValueError, match="read-only"):
        loader.order[0] = 3


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


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("k", range(5))
def test_resuming_in_the_middle_gives_the_same_sequence(prefetch: int, k: int) -> None:
    loader = ag.ag_dataloader(X, IDS, batch_size=3, seed=5, prefetch=prefetch)
    firsts(loader)
    loop = iter(loader)
    for _ in range(k):
        next(loop)
    state = loader.state_dict()
    expected = [[int(v) for batch in loop for v in batch.x.numpy()[0]], firsts(loader), firsts(loader)]
    assert list(map(len, expected)) == [max(0, 10 - 3 * k), 10, 10]
    for options in ({"prefetch": 0}, {"prefetch": 2, "seed": 99}):
        resumed = ag.ag_dataloader(X, IDS, batch_size=3, **options)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert resumed.state_dict() == state
        assert [firsts(resumed) for _ in range(3)] == expected


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize("leave", ["zip", "islice", "break", "next"])
def test_every_loop_is_an_epoch_however_the_one_before_ended(prefetch: int, leave: str) -> None:
    plain = ag.ag_dataloader(X, batch_size=4, seed=5)
    expected = [firsts(plain) for _ in range(4)]
    for taken in (1, 3):  # in the middle, and with the last batch
        loader, seen = ag.ag_dataloader(X, batch_size=4, seed=5, prefetch=prefetch), []
        for _ in range(4):
            if leave == "zip":
                batches = [batch for _, batch in zip(range(taken), loader, strict=False)]
            elif leave == "islice":
                batches = list(islice(loader, taken))
            elif leave == "next":
                loop = iter(loader)
                batches = [next(loop) for _ in range(taken)]
            else:
                batches = []
                for batch in loader:
                    batches.append(batch)
                    if len(batches) == taken:
                        break
            seen.append([int(v) for batch in batches for v in batch.x.numpy()[0]])
        assert seen == [epoch[: 4 * taken] for epoch in expected]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_two_loops_and_next_batch_each_have_a_place(prefetch: int) -> None:
    plain = ag.ag_dataloader(X, batch_size=4, seed=5)
    expected = [firsts(plain) for _ in range(4)]
    loader = ag.ag_dataloader(X, batch_size=4, seed=5, prefetch=prefetch)
    seen: list[list[int]] = [[], [], []]
    for a, b in zip(loader, loader, strict=True):
        for found, batch in zip(seen, (a, b, loader.next_batch()), strict=True):
            found += [int(v) for v in batch.x.numpy()[0]]
    assert seen == expected[:3] and not loader.has_next()
    assert firsts(loader) == expected[3] and not loader.has_next()


def test_the_state_is_of_the_loop_that_took_the_last_batch() -> None:
    loader = ag.ag_dataloader(X, batch_size=3, seed=5)
    loop, peek = iter(loader), iter(loader)
    next(loop)
    next(peek)
    assert [loader.state_dict()[k] for k in ("epoch", "next", "begun")] == [1, 1, 2]
    next(loop)
    assert [loader.state_dict()[k] for k in ("epoch", "next", "begun")] == [0, 2, 2]
    loader.next_batch()
    assert [loader.state_dict()[k] for k in ("epoch", "next", "begun")] == [2, 1, 3]
    next(loop)
    state, rest = loader.state_dict(), [int(v) for batch in loop for v in batch.x.numpy()[0]]
    resumed = ag.ag_dataloader(X, batch_size=3)
    resumed.load_state_dict(state)
    assert firsts(resumed) == rest and firsts(resumed) == firsts(loader)


def test_a_loop_that_was_not_begun_takes_no_epoch() -> None:
    loader = ag.ag_dataloader(X, batch_size=3, seed=5)
    order = loader.order.tolist()
    loops = [iter(loader), loader.epoch()]
    del loops
    assert firsts(loader) == order


def test_two_threads_that_share_an_epoch() -> None:
    loader = ag.ag_dataloader(np.arange(200.0), batch_size=1, seed=5)

    def take(_: int) -> list[float]:
        seen = []
        with suppress(StopIteration):
            while True:
                seen.append(loader.next_batch().x.item())
        return seen

    with ThreadPoolExecutor(4) as threads:
        assert sorted(v for seen in threads.map(take, range(4)) for v in seen) == list(range(200))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_goes_on_by_itself(copied: Any) -> None:
    loader = ag.ag_dataloader(X, IDS, batch_size=3, seed=5, prefetch=2)
    loader.next_batch()
    loop = iter(loader)
    next(loop)
    other = copied(loader)
    assert other.state_dict() == loader.state_dict()
    expected = [firsts(loader), loader.next_batch().y.tolist(), firsts(loader)]
    assert [firsts(other), other.next_batch().y.tolist(), firsts(other)] == expected


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


OPTIONS: dict[str, Any] = {"batch_size": 3, "shuffle": True, "drop_last": False}


@pytest.mark.parametrize(("changed", "fragments"), [
    ({"shuffle": False}, ["shuffle True", "this one has shuffle False"]),
    ({"drop_last": True}, ["drop_last False", "this one has drop_last True"]),
    ({"batch_size": 4, "shuffle": False}, ["batch_size 3, shuffle True", "batch_size 4, shuffle False"]),
])
def test_a_state_of_other_settings_is_refused(changed: dict[str, Any], fragments: list[str]) -> None:
    loader = ag.ag_dataloader(X, IDS, seed=5, **OPTIONS)
    loader.next_batch()
    other = ag.ag_dataloader(X, IDS, seed=5, **{**OPTIONS, **changed})
    loop = iter(other)
    first = next(loop).y.tolist()
    before = other.state_dict()
    with expect_error("a loader's state for other settings", ag.CheckpointError, "load_state_dict", *fragments):
        other.load_state_dict(loader.state_dict())
    assert other.state_dict() == before
    plain = ag.ag_dataloader(X, IDS, seed=5, **{**OPTIONS, **changed})
    assert [first, *(b.y.tolist() for b in loop)] == [b.y.tolist() for b in plain]
    assert [b.y.tolist() for b in other] == [b.y.tolist() for b in plain]


@pytest.mark.parametrize("wrong", [{"seed": 1.5}, {"epoch": "1"}, {"next": True}, {"next": 5}, {"next": -1},
                                   {"epoch": -1}, {"epoch": 1 << 64}, {"begun": None}, {"begun": 1 << 64}])
def test_a_state_with_a_wrong_number_is_refused(wrong: dict[str, Any]) -> None:
    loader = ag.ag_dataloader(X, batch_size=3, seed=5)
    loader.next_batch()
    before = loader.state_dict()
    with expect_error("a loader's state with a wrong number", ag.CheckpointError, "load_state_dict",
                      repr(next(iter(wrong.values())))):
        loader.load_state_dict({**before, **wrong})
    assert loader.state_dict() == before


def test_what_is_no_state_is_refused() -> None:
    for state in (None, [], "seed", 3):
        with expect_error("a loader's state that is none", ag.CheckpointError, "missing seed"):
            ag.ag_dataloader(X).load_state_dict(state)


@pytest.mark.parametrize("prefetch", [1, 3, 100])
def test_prefetching_changes_nothing(device: str, prefetch: int) -> None:
    plain, ahead = (ag.ag_dataloader(X, IDS, batch_size=3, seed=2, prefetch=p) for p in (0, prefetch))
    for _ in range(3):
        for a, b in zip(plain, ahead, strict=True):
            assert np.array_equal(a.x.numpy(), b.x.numpy()) and np.array_equal(a.y, b.y) and b.x.device == device
    assert plain.state_dict() == ahead.state_dict()


@pytest.mark.parametrize(("args", "error", "fragments"), [
    ({"x": X, "y": IDS[:9]}, ag.ShapeError, ["10 samples", "y 9"]),
    ({"x": X, "batch_size": 0}, ValueError, ["batch_size is 0"]),
    ({"x": X, "batch_size": True}, ValueError, ["batch_size is True"]),
    ({"x": X, "batch_size": 2.0}, ValueError, ["batch_size is 2.0"]),
    ({"x": X, "batch_size": np.array(2.5)}, ValueError, ["batch_size is array(2.5)"]),
    ({"x": X, "prefetch": -1}, ValueError, ["prefetch -1"]),
    ({"x": X, "seed": 1.5}, ValueError, ["seed is 1.5"]),
    ({"x": X, "shuffle": "no"}, ValueError, ["shuffle is 'no'"]),
    ({"x": X, "drop_last": 5}, ValueError, ["drop_last is 5"]),
    ({"x": X, "col_major": None}, ValueError, ["col_major is None"]),
    ({"x": np.ma.masked_less(X, 3)}, ag.DtypeError, ["x: a masked array"]),
    ({"x": [], "y": []}, ValueError, ["no samples"]),
    ({"x": np.ones((4, 0))}, ValueError, ["no samples"]),
    ({"x": 3.0}, ag.ShapeError, ["single number"]),
    ({"x": X, "y": 3.0}, ag.ShapeError, ["single number"]),
    ({"x": np.array(["a", "b"])}, ag.DtypeError, ["numbers"]),
])
def test_refused(args: dict[str, Any], error: type[Exception], fragments: list[str]) -> None:
    with expect_error("ag_dataloader: an argument", error, "ag_dataloader", *fragments):
        ag.ag_dataloader(**args)


def test_whole_numbers_of_every_kind() -> None:
    loader = ag.ag_dataloader(X, batch_size=np.int64(3), prefetch=np.uint8(2), seed=np.int32(5), shuffle=np.True_)
    assert firsts(loader) == firsts(ag.ag_dataloader(X, batch_size=3, seed=5))
    assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()


@pytest.mark.parametrize("name", ["n_samples", "batch_size", "shuffle", "drop_last", "prefetch"])
def test_a_setting_stays_as_it_is(name: str) -> None:
    loader = ag.ag_dataloader(X, batch_size=3, seed=5)
    with expect_error("a setting of a loader that is assigned", AttributeError, "ag_dataloader", f"{name} was set"):
        setattr(loader, name, 2)
    assert firsts(loader) == firsts(ag.ag_dataloader(X, batch_size=3, seed=5))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_is_a_copy(device: str, prefetch: int) -> None:
    x, y = X.copy(), np.arange(10)
    for data in ((x, y), (list(x.T), list(y)), ([(v, k) for v, k in zip(x.T, y, strict=True)],)):
        for options in ({"batch_size": 1}, {"batch_size": 10}):
            for batch in ag.ag_dataloader(*data, shuffle=False, prefetch=prefetch, **options):
                batch.x.data = batch.x.numpy() * 0 - 1
                batch.y[...] = -1
            assert np.array_equal(x, X) and y.tolist() == list(range(10))


def test_arrays_are_looked_at_when_a_batch_is_due() -> None:
    x, rows = np.arange(4.0), [0.0, 1.0, 2.0, 3.0]
    for data, expected in ((x, [0, 9]), (rows, [0, 1]), (ag.ag_tensor(x[None]), [0, 1])):
        loop = iter(ag.ag_dataloader(data, batch_size=1, shuffle=False))
        found = [next(loop).x.item()]
        if not ag.is_ag_tensor(data):
            data[1] = 9
        assert [*found, next(loop).x.item()] == expected


@pytest.mark.parametrize("prefetch", [0, 2])
def test_threads_share_a_loop(prefetch: int) -> None:
    batches = iter(ag.ag_dataloader(list(np.arange(60.0).reshape(60, 1)), batch_size=1, prefetch=prefetch))
    with ThreadPoolExecutor(3) as pool:
        parts = list(pool.map(lambda _: [b.x.item() for b in batches], range(3)))
    assert sorted(x for part in parts for x in part) == list(range(60))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_sample_that_asks_its_own_loader(prefetch: int) -> None:
    class Own:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return next(iter(loader)).x.numpy()[:, 0]

    other = ag.ag_dataloader(np.arange(4.0), prefetch=prefetch)
    loader = ag.ag_dataloader(Own(), prefetch=prefetch)
    with expect_error("a sample of its own loader", RuntimeError, "ag_dataloader: sample", "of x", "must not ask"):
        next(iter(loader))
    loader = other
    assert next(iter(ag.ag_dataloader(Own(), prefetch=prefetch))).x.shape == (1, 4)
