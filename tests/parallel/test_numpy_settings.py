"""`np.seterr(all="raise")` of the user changes no result: what the package computes on the host ignores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ag
from ag.engine.dtype import F16, F32
from ag.parallel.comm.threads import thread_comms
from ag.parallel.comm.tree_reduction import add_rows, add_up
from ag.parallel.replicas.compression import Link, pack, packed, sums, take_residuals

TINY, HUGE = np.float32(1e-40), np.float32(3e38)  # underflow and overflow when they are scaled or added
ROW = np.array([TINY, HUGE, 1.0, -HUGE], np.float32)


def weighted_average() -> list[Any]:
    sets = [{"W": ROW}, {"W": 2 * np.array([TINY, HUGE / 2, 1, 3], np.float32)}]
    return [ag.syncgrads(sets, weights=[1e-3, 1])["W"].numpy(), ag.syncgrads([{"W": ROW}] * 2)["W"].numpy()]


def sums_of_rows() -> list[Any]:
    out = np.empty_like(ROW)
    add_up([(0, 1, ROW), (1, 1, ROW)], out, 7.0)
    return [out, add_rows(ROW, ROW, np.empty_like(ROW))]


def all_reduce() -> list[Any]:
    (comm,) = thread_comms(1)
    array = ROW.copy()
    comm.all_reduce(array)
    return [array]


def compressed_gradients() -> list[Any]:
    found = []
    for wire in (F32, F16):
        link = Link(wire, momentum=0.9)
        found += [link.carry("W", ROW, ratio) for ratio in (0.25, 1.0, 1.0)]
        found += link.residuals.values()
        message = packed([(0, pack(ROW, 1.0, F32))])
        found.append(sums([message, message], {0: 4})[0])
    state = {"steps": np.array([1]), **{f"residual{i}.W": np.array([1e-45, 1e39, 3e38, 0]) for i in range(2)}}
    take_residuals([link], state, {"W": (4,)})
    return [*found, *link.residuals.values()]


def movements_of_buffers() -> list[Any]:
    def made() -> ag.Layer:
        norm = ag.ag_batch_norm(2)
        norm.running_mean.data = np.array([[HUGE], [TINY]], np.float32)
        return norm

    result = ag.dp_train(made, [np.array([[1.0, 2.0], [TINY, 0.0]], np.float32)], n_iter=1, devices=["cpu"],
                         forward_fn=lambda m, x: ag.ag_mean(m(x)), verbose=False)
    return [result.model.running_mean.numpy()]


def clipped_shards() -> list[Any]:
    found = []
    for stage in (1, 2):
        layer = ag.ag_linear(1, 4, bias=False)
        layer.W.data = np.ones((4, 1))
        zero = ag.ZeroOptimizer(layer, devices=["cpu", "cpu:1"], stage=stage, lr=1.0)
        with ag.with_grad_tape():
            loss = ag.ag_sum(zero.model(ag.ag_tensor([[1.0]])) * ag.ag_tensor([[1e-38], [1e3], [1e18], [1e-3]]))
        ag.backward(loss)
        found.append(zero.clip_grad_norm(1e-9))
        zero.step()
        found.append(zero.model.parameters()["W"].numpy() if stage == 1 else 0)
    return found


def training() -> list[Any]:
    data = [(np.array([[TINY, k], [1e30, TINY]], np.float32), np.array([[1e-30, 1e18]], np.float32)) for k in (1, HUGE)]
    ag.ag_seed(3)
    done = ag.dp_train(lambda: ag.ag_sequential(ag.ag_batch_norm(2), ag.ag_linear(2, 1)), data, ag.ag_mse_loss,
                       lambda m, s: m(s[0]), lambda s: s[1], devices=["cpu", "cpu:1"], n_iter=2, verbose=False,
                       weight_fn=lambda s: 1e-3, max_norm=1e-30, batch=2, micro_batch=2, on_nonfinite="skip")
    return [done.loss_history, *(x.numpy() for x in done.model.named_tensors().values())]


@pytest.mark.parametrize("work", [weighted_average, sums_of_rows, all_reduce, compressed_gradients,
                                  movements_of_buffers, clipped_shards, training])
def test_errors_of_numpy_that_the_user_wants_raised(work: Callable[[], list[Any]]) -> None:
    with np.errstate(all="ignore"):
        wanted = work()
    with np.errstate(all="raise"):
        found = work()
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
