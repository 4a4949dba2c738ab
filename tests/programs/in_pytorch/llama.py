from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

WORDS, WIDTH, HEADS, KV_HEADS = 24, 16, 4, 2


def rope(x: object) -> object:
    dim = x.shape[-1]
    angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(
        torch.ones_like(angles), angles)).flatten(-2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = WIDTH // HEADS * KV_HEADS
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = nn.Linear(WIDTH, shared, bias=False), nn.Linear(WIDTH, shared, bias=False)

    def forward(self, x: object) -> object:
        q, k, v = (w(x).unflatten(-1, (n, -1)).transpose(1, 2).contiguous() for w, n in (
            (self.wq, HEADS), (self.wk, KV_HEADS), (self.wv, KV_HEADS)))
        y = scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, 32, bias=False), nn.Linear(WIDTH, 32, bias=False)
        self.w2 = nn.Linear(32, WIDTH, bias=False)

    def forward(self, x: object) -> object:
        return self.w2(silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)

    def forward(self, x: object) -> object:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), Block(), nn.RMSNorm(WIDTH, 1e-5),
                          nn.Linear(WIDTH, WORDS, bias=False))
    fill_torch(model, draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    words = draw.ids(WORDS, 9, 4)

    def step(words: object, following: object) -> float:
        loss = cross_entropy(model(torch.tensor(words.T)).transpose(1, 2), torch.tensor(following.T))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step, [(words[:-1], words[1:])] * 6
