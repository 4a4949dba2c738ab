"""Program 22, pytorch/examples language_translation: an encoder and a decoder with padding, labels shifted by one."""

from __future__ import annotations

import numpy as np
from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

PAD, WIDTH = 1, 16


class EncoderLayer(ag.Layer):
    def __init__(self) -> None:
        self.self_attn = nn.MultiheadAttention(WIDTH, 2, qkv_bias=True)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: ag.Tensor, seen: Array) -> ag.Tensor:
        x = self.norm1(x + self.self_attn(x, attn_mask=seen))
        return self.norm2(x + self.linear2(ops.relu(self.linear1(x))))


class DecoderLayer(ag.Layer):
    def __init__(self) -> None:
        self.self_attn = nn.MultiheadAttention(WIDTH, 2, qkv_bias=True)
        self.multihead_attn = nn.MultiheadAttention(WIDTH, 2, qkv_bias=True)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: ag.Tensor, memory: ag.Tensor, seen: Array, source_seen: Array) -> ag.Tensor:
        x = self.norm1(x + self.self_attn(x, causal_mask=True, attn_mask=seen))
        x = self.norm2(x + self.multihead_attn(x, memory, attn_mask=source_seen))
        return self.norm3(x + self.linear2(ops.relu(self.linear1(x))))


class Seq2Seq(ag.Layer):
    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = nn.Embedding(source, WIDTH), nn.Embedding(target, WIDTH)
        self.encoder, self.encoder_norm = [EncoderLayer()], nn.LayerNorm(WIDTH)
        self.decoder, self.decoder_norm = [DecoderLayer()], nn.LayerNorm(WIDTH)
        self.generator = nn.Linear(WIDTH, target)
        angles = np.arange(16) / 10000.0 ** (np.arange(0, WIDTH, 2)[:, None] / WIDTH)
        self.positions = ag.ag_tensor(np.stack([np.sin(angles), np.cos(angles)], 1).reshape(WIDTH, 16, 1))

    def forward(self, source: Array, target: Array) -> ag.Tensor:
        source_seen, seen = source != PAD, target != PAD
        memory = self.source(source) * WIDTH**0.5 + self.positions[:, : source.shape[0]]
        for layer in self.encoder:
            memory = layer(memory, source_seen)
        memory = self.encoder_norm(memory)
        x = self.target(target) * WIDTH**0.5 + self.positions[:, : target.shape[0]]
        for layer in self.decoder:
            x = layer(x, memory, seen, source_seen)
        return self.generator(self.decoder_norm(x))


def program(draw: Draw) -> tuple[object, Batches]:
    model = Seq2Seq(20, 24)
    fill(model, draw)
    optimizer = ag.optim.Adam(model.parameters(), lr=1e-3, beta1=0.9, beta2=0.98, eps=1e-9)
    source, target = draw.ids(18, 6, 7, 4) + 2, draw.ids(22, 6, 6, 4) + 2
    source[np.arange(7)[:, None] >= draw.ids(4, 6, 1, 4) + 4] = PAD
    target[np.arange(6)[:, None] >= draw.ids(4, 6, 1, 4) + 3] = PAD

    def step(source: Array, target: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(source, target[:-1]), target[1:], ignore_index=PAD)
        optimizer.step(ag.backward(loss))
        return loss

    return step, list(zip(source, target, strict=True))
