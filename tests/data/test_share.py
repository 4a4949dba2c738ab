"""`ag_dataloader(...).share(rank, size)`: each rank's part of every batch, and states that know nothing of ranks."""

from __future__ import annotations

import copy
from threading import Thread
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.properties import examples
from helpers.ranks import outcomes
from hypothesis import given
from hypothesis import strategies as st

import ag
from ag.parallel.comm.comm import Comm

X, Y = np.arange(2 * 23, dtype=np.float32).reshape(2, 23), np.arange(23)


def made(**options: Any) -> ag.ag_dataloader:
    return ag.ag_dataloader(X, Y, **{"batch_size": 5, "seed": 3, **options})


def ids(loader: Any) -> list[list[int]]:
    """The targets of the batches that are left; the samples must go with them."""
    found = []
    for batch in loader:
        assert np.array_equal(batch.x.numpy(), X[:, batch.y])
        found.append(batch.y.tolist())
    return found


def joined(parts: list[list[list[int]]]) -> list[list[int]]:
    return [[i for part in batch for i in part] for batch in zip(*parts, strict=True)]


@examples
@given(ranks=st.integers(1, 5), batch=st.integers(1, 9), prefetch=st.integers(0, 2), shuffle=st.booleans(),
       drop=st.booleans())
def test_the_parts_of_all_ranks_are_the_batches(ranks: int, batch: int, prefetch: int, shuffle: bool,
                                                drop: bool) -> None:
    options = {"batch_size": batch, "shuffle": shuffle, "drop_last": drop}
    whole, parts = made(**options), [made(**options, prefetch=prefetch).share(i, ranks) for i in range(ranks)]
    for _ in range(2):
        wanted, shares = ids(whole), [ids(part) for part in parts]
        assert joined(shares) == wanted and {len(part) for part in parts} == {len(whole)}
        sizes = [[len(share[k]) for share in shares] for k in range(len(wanted))]
        assert all(max(s) - min(s) <= 1 and s == sorted(s, reverse=True) for s in sizes)


def test_a_job_goes_on_with_other_ranks() -> None:
    wanted = made()
    epochs = [ids(wanted) for _ in range(3)]
    parts = [made().share(i, 3) for i in range(3)]
    for part in parts:
        ids(part)
        part.next_batch()
    state = parts[1].state_dict()
    assert state == parts[0].state_dict() == {**made().state_dict(), "epoch": 1, "next": 1, "begun": 2}
    two = [part.share(i, 2) for i, part in enumerate(parts[1:])]  # of the whole, at its place
    assert joined([ids(part) for part in two]) == epochs[1][1:]
    alone = made(seed=9)
    alone.load_state_dict(two[0].state_dict())
    assert ids(alone) == epochs[2]


def test_a_share_has_a_place_of_its_own() -> None:
    loader = made()
    loop = iter(loader)
    next(loop)
    share, other = loader.share(0, 2), loader.share(1, 2)
    first = joined([ids(share), ids(other)])
    assert first == [batch.y.tolist() for batch in loop]  # what was left of the epoch
    assert joined([ids(share), ids(copy.deepcopy(other))]) == ids(loader)


def test_threads_may_share_a_loader() -> None:
    class Slow:
        asked = 0

        def __len__(self) -> int:
            return 23

        def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
            Slow.asked += 1
            assert Slow.asked == 1  # one at a time, also where threads have shares
            Slow.asked -= 1
            return X[:, i], i

    loader = ag.ag_dataloader(Slow(), batch_size=5, seed=3, prefetch=1)
    found: dict[int, list[list[int]]] = {}
    threads = [Thread(target=lambda i=i: found.__setitem__(i, ids(loader.share(i, 3)))) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert joined([found[i] for i in range(3)]) == ids(made())


def test_a_loop_of_ones_own_over_ranks() -> None:
    """Gradients times samples, added up over the ranks and divided once: the last batch has samples for three only."""
    targets = X[:1] * 0.03 - X[1:] * 0.02

    def train(comm: Comm | None) -> np.ndarray:
        loader = ag.ag_dataloader(X / 46, targets, batch_size=5, seed=3)
        if comm is not None:
            loader = loader.share(comm.rank, comm.size)
        with ag.ag_device(f"cpu:{comm.rank + 1 if comm else 0}"):
            W = ag.ag_param(np.zeros((1, 2), np.float32))
            optimizer = ag.optimizer_adam({"W": W}, lr=0.05)
            for _ in range(3):
                for batch in loader:
                    samples = batch.x.shape[-1]
                    grads = {}
                    if samples:
                        with ag.with_grad_tape():
                            loss = ag.ag_mse_loss(W @ batch.x, batch.y)
                        grads = {"W": ag.backward(loss)[W]}
                    optimizer.step(ag.syncgrads([grads], [samples], comm))
            return W.numpy()

    found = outcomes(4, train)
    assert all(np.array_equal(W, found[0]) for W in found)
    np.testing.assert_allclose(found[0], train(None), atol=1e-6)


def test_the_shape_of_an_empty_part() -> None:
    pairs = [(X[:, i], Y[i]) for i in range(3)]
    for loader in (ag.ag_dataloader(X[:, :3], Y[:3], batch_size=2, shuffle=False),
                   ag.ag_dataloader(pairs, batch_size=2, shuffle=False)):
        shapes = [(batch.x.shape, np.shape(batch.y)) for batch in loader.share(1, 3)]
        assert shapes == [((2, 1), (1,)), ((2, 0), (0,))]


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0), (0.0, 2), (0, 2.0), (True, 2), (None, 1)])
def test_ranks_that_cannot_be(rank: Any, size: Any) -> None:
    with expect_error(f"share({rank}, {size})", ValueError, "ag_dataloader.share: rank is", repr(rank), repr(size)):
        made().share(rank, size)


def test_orders_that_would_differ() -> None:
    """Of a loader without a seed each process draws its own."""
    unseeded = ag.ag_dataloader(X, Y)
    with expect_error("a share of a loader without a seed", ValueError, "without a seed", "the same seed"):
        unseeded.share(0, 2)
    assert len(ids(unseeded.share(0, 1))) == len(ids(ag.ag_dataloader(X, Y, shuffle=False).share(0, 2))) == 1
    unseeded.load_state_dict(ag.ag_dataloader(X, Y, seed=1).state_dict())
    assert len(ids(unseeded.share(0, 2))) == 1
