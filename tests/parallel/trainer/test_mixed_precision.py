"""dp_train with 16-bit models: one loss scale for all replicas.  Their equal bits are in test_placements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.dp_classifier import BATCH, DATA, assert_equal, make_model, outcome, places

import ag
from ag.autograd.half import FIRST_SCALE, scales_of


def large(model: ag.Layer, sample: Any) -> ag.Tensor:
    """The model with outputs so large that the gradient of what is before overflows f16 at the first scale."""
    return ag.ag_scale(model(sample[0]), 64.0)


def overflowing(devices: list[str], **options: Any) -> ag.DPResult:
    settings = {"micro_batch": BATCH // len(devices), "n_iter": 12, "lr": 0.05, "seed": 4, "verbose": False,
                "stack": 1, "shuffle": False}
    return ag.dp_train(make_model, DATA, ag.ag_softmax_cross_entropy_loss, large, lambda s: s[1], devices=devices,
                       **{**settings, **options})


def scale_of(model: ag.Layer) -> float:
    (scale,) = scales_of([p.id for p in model.parameters().values()])
    return float(scale.read()[0])


def test_an_overflow_is_skipped_by_all(device: str, f16: None) -> None:
    one = overflowing(places(device, 1))
    scale, _, good, skipped = one.optimizer_state["loss_scale"]
    assert 0 < skipped < 12 and skipped + good == 12 and scale == FIRST_SCALE / 2**skipped
    devices, scales = places(device, 3), []
    three = overflowing(devices, callback=lambda step: scales.append({scale_of(model) for model in step.models}))
    assert_equal(three, one)
    assert scales[-1] == {scale}


def test_an_optimizer_beside_the_job_changes_no_bit(device: str, f16: None) -> None:
    """Neither do its steps, made between those of the job, nor does the job change it."""
    alone = overflowing(places(device, 2))
    W = ag.ag_param([[1.0, 2.0]], device=places(device, 1)[0])
    optimizer = ag.optimizer_sgd([W], lr=0.5)
    optimizer.load_state_dict(optimizer.state_dict() | {"loss_scale": np.float32([2.0**-20, 2.0**20, 0, 0])})

    def step(_: ag.DPStep) -> None:
        with ag.with_grad_tape():
            loss = ag.ag_sum(W * [[0.25, 0.5]])
        optimizer.step(ag.backward(loss))

    assert_equal(overflowing(places(device, 2), callback=step), alone)
    assert (optimizer.t, optimizer.loss_scale, optimizer.skipped) == (12, 2.0**-20, 0)
    assert W.numpy().tolist() == [[-0.5, -1.0]]


def test_several_optimizers_of_a_job_have_one_scale(device: str, f16: None) -> None:
    one = overflowing(places(device, 1), optimizer=lambda params: [
        ag.optimizer_sgd({name: p for name, p in params.items() if ("_W" in name) is weights}, lr=0.05)
        for weights in (True, False)])
    scales = [state["loss_scale"].tolist() for state in one.optimizer_state]
    assert scales[0] == scales[1] and 0 < scales[0][3] < 12


def test_an_infinite_loss_is_not_an_overflow(f16: None) -> None:
    with pytest.raises(FloatingPointError, match=r"(the loss|the gradient of \w+) is not finite on replica 0"):
        ag.dp_train(make_model, [(np.full((4, 1), np.inf, np.float32), np.array([0]))],
                    ag.ag_softmax_cross_entropy_loss, lambda m, s: m(s[0]), lambda s: s[1], devices=["cpu"], n_iter=1,
                    verbose=False)


def test_resumed_on_another_number_of_replicas(device: str, f16: None, tmp_path: Path) -> None:
    path = tmp_path / "job.safetensors"
    whole = overflowing(places(device, 2))
    overflowing(places(device, 2), n_iter=7, checkpoint=path, checkpoint_every=7)
    resumed = overflowing(places(device, 4), checkpoint=path, resume=True)
    assert_equal(resumed, whole)
    assert "master.layer1_W" in outcome(whole)
