from __future__ import annotations

import numpy as np
import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention

WORDS, WIDTH, HEADS, TIMES = 24, 16, 2, 7


class RelativeBias(nn.Module):
    def __init__(self, bidirectional: bool, buckets: int = 8, farthest: int = 16) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(buckets, HEADS)
        distance = np.arange(TIMES)[:, None] - np.arange(TIMES)
        count = buckets // 2 if bidirectional else buckets
        far, exact = np.abs(distance) if bidirectional else np.maximum(distance, 0), count // 2
        steps = np.log(np.maximum(far, 1) / exact) / np.log(farthest / exact) * (count - exact)
        bucket = np.where(far < exact, far, np.minimum(exact + steps.astype(int), count - 1))
        self.buckets = torch.tensor(bucket + (distance < 0) * count * bidirectional)

    def forward(self) -> object:
        return self.embeddings(self.buckets).permute(2, 0, 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.ln = nn.RMSNorm(WIDTH, 1e-6)

    def forward(self, x: object, memory: object = None, bias: object = None, causal: bool = False) -> object:
        y = self.ln(x)
        memory = y if memory is None else memory
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (self.q(y), self.k(memory), self.v(memory)))
        if causal:
            bias = bias + torch.full((TIMES, TIMES), -torch.inf).triu(1)
        y = scaled_dot_product_attention(q, k, v, bias, scale=1.0)
        return x + self.o(y.transpose(1, 2).flatten(2))


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.RMSNorm(WIDTH, 1e-6)
        self.wi, self.wo = nn.Linear(WIDTH, 32, bias=False), nn.Linear(32, WIDTH, bias=False)

    def forward(self, x: object) -> object:
        return x + self.wo(relu(self.wi(self.ln(x))))


class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(WORDS, WIDTH)
        self.encoder_bias = RelativeBias(True)
        self.encoder = nn.ModuleList(nn.ModuleList([Attention(), Dense()]) for _ in range(2))
        self.decoder_bias = RelativeBias(False)
        self.decoder = nn.ModuleList(nn.ModuleList([Attention(), Attention(), Dense()]) for _ in range(2))
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)

    def forward(self, source: object, target: object) -> object:
        memory, bias = self.shared(source), self.encoder_bias()
        for attention, dense in self.encoder:
            memory = dense(attention(memory, bias=bias))
        memory, x, bias = self.encoder_norm(memory), self.shared(target), self.decoder_bias()
        for attention, cross, dense in self.decoder:
            x = dense(cross(attention(x, bias=bias, causal=True), memory))
        return (self.decoder_norm(x) * WIDTH**-0.5) @ self.shared.weight.T


def program(draw: Draw) -> tuple[object, Batches]:
    model = T5()
    fill_torch(model, draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    source, target = draw.ids(WORDS, TIMES, 4), draw.ids(WORDS, TIMES + 1, 4)

    def step(*batch: object) -> float:
        source, read, wanted = (torch.tensor(x.T) for x in batch)
        loss = cross_entropy(model(source, read).transpose(1, 2), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(source, target[:-1], target[1:])] * 5
