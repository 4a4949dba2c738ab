"""Program 31, the U-Net of Stable Diffusion (mlx-examples stable_diffusion): images attend to the words of a text."""

from __future__ import annotations

from math import log

from programs.drawn import Array, Batches, Draw
from programs.weights import fill

import ag
from ag import nn, ops

TEXT = 12


def embedded(times: Array, features: int = 8) -> ag.Tensor:
    frequencies = ops.exp(ops.arange(features // 2, dtype="f32")[:, None] * (-log(10000) / (features // 2)))
    return ops.concat([ops.cos(frequencies * times), ops.sin(frequencies * times)], 0)


class TransformerBlock(ag.Layer):
    def __init__(self, width: int) -> None:
        self.norm, self.proj_in = nn.GroupNorm(4, width), nn.Linear(width, width)
        self.attn1 = nn.MultiheadAttention(width, 2)
        self.attn2 = nn.MultiheadAttention(width, 2, kdim=TEXT, vdim=TEXT)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.proj_out = nn.Linear(width, width)

    def forward(self, x: ag.Tensor, text: Array) -> ag.Tensor:
        y = self.proj_in(self.norm(x).reshape(x.shape[0], -1, x.shape[-1]))
        y = y + self.attn1(self.norm1(y))
        y = y + self.attn2(self.norm2(y), text)
        gated, gate = ops.chunk(self.linear1(self.norm3(y)), 2)
        y = y + self.linear2(gated * ops.gelu(gate))
        return x + self.proj_out(y).reshape(*x.shape)


class ResnetBlock(ag.Layer):
    def __init__(self, into: int, out: int) -> None:
        self.norm1, self.conv1 = nn.GroupNorm(4, into), nn.Conv2d(into, out, 3, padding=1)
        self.time_emb_proj = nn.Linear(16, out)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: ag.Tensor, time: ag.Tensor) -> ag.Tensor:
        y = self.conv1(ops.silu(self.norm1(x))) + self.time_emb_proj(ops.silu(time))[:, None, None]
        return self.conv2(ops.silu(self.norm2(y))) + self.shortcut(x)


class UNet(ag.Layer):
    def __init__(self) -> None:
        self.time_embedding = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.conv_in = nn.Conv2d(4, 8, 3, padding=1)
        self.down = ResnetBlock(8, 8)
        self.downsample = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.mid1, self.mid_attention, self.mid2 = ResnetBlock(8, 16), TransformerBlock(16), ResnetBlock(16, 16)
        self.upsample, self.up_conv = nn.Upsample(scale_factor=2), nn.Conv2d(16, 16, 3, padding=1)
        self.up, self.up_attention = ResnetBlock(24, 8), TransformerBlock(8)
        self.conv_norm_out, self.conv_out = nn.GroupNorm(4, 8), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Array, times: Array, text: Array) -> ag.Tensor:
        time = self.time_embedding(embedded(times))
        x = self.conv_in(x)
        skipped = self.down(x, time)
        x = self.mid1(self.downsample(skipped), time)
        x = self.mid2(self.mid_attention(x, text), time)
        x = ops.concat([self.up_conv(self.upsample(x)), skipped], 0)
        x = self.up_attention(self.up(x, time), text)
        return self.conv_out(ops.silu(self.conv_norm_out(x)))


def program(draw: Draw) -> tuple[object, Batches]:
    model = UNet()
    fill(model, draw)
    optimizer = ag.optim.AdamW(model.parameters(), lr=1e-3)
    latents, text, times = draw(4, 8, 8, 3, scale=1.0), draw(TEXT, 5, 3, scale=1.0), draw.uniform(1, 3) * 1000
    noise = draw(4, 8, 8, 3, scale=1.0)

    def step(latents: Array, times: Array, text: Array, noise: Array) -> ag.Tensor:
        with ag.with_grad_tape():
            loss = ops.mse_loss(model(latents, times, text), noise)
        optimizer.step(ag.backward(loss))
        return loss

    return step, [(latents, times, text, noise)] * 5
