"""The engine on stock Kompute: slower, and right to the bit.

Every program runs in two processes of their own, with and without the additions of third_party/kp.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ag

pytestmark = pytest.mark.stock_kp

PREAMBLE = """
import json, sys
from hashlib import sha256
import numpy as np
import ag

said = {}
DEVICES = sys.argv[2].split(",")
if sys.argv[1] == "stock":
    from helpers.stock_kp import hide_additions
    hide_additions()

def digest(arrays):
    return sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()
"""
EPILOGUE = """
from ag.engine.device import backend_of
said["recorders"] = [type(backend_of(d).recorder).__name__ for d in DEVICES]
said["submits"] = sum(backend_of(d).recorder.submits for d in DEVICES)
print("RESULT" + json.dumps(said))
"""

TRAINING = """
for captured in (False, True):
    ag.ag_device(DEVICES[0])
    ag.ag_seed(3)
    model = ag.ag_sequential(ag.ag_linear(4, 9, activation="tanh"), ag.ag_dropout(0.2), ag.ag_linear(9, 3))
    optimizer = ag.optimizer_adam(model, lr=0.02)
    rng = np.random.default_rng(1)
    X, Y = rng.standard_normal((5, 4, 16)), rng.integers(0, 3, (5, 16))

    def step(x, labels):
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(x), labels)
        grads = ag.backward(loss)
        optimizer.step(grads)
        return loss

    run = ag.ag_capture(step) if captured else step
    losses = []
    for k in range(40):
        if k == 20:
            optimizer.lr = 0.005
        losses.append(run(ag.ag_tensor(X[k % 5]), Y[k % 5]).item())
    state = [*model.state_dict().values(), *optimizer.state_dict().values()]
    said["captured" if captured else "eager"] = [losses[-1], digest([np.array(losses), *state])]
"""

TRANSFERS = """
ag.ag_device(DEVICES[0])
rng = np.random.default_rng(1)
for n in (1, 63, 1 << 18, (1 << 18) + 1, 3_000_001):
    a = rng.standard_normal(n).astype(np.float32)
    t = ag.ag_tensor(a)
    said[f"round trip {n}"] = bool(np.array_equal(t.numpy().ravel(), a))
    said[f"sum {n}"] = ag.ag_sum(t * 2.0).item()
big = ag.ag_tensor(np.ones((5_000_000,)))  # more than the first segment has
said["segments"] = big.buffer.backend.arena.stats().segments
said["big"] = ag.ag_sum(big).item()
said["chain"] = digest([(big * 3.0).numpy()])
W = ag.ag_param(rng.standard_normal((300, 200)))
with ag.with_grad_tape():
    loss = ag.ag_sum(ag.ag_softmax(W.T @ (W + 1.0)))
said["gradient"] = digest([ag.backward(loss)[W].numpy()])
"""

DP_TRAIN = """
rng = np.random.default_rng(1)
data = [(rng.standard_normal((4, 1)).astype(np.float32), np.array([i % 3])) for i in range(18)]
equal = []

def check(step):
    equal.append(len({digest(m.state_dict().values()) for m in step.models}) == 1)

def train(devices):
    result = ag.dp_train(lambda: ag.ag_sequential(ag.ag_linear(4, 6, activation="relu"), ag.ag_linear(6, 3)), data,
                         ag.ag_softmax_cross_entropy_loss, lambda m, s: m(s[0]), lambda s: s[1], devices=devices,
                         n_iter=5, micro_batch=12 // len(devices), lr=0.05, seed=2, verbose=False, callback=check)
    return digest([result.loss_history, *[p.numpy() for p in result.params.values()], *result.optimizer_state.values()])

said["each"] = [train([d]) for d in DEVICES]
said["pairs"] = [train([d, d]) for d in DEVICES]
said["mixed"] = train(DEVICES)
said["equal"] = all(equal)
"""


def both(code: str, *devices: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the code says on the patched binding and on the stock one."""
    said = []
    for kind in ("patched", "stock"):
        path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-W", "error", "-c", PREAMBLE + code + EPILOGUE, kind, ",".join(devices)]
        done = subprocess.run(command, text=True, timeout=300, capture_output=True, env={**os.environ, **path})
        assert done.returncode == 0, f"{kind}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.stderr == ""
        said.append(json.loads(done.stdout.rpartition("RESULT")[2]))
    patched, stock = said
    assert set(patched.pop("recorders")) == {"Recorder"} and set(stock.pop("recorders")) == {"StockRecorder"}
    assert stock.pop("submits") > patched.pop("submits") > 0  # it had to wait where the other had barriers
    return patched, stock


@pytest.fixture(params=["lavapipe", "swiftshader"])
def gpu(request: pytest.FixtureRequest) -> str:
    device: str = request.getfixturevalue(request.param)
    return device


def test_training_is_equal_to_the_bit(gpu: str) -> None:
    patched, stock = both(TRAINING, gpu)
    assert patched["eager"] == patched["captured"] == stock["eager"] == stock["captured"]
    assert stock["eager"][0] < 1.2


def test_transfers_and_long_chains(gpu: str) -> None:
    patched, stock = both(TRANSFERS, gpu)
    assert patched == stock
    assert all(value for name, value in stock.items() if name.startswith("round trip"))
    assert stock["segments"] >= 2 and stock["big"] == 5_000_000


def test_dp_train(lavapipe: str, swiftshader: str) -> None:
    patched, stock = both(DP_TRAIN, lavapipe, swiftshader)
    assert patched == stock
    assert stock["equal"]
    assert stock["pairs"] == stock["each"]


def test_the_devices_have_names_and_nothing_more(gpu: str) -> None:
    code = f"""
info = {{d.name: d for d in ag.ag_vulkan_devices()}}[{gpu!r}]
said["info"] = [info.description, info.memory_bytes, list(info.features)] if sys.argv[1] == "stock" else []
ag.ag_vulkan_status()
W = ag.ag_param([[1.0]], device={gpu!r})
said["sum"] = (W + W + W).item()
"""
    _, stock = both(code, gpu)
    expected = {d.name: d.description for d in ag.ag_vulkan_devices()}
    assert stock["info"] == [expected[gpu], 0, []]
