from __future__ import annotations

from math import sqrt

import torch
from programs.drawn import Batches, Draw
from programs.mingpt_adder import BLOCK, HEADS, WIDTH, sums
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        q, k, v = (part.view(batch, time, HEADS, -1).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, 2))
        att = q @ k.transpose(2, 3) / sqrt(WIDTH // HEADS)
        att = att.masked_fill(torch.ones(time, time).tril() == 0, float("-inf")).softmax(-1)
        return self.c_proj((att @ v).transpose(1, 2).reshape(batch, time, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU("tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(10, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h = nn.Sequential(Block(), Block())
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.ln_f(self.h(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))))


def program(draw: Draw) -> tuple[object, Batches]:
    model = GPT()
    for name, p in model.named_parameters():
        p.data = torch.tensor(draw(*p.shape[::-1]).T if name.startswith("w") else draw(*p.shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def step(ids: object, targets: object) -> float:
        logits, targets = model(torch.tensor(ids).T), torch.tensor(targets).T
        loss = nn.functional.cross_entropy(logits.reshape(-1, 10), targets.reshape(-1), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step, [sums(draw) for _ in range(6)]
