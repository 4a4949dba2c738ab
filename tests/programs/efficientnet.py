"""Program 40, EfficientNet (tinygrad extra/models/efficientnet.py): depthwise convolutions, squeeze-excite, SiLU."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def conv(into: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    pad = (kernel - 1) // 2
    around = nn.ZeroPad2d((0, 2 * pad, 0, 2 * pad) if stride == 2 else pad)
    return nn.Sequential(around, nn.Conv2d(into, out, kernel, stride, groups=groups, bias=False), nn.BatchNorm2d(out))


class MBConv(ag.Layer):
    def __init__(self, into: int, out: int, kernel: int, stride: int, expand: int) -> None:
        wide = expand * into
        self.skip = stride == 1 and into == out
        self.expand = nn.Sequential(conv(into, wide, 1), nn.SiLU())
        self.depthwise = nn.Sequential(conv(wide, wide, kernel, stride, groups=wide), nn.SiLU())
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, max(1, into // 4), 1), nn.SiLU(),
                                     nn.Conv2d(max(1, into // 4), wide, 1), nn.Sigmoid())
        self.project = conv(wide, out, 1)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        y = self.depthwise(self.expand(x))
        y = self.project(y * self.squeeze(y))
        return x + y if self.skip else y


def program(draw: Draw) -> tuple[object, Batches]:
    model = nn.Sequential(conv(3, 8, 3, 2), nn.SiLU(), MBConv(8, 8, 3, 1, 2), MBConv(8, 12, 5, 2, 2),
                          MBConv(12, 12, 5, 1, 2), conv(12, 32, 1), nn.SiLU(), nn.GlobalPool(), nn.Linear(32, 10))
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    optimizer = ag.optim.SGD(model.parameters(), lr=0.05)
    images, labels = draw(3, 16, 16, 6, scale=1.0), draw.ids(10, 6)

    def step(images: ag.Tensor, labels: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(images), labels)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(images, labels)] * 6
