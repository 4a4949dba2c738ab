"""Program 23, mlx-examples cifar, pytorch/examples imagenet: a ResNet whose shortcuts skip pixels and pad channels."""

from __future__ import annotations

from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops


class Block(ag.Layer):
    def __init__(self, into: int, out: int, stride: int = 1) -> None:
        self.stride, self.wider = stride, out - into
        self.conv1, self.bn1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        y = self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = ops.pad(x[:, :: self.stride, :: self.stride], (0, 0, 0, 0, self.wider // 2, self.wider // 2))
        return ops.relu(y + x)


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), Block(4, 4), Block(4, 8, 2),
        Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    fill(model, draw)
    optimizer = ag.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    images, labels = draw.uniform(3, 8, 8, 8), draw.ids(10, 8)

    def step(images: Array, labels: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(images), labels)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(images, labels)] * 6
