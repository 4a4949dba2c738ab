#!/usr/bin/env python3
"""Train a step of GPT-2 where no submission may take long and no descriptor covers much; print the result as JSON.

    python tests/cards/gpt2.py --blocks 1 --tokens 64   without options: 124 million parameters, minutes on lavapipe

A layer of Vulkan loses the device when a submission takes longer than 100 ms of a slow card's work, in lavapipe's time.
AG_SUBMIT_MS=25 is set, as lavapipe takes up to three times as long for other kernels than products, by equal cost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

sys.path[:0] = map(str, Path(__file__).resolve().parents[1:3])  # tests, and the root

import numpy as np  # noqa: E402
from helpers.devices import built_layers  # noqa: E402

import ag  # noqa: E402
from ag import nn, ops, optim  # noqa: E402
from ag.engine.backends.shader.plans import seconds_of  # noqa: E402
from ag.engine.device import backend_of  # noqa: E402

VOCABULARY, WIDTH, HEADS = 50257, 768, 12
HEAP = 8 << 30  # of a card; lavapipe says 2 GiB, and gives what there is
WATCHDOG = "VK_LAYER_AG_limits", "VK_LAYER_KP_fault"
WATCHDOG_S = 0.1  # of work, as costs are counted


class Block(nn.Layer):
    """Attention to the tokens so far, then a network at each; both add to what comes in."""

    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        x = x + self.attention(self.norm1(x), causal_mask=True)
        return x + self.narrow(ops.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Layer):
    """From ids (tokens, texts) to logits (words, tokens, texts); words are told by the table that they come from."""

    def __init__(self, blocks: int, tokens: int) -> None:
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.words.weight.data = 0.02 * np.random.default_rng(1).standard_normal((WIDTH, VOCABULARY), np.float32)
        self.places = ag.ag_param(np.zeros((WIDTH, tokens, 1)))
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)), nn.LayerNorm(WIDTH))

    def forward(self, ids: np.ndarray) -> ag.Tensor:
        x = self.blocks(self.words(ids) + self.places)
        return ops.transpose(self.words.weight) @ x


def slowness(device: str) -> float:
    """Return how much slower a product is than on the card for which costs are counted."""
    a = ag.ag_tensor(np.ones((WIDTH, WIDTH), np.float32), device)
    b = ag.ag_tensor(np.ones((WIDTH, 256), np.float32), device)
    times = []
    for _ in range(3):
        begin = perf_counter()
        (a @ b).numpy()
        times.append(perf_counter() - begin)
    return min(times) / seconds_of(WIDTH * WIDTH * 256, 0)


def step_of(options: argparse.Namespace) -> dict[str, Any]:
    """One step under the watchdog, and what it took."""
    device = options.device
    backend = backend_of(device)
    slow = slowness(device)
    with ag.ag_device(device):
        model = GPT2(options.blocks, options.tokens)
        optimizer = optim.AdamW(model, lr=1e-4)
        rng = np.random.default_rng(0)
        ids, labels = rng.integers(0, VOCABULARY, (2, options.tokens, 1))
        backend.synchronize()
        os.environ["KPFAULT_TDR_MS"] = str(1e3 * slow * WATCHDOG_S)
        before, begin = backend.recorder.submits, perf_counter()
        with ag.with_grad_tape():
            loss = ops.softmax_cross_entropy_loss(model(ids), labels)
        optimizer.step(ag.backward(loss))
        backend.synchronize()
        took = perf_counter() - begin
        del os.environ["KPFAULT_TDR_MS"]
    segments = [nbytes for nbytes, _ in backend.arena.segments]
    return {"parameters": sum(p.size for p in model.parameters().values()), "tokens": options.tokens,
            "loss": loss.item(), "loss of a guess": log(VOCABULARY), "s": round(took, 1),
            "submissions": backend.recorder.submits - before, "watchdog_ms": round(1e3 * slow * WATCHDOG_S),
            "largest segment": max(segments), "reserved": sum(segments),
            "by address": sum(bool(far) for _, far in backend._kernels._pipelines)}


def under_layers(arguments: list[str]) -> int:
    """This program in a process of its own, in which the layers are between it and the driver; its exit status."""
    with TemporaryDirectory() as folder:
        settings = {**built_layers(Path(folder), *WATCHDOG), "AG_LIMITS_HEAP": str(HEAP),
                    "AG_SUBMIT_MS": str(250 * WATCHDOG_S)}
        return subprocess.run([sys.executable, __file__, *arguments], env={**os.environ, **settings}).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="vulkan:0", help="(default: %(default)s)")
    parser.add_argument("--blocks", type=int, default=12, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=1024, help="(default: %(default)s)")
    chosen = parser.parse_args()
    if "VK_LAYER_AG_limits" not in os.environ.get("VK_INSTANCE_LAYERS", ""):
        sys.exit(under_layers(sys.argv[1:]))
    print(json.dumps(step_of(chosen), indent=1))
