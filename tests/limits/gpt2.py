#!/usr/bin/env python3
"""A training step of GPT-2's size, 124 million parameters and 1024 tokens, under a watchdog: does it survive?

    python tests/limits/gpt2.py            minutes on a software driver, and 8 GB

The layer of third_party/kp/fault ends the device when a submission takes longer than 200 ms, which no submission
should (`ag.engine.backends.vulkan.cost`), times how much slower this device is than the slow card that costs are
counted for.  Prints what it found; the exit status is 1 if the device was lost.  No test runs it, as it takes so long;
`tests/engine/backends/test_submissions.py` does the same with small steps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAULT = ROOT / "third_party" / "kp" / "fault"
LAYERS, D, HEADS, T, VOCABULARY = 12, 768, 12, 1024, 50257
ALLOWED_S = 0.2


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", Path(folder, "libkpfault.so"), FAULT / "fault.c"], check=True)
        Path(folder, "VkLayer_kpfault.json").write_text((FAULT / "VkLayer_kpfault.json").read_text("utf-8"), "utf-8")
        os.environ |= {"VK_LAYER_PATH": folder, "VK_INSTANCE_LAYERS": "VK_LAYER_KP_fault"}
        sys.path.insert(0, str(ROOT))
        trained()


def trained() -> None:
    """Two steps of a job, of which the second is watched."""
    import numpy as np

    import ag
    from ag.engine.backends.vulkan.cost import seconds_of
    from ag.engine.device import backend_of

    class Block(ag.Layer):
        def __init__(self) -> None:
            self.ln1, self.attention = ag.ag_layer_norm(D), ag.ag_multihead_attention(D, HEADS)
            self.ln2, self.fc, self.out = ag.ag_layer_norm(D), ag.ag_linear(D, 4 * D), ag.ag_linear(4 * D, D)

        def forward(self, h: ag.Tensor) -> ag.Tensor:
            h = h + self.attention(self.ln1(h), causal_mask=True)
            return h + self.out(ag.ag_gelu(self.fc(self.ln2(h)), approximate="tanh"))

    class GPT2(ag.Layer):
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self.tok = ag.ag_param(0.02 * rng.standard_normal((D, VOCABULARY), np.float32))  # the head's, too
            self.pos = ag.ag_param(0.02 * rng.standard_normal((D, T), np.float32))
            self.blocks = ag.ag_sequential(*(Block() for _ in range(LAYERS)), ag.ag_layer_norm(D))

        def forward(self, ids: np.ndarray) -> ag.Tensor:
            return self.tok.T @ self.blocks(ag.ag_embedding_lookup(self.tok, ids) + self.pos)

    def seconds(work: object) -> float:
        begin = time.perf_counter()
        work().numpy()  # type: ignore[operator]
        return time.perf_counter() - begin

    with ag.ag_device("vulkan:0"):
        x = ag.ag_tensor(np.ones((1024, 1024)))
        (x @ x).numpy()
        slower = min(seconds(lambda: x @ x) for _ in range(3)) / seconds_of(1024**3, 3 * 4 * 1024**2)
        model = GPT2()
        optimizer = ag.optimizer_adamw(model, lr=1e-4)
        count = sum(int(np.prod(p.shape)) for p in model.parameters().values())
        ids = np.random.default_rng(1).integers(0, VOCABULARY, T + 1)

        def step(x: np.ndarray, labels: np.ndarray) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ag_softmax_cross_entropy_loss(model(x), labels)
            optimizer.step(ag.backward(loss))
            optimizer.zero_grad()
            return loss

        backend: Any = backend_of("vulkan:0")
        recorder = backend.recorder
        first = seconds(lambda: step(ids[:-1], ids[1:]))  # its kernels are compiled
        limit_ms = 1e3 * ALLOWED_S * slower
        os.environ["KPFAULT_TDR_MS"] = str(limit_ms)
        before = recorder.submits
        print(f"{backend.info.description}: {count / 1e6:.0f} M parameters, {slower:.0f} times slower "
              f"than counted, {limit_ms:.0f} ms allowed; the first step took {first:.0f} s", flush=True)
        try:
            took = seconds(lambda: step(ids[:-1], ids[1:]))
        except ag.DeviceError as error:
            sys.exit(str(error))
        print(f"survived: {recorder.submits - before} submissions in {took:.0f} s")


if __name__ == "__main__":
    main()
