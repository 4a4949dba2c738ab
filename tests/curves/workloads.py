"""Weights and data of two small trainings, a ResNet-8 on images and a GPT on characters, the same for every framework.

`make.py` trains them with PyTorch and test_torch_curves.py with `ag`; both take the numbers from here, in PyTorch's
layout, batch first.  Only numpy is needed.  The sizes are those of the benchmarks W4 and W3; SMALL_BATCH is for
devices that need seconds for a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]  # by PyTorch's names, in the order of the layers
Batches = list[tuple[Array, Array]]  # inputs and class ids

SEED = 9
STEPS = 20
BATCHES = 8  # used in turn

BATCH = {"resnet8": 32, "gpt": 16, "gpt_without_qkv_bias": 16}
SMALL_BATCH = {"resnet8": 4, "gpt": 2, "gpt_without_qkv_bias": 2}
WIDTH, IMAGE_CLASSES = 16, 10
LAYERS, D, HEADS, T, VOCABULARY = 4, 128, 4, 64, 65
SGD = {"lr": 0.05, "momentum": 0.9}
ADAMW = {"lr": 1e-3, "weight_decay": 0.01}  # betas and eps as everywhere: 0.9, 0.999, 1e-8

# Convolutions of a ResNet-8, each followed by batch norm: name, channels in, channels out, kernel, stride.
CONVS = [("stem", 3, WIDTH, 3, 1)]
for stage, (into, out, stride) in enumerate([(WIDTH, WIDTH, 1), (WIDTH, 2 * WIDTH, 2), (2 * WIDTH, 4 * WIDTH, 2)]):
    CONVS += [(f"s{stage}_c1", into, out, 3, stride), (f"s{stage}_c2", out, out, 3, 1)]
    if stride != 1:
        CONVS.append((f"s{stage}_sc", into, out, 1, stride))


def resnet(batch: int) -> tuple[Weights, Batches]:
    """Images that are a blocky pattern per class, and noise."""
    rng = np.random.default_rng(SEED)
    patterns = rng.standard_normal((IMAGE_CLASSES, 3, 8, 8)).repeat(4, 2).repeat(4, 3)
    labels = rng.integers(0, IMAGE_CLASSES, (BATCHES, batch))
    images = 0.8 * patterns[labels] + 0.7 * rng.standard_normal((*labels.shape, 3, 32, 32))
    weights = {}
    for name, into, out, kernel, _stride in CONVS:
        spread = np.sqrt(2 / (into * kernel * kernel))
        weights[f"{name}_w"] = spread * rng.standard_normal((out, into, kernel, kernel))
        weights[f"{name}_g"], weights[f"{name}_b"] = np.ones(out), np.zeros(out)
    limit = 1 / np.sqrt(4 * WIDTH)
    weights["fc_w"] = rng.uniform(-limit, limit, (IMAGE_CLASSES, 4 * WIDTH))
    weights["fc_b"] = np.zeros(IMAGE_CLASSES)
    return _f32(weights), list(zip(images.astype(np.float32), labels, strict=True))


def gpt(batch: int, qkv_bias: bool) -> tuple[Weights, Batches]:
    """A text from a Markov chain; each character's label is the next one."""
    rng = np.random.default_rng(SEED + 1)
    likely = rng.dirichlet(np.full(VOCABULARY, 0.05), VOCABULARY).cumsum(1)
    text = [0]
    for u in rng.random(BATCHES * batch * (T + 1) - 1):
        text.append(min(int(np.searchsorted(likely[text[-1]], u)), VOCABULARY - 1))
    texts = np.array(text).reshape(BATCHES, batch, T + 1)

    def matrix(rows: int, columns: int, spread: float = 0.02) -> Array:
        return spread * rng.standard_normal((rows, columns))

    weights = {"pos": matrix(T, D), "tok": matrix(VOCABULARY, D)}
    towards_sum = 0.02 / np.sqrt(2 * LAYERS)  # smaller where many layers add up
    for i in range(LAYERS):
        block = {"ln1_g": np.ones(D), "ln1_b": np.zeros(D), "qkv_w": matrix(3 * D, D)}
        if qkv_bias:
            block["qkv_b"] = np.zeros(3 * D)
        block |= {"proj_w": matrix(D, D, towards_sum), "proj_b": np.zeros(D)}
        block |= {"ln2_g": np.ones(D), "ln2_b": np.zeros(D)}
        block |= {"fc_w": matrix(4 * D, D), "fc_b": np.zeros(4 * D)}
        block |= {"out_w": matrix(D, 4 * D, towards_sum), "out_b": np.zeros(D)}
        weights |= {f"l{i}_{name}": w for name, w in block.items()}
    weights |= {"lnf_g": np.ones(D), "lnf_b": np.zeros(D), "head_w": matrix(VOCABULARY, D)}
    return _f32(weights), [(t[:, :-1], t[:, 1:]) for t in texts]


def _f32(weights: Weights) -> Weights:
    return {name: w.astype(np.float32) for name, w in weights.items()}


def workload(name: str, batch: int) -> tuple[Weights, Batches]:
    """Initial weights and batches of a training in BATCH."""
    return resnet(batch) if name == "resnet8" else gpt(batch, qkv_bias=name == "gpt")


def size(weights: Weights, batches: Batches) -> list[float]:
    """Sums of the absolute values of weights, inputs and labels: are these the numbers of the reference?"""
    columns = [list(weights.values()), [x for x, _ in batches], [y for _, y in batches]]
    return [float(sum(np.abs(a).sum(dtype=np.float64) for a in arrays)) for arrays in columns]
