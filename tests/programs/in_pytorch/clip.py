from __future__ import annotations

from math import log

import numpy as np
import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

WORDS, WIDTH, TIMES = 24, 16, 6


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: object, later: object = None) -> object:
        y = self.layer_norm1(x)
        x = x + self.self_attn(y, y, y, attn_mask=later, need_weights=False)[0]
        y = self.fc1(self.layer_norm2(x))
        return x + self.fc2(y * torch.sigmoid(1.702 * y))


class TextModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(TIMES, WIDTH)
        self.layers, self.norm = nn.ModuleList([EncoderLayer()]), nn.LayerNorm(WIDTH)

    def forward(self, words: object) -> object:
        x = self.words(words) + self.positions.weight[: words.shape[1]]
        for layer in self.layers:
            x = layer(x, torch.ones(TIMES, TIMES, dtype=torch.bool).triu(1))
        return self.norm(x)[torch.arange(len(words)), words.argmax(-1)]


class VisionModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(WIDTH))
        self.patches, self.positions = nn.Conv2d(3, WIDTH, 4, 4, bias=False), nn.Embedding(5, WIDTH)
        self.pre_norm, self.layers = nn.LayerNorm(WIDTH), nn.ModuleList([EncoderLayer()])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, images: object) -> object:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], 1)
        x = self.pre_norm(x + self.positions.weight)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x[:, 0])


class Clip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))
        self.text, self.vision = TextModel(), VisionModel()
        self.of_text, self.of_image = nn.Linear(WIDTH, 8, bias=False), nn.Linear(WIDTH, 8, bias=False)

    def forward(self, images: object, words: object) -> object:
        texts, images = normalize(self.of_text(self.text(words))), normalize(self.of_image(self.vision(images)))
        logits, labels = texts @ images.T * self.scale.exp(), torch.arange(len(words))
        return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2


def program(draw: Draw) -> tuple[object, Batches]:
    model = Clip()
    fill_torch(model, draw)
    model.scale.data.fill_(log(1 / 0.07))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
    images, words = draw(3, 8, 8, 5, scale=1.0), draw.ids(WORDS - 1, 6, TIMES, 5)
    np.put_along_axis(words, draw.ids(4, 6, 1, 5) + 2, WORDS - 1, 1)

    def step(images: object, words: object) -> float:
        loss = model(torch.tensor(images).permute(3, 0, 1, 2), torch.tensor(words.T))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(images, texts) for texts in words]
