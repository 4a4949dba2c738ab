from __future__ import annotations

import numpy as np
import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu

WORDS, WIDTH, TIMES, MASK = 30, 16, 8, 3


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.ln1 = nn.LayerNorm(WIDTH, eps=1e-12)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.ln2 = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: object, hidden: object) -> object:
        x = self.ln1(x + self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0])
        return self.ln2(x + self.linear2(gelu(self.linear1(x))))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WORDS))
        self.words, self.segments = nn.Embedding(WORDS, WIDTH), nn.Embedding(2, WIDTH)
        self.positions, self.norm = nn.Embedding(TIMES, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList([EncoderLayer(), EncoderLayer()])
        self.dense, self.ln = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, words: object, segments: object, seen: object) -> object:
        x = self.norm(self.words(words) + self.segments(segments) + self.positions.weight[: words.shape[1]])
        for layer in self.layers:
            x = layer(x, ~seen)
        x = self.ln(gelu(self.dense(x)))
        return x @ self.words.weight.T + self.bias


def program(draw: Draw) -> tuple[object, Batches]:
    model = Bert()
    fill_torch(model, draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    words, segments = draw.ids(WORDS - 4, 6, TIMES, 4) + 4, draw.ids(2, 6, TIMES, 4)
    seen, hidden = np.arange(TIMES)[:, None] < draw.ids(5, 6, 1, 4) + 4, draw.uniform(6, TIMES, 4) < 0.3
    labels = np.where(hidden & seen, words, -100)

    def step(*batch: object) -> float:
        words, segments, seen, labels = (torch.tensor(x.T) for x in batch)
        loss = cross_entropy(model(words, segments, seen).transpose(1, 2), labels, ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, list(zip(np.where(hidden, MASK, words), segments, seen, labels, strict=True))
