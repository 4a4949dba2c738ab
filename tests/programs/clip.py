"""Program 28, CLIP (mlx-examples clip): images and texts that belong together are near, all others far."""

from __future__ import annotations

from math import log

import numpy as np
from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

WORDS, WIDTH, TIMES = 24, 16, 6


class EncoderLayer(ag.Layer):
    def __init__(self) -> None:
        self.self_attn = nn.MultiheadAttention(WIDTH, 2, qkv_bias=True)
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: ag.Tensor, causal: bool = False) -> ag.Tensor:
        x = x + self.self_attn(self.layer_norm1(x), causal_mask=causal)
        y = self.fc1(self.layer_norm2(x))
        return x + self.fc2(y * ops.sigmoid(1.702 * y))


class TextModel(ag.Layer):
    def __init__(self) -> None:
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(TIMES, WIDTH)
        self.layers, self.norm = [EncoderLayer()], nn.LayerNorm(WIDTH)

    def forward(self, words: Array) -> ag.Tensor:
        x = self.words(words) + self.positions.weight[:, : words.shape[0], None]
        for layer in self.layers:
            x = layer(x, causal=True)
        ends = ops.argmax(words, 0, keepdim=True)  # the last word has the highest number
        return ops.take_along_dim(self.norm(x), ends[None], 1).squeeze(1)


class VisionModel(ag.Layer):
    def __init__(self) -> None:
        self.class_embedding = ag.ag_param(np.zeros((WIDTH, 1)))
        self.patches, self.positions = nn.Conv2d(3, WIDTH, 4, 4, bias=False), nn.Embedding(5, WIDTH)
        self.pre_norm, self.layers, self.norm = nn.LayerNorm(WIDTH), [EncoderLayer()], nn.LayerNorm(WIDTH)

    def forward(self, images: Array) -> ag.Tensor:
        x = self.patches(images).reshape(WIDTH, 4, images.shape[-1])
        x = ops.concat([self.class_embedding[:, None].expand(-1, -1, x.shape[2]), x], 1)
        x = self.pre_norm(x + self.positions.weight[:, :, None])
        for layer in self.layers:
            x = layer(x)
        return self.norm(x[:, 0])


class Clip(ag.Layer):
    def __init__(self) -> None:
        self.text, self.vision = TextModel(), VisionModel()
        self.of_text, self.of_image = nn.Linear(WIDTH, 8, bias=False), nn.Linear(WIDTH, 8, bias=False)
        self.scale = ag.ag_param([[0.0]])

    def forward(self, images: Array, words: Array) -> ag.Tensor:
        texts, images = ops.normalize(self.of_text(self.text(words))), ops.normalize(self.of_image(self.vision(images)))
        logits = texts.T @ images * ops.exp(self.scale)
        labels = ops.arange(words.shape[1])
        return (ops.cross_entropy(logits, labels) + ops.cross_entropy(logits.T, labels)) / 2


def program(draw: Draw) -> tuple[object, Batches]:
    model = Clip()
    fill(model, draw)
    model.scale.data = [[log(1 / 0.07)]]
    optimizer = ag.optim.AdamW(model.parameters(), lr=1e-3, beta2=0.98, eps=1e-6, weight_decay=0.2)
    images, words = draw(3, 8, 8, 5, scale=1.0), draw.ids(WORDS - 1, 6, TIMES, 5)
    np.put_along_axis(words, draw.ids(4, 6, 1, 5) + 2, WORDS - 1, 1)

    def step(images: Array, words: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = model(images, words)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(images, texts) for texts in words]
