"""Recomputing: what is launched twice gives the same twice, or is launched once.  More in test_memory_plan.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import U32
from ag.engine.kernels.convert import reconcile
from ag.engine.kernels.elementwise import add, exp, mul, scale
from ag.engine.kernels.random import dropout, rng_draw
from ag.engine.kernels.reduce import sum_over
from ag.engine.primitive import PRIMITIVES, Array, primitive


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_what_updates_an_operand_is_never_made_twice(name: str) -> None:
    assert not (PRIMITIVES[name].updates and PRIMITIVES[name].cheap)


def test_nothing_that_updates_can_be_declared_cheap() -> None:
    assert rng_draw.updates and reconcile.updates
    with expect_error("a cheap update", ValueError, "counted", "writes state in place and is declared cheap"):
        @primitive(updates=("state",), cheap=True)
        def counted(out: Array, state: Array) -> None: ...
    assert "counted" not in PRIMITIVES


def test_keys_and_masks_at_the_peak(device: str) -> None:
    """Results of draws that are read before and behind the peak, where a second launch would save memory."""
    backend = backend_of(device)
    programs = []
    for recompute in (False, True):
        state, x = backend.alloc((4,), U32), backend.alloc((64, 64), ag.engine.dtype.F32)
        backend.upload(np.array([1, 2, 3, 0]), state)
        backend.upload(np.linspace(-1, 1, 64 * 64).reshape(64, 64), x)
        with record(backend, recompute=recompute) as recording:
            early = [backend.launch(dropout, backend.launch(exp, x), backend.launch(rng_draw, state), rate=0.5)
                     for _ in range(4)]
            total = x
            for y in early:
                total = sum_over(backend.launch, backend.launch(add, total, y).view((64, 1, 64)), (1,)).view((64, 64))
            wide = [sum_over(backend.launch, backend.launch(scale, total, factor=0.1 * k).view((64, 1, 64)), (1,))
                    for k in range(9)]
            for w in wide:
                total = backend.launch(mul, total, w.view((64, 64)))
            for y in early:
                total = backend.launch(add, total, y)
            out = backend.launch(scale, total, factor=2.0)
            del early, total, y, wide, w
        programs.append((recording.finished(), out, state))
    (kept, one, first), (again, two, second) = programs
    assert again.nbytes < kept.nbytes
    for _ in range(2):
        kept.run()
        again.run()
        assert backend.download(one).tobytes() == backend.download(two).tobytes()
        assert backend.download(first).tolist() == backend.download(second).tolist()


@pytest.mark.parametrize("inputs", [False, True])
def test_a_training_with_dropout_is_the_eager_one(device: str, inputs: bool) -> None:
    def losses(recompute: bool | None) -> list[float]:
        ag.ag_seed(0)
        head = [ag.ag_dropout(0.5)] if inputs else []
        model = ag.ag_sequential(*head, ag.ag_linear(6, 20, activation="relu"), ag.ag_batch_norm(20),
                                 ag.ag_dropout(0.3), ag.ag_residual(ag.ag_linear(20, 20, activation="silu")),
                                 ag.ag_layer_norm(20), ag.ag_linear(20, 20, activation="silu"), ag.ag_rms_norm(20),
                                 ag.ag_linear(20, 4))
        optimizer, rng = ag.optimizer_sgd(model, lr=0.1), np.random.default_rng(0)

        def step(x: Array, y: Array) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()
            return loss

        run: Any = step if recompute is None else ag.ag_capture(step, recompute=recompute)
        return [run(rng.normal(size=(6, 3)).astype("f"), rng.integers(0, 4, 3)).item() for _ in range(4)]

    assert losses(None) == losses(False) == losses(True)
