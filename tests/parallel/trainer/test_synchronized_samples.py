"""dp_train(sync_batch_norm=True): batch norm over all samples of a step, whoever holds which."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import places
from helpers.errors import expect_error

import ag

RNG = np.random.default_rng(31)
DATA = [((3 + 2 * RNG.standard_normal((4, 1))).astype(np.float32), np.array([i % 3])) for i in range(29)]
BATCH = 8


def make_model() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6), ag.ag_batch_norm(6), ag.ag_dropout(0.25), ag.ag_linear(6, 5),
                            ag.ag_batch_norm(5), ag.ag_linear(5, 3))


def without_dropout() -> ag.Layer:
    return ag.ag_sequential(ag.ag_linear(4, 6), ag.ag_batch_norm(6), ag.ag_linear(6, 3))


def train(devices: list[str], make: Any = make_model, **options: Any) -> ag.DPResult:
    settings = {"micro_batch": BATCH // len(devices), "n_iter": 4, "lr": 0.05, "seed": 4, "verbose": False,
                "stack": 1, "shuffle": False}
    return ag.dp_train(make, DATA, ag.ag_softmax_cross_entropy_loss, lambda model, s: model(s[0]), lambda s: s[1],
                       devices=devices, sync_batch_norm=True, **{**settings, **options})


def test_a_step_is_one_with_the_whole_batch(device: str) -> None:
    """Parameters, losses and running statistics of the hand-written loop over whole batches, to 1e-6."""
    result = train(places(device, 2), without_dropout, n_iter=3,
                   optimizer=lambda params: ag.optimizer_sgd(params, lr=0.05))
    ag.ag_seed(4)
    with ag.ag_device("cpu"):
        model = ag.ag_train(without_dropout())
        optimizer, losses = ag.optimizer_sgd(model, lr=0.05), []
        for k in range(3):
            chosen = [DATA[(k * BATCH + j) % len(DATA)] for j in range(BATCH)]
            x, labels = np.concatenate([s[0] for s in chosen], axis=1), np.concatenate([s[1] for s in chosen])
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(x)), labels)
            optimizer.step(ag.backward(loss))
            losses.append(loss.item())
    np.testing.assert_allclose(result.loss_history, losses, atol=1e-6)
    for name, p in model.parameters().items():
        np.testing.assert_allclose(result.params[name].numpy(), p.numpy(), atol=1e-6, err_msg=name)
    for name, b in model.buffers().items():
        np.testing.assert_allclose(result.model.buffers()[name].numpy(), b.numpy(), rtol=1e-6, atol=1e-6, err_msg=name)


def test_an_error_in_one_sample_is_the_one_that_surfaces() -> None:
    def forward(model: ag.Layer, sample: Any) -> ag.Tensor:
        if sample[0] is DATA[5][0]:
            raise KeyError("sample 5")
        return model(sample[0])

    with pytest.raises(KeyError, match="sample 5") as caught:
        ag.dp_train(make_model, DATA, ag.ag_softmax_cross_entropy_loss, forward, lambda s: s[1], micro_batch=4,
                    devices=["cpu", "cpu:1"], sync_batch_norm=True, n_iter=1, shuffle=False, stack=1,
                    verbose=False)
    assert "replica 1 (cpu:1)" in caught.value.__notes__[0]


def test_a_captured_step_is_refused() -> None:
    with expect_error("dp_train(sync_batch_norm=True, capture=True)", ValueError, "capture=True", "capture='auto'"):
        train(["cpu"], capture=True)
