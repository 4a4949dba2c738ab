from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

WORDS, WIDTH, HEADS = 24, 16, 2


class LoRALinear(nn.Module):
    def __init__(self, linear: nn.Linear, rank: int = 4, scale: float = 2.0) -> None:
        super().__init__()
        self.linear, self.scale = linear, scale
        self.lora_a = nn.Linear(linear.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x: object) -> object:
        return self.linear(x) + self.scale * self.lora_b(self.lora_a(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 32, bias=False), nn.Linear(32, WIDTH, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)

    def forward(self, x: object) -> object:
        y = self.norm1(x)
        q, k, v = (w(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for w in (self.q_proj, self.k_proj, self.v_proj))
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(y.transpose(1, 2).flatten(2))
        return x + self.down(silu(self.up(self.norm2(x))))


def program(draw: Draw) -> tuple[object, Batches]:
    blocks = [Block(), Block()]
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *blocks, nn.RMSNorm(WIDTH, 1e-5), nn.Linear(WIDTH, WORDS))
    fill_torch(model, draw)
    model.requires_grad_(False)
    for block in blocks:
        block.q_proj, block.v_proj = LoRALinear(block.q_proj), LoRALinear(block.v_proj)
        for lora in (block.q_proj, block.v_proj):
            fill_torch(lora, draw)
            nn.init.zeros_(lora.lora_b.weight)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    words, lengths = draw.ids(WORDS, 6, 9, 4), draw.ids(5, 6, 1, 4) + 4

    def step(*batch: object) -> float:
        words, following, lengths = (torch.tensor(x.T) for x in batch)
        counts = torch.arange(following.shape[1]) < lengths
        losses = cross_entropy(model(words).transpose(1, 2), following, reduction="none") * counts
        loss = losses.sum() / counts.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, list(zip(words[:, :-1], words[:, 1:], lengths, strict=True))
