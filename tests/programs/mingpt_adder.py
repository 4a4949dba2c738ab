"""Program 6, minGPT's adder: a transformer that adds two numbers, and learns from the digits of the sum alone."""

from __future__ import annotations

from math import sqrt

import numpy as np
from programs.drawn import Batches, Draw

import ag
from ag import nn, ops

DIGITS, BLOCK, WIDTH, HEADS = 2, 6, 16, 2


class CausalSelfAttention(ag.Layer):
    def __init__(self) -> None:
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        _, time, batch = x.shape
        q, k, v = (part.reshape(HEADS, -1, time, batch) for part in self.c_attn(x).split(WIDTH))
        att = ops.einsum("hdqb,hdkb->hqkb", q, k) / sqrt(WIDTH // HEADS)
        att = att.masked_fill(ops.ones(time, time).tril().unsqueeze(-1) == 0, float("-inf")).softmax(dim=2)
        return self.c_proj(ops.einsum("hqkb,hdkb->hdqb", att, v).reshape(WIDTH, time, batch))


class Block(ag.Layer):
    def __init__(self) -> None:
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(ag.Layer):
    def __init__(self) -> None:
        self.wte, self.wpe = nn.Embedding(10, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h = nn.Sequential(Block(), Block())
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10, bias=False)

    def forward(self, ids: ag.Tensor) -> ag.Tensor:
        x = self.wte(ids) + self.wpe(ops.arange(ids.shape[0])).unsqueeze(-1)
        return self.lm_head(self.ln_f(self.h(x)))


def sums(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    a, b = draw.ids(10**DIGITS, 16), draw.ids(10**DIGITS, 16)
    text = [f"{x:02}{y:02}" + f"{x + y:03}"[::-1] for x, y in zip(a, b, strict=True)]
    digits = np.array([[int(digit) for digit in line] for line in text]).T
    targets = digits[1:].copy()
    targets[: 2 * DIGITS - 1] = -1
    return digits[:-1], targets


def program(draw: Draw) -> tuple[object, Batches]:
    model = GPT()
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.AdamW(model, lr=5e-3, beta2=0.95, weight_decay=0.1)

    def step(ids: ag.Tensor, targets: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(ids), targets, ignore_index=-1)
        grads = ag.backward(loss)
        ag.clip_grad_norm(model, grads, 1.0)
        optimizer.step(grads)
        return loss

    return step, [sums(draw) for _ in range(6)]
