from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy, pad, relu


class Block(nn.Module):
    def __init__(self, into: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.wider = stride, out - into
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: object) -> object:
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.wider // 2, self.wider // 2))
        return relu(y + x)


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), Block(4, 4), Block(4, 8, 2),
        Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    fill_torch(model, draw)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    images, labels = draw.uniform(3, 8, 8, 8), draw.ids(10, 8)

    def step(images: object, labels: object) -> float:
        logits = model(torch.tensor(images).permute(3, 0, 1, 2))
        loss = cross_entropy(logits, torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(images, labels)] * 6
