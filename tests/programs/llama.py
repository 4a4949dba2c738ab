"""Program 27, Llama (mlx-examples llms/llama): RMS norms, rotary positions, shared heads of keys and values, SwiGLU."""

from __future__ import annotations

from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

WORDS, WIDTH, HEADS, KV_HEADS = 24, 16, 4, 2


class Attention(ag.Layer):
    def __init__(self) -> None:
        shared = WIDTH // HEADS * KV_HEADS
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = nn.Linear(WIDTH, shared, bias=False), nn.Linear(WIDTH, shared, bias=False)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        q = ops.rope(self.wq(x), interleaved=True, heads=HEADS)
        k = ops.rope(self.wk(x), interleaved=True, heads=KV_HEADS)
        return self.wo(ops.attention(q, k, self.wv(x), causal=True, heads=HEADS, kv_heads=KV_HEADS))


class FeedForward(ag.Layer):
    def __init__(self) -> None:
        self.w1, self.w3 = nn.Linear(WIDTH, 32, bias=False), nn.Linear(WIDTH, 32, bias=False)
        self.w2 = nn.Linear(32, WIDTH, bias=False)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        return self.w2(ops.silu(self.w1(x)) * self.w3(x))


class Block(ag.Layer):
    def __init__(self) -> None:
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), Block(), nn.RMSNorm(WIDTH, eps=1e-5),
                          nn.Linear(WIDTH, WORDS, bias=False))
    fill(model, draw)
    optimizer = ag.optim.AdamW(model.parameters(), lr=3e-3, beta2=0.95, weight_decay=0.1)
    words = draw.ids(WORDS, 9, 4)

    def step(words: Array, following: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(words), following)
        grads = ag.backward(loss)
        ag.clip_grad_norm(model, grads, 1.0)
        optimizer.step(grads)
        return loss

    return step, [(words[:-1], words[1:])] * 6
