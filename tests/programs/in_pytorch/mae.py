from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention, unfold

WIDTH, PATCHES, PATCH, MASKED = 16, 9, 2, 6


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: object) -> object:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: object) -> object:
        x = x + self.attention(self.norm1(x))
        return self.norm3(x + self.net(self.norm2(x)))


class MAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask_token = nn.Parameter(torch.zeros(12))
        pixels = 3 * PATCH * PATCH
        self.norm_patch, self.patch_to_emb = nn.LayerNorm(pixels), nn.Linear(pixels, WIDTH)
        self.norm_emb = nn.LayerNorm(WIDTH)
        self.positions, self.encoder = nn.Embedding(PATCHES, WIDTH), Transformer(WIDTH)
        self.enc_to_dec, self.decoder = nn.Linear(WIDTH, 12), Transformer(12)
        self.decoder_pos_emb, self.to_pixels = nn.Embedding(PATCHES, 12), nn.Linear(12, pixels)

    def forward(self, images: object, order: object) -> object:
        patches = unfold(images, PATCH, stride=PATCH).transpose(1, 2)
        tokens = self.norm_emb(self.patch_to_emb(self.norm_patch(patches))) + self.positions.weight
        batch, masked, seen = torch.arange(len(images))[:, None], order[:, :MASKED], order[:, MASKED:]
        encoded = self.encoder(tokens[batch, seen])
        x = torch.zeros(len(images), PATCHES, 12)
        x[batch, seen] = self.enc_to_dec(encoded) + self.decoder_pos_emb(seen)
        x[batch, masked] = self.mask_token + self.decoder_pos_emb(masked)
        return mse_loss(self.to_pixels(self.decoder(x)[batch, masked]), patches[batch, masked])


def program(draw: Draw) -> tuple[object, Batches]:
    model = MAE()
    fill_torch(model, draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    images = draw.uniform(3, 6, 6, 4)
    orders = [draw.uniform(PATCHES, 4).argsort(0) for _ in range(6)]

    def step(images: object, order: object) -> float:
        loss = model(torch.tensor(images).permute(3, 0, 1, 2), torch.tensor(order.T))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(images, order) for order in orders]
