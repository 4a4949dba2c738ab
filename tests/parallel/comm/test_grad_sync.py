"""`syncgrads`: one division, a fixed order, whatever the sets and ranks are; and `start`, the thin call of dp_train."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ag
from ag.parallel.comm.threads import thread_comms

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def on_ranks(sets: list[list[Any]], weights: list[Any]) -> list[Any]:
    """Return what syncgrads returns on each rank, given each rank's sets and weights."""
    comms = thread_comms(len(sets), timeout=10.0)
    with ThreadPoolExecutor(len(sets)) as pool:
        return [f.result() for f in [pool.submit(ag.syncgrads, s, w, c)
                                     for s, w, c in zip(sets, weights, comms, strict=True)]]


def test_weighted_average_equals_the_gradient_of_all_samples(device: str) -> None:
    with ag.ag_device(device):
        model, x, y = ag.ag_sequential(ag.ag_linear(4, 3)), normal(4, 7), normal(3, 7)
        names = set(model.parameters())  # which names the tensors, too

        def gradients(a: int, b: int) -> ag.Gradients:
            with ag.with_grad_tape():
                loss = ag.ag_mse_loss(model(ag.ag_tensor(x[:, a:b])), y[:, a:b])
            return ag.backward(loss)

        average = ag.syncgrads([gradients(0, 5), gradients(5, 7)], weights=[5, 2])
        whole = gradients(0, 7)
        assert set(average) == names
        for name, g in average.items():
            assert g.device == device
            np.testing.assert_allclose(g.numpy(), whole[name].numpy(), rtol=1e-5, atol=1e-6)
        ag.clip_grad_norm(model, average, 0.1)
        ag.optimizer_sgd(model).step(average)


def test_a_missing_gradient_counts_as_zero_and_an_empty_replica_not_at_all() -> None:
    sets = [{"a": np.float32([[2.0]])}, {"a": np.float32([[4.0]]), "b": np.float32([[6.0]])},
            {"a": np.float32([[np.nan]])}]
    found = ag.syncgrads(sets, weights=[1, 1, 0])
    assert (found["a"].item(), found["b"].item()) == (3.0, 3.0)
    assert np.isnan(ag.syncgrads(sets)["a"].item()), "a NaN is never averaged away"


def test_ranks_get_the_same_bits_however_sets_are_shared_out() -> None:
    sets = [{"a": normal(3, 2), "b": normal(1, 1)} for _ in range(8)]
    expected = ag.syncgrads(sets, weights=range(1, 9))
    for cuts in ([0, 4, 8], [0, 2, 4, 6, 8]):
        parts = [slice(a, b) for a, b in pairwise(cuts)]
        for found in on_ranks([sets[s] for s in parts], [range(1, 9)[s] for s in parts]):
            assert list(found) == list(expected)
            for name, g in found.items():
                np.testing.assert_array_equal(g.numpy(), expected[name].numpy())


def test_a_rank_without_sets_and_names_that_only_some_ranks_have() -> None:
    for found in on_ranks([[], [{"b": np.float32([[3.0]])}], [{"a": np.float32([[1.0]])}]], [None, [2], [1]]):
        assert {name: g.item() for name, g in found.items()} == {"b": 2.0, "a": pytest.approx(1 / 3)}


def test_float64_stays_float64() -> None:
    found = ag.syncgrads([{"a": np.array([[1 / 3]])}, {"a": np.array([[1 / 3]])}])["a"]
    assert found.dtype == "f64" and found.item() == 1 / 3


def test_tensors_keep_their_shapes_and_vectors_of_numbers_are_columns() -> None:
    tensor, array = ag.ag_tensor([[1.0, 2.0]]).reshape(2), np.float32([3.0, 4.0])
    for found in on_ranks([[{"a": tensor, "b": array, "c": ag.ag_tensor(2.0)}], []], [None, None]):
        assert {name: g.shape for name, g in found.items()} == {"a": (2,), "b": (2, 1), "c": ()}
        assert found["a"].numpy().tolist() == [1.0, 2.0] and found["c"].item() == 2.0
    params = {"a": ag.ag_param(tensor), "b": ag.ag_param(array)}
    ag.optimizer_sgd(params, lr=0.5).step(ag.syncgrads([{"a": tensor, "b": array}]))
    assert params["a"].numpy().tolist() == [0.5, 1.0] and params["b"].numpy().tolist() == [[1.5], [2.0]]


def test_wrong_arguments_are_named() -> None:
    one = {"a": np.float32([[1.0]])}
    with pytest.raises(ValueError, match="2 sets and 1 weights"):
        ag.syncgrads([one, one], weights=[1])
    with pytest.raises(ValueError, match=r"weights are \[-1.0\]"):
        ag.syncgrads([one], weights=[-1])
    with pytest.raises(ValueError, match="all weights are 0"):
        ag.syncgrads([one], weights=[0])
    with pytest.raises(ag.ShapeError, match=r"'a' is \(1, 2\) in set 1 and \(1, 1\)"):
        ag.syncgrads([one, {"a": normal(1, 2)}])
    with pytest.raises(ag.CommError, match="on rank 1 and"):
        on_ranks([[one], [{"a": normal(1, 2)}]], [None, None])
    p = ag.ag_param([[1.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(p * p)
    with pytest.raises(ValueError, match="a parameter called None"):
        ag.syncgrads([ag.backward(loss)])


# ------------------------------------------------------------------------------------------------ start


def test_start_is_dp_train_under_other_names() -> None:
    data = [(normal(2, 1), normal(1, 1)) for _ in range(10)]
    done = ag.start(ag.ag_mse_loss, data, lambda: ag.ag_linear(2, 1), cycles=2, batchsize=3, devices=["cpu", "cpu:1"],
                    seed=1, lr=0.01)
    same = ag.dp_train(lambda: ag.ag_linear(2, 1), data, ag.ag_mse_loss, lambda m, s: m.forward(s[0]), lambda s: s[1],
                       n_iter=4, verbose=False, devices=["cpu", "cpu:1"], micro_batch=3, seed=1, lr=0.01)
    np.testing.assert_array_equal(done.loss_history, same.loss_history)
    for name, value in same.params.items():
        np.testing.assert_array_equal(np.asarray(done.params[name]), np.asarray(value))


def test_start_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="start: data is empty"):
        ag.start(ag.ag_mse_loss, [], lambda: ag.ag_linear(2, 1))
    with pytest.raises(ValueError, match="start: cycles is 0"):
        ag.start(ag.ag_mse_loss, [(1, 1)], lambda: ag.ag_linear(2, 1), cycles=0)
