from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn


class Block(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.downsample = nn.Sequential()
        if channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.downsample(x)).relu()


class SiameseNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = [Block(*sizes) for sizes in ((2, 2, 1), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1),
                                              (8, 16, 2), (16, 16, 1))]
        self.resnet = nn.Sequential(nn.Conv2d(1, 2, 7, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(),
                                    nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(2 * 16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.cat([self.resnet(x1), self.resnet(x2)], 1)).sigmoid()


def program(draw: Draw) -> tuple[object, Batches]:
    model = SiameseNetwork()
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.BCELoss()

    def step(*batch: object) -> float:
        x1, x2, same = (torch.tensor(part).movedim(-1, 0) for part in batch)
        loss = criterion(model(x1, x2).squeeze(1), same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw.uniform(1, 40, 40, 4), draw.uniform(1, 40, 40, 4), draw.ids(2, 4).astype("f4"))] * 5
