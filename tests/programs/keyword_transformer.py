"""Program 30, KWT (mlx-examples speechcommands): a transformer that tells keywords from spectra, a patch each time."""

from __future__ import annotations

import numpy as np
from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

WIDTH, TIMES, BANDS, CLASSES = 16, 8, 10, 6


class Block(ag.Layer):
    def __init__(self) -> None:
        self.attn, self.norm1 = nn.MultiheadAttention(WIDTH, 2), nn.LayerNorm(WIDTH)
        self.mlp, self.norm2 = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)), nn.LayerNorm(WIDTH)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        x = x + self.norm1(self.attn(x))
        return x + self.norm2(self.mlp(x))


class KWT(ag.Layer):
    def __init__(self) -> None:
        self.cls_token = ag.ag_param(np.zeros((WIDTH, 1)))
        self.pos_embedding = ag.ag_param(np.zeros((WIDTH, TIMES + 1)))
        self.patch_embedding = nn.Conv2d(1, WIDTH, (1, BANDS), (1, BANDS))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))

    def forward(self, spectra: Array) -> ag.Tensor:
        x = self.patch_embedding(spectra).squeeze(2)
        x = ops.concat([self.cls_token[:, None].expand(-1, -1, x.shape[2]), x], 1) + self.pos_embedding[:, :, None]
        return self.head(self.blocks(x)[:, 0])


def program(draw: Draw) -> tuple[object, Batches]:
    model = KWT()
    fill(model, draw)
    optimizer = ag.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    spectra, labels = draw(1, TIMES, BANDS, 6, scale=1.0), draw.ids(CLASSES, 6)

    def step(spectra: Array, labels: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(spectra), labels)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(spectra, labels)] * 6
