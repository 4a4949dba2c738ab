"""Program 42, U-Net (labml unet): down by pooling, up by transposed convolutions, and what was there before beside it.

The loss is of each pixel and of the overlap.
"""

from __future__ import annotations

from programs.drawn import Batches, Draw

import ag
from ag import nn, ops


def double_conv(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.ReLU(), nn.Conv2d(out, out, 3, padding=1), nn.ReLU())


class UNet(ag.Layer):
    def __init__(self) -> None:
        self.down, self.pool = [double_conv(3, 8), double_conv(8, 16)], nn.MaxPool2d(2)
        self.middle = double_conv(16, 32)
        self.up = [nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)]
        self.after = [double_conv(32, 16), double_conv(16, 8)]
        self.final = nn.Conv2d(8, 1, 1)

    def forward(self, x: ag.Tensor) -> ag.Tensor:
        kept = []
        for conv in self.down:
            kept.append(conv(x))
            x = self.pool(kept[-1])
        x = self.middle(x)
        for up, conv in zip(self.up, self.after, strict=True):
            x = conv(ops.concat([up(x), kept.pop()], dim=0))
        return self.final(x)


def program(draw: Draw) -> tuple[object, Batches]:
    model = UNet()
    for p in model.parameters().values():
        p.data = draw(*p.shape)
    optimizer = ag.optim.Adam(model.parameters(), lr=2.5e-3)
    images, masks = draw(3, 8, 8, 2, scale=1.0), draw.ids(2, 1, 8, 8, 2).astype("f")

    def step(images: ag.Tensor, masks: ag.Tensor) -> ag.Tensor:
        with ag.with_grad_tape():
            logits = model(images)
            loss = ops.binary_cross_entropy_with_logits(logits, masks) + ops.dice_loss(ops.sigmoid(logits), masks)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(images, masks)] * 6
