"""lavapipe, the installed one and a newer one, compiles attention and its gradient in seconds, and computes the same.

Mesa 25 unrolls each loop whose turns it can count: without ``ROLLED`` in shaders/attention.glsl it took minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cards.radv import PROMISED, Mesa, installed, newer
from helpers.probe import slowness

SECONDS = 40  # some take 11 on two cores; before Mesa 25 was given such loops they took minutes
PROGRAM = """
import json, sys, time
import numpy as np, ag

def gradients(device):
    rng = np.random.default_rng(0)
    q, k, v, weights = (rng.standard_normal((int(sys.argv[1]), 70, 2)).astype("f") for _ in range(4))
    with ag.ag_device(device):
        q, k, v = (ag.ag_param(x) for x in (q, k, v))
        began = time.process_time()
        with ag.with_grad_tape():
            loss = ag.ag_sum(ag.ag_attention(q, k, v, causal=True, heads=int(sys.argv[2])) * weights)
        loss.item()
        forward = time.process_time()
        ag.backward(loss)
        return [x.grad.numpy() for x in (q, k, v)], forward - began, time.process_time() - forward

found, forward, backward = gradients("vulkan:0")
wanted = gradients("cpu")[0]
print(json.dumps([forward, backward, max(float(abs(x - y).max()) for x, y in zip(found, wanted))]))
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("which", ["installed", "newer"])
@pytest.mark.parametrize(("features", "heads"), [(32, 2), (64, 1), (128, 1)])
def test_attention_is_compiled_in_seconds(which: str, features: int, heads: int, tmp_path: Path) -> None:
    mesa: Mesa | None = installed() if which == "installed" else newer()
    if which == "newer" and mesa is None and os.environ.get(PROMISED):
        pytest.fail(f"{PROMISED} promises a newer Mesa, and there is none in .drivers/mesa")
    if mesa is None or mesa.description("lvp") is None:
        pytest.skip(f"there is no {which} lavapipe here")
    environment = {**mesa.environment("lvp"), "MESA_SHADER_CACHE_DISABLE": "true", "XDG_CACHE_HOME": str(tmp_path),
                   "AG_SOFTWARE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(features), str(heads)], env=environment,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    forward, backward, difference = json.loads(done.stdout)
    assert difference < 1e-4
    assert max(forward, backward) < SECONDS * slowness()
