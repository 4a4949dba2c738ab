"""Program 41, DenseNet (d2l chapter_convolutional-modern/densenet.md): every layer takes what all before it gave."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def conv_block(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(into), nn.ReLU(), nn.Conv2d(into, out, 3, padding=1))


def transition_block(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(into), nn.ReLU(), nn.Conv2d(into, out, 1), nn.AvgPool2d(2, stride=2))


class DenseBlock(ag.Layer):
    def __init__(self, convs: int, into: int, growth: int) -> None:
        self.convs = [conv_block(into + i * growth, growth) for i in range(convs)]

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        for conv in self.convs:
            x = ops.concat([x, conv(x)], dim=0)
        return x


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(nn.Conv2d(1, 8, 7, stride=2, padding=3), nn.BatchNorm2d(8), nn.ReLU(),
                          nn.MaxPool2d(3, stride=2, padding=1), DenseBlock(2, 8, 4), transition_block(16, 8),
                          DenseBlock(2, 8, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1)),
                          nn.Flatten(), nn.Linear(16, 10))
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    optimizer = ag.optim.SGD(model.parameters(), lr=0.1)
    images, labels = draw(1, 16, 16, 8, scale=1.0), draw.ids(10, 8)

    def step(images: ag.Tensor, labels: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(images), labels)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(images, labels)] * 6
