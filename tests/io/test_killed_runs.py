"""A run that is killed with SIGKILL again and again and resumed each time ends where the undisturbed one does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RUN = """
import os, random, signal, sys, time
import numpy as np
import ag

path, dtype, STEPS = sys.argv[1], sys.argv[2], 300
ag.ag_dtype(dtype)
rng = np.random.default_rng(0)
x, labels = rng.normal(size=(4, 30)).astype(np.float32), rng.integers(0, 3, 30)

def end(path, alone):
    # Train from the checkpoint, if there is one, and save after every step.
    ag.ag_seed(7)
    model = ag.ag_sequential(ag.ag_linear(4, 64, "relu"), ag.ag_batch_norm(64), ag.ag_dropout(0.2), ag.ag_linear(64, 3))
    optimizer = ag.optimizer_adam(model, lr=1e-2)
    parts = {"optimizer": optimizer, "scheduler": ag.lr_scheduler_cosine(optimizer, STEPS),
             "dataloader": ag.ag_dataloader(x, labels, batch_size=8, seed=3)}
    step = 0
    if os.path.exists(path):
        step = ag.ag_load_checkpoint(path, model, **parts).step
    while step < STEPS:
        loader = parts["dataloader"]
        if not loader.has_next():
            loader.reset()
        batch = loader.next_batch()
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(batch.x), batch.y)
        optimizer.step(ag.backward(loss))
        parts["scheduler"].step()
        step += 1
        if not alone:
            ag.ag_save_checkpoint(path, model, **parts, step=step)
    return {**model.state_dict(), **optimizer.state_dict()}

whole = end(path + ".none", alone=True)
delay, kills, slow, last = random.Random(1), 0, 1.0, None  # slow: others use the machine, too
while True:
    child = os.fork()
    if child == 0:
        end(path, alone=False)
        os._exit(0)
    time.sleep(delay.uniform(0.005, 0.06) * slow)
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        assert status == 0, status
        break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kills += 1
    now = os.stat(path).st_ino if os.path.exists(path) else None
    slow, last = max(1.0, slow * (1.2 if now == last else 0.9)), now
    assert kills < 5000
resumed = end(path, alone=False)
different = [name for name in whole if whole[name].tobytes() != resumed[name].tobytes()]
assert whole.keys() == resumed.keys() and not different, different
print(kills)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_killed_and_resumed_it_ends_the_same(dtype: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path / "run.safetensors"), dtype], env=env,
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 5  # about 25 where a step and its save take 3 ms
