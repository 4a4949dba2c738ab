"""The models of workloads.py as `ag` has them: a ResNet-8 and a GPT, and a step of training.

The tests of the curves and of the counters train them, and so do the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from curves.workloads import ADAMW, CONVS, HEADS, LAYERS, SGD, VOCABULARY, Batches, D, T, Weights, workload

import ag


class ConvNorm(ag.Layer):
    """A convolution of CONVS and its batch norm."""

    def __init__(self, name: str, activation: Callable[..., ag.Tensor] | None = None) -> None:
        into, out, kernel, stride = next(conv[1:] for conv in CONVS if conv[0] == name)
        self.conv = ag.ag_conv2d_layer(into, out, kernel, stride, kernel // 2, bias=False)
        self.norm = ag.ag_batch_norm(out)
        self.activation = activation

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        y = self.norm(self.conv(x))
        return y if self.activation is None else self.activation(y)


def resnet8() -> ag.Layer:
    blocks = [
        ag.ag_residual(ag.ag_sequential(ConvNorm(f"s{i}_c1", ag.ag_relu), ConvNorm(f"s{i}_c2")),
                       ConvNorm(f"s{i}_sc") if i else None, activation="relu")
        for i in range(3)
    ]
    return ag.ag_sequential(ConvNorm("stem", ag.ag_relu), *blocks, ag.ag_global_pool(), ag.ag_linear(64, 10))


class PackedAttention(ag.Layer):
    """Causal attention as GPT-2 has it: queries, keys and values from one matrix, with a bias."""

    def __init__(self) -> None:
        self.qkv = ag.ag_linear(D, 3 * D)
        self.proj = ag.ag_linear(D, D)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        qkv = self.qkv(x)
        q, k, v = (qkv[i * D : (i + 1) * D] for i in range(3))
        return self.proj(ag.ag_attention(q, k, v, causal=True, heads=HEADS))


class CausalAttention(ag.Layer):
    """The library's attention."""

    def __init__(self) -> None:
        self.attention = ag.ag_multihead_attention(D, HEADS)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.attention(x, causal_mask=True)


class Block(ag.Layer):
    def __init__(self, attention: ag.Layer) -> None:
        self.ln1, self.attention = ag.ag_layer_norm(D), attention
        self.ln2, self.fc, self.out = ag.ag_layer_norm(D), ag.ag_linear(D, 4 * D), ag.ag_linear(4 * D, D)

    def forward(self, h: ag.Tensor) -> ag.Tensor:
        h = h + self.attention(self.ln1(h))
        return h + self.out(ag.ag_gelu(self.fc(self.ln2(h)), approximate="tanh"))


class GPT(ag.Layer):
    def __init__(self, attention: type[ag.Layer]) -> None:
        self.pos = ag.ag_param(np.zeros((D, T, 1)))
        self.tok = ag.ag_embedding(VOCABULARY, D)
        self.body = ag.ag_sequential(*(Block(attention()) for _ in range(LAYERS)), ag.ag_layer_norm(D),
                                     ag.ag_linear(D, VOCABULARY, bias=False))

    def forward(self, ids: np.ndarray) -> ag.Tensor:
        return self.body(self.tok(ids) + self.pos)


MODELS = {"resnet8": resnet8, "gpt": lambda: GPT(PackedAttention), "gpt_without_qkv_bias": lambda: GPT(CausalAttention)}


def in_order_of_parameters(weights: Weights) -> Iterator[np.ndarray]:
    """PyTorch's weights as `ag` has them; only the shapes of vectors remain to be adapted."""
    for name, w in weights.items():
        if name in ("pos", "tok"):
            yield w.T  # features first
        elif name.endswith("qkv_w") and name.replace("_w", "_b") not in weights:
            yield from np.split(w, 3)  # W_q, W_k, W_v
        else:
            yield w


def training(name: str, weights: Weights) -> Callable[..., ag.Tensor]:
    """A step of the optimizer, which returns the loss before it."""
    model = MODELS[name]()
    for p, w in zip(model.parameters().values(), in_order_of_parameters(weights), strict=True):
        p.data = w.reshape(p.shape)
    optimizer = ag.optimizer_sgd(model, **SGD) if name == "resnet8" else ag.optimizer_adamw(model, **ADAMW)

    def step(x: np.ndarray, labels: np.ndarray) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(x), labels)
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()
        return loss

    return step


def numbers(name: str, batch: int) -> tuple[Weights, Batches]:
    """Weights as in PyTorch, and batches with the samples on the last axis."""
    weights, batches = workload(name, batch)
    return weights, [(np.moveaxis(x, 0, -1).copy(), np.moveaxis(labels, 0, -1).copy()) for x, labels in batches]
