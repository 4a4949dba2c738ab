"""A captured step equals the eager one bit for bit: results and gradients, on several calls with new inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from table.cases import CASES
from table.rows import Array, Case, loss_of, on_devices, restart_generator, tensor, weights_like

import ag
from ag.autograd.tensor import Tensor
from ag.engine.device import backend_of

CALLS = 2  # of which one records and one replays
# values that go through the host, and masks, whose size a step cannot know
HOST = {"ag_to_device", "masked_select", "masked_scatter", "ag_slice_by_masks"}
CAPTURABLE = [case for case in CASES if HOST.isdisjoint({case.row.name, case.row.name + case.row.label})]


def step_of(case: Case, device: str) -> Callable[..., list[Tensor]]:
    """A step that returns the op's result and the gradients of parameters added to its operands."""
    backend = backend_of(device)
    operands = case.operands()
    offsets = case.on(backend, [np.zeros_like(x) for x in operands], params=True)
    with ag.no_grad():
        restart_generator(backend)
        weights = tensor(weights_like(case.call(*case.on(backend, operands))), backend)

    def step(*values: Any) -> list[Tensor]:
        with ag.with_grad_tape():
            given = [x + p if isinstance(p, Tensor) else x for x, p in zip(values, offsets, strict=True)]
            out = case.call(*given)
            loss = loss_of(out, weights)
        grads = ag.backward(loss)
        return [out, loss, *(grads[p] for p in offsets if isinstance(p, Tensor))]

    return step


def results(case: Case, device: str, step: Callable[..., list[Tensor]]) -> list[list[Array]]:
    """Host copies of what a step returns on each of several calls with new operands."""
    backend = backend_of(device)
    restart_generator(backend)
    return [[t.numpy() for t in step(*case.on(backend, case.operands(seed)))] for seed in range(CALLS)]


@pytest.mark.slow_on("swiftshader")
@on_devices(CAPTURABLE, pytest.mark.slow)
def test_captured_equals_eager(device: str, case: Case) -> None:
    step = step_of(case, device)
    eager = results(case, device, step)
    captured = results(case, device, ag.ag_capture(step))
    for call, (want, got) in enumerate(zip(eager, captured, strict=True)):
        for w, g in zip(want, got, strict=True):
            assert g.tobytes() == w.tobytes(), f"{case}: call {call} of the captured step differs from the eager one"


def test_moving_to_another_device_cannot_be_captured(device: str) -> None:
    step = ag.ag_capture(lambda x: ag.ag_to_device(x, "cpu:1"))
    with pytest.raises(ag.CaptureError, match=f"reads a tensor on the host on {device}"):
        step(ag.ag_tensor([[1.0]]))


def test_a_choice_by_a_mask_cannot_be_captured(device: str) -> None:
    x, mask = ag.ag_tensor([[1.0, 2.0]], device=device), np.array([[True, False]])
    for step, args in ((lambda x: x[x > 0], (x,)), (lambda x, mask: x[mask], (x, mask)), (lambda x: x[mask], (x,)),
                       (lambda x: ag.ops.masked_scatter(x, x > 0, x), (x,)), (lambda x: ag.ops.nonzero(x), (x,))):
        with pytest.raises(ag.CaptureError, match=r"depends on the mask's values.*ops.where"):
            ag.ag_capture(step)(*args)
