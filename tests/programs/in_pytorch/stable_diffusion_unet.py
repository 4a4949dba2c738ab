from __future__ import annotations

from math import log

import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import gelu, mse_loss, scaled_dot_product_attention, silu

TEXT = 12


def embedded(times: object, features: int = 8) -> object:
    frequencies = torch.exp(torch.arange(features // 2) * (-log(10000) / (features // 2)))
    return torch.cat([(frequencies * times).cos(), (frequencies * times).sin()], -1)


class Attention(nn.Module):
    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.to_q, self.to_k = nn.Linear(width, width, bias=False), nn.Linear(context, width, bias=False)
        self.to_v, self.to_out = nn.Linear(context, width, bias=False), nn.Linear(width, width)

    def forward(self, x: object, context: object) -> object:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in (
            self.to_q(x), self.to_k(context), self.to_v(context)))
        return self.to_out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.proj_in = nn.GroupNorm(4, width), nn.Linear(width, width)
        self.attn1, self.attn2 = Attention(width, width), Attention(width, TEXT)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.proj_out = nn.Linear(width, width)

    def forward(self, x: object, text: object) -> object:
        y = self.proj_in(self.norm(x).flatten(2).transpose(1, 2))
        y = y + self.attn1(self.norm1(y), self.norm1(y))
        y = y + self.attn2(self.norm2(y), text)
        gated, gate = self.linear1(self.norm3(y)).chunk(2, -1)
        y = y + self.linear2(gated * gelu(gate))
        return x + self.proj_out(y).transpose(1, 2).reshape(x.shape)


class ResnetBlock(nn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, into), nn.Conv2d(into, out, 3, padding=1)
        self.time_emb_proj = nn.Linear(16, out)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: object, time: object) -> object:
        y = self.conv1(silu(self.norm1(x))) + self.time_emb_proj(silu(time))[:, :, None, None]
        return self.conv2(silu(self.norm2(y))) + self.shortcut(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time_embedding = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.conv_in = nn.Conv2d(4, 8, 3, padding=1)
        self.down = ResnetBlock(8, 8)
        self.downsample = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.mid1, self.mid_attention, self.mid2 = ResnetBlock(8, 16), TransformerBlock(16), ResnetBlock(16, 16)
        self.upsample, self.up_conv = nn.Upsample(scale_factor=2), nn.Conv2d(16, 16, 3, padding=1)
        self.up, self.up_attention = ResnetBlock(24, 8), TransformerBlock(8)
        self.conv_norm_out, self.conv_out = nn.GroupNorm(4, 8), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: object, times: object, text: object) -> object:
        time = self.time_embedding(embedded(times))
        x = self.conv_in(x)
        skipped = self.down(x, time)
        x = self.mid1(self.downsample(skipped), time)
        x = self.mid2(self.mid_attention(x, text), time)
        x = torch.cat([self.up_conv(self.upsample(x)), skipped], 1)
        x = self.up_attention(self.up(x, time), text)
        return self.conv_out(silu(self.conv_norm_out(x)))


def program(draw: Draw) -> tuple[object, Batches]:
    model = UNet()
    fill_torch(model, draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    latents, text, times = draw(4, 8, 8, 3, scale=1.0), draw(TEXT, 5, 3, scale=1.0), draw.uniform(1, 3) * 1000
    noise = draw(4, 8, 8, 3, scale=1.0)

    def step(latents: object, times: object, text: object, noise: object) -> float:
        latents, noise = (torch.tensor(x).permute(3, 0, 1, 2).contiguous() for x in (latents, noise))
        loss = mse_loss(model(latents, torch.tensor(times.T), torch.tensor(text.transpose(2, 1, 0))), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(latents, times, text, noise)] * 5
