"""Writes torch.json, the loss curves of PyTorch on the CPU that test_torch_curves.py compares with.

Run it as ``python tests/curves/make.py`` where torch is installed, which neither `ag` nor its tests need.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from workloads import ADAMW, BATCH, CONVS, HEADS, LAYERS, SEED, SGD, STEPS, D, size, workload

NOISE = 2e-7  # relative; twice the spacing of float32
STRIDES = {name: stride for name, _into, _out, _kernel, stride in CONVS}


def resnet_loss(p: dict[str, Tensor], x: Tensor, labels: Tensor) -> Tensor:
    """A ResNet-8 in train mode."""

    def conv_norm(name: str, x: Tensor) -> Tensor:
        w = p[f"{name}_w"]
        x = F.conv2d(x, w, stride=STRIDES[name], padding=w.shape[2] // 2)
        return F.batch_norm(x, None, None, p[f"{name}_g"], p[f"{name}_b"], training=True, eps=1e-5)

    x = F.relu(conv_norm("stem", x))
    for stage in ("s0", "s1", "s2"):
        body = conv_norm(f"{stage}_c2", F.relu(conv_norm(f"{stage}_c1", x)))
        x = F.relu(body + (conv_norm(f"{stage}_sc", x) if f"{stage}_sc" in STRIDES else x))
    return F.cross_entropy(F.linear(x.mean((2, 3)), p["fc_w"], p["fc_b"]), labels)


def gpt_loss(p: dict[str, Tensor], x: Tensor, labels: Tensor) -> Tensor:
    """A GPT with norms before the sublayers."""
    n, t = x.shape

    def norm(name: str, h: Tensor) -> Tensor:
        return F.layer_norm(h, (D,), p[f"{name}_g"], p[f"{name}_b"], 1e-5)

    h = F.embedding(x, p["tok"]) + p["pos"]
    for i in range(LAYERS):
        block = {name.removeprefix(f"l{i}_"): w for name, w in p.items()}
        qkv = F.linear(norm(f"l{i}_ln1", h), block["qkv_w"], block.get("qkv_b"))
        q, k, v = qkv.view(n, t, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, D)
        h = h + F.linear(o, block["proj_w"], block["proj_b"])
        z = F.gelu(F.linear(norm(f"l{i}_ln2", h), block["fc_w"], block["fc_b"]), approximate="tanh")
        h = h + F.linear(z, block["out_w"], block["out_b"])
    return F.cross_entropy(F.linear(norm("lnf", h), p["head_w"]).flatten(0, 1), labels.flatten())


def curve(name: str, dtype: torch.dtype, noise_seed: int | None = None) -> list[float]:
    """Losses before each step of the optimizer, with initial weights moved by NOISE if there is a seed for it."""
    weights, batches = workload(name, BATCH[name])
    if noise_seed is not None:
        rng = np.random.default_rng(noise_seed)
        weights = {k: w * (1 + NOISE * rng.standard_normal(w.shape)) for k, w in weights.items()}
    p = {k: torch.tensor(w, dtype=dtype, requires_grad=True) for k, w in weights.items()}
    resnet = name == "resnet8"
    optimizer = torch.optim.SGD(p.values(), **SGD) if resnet else torch.optim.AdamW(p.values(), **ADAMW)
    losses = []
    for i in range(STEPS):
        x, labels = (torch.tensor(a) for a in batches[i % len(batches)])
        loss = resnet_loss(p, x.to(dtype), labels) if resnet else gpt_loss(p, x, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Write the file, and print how far rounding moves each curve."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, batch in BATCH.items():
        losses, exact = curve(name, torch.float32), curve(name, torch.float64)
        noisy = [losses, *(curve(name, torch.float64, seed) for seed in range(10))]
        moved = max(np.abs(np.divide(other, exact) - 1).max() for other in noisy)
        found[name] = {"losses": losses, "moved_by_rounding": float(moved), "size": size(*workload(name, batch))}
        print(f"{name}: {losses[0]:.4f} to {losses[-1]:.4f}, moved by at most {moved:.1e}", flush=True)
    content = {"torch": torch.__version__, "numpy": np.__version__, "seed": SEED, "curves": found}
    Path(__file__).with_name("torch.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
