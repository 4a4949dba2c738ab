"""Program 37, a masked autoencoder (lucidrains/vit-pytorch mae.py): some patches are seen, the others are drawn."""

from __future__ import annotations

import numpy as np
from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

WIDTH, PATCHES, PATCH, MASKED = 16, 9, 2, 6


class Transformer(ag.Layer):
    def __init__(self, width: int) -> None:
        self.norm1, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2)
        self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        x = x + self.attention(self.norm1(x))
        return self.norm3(x + self.net(self.norm2(x)))


class MAE(ag.Layer):
    def __init__(self) -> None:
        self.mask_token = ag.ag_param(np.zeros((12, 1)))
        pixels = 3 * PATCH * PATCH
        self.norm_patch, self.patch_to_emb = nn.LayerNorm(pixels), nn.Linear(pixels, WIDTH)
        self.norm_emb = nn.LayerNorm(WIDTH)
        self.positions, self.encoder = nn.Embedding(PATCHES, WIDTH), Transformer(WIDTH)
        self.enc_to_dec, self.decoder = nn.Linear(WIDTH, 12), Transformer(12)
        self.decoder_pos_emb, self.to_pixels = nn.Embedding(PATCHES, 12), nn.Linear(12, pixels)

    def forward(self, images: Array, order: Array) -> ag.Tensor:
        patches = ops.unfold(images, PATCH, stride=PATCH)  # (channels * PATCH * PATCH, patches, batch)
        tokens = self.norm_emb(self.patch_to_emb(self.norm_patch(patches))) + self.positions.weight[:, :, None]
        order = ag.ag_tensor(order, dtype="i32")
        masked, seen = order[:MASKED], order[MASKED:]
        encoded = self.encoder(ops.take_along_dim(tokens, seen[None], 1))
        positions = self.decoder_pos_emb.weight[:, :, None].expand(-1, -1, order.shape[1])
        known = self.enc_to_dec(encoded) + ops.take_along_dim(positions, seen[None], 1)
        hidden = self.mask_token[:, None] + ops.take_along_dim(positions, masked[None], 1)
        x = ops.zeros(12, PATCHES, order.shape[1])
        x = ops.scatter(x, 1, seen[None].expand(12, -1, -1), known)
        x = ops.scatter(x, 1, masked[None].expand(12, -1, -1), hidden)
        drawn = self.to_pixels(ops.take_along_dim(self.decoder(x), masked[None], 1))
        return ops.mse_loss(drawn, ops.take_along_dim(patches, masked[None], 1))


def program(draw: Draw) -> tuple[object, Batches]:
    model = MAE()
    fill(model, draw)
    optimizer = ag.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    images = draw.uniform(3, 6, 6, 4)
    orders = [draw.uniform(PATCHES, 4).argsort(0) for _ in range(6)]

    def step(images: Array, order: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = model(images, order)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(images, order) for order in orders]
