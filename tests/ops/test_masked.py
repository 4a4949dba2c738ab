"""Masked arrays are refused wherever arrays come in: numpy would make arrays of them without the mask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.training import accuracy, mean_squared_error, top_k_accuracy

MASKED, WITHOUT = np.ma.masked_equal([[1.0, 2.0]], 2.0), np.ma.array([[1.0, 2.0]])
IDS = np.ma.masked_equal([0, 1], 1)


def assigned(name: str) -> None:
    W = ag.ag_param([[1.0, 2.0]])
    setattr(W, name, MASKED)
    ag.optimizer_sgd([W]).step()


DOORS: dict[str, Callable[[ag.Tensor], object]] = {
    "ag_tensor": lambda t: ag.ag_tensor(MASKED),
    "ag_tensor of a list": lambda t: ag.ag_tensor([[[1.0, np.ma.masked]]]),
    "ag_param": lambda t: ag.ag_param(WITHOUT),
    "data": lambda t: assigned("data"),
    "grad": lambda t: assigned("grad"),
    "t * m": lambda t: t * MASKED,
    "m * t": lambda t: MASKED * t,
    "m + t without a mask": lambda t: WITHOUT + t,
    "t == m": lambda t: t == MASKED,
    "m == t": lambda t: np.ma.zeros((1, 2)) == t,
    "numpy.multiply": lambda t: np.multiply(MASKED, t),
    "numpy.ma.multiply": lambda t: np.ma.multiply(t, t),
    "a loss": lambda t: ag.ag_mse_loss(t, MASKED),
    "labels": lambda t: ag.ag_softmax_cross_entropy_loss(np.ones((2, 2)), IDS),
    "ids": lambda t: ag.ag_embedding(3, 2)(IDS),
    "a captured step": lambda t: ag.ag_capture(lambda x: t * x)(MASKED),
    "a loader": lambda t: ag.ag_dataloader(MASKED),
    "accuracy": lambda t: accuracy(np.ones((2, 2)), IDS),
    "an error": lambda t: mean_squared_error(t, MASKED),
    "top_k_accuracy": lambda t: top_k_accuracy(1)(np.ones((2, 2)), IDS),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_masked_array_is_refused(door: str) -> None:
    with expect_error(door, ag.DtypeError, "masked array"):
        DOORS[door](ag.ag_tensor([[1.0, 2.0]]))


def test_a_captured_step_refuses_one_in_a_replay() -> None:
    step = ag.ag_capture(lambda x: ag.ag_sum(ag.ag_mul(2.0, x)))
    for _ in range(3):
        assert step(np.ones((1, 2), MASKED.dtype)).item() == 4
    with expect_error("replay", ag.DtypeError, "ag_capture: argument 0", "masked array"):
        step(MASKED)


def test_a_state_with_one_changes_nothing() -> None:
    layer = ag.ag_linear(2, 1, bias=False)
    before = layer.state_dict()["W"]
    with expect_error("state", ag.CheckpointError, "W is a masked array"):
        layer.load_state_dict({"W": MASKED})
    assert np.array_equal(layer.W.numpy(), before)


def test_samples_with_one_are_refused() -> None:
    with expect_error("dp_train", ag.DtypeError, "masked array"):
        ag.dp_train(lambda: ag.ag_linear(1, 1), [MASKED] * 4, ag.ag_mse_loss, n_iter=3, devices=["cpu"], verbose=False)
