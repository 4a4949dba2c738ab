from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


def conv_block(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(into), nn.ReLU(), nn.Conv2d(into, out, 3, padding=1))


def transition_block(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(into), nn.ReLU(), nn.Conv2d(into, out, 1), nn.AvgPool2d(2, stride=2))


class DenseBlock(nn.Module):
    def __init__(self, convs: int, into: int, growth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([conv_block(into + i * growth, growth) for i in range(convs)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = torch.cat([x, conv(x)], dim=1)
        return x


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(nn.Conv2d(1, 8, 7, stride=2, padding=3), nn.BatchNorm2d(8), nn.ReLU(),
                          nn.MaxPool2d(3, stride=2, padding=1), DenseBlock(2, 8, 4), transition_block(16, 8),
                          DenseBlock(2, 8, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1)),
                          nn.Flatten(), nn.Linear(16, 10))
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape, scale=0.5) if p.ndim > 1 else draw(*p.shape, 1, scale=0.5)[:, 0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = draw(1, 16, 16, 8, scale=1.0), draw.ids(10, 8)

    def step(images: object, labels: object) -> float:
        loss = functional.cross_entropy(model(torch.tensor(images).movedim(-1, 0)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(images, labels)] * 6
