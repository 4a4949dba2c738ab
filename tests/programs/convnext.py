"""Program 39, ConvNeXt (facebookresearch/ConvNeXt): depthwise convolutions, layer scale, stochastic depth."""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


class Block(ag.Layer):
    def __init__(self, dim: int) -> None:
        self.scale = ag.ag_param([[[[1e-6]]]] * dim)
        self.depthwise = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: ag.Tensor, kept: ag.Tensor) -> ag.Tensor:
        return x + kept / 0.9 * (self.scale * self.mlp(self.norm(self.depthwise(x))))


class ConvNeXt(ag.Layer):
    def __init__(self) -> None:
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8, eps=1e-6))
        self.stage1 = [Block(8), Block(8)]
        self.downsample = nn.Sequential(nn.LayerNorm(8, eps=1e-6), nn.Conv2d(8, 16, 2, stride=2))
        self.stage2 = [Block(16)]
        self.head = nn.Sequential(nn.GlobalPool(), nn.LayerNorm(16, eps=1e-6), nn.Linear(16, 10))

    def forward(self, x: ag.Tensor, kept: ag.Tensor) -> ag.Tensor:
        x = self.stem(x)
        for block, k in zip(self.stage1, kept, strict=False):
            x = block(x, k)
        return self.head(self.stage2[0](self.downsample(x), kept[2]))


def program(draw: Draw) -> tuple[object, Batches]:
    model = ConvNeXt()
    for p in model.parameters().values():
        p.data = draw(*p.shape, scale=0.5)
    optimizer = ag.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    images, labels = draw(3, 16, 16, 4, scale=1.0), draw.ids(10, 4)
    kept = [(draw.uniform(3, 1, 4) < 0.9).astype("f") for _ in range(6)]  # which blocks which sample goes through

    def step(images: ag.Tensor, labels: ag.Tensor, kept: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.cross_entropy(model(images, kept), labels, label_smoothing=0.1)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(images, labels, k) for k in kept]
