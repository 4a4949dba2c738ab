"""Steps, ops and counters are right under the conditions of a card, which `conditions.py` brings about."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from cards.conditions import CARDS, ORDERS, order_between_barriers, poisoned_memory, tiles_of_a_card
from golden.entries import measured

import ag
from ag.engine.backends.vulkan import stream
from ag.engine.device import backend_of

ROOT = Path(__file__).parents[2]
RESULTS = [  # of entries.py: those of the quick leg, and of the slow one
    "W1 captured", *(pytest.param(name, marks=(pytest.mark.slow, pytest.mark.long)) for name in (
        "adamw clipped captured", "W1 eager", "W2 captured", "W3 captured", "W4 captured",
        "f16 with an overflow captured", "bf16 sgd momentum eager", "ag_attention"))]
SAME_BITS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    **{order: lambda order=order: order_between_barriers(order) for order in ORDERS}, "poisoned": poisoned_memory}


@cache
def undisturbed(name: str, device: str) -> object:
    return measured(name, device)


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("condition", SAME_BITS)
def test_same_bits(condition: str, name: str, lavapipe: str) -> None:
    want = undisturbed(name, lavapipe)
    with SAME_BITS[condition]():
        assert measured(name, lavapipe) == want


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_barrier_would_be_seen(order: str, lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    want = undisturbed("W1 captured", lavapipe)
    monkeypatch.setattr(stream, "_overlap", lambda some, others: False)
    with order_between_barriers(order) as groups:
        assert measured("W1 captured", lavapipe) != want
    assert max(groups) > 4


def test_an_element_that_nobody_writes_is_nan(lavapipe: str) -> None:
    backend = backend_of(lavapipe)
    with poisoned_memory():
        assert np.isnan(backend.download(backend.alloc((33,), ag.engine.dtype.F32))).all()


@pytest.mark.parametrize("card", [pytest.param(card, marks=() if card == "Vega" else pytest.mark.slow)
                                  for card in CARDS])
def test_products_in_the_tiles_of_a_card(card: str, lavapipe: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((130, 75)).astype(np.float32), rng.standard_normal((75, 140)).astype(np.float32)
    with tiles_of_a_card(backend_of(lavapipe), card), ag.ag_device(lavapipe), ag.with_grad_tape():
        x, w = ag.ag_param(a), ag.ag_param(b)
        y = x @ w
        ag.backward(ag.ag_sum(y * y))
        got = y.numpy(), x.grad.numpy(), w.grad.numpy()
    exact = a.astype(np.float64) @ b
    for found, want in zip(got, (exact, 2 * exact @ b.T, 2 * a.T @ exact), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_attention_with_samples_first(rate: float, lavapipe: str) -> None:
    rng, backend = np.random.default_rng(5), backend_of(lavapipe)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((8, 130, 5), (8, 140, 5), (12, 140, 5))]

    def attended() -> tuple[list[np.ndarray], int]:
        ag.ag_seed(3)
        q, k, v = (ag.ag_param(x) for x in arrays)
        with ag.profile() as seen, ag.with_grad_tape():
            out = ag.ag_attention(q, k, v, causal=True, dropout=rate, heads=2)
            ag.backward(ag.ag_sum(out * out))
            found = [x.numpy() for x in (out, q.grad, k.grad, v.grad)]
        return found, sum(event.kernel == "permute" for event in seen.events)

    with ag.ag_device(lavapipe):
        want, none = attended()
        with tiles_of_a_card(backend, "H100"):
            got, permuted = attended()
    assert (none, permuted) == (0, 4 + 7)  # the operands and the result, and again with their cotangents
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.slow
@pytest.mark.parametrize("card", ["H100", "Vega"])
def test_a_step_in_the_tiles_of_a_card(card: str, lavapipe: str) -> None:
    plain = undisturbed("adamw clipped captured", lavapipe)
    with tiles_of_a_card(backend_of(lavapipe), card):
        captured, eager = (measured(f"adamw clipped {mode}", lavapipe) for mode in ("captured", "eager"))
    assert captured == eager
    losses = [[float.fromhex(x) for x in found["losses"]] for found in (captured, plain)]
    np.testing.assert_allclose(*losses, rtol=1e-4)


TABLE = [f"tests/table/test_cases_{what}.py" for what in ("forward", "gradient", "capture")]
LESS = [TABLE[0], TABLE[2], "tests/engine/test_counters.py"]  # captured steps have gradients, too
PRODUCTS = "tests/engine/kernels/test_random_products.py"
RUNS = {  # what is tried together: the plugin's settings, files, and at least how many tests
    "H100, reversed, poisoned": ({"AG_CARD": "H100", "AG_ORDER": "reversed", "AG_POISON": "1", "AG_EVERY": "0/3"},
                                 [TABLE[1], *LESS], 900),
    "Arc, random, poisoned": ({"AG_CARD": "Arc", "AG_ORDER": "random", "AG_POISON": "1", "AG_EVERY": "1/3"}, LESS, 500),
    "products, random, poisoned": ({"AG_CARD": "H100", "AG_ORDER": "random", "AG_POISON": "1"}, [PRODUCTS], 30),
    "by address": ({"AG_ADDRESSED": "1", "AG_EVERY": "0/2"}, ["tests/engine/kernels", *LESS[1:]], 400),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("run", RUNS)
def test_whole_files(run: str, lavapipe: str) -> None:
    settings, files, least = RUNS[run]
    marks = "vulkan" if {TABLE[0], PRODUCTS} & {*files} else "vulkan and not slow"  # of other kernels the quick ones
    environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "cards.plugin", "-p", "no:cacheprovider", "-m",
         marks, "-k", "lavapipe", *files], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= least, done.stdout[-1000:]
