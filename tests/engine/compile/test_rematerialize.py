"""Recomputing: what is launched twice gives the same twice, or is launched once.."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.programs import buffer

import ag
from ag.engine.backend import Backend
from ag.engine.buffer import Buffer
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import U32
from ag.engine.kernels.convert import reconcile
from ag.engine.kernels.elementwise import add, exp, mul, scale
from ag.engine.kernels.random import dropout, rng_draw
from ag.engine.kernels.reduce import sum_over
from ag.engine.primitive import PRIMITIVES, Array, primitive


def test_what_updates_an_operand_is_never_made_twice() -> None:
    assert not [name for name, primitive in PRIMITIVES.items() if primitive.updates and primitive.cheap]


def test_nothing_that_updates_can_be_declared_cheap() -> None:
    assert rng_draw.updates and reconcile.updates
    with expect_error("a cheap update", ValueError, "counted", "writes state in place and is declared cheap"):
        @primitive(updates=("state",), cheap=True)
        def counted(out: Array, state: Array) -> None: ...
    assert "counted" not in PRIMITIVES


def programs(backend: Backend, made: Callable[..., Buffer], change: Callable[..., object] = lambda launch, x: None,
             ) -> list[tuple[Any, Buffer, Buffer]]:
    """Programs without and with recomputing, their results and states, of what is `made` of a matrix and a state.

    Four of these results are read before and behind the peak, between which the matrix may change.
    """
    found = []
    for recompute in (False, True):
        state, x = backend.alloc((4,), U32), buffer(backend, np.linspace(-1, 1, 64 * 64).reshape(64, 64))
        backend.upload(np.array([1, 2, 3, 0]), state)
        with record(backend, recompute=recompute) as recording:
            launch = backend.launch
            early, total = [made(launch, x, state) for _ in range(4)], x
            for y in early:
                total = sum_over(launch, launch(add, total, y).view((64, 1, 64)), (1,)).view((64, 64))
            wide = [sum_over(launch, launch(scale, total, factor=0.1 * k).view((64, 1, 64)), (1,)) for k in range(9)]
            for w in wide:
                total = launch(mul, total, w.view((64, 64)))
            change(launch, x)
            for y in early:
                total = launch(add, total, y)
            out = launch(scale, total, factor=2.0)
            del early, total, y, wide, w
        found.append((recording.finished(), out, state))
    return found


@pytest.mark.parametrize("changes", [False, True])
def test_cheap_results_are_computed_again(device: str, changes: bool) -> None:
    backend = backend_of(device)
    change = (lambda launch, x: launch(scale, x, factor=0.5, into=x)) if changes else (lambda launch, x: None)
    (kept, one, _), (again, two, _) = programs(backend, lambda launch, x, _: launch(exp, x), change)
    assert (again.nbytes < kept.nbytes) is not changes
    for program in (kept, again):
        program.run()
    assert backend.download(one).tobytes() == backend.download(two).tobytes()


def test_keys_and_masks_at_the_peak(device: str) -> None:
    """Draws that a second launch would save memory for: it gives the same mask."""
    backend = backend_of(device)
    (kept, one, first), (again, two, second) = programs(backend, lambda launch, x, state: launch(
        dropout, launch(exp, x), launch(rng_draw, state), rate=0.5))
    assert again.nbytes < kept.nbytes
    for _ in range(2):
        kept.run()
        again.run()
        assert backend.download(one).tobytes() == backend.download(two).tobytes()
        assert backend.download(first).tolist() == backend.download(second).tolist()


@pytest.mark.slow_on("lavapipe")
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
