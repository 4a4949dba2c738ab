"""Program 14, PyTorch's siamese network: a residual net sees two images and compares them; SGD stands for Adadelta."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def block(channels: int, out: int, stride: int) -> nn.Residual:
    body = nn.Sequential(nn.Conv2d(channels, out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
                         nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out))
    downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
    return nn.Residual(body, None if channels == out else downsample, activation="relu")


class SiameseNetwork(ag.Layer):
    def __init__(self) -> None:
        self.resnet = nn.Sequential(
            nn.Conv2d(1, 4, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1), block(4, 4, 1), block(4, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(2 * 8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x1: ag.Tensor, x2: ag.Tensor) -> ag.Tensor:
        return self.fc(ops.concat([self.resnet(x1), self.resnet(x2)])).sigmoid()


def program(draw: Draw) -> tuple[object, Batches]:
    model = SiameseNetwork()
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.SGD(model, lr=0.1)
    criterion = nn.BCELoss()

    def step(x1: ag.Tensor, x2: ag.Tensor, same: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = criterion(model(x1, x2).squeeze(0), same)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(draw.uniform(1, 20, 20, 4), draw.uniform(1, 20, 20, 4), draw.ids(2, 4).astype("f4"))] * 5
