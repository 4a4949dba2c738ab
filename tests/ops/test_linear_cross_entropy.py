"""Cross-entropy of a product that is never all there: the losses of `cross_entropy`, in the memory of a part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.programs import reset_peak

import ag
from ag import ops
from ag.engine.device import backend_of

RNG = np.random.default_rng(0)
TABLE, STATES = RNG.normal(size=(7, 5)), RNG.normal(size=(5, 4, 3))
IDS = np.where(RNG.random((4, 3)) < 0.2, 6, RNG.integers(0, 6, (4, 3)))
WEIGHT = RNG.uniform(0.5, 2, 7)
OPTIONS: list[dict[str, Any]] = [
    {}, {"weight": WEIGHT}, {"label_smoothing": 0.2}, {"ignore_index": 6}, {"reduction": "sum"}, {"reduction": "none"},
    {"weight": WEIGHT, "label_smoothing": 0.3, "ignore_index": 6}]


def plain(W: ag.Tensor, h: ag.Tensor, ids: Any, **options: Any) -> ag.Tensor:
    return ops.cross_entropy(ops.reshape(ops.matmul(W, ops.reshape(h, 5, 12)), 7, 4, 3), ids, **options)


def both(W: ag.Tensor, h: ag.Tensor, loss: Any) -> list[np.ndarray[Any, Any]]:
    with ag.with_grad_tape():
        losses = loss(W, h, IDS)
        total = ag.ag_sum(losses)
    gradients = ag.backward(total)
    return [losses.numpy(), gradients[W].numpy(), gradients[h].numpy()]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options))
@pytest.mark.parametrize("chunk", [1, 5, 12, None])
def test_losses_are_those_of_all_logits(device: str, chunk: int | None, options: dict[str, Any]) -> None:
    with ag.ag_device(device):
        W, h = ag.ag_param(TABLE), ag.ag_param(STATES)
        want = both(W, h, lambda *args: plain(*args, **options))
        got = both(W, h, lambda *args: ops.linear_cross_entropy(*args, chunk=chunk, **options))
    for x, exact in zip(got, want, strict=True):
        assert np.abs(x - exact).max() < max(2e-6, 2 * np.spacing(np.abs(exact).max()))  # two digits of a large sum


def test_gradients_in_float64() -> None:
    with ag.ag_device("cpu"), ag.ag_dtype("f64"):
        given = {"W": ag.ag_param(TABLE), "h": ag.ag_param(STATES)}
        assert ag.ag_gradcheck(lambda t: ops.linear_cross_entropy(t["W"], t["h"], IDS, WEIGHT, 6, 0.1, 5), given,
                               quiet=True)


def test_captured_equals_eager(device: str) -> None:
    with ag.ag_device(device):
        W, h, ids = ag.ag_param(TABLE), ag.ag_param(STATES), ag.ag_tensor(IDS, dtype="i32")

        def step(ids: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor, ag.Tensor]:
            with ag.with_grad_tape():
                loss = ops.linear_cross_entropy(W, h, ids, ignore_index=6, chunk=5)
            gradients = ag.backward(loss)
            return loss, gradients[W], gradients[h]

        eager = [x.numpy() for x in step(ids)]
        captured = ag.ag_capture(step)
        for _ in range(3):
            assert all(np.array_equal(x.numpy(), want) for x, want in zip(captured(ids), eager, strict=True))


def test_tables_of_16_bits() -> None:
    W = ag.ag_tensor(TABLE, dtype="bf16")
    h = ag.ag_tensor(STATES, dtype="bf16")
    want = plain(ag.ag_tensor(W.numpy()), ag.ag_tensor(h.numpy()), IDS).item()
    assert abs(ops.linear_cross_entropy(W, h, IDS, chunk=4).item() - want) < 0.02


def test_a_head_of_many_words_takes_little_memory() -> None:
    words, features, tokens = 49_152, 64, 512
    W = ag.ag_param(RNG.normal(size=(words, features)).astype(np.float32))
    h, ids = ag.ag_param(RNG.normal(size=(features, tokens)).astype(np.float32)), RNG.integers(0, words, tokens)
    arena = backend_of("cpu").arena
    reset_peak(arena)
    before = arena.stats().live
    with ag.with_grad_tape():
        loss = ops.linear_cross_entropy(W, h, ids)
    ag.backward(loss)
    assert arena.stats().peak - before < 90e6  # all logits take 101, and their gradients as much


def test_the_table_that_words_are_read_from_is_the_head(device: str) -> None:
    words = RNG.integers(0, 7, (4, 3))

    def gradients(read: ag.Tensor, head: ag.Tensor) -> list[np.ndarray]:
        with ag.with_grad_tape():
            loss = ops.linear_cross_entropy(head, ops.movedim(read[words], -1, 0).tanh(), IDS)
        ag.backward(loss)
        return [x.grad.numpy() for x in {id(x): x for x in (read, head)}.values()]

    W, *two = (ag.ag_param(TABLE, device) for _ in range(3))
    np.testing.assert_allclose(gradients(W, W)[0], sum(gradients(*two)), atol=1e-6)


def test_rows_are_read_without_a_copy_of_the_table() -> None:
    W = ag.ag_param(np.ones((49_152, 64), np.float32))
    arena = backend_of("cpu").arena
    reset_peak(arena)
    before = arena.stats().live
    with ag.with_grad_tape():
        h = W[np.arange(512)].T
    assert h.shape == (64, 512) and arena.stats().peak - before < 1e6  # the table takes 12.6


def test_wrong_operands() -> None:
    W, h = ag.ag_tensor(TABLE), ag.ag_tensor(STATES)
    with expect_error("ids of other samples", ag.ShapeError, "linear_cross_entropy: W is (7, 5), h is (5, 4, 3) and "):
        ops.linear_cross_entropy(W, h, IDS[:2])
    with expect_error("other features", ag.ShapeError, "(classes, features)"):
        ops.linear_cross_entropy(W, h[:4], IDS)
    with expect_error("no class", IndexError, "linear_cross_entropy: the label 7 is outside 0..6"):
        ops.linear_cross_entropy(W, h, IDS + 1)
    with expect_error("no samples at a time", ValueError, "linear_cross_entropy: chunk is 0"):
        ops.linear_cross_entropy(W, h, IDS, chunk=0)
