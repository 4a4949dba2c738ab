"""Program 32, Whisper (mlx-examples whisper): convolutions over a spectrum, an encoder, and a decoder that sees it."""

from __future__ import annotations

from math import log

import numpy as np
from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

WORDS, WIDTH, HEADS, BANDS, TIMES = 24, 16, 2, 10, 12


class Attention(ag.Layer):
    def __init__(self) -> None:
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: ag.Tensor, y: ag.Tensor, causal: bool = False) -> ag.Tensor:
        return self.out(ops.attention(self.query(x), self.key(y), self.value(y), causal=causal, heads=HEADS))


class Block(ag.Layer):
    def __init__(self, cross_attention: bool = False) -> None:
        self.attn, self.attn_ln = Attention(), nn.LayerNorm(WIDTH)
        self.cross_attn = Attention() if cross_attention else None
        self.cross_attn_ln = nn.LayerNorm(WIDTH) if cross_attention else None
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.mlp_ln = nn.LayerNorm(WIDTH)

    def forward(self, x: ag.Tensor, heard: ag.Tensor | None = None) -> ag.Tensor:
        y = self.attn_ln(x)
        x = x + self.attn(y, y, causal=heard is not None)
        if self.cross_attn is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), heard)
        return x + self.mlp(self.mlp_ln(x))


class Whisper(ag.Layer):
    def __init__(self) -> None:
        self.conv1, self.conv2 = nn.Conv1d(BANDS, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        angles = np.exp(-log(10000) / (WIDTH // 2 - 1) * np.arange(WIDTH // 2))[:, None] * np.arange(TIMES // 2)
        self.sinusoids = ag.ag_tensor(np.concatenate([np.sin(angles), np.cos(angles)])[:, :, None])
        self.encoder, self.ln_post = [Block()], nn.LayerNorm(WIDTH)
        self.token_embedding, self.positional_embedding = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, WIDTH)
        self.decoder, self.ln = [Block(cross_attention=True)], nn.LayerNorm(WIDTH)

    def forward(self, spectrum: Array, words: Array) -> ag.Tensor:
        heard = ops.gelu(self.conv2(ops.gelu(self.conv1(spectrum)))) + self.sinusoids
        for block in self.encoder:
            heard = block(heard)
        heard = self.ln_post(heard)
        x = self.token_embedding(words) + self.positional_embedding.weight[:, : words.shape[0], None]
        for block in self.decoder:
            x = block(x, heard)
        return self.token_embedding.weight.T @ self.ln(x)


def program(draw: Draw) -> tuple[object, Batches]:
    model = Whisper()
    fill(model, draw)
    optimizer = ag.optim.AdamW(model.parameters(), lr=3e-3, beta2=0.98, eps=1e-6, weight_decay=0.1)
    spectrum, words = draw(BANDS, TIMES, 4, scale=1.0), draw.ids(WORDS, 8, 4)

    def step(spectrum: Array, words: Array, following: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(spectrum, words), following)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(spectrum, words[:-1], words[1:])] * 5
