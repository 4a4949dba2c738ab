"""Program 25, T5 (mlx-examples t5): attention without scale, with a learned bias for each bucket of distances."""

from __future__ import annotations

import numpy as np
from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

WORDS, WIDTH, HEADS, TIMES = 24, 16, 2, 7


class RelativeBias(ag.Layer):
    def __init__(self, bidirectional: bool, buckets: int = 8, farthest: int = 16) -> None:
        self.embeddings = nn.Embedding(buckets, HEADS)
        distance = np.arange(TIMES)[:, None] - np.arange(TIMES)
        count = buckets // 2 if bidirectional else buckets
        far, exact = np.abs(distance) if bidirectional else np.maximum(distance, 0), count // 2
        steps = np.log(np.maximum(far, 1) / exact) / np.log(farthest / exact) * (count - exact)
        bucket = np.where(far < exact, far, np.minimum(exact + steps.astype(int), count - 1))
        self.buckets = ag.ag_tensor(bucket + (distance < 0) * count * bidirectional, dtype="i32")

    def forward(self) -> ag.Tensor:
        return self.embeddings(self.buckets)  # (heads, queries, keys)


class Attention(ag.Layer):
    def __init__(self) -> None:
        self.attention, self.ln = nn.MultiheadAttention(WIDTH, HEADS, bias=False), nn.RMSNorm(WIDTH)

    def forward(self, x: ag.Tensor, memory: ag.Tensor | None = None, bias: ag.Tensor | None = None,
                causal: bool = False) -> ag.Tensor:
        return x + self.attention(self.ln(x), memory, causal_mask=causal, attn_bias=bias, scale=1.0)


class Dense(ag.Layer):
    def __init__(self) -> None:
        self.ln = nn.RMSNorm(WIDTH)
        self.wi, self.wo = nn.Linear(WIDTH, 32, bias=False), nn.Linear(32, WIDTH, bias=False)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return x + self.wo(ops.relu(self.wi(self.ln(x))))


class T5(ag.Layer):
    def __init__(self) -> None:
        self.shared = nn.Embedding(WORDS, WIDTH)
        self.encoder_bias, self.encoder = RelativeBias(True), [(Attention(), Dense()) for _ in range(2)]
        self.decoder_bias = RelativeBias(False)
        self.decoder = [(Attention(), Attention(), Dense()) for _ in range(2)]
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, source: Array, target: Array) -> ag.Tensor:
        memory, bias = self.shared(source), self.encoder_bias()
        for attention, dense in self.encoder:
            memory = dense(attention(memory, bias=bias))
        memory, x, bias = self.encoder_norm(memory), self.shared(target), self.decoder_bias()
        for attention, cross, dense in self.decoder:
            x = dense(cross(attention(x, bias=bias, causal=True), memory))
        return self.shared.weight.T @ (self.decoder_norm(x) * WIDTH**-0.5)


def program(draw: Draw) -> tuple[object, Batches]:
    model = T5()
    fill(model, draw)
    optimizer = ag.optim.AdamW(model.parameters(), lr=3e-3)
    source, target = draw.ids(WORDS, TIMES, 4), draw.ids(WORDS, TIMES + 1, 4)

    def step(source: Array, read: Array, wanted: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(source, read), wanted)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(source, target[:-1], target[1:])] * 5
