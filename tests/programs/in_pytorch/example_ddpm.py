from __future__ import annotations

import math

import torch
from programs.drawn import Batches, Draw
from programs.of_examples import filled_in_torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(n, outputs, 3, padding=1) for n in (inputs, outputs))
        self.norm1, self.norm2 = nn.GroupNorm(4, outputs), nn.GroupNorm(4, outputs)
        self.time, self.skip = nn.Linear(64, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, time):
        hidden = functional.silu(self.norm1(self.conv1(x))) + self.time(time)[:, :, None, None]
        return functional.silu(self.norm2(self.conv2(hidden))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, n: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.down1, self.down2, self.low = Block(1, n), Block(n, 2 * n), Block(2 * n, 2 * n)
        self.norm, self.qkv, self.out = nn.GroupNorm(4, 2 * n), nn.Conv2d(2 * n, 6 * n, 1), nn.Conv2d(2 * n, 2 * n, 1)
        self.up2, self.up1, self.last = Block(4 * n, n), Block(2 * n, n), nn.Conv2d(n, 1, 1)

    def forward(self, x, times):
        angles = times[:, None] * torch.exp(torch.arange(16) * (-math.log(1e4) / 15))
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        high = self.down1(x, time)
        middle = self.down2(functional.max_pool2d(high, 2), time)
        low = self.low(functional.max_pool2d(middle, 2), time)
        qkv = (t.view(-1, 4, 8, 4).transpose(2, 3) for t in self.qkv(self.norm(low)).chunk(3, 1))
        low = low + self.out(functional.scaled_dot_product_attention(*qkv).transpose(2, 3).reshape(low.shape))
        middle = self.up2(torch.cat([functional.interpolate(low, scale_factor=2), middle], 1), time)
        return self.last(self.up1(torch.cat([functional.interpolate(middle, scale_factor=2), high], 1), time))


def program(draw: Draw) -> tuple[object, Batches]:
    model = UNet()
    filled_in_torch(draw, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def step(*batch: object) -> float:
        images, times, kept, noise = (torch.tensor(x).movedim(-1, 0).contiguous() for x in batch)
        loss = functional.mse_loss(model(kept.sqrt() * images + (1 - kept).sqrt() * noise, times), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(draw(1, 8, 8, 32), draw.ids(100, 32), draw.uniform(1, 1, 1, 32), draw(1, 8, 8, 32, scale=1.0))
                  for _ in range(5)]
