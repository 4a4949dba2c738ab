"""The compiled hot paths are one module with one switch, and change no bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ag.native import code

PROGRAM = """
import numpy as np
import ag
from ag.native import code

ag.ag_seed(1)
model = ag.ag_sequential(ag.ag_linear(3, 5, activation="tanh"), ag.ag_dropout(0.2), ag.ag_linear(5, 2))
optimizer = ag.optimizer_adam(model, lr=0.05)

@ag.ag_capture
def step(x, y):
    with ag.with_grad_tape():
        loss = ag.ag_softmax_cross_entropy_loss(model(x), y)
    optimizer.step(ag.backward(loss))
    return loss

rng = np.random.default_rng(0)
for _ in range(9):
    print(step(rng.normal(size=(3, 8)).astype("f"), rng.integers(0, 2, 8)).item().hex())
data = [(rng.normal(size=(3, 1)).astype("f"), np.array([k % 2])) for k in range(6)]
result = ag.dp_train(lambda: ag.ag_linear(3, 2), data, ag.ag_softmax_cross_entropy_loss, lambda m, s: m(s[0]),
                     target_fn=lambda s: s[1], devices=["cpu", "cpu:1"], n_iter=3, seed=2, verbose=False)
print([x.hex() for x in result.loss_history.tolist()])
print(code is None)
"""


def printed(**environment: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True,
                          env={**os.environ, **environment})
    return done.stdout.splitlines()


def test_the_references_in_python_give_the_same_bits() -> None:
    *bits, without = printed(AG_NATIVE="0")
    *others, _ = printed()
    assert without == "True" and len(bits) == 10 and bits == others


@pytest.mark.skipif(code is None, reason="no compiler was here, or AG_NATIVE=0")
def test_the_module_has_all_parts() -> None:
    assert {"Alloc", "Launch", "Operands", "Replay", "Run", "Unchanged", "add_up", "current", "enter", "leave",
            "recording_here"} <= {*dir(code)}
