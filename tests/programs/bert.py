"""Program 24, BERT (mlx-examples bert): two segments, padding, and masked words to be guessed by the tied embedding."""

from __future__ import annotations

import numpy as np
from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

WORDS, WIDTH, TIMES, MASK = 30, 16, 8, 3


class EncoderLayer(ag.Layer):
    def __init__(self) -> None:
        self.attention, self.ln1 = nn.MultiheadAttention(WIDTH, 4, qkv_bias=True), nn.LayerNorm(WIDTH, eps=1e-12)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.ln2 = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: ag.Tensor, seen: Array) -> ag.Tensor:
        x = self.ln1(x + self.attention(x, attn_mask=seen))
        return self.ln2(x + self.linear2(ops.gelu(self.linear1(x))))


class Bert(ag.Layer):
    def __init__(self) -> None:
        self.bias = ag.ag_param(np.zeros((WORDS, 1)))
        self.words, self.segments = nn.Embedding(WORDS, WIDTH), nn.Embedding(2, WIDTH)
        self.positions, self.norm = nn.Embedding(TIMES, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = [EncoderLayer(), EncoderLayer()]
        self.dense, self.ln = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, words: Array, segments: Array, seen: Array) -> ag.Tensor:
        x = self.norm(self.words(words) + self.segments(segments) + self.positions.weight[:, : words.shape[0], None])
        for layer in self.layers:
            x = layer(x, seen)
        x = self.ln(ops.gelu(self.dense(x)))
        return self.words.weight.T @ x + self.bias[:, None]


def program(draw: Draw) -> tuple[object, Batches]:
    model = Bert()
    fill(model, draw)
    optimizer = ag.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    words, segments = draw.ids(WORDS - 4, 6, TIMES, 4) + 4, draw.ids(2, 6, TIMES, 4)
    seen, hidden = np.arange(TIMES)[:, None] < draw.ids(5, 6, 1, 4) + 4, draw.uniform(6, TIMES, 4) < 0.3
    labels = np.where(hidden & seen, words, -100)

    def step(words: Array, segments: Array, seen: Array, labels: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(words, segments, seen), labels, ignore_index=-100)
        optimizer.step(ag.backward(loss))
        return loss

    return step, list(zip(np.where(hidden, MASK, words), segments, seen, labels, strict=True))
