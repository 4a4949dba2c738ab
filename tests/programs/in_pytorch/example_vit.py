from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.of_examples import filled_in_torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = (t.view(batch, time, 4, 16).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(64, 2))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time, 64))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(4, 64)
        self.cls, self.places = nn.Parameter(torch.zeros(64)), nn.Parameter(torch.zeros(64, 17))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 10))

    def forward(self, images):
        x = self.patches(functional.unfold(images, 2, stride=2).transpose(1, 2))
        x = torch.cat([self.cls.expand(len(images), 1, 64), x], 1) + self.places.T
        return self.head(self.blocks(x)[:, 0])


def program(draw: Draw) -> tuple[object, Batches]:
    model = ViT()
    filled_in_torch(draw, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)

    def step(images: object, digits: object) -> float:
        loss = functional.cross_entropy(model(torch.tensor(images).movedim(-1, 0)), torch.tensor(digits))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw.uniform(1, 8, 8, 64), draw.ids(10, 64)) for _ in range(5)]
