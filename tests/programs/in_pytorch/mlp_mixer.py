from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


def mlp(features: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, features))


class Mixer(nn.Module):
    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.norm_tokens, self.tokens = nn.LayerNorm(channels), mlp(patches, 2 * patches)
        self.norm_channels, self.channels = nn.LayerNorm(channels), mlp(channels, 4 * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm_channels(x))


class MLPMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 2, stride=2)
        self.blocks = nn.Sequential(Mixer(16, 16), Mixer(16, 16), nn.LayerNorm(16))
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


def program(draw: Draw) -> tuple[object, Batches]:
    model = MLPMixer()
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape, scale=0.5) if p.ndim > 1 else draw(*p.shape, 1, scale=0.5)[:, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    images, labels = draw(3, 8, 8, 8, scale=1.0), draw.ids(10, 8)

    def step(images: object, labels: object) -> float:
        loss = functional.cross_entropy(model(torch.tensor(images).movedim(-1, 0)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(images, labels)] * 6
