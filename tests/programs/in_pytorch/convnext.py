from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


class Norm(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((dim,), 1e-6))
        self.depthwise = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        y = self.scale * self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + kept.T[..., None, None] / 0.9 * y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), Norm(8, eps=1e-6))
        self.stage1 = nn.ModuleList([Block(8), Block(8)])
        self.downsample = nn.Sequential(Norm(8, eps=1e-6), nn.Conv2d(8, 16, 2, stride=2))
        self.stage2 = nn.ModuleList([Block(16)])
        self.head = nn.Sequential(nn.LayerNorm(16, eps=1e-6), nn.Linear(16, 10))

    def forward(self, x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block, k in zip(self.stage1, kept, strict=False):
            x = block(x, k)
        return self.head(self.stage2[0](self.downsample(x), kept[2]).mean((2, 3)))


def program(draw: Draw) -> tuple[object, Batches]:
    model = ConvNeXt()
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape, scale=0.5) if p.ndim > 1 else draw(*p.shape, 1, scale=0.5)[:, 0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    images, labels = draw(3, 16, 16, 4, scale=1.0), draw.ids(10, 4)
    kept = [(draw.uniform(3, 1, 4) < 0.9).astype("f") for _ in range(6)]

    def step(images: object, labels: object, kept: object) -> float:
        logits = model(torch.tensor(images).movedim(-1, 0), torch.tensor(kept))
        loss = functional.cross_entropy(logits, torch.tensor(labels), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(images, labels, k) for k in kept]
