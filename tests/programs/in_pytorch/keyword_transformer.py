from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

WIDTH, TIMES, BANDS, CLASSES = 16, 8, 10, 6


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: object) -> object:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm1 = Attention(), nn.LayerNorm(WIDTH)
        self.mlp, self.norm2 = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)), nn.LayerNorm(WIDTH)

    def forward(self, x: object) -> object:
        x = x + self.norm1(self.attn(x))
        return x + self.norm2(self.mlp(x))


class KWT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(WIDTH))
        self.pos_embedding = nn.Parameter(torch.zeros(TIMES + 1, WIDTH))
        self.patch_embedding = nn.Conv2d(1, WIDTH, (1, BANDS), (1, BANDS))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))

    def forward(self, spectra: object) -> object:
        x = self.patch_embedding(spectra).squeeze(3).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), 1, -1), x], 1) + self.pos_embedding
        return self.head(self.blocks(x)[:, 0])


def program(draw: Draw) -> tuple[object, Batches]:
    model = KWT()
    fill_torch(model, draw)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    spectra, labels = draw(1, TIMES, BANDS, 6, scale=1.0), draw.ids(CLASSES, 6)

    def step(spectra: object, labels: object) -> float:
        loss = cross_entropy(model(torch.tensor(spectra).permute(3, 0, 1, 2)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(spectra, labels)] * 6
