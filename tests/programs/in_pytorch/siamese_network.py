from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
                                  nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out))
        self.downsample = nn.Sequential()
        if channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.body(x) + self.downsample(x)).relu()


class SiameseNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.resnet = nn.Sequential(
            nn.Conv2d(1, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
            Residual(4, 4, 1), Residual(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(2 * 8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.cat([self.resnet(x1), self.resnet(x2)], 1)).sigmoid()


def program(draw: Draw) -> tuple[object, Batches]:
    model = SiameseNetwork()
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.BCELoss()

    def step(*batch: object) -> float:
        x1, x2, same = (torch.tensor(part).movedim(-1, 0) for part in batch)
        loss = criterion(model(x1, x2).squeeze(1), same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw.uniform(1, 20, 20, 4), draw.uniform(1, 20, 20, 4), draw.ids(2, 4).astype("f4"))] * 5
