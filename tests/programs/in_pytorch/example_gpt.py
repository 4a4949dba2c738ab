from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.of_examples import filled_in_torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = (t.view(batch, time, 4, 16).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(64, 2))
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, time, 64))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(68, 64), nn.Embedding(64, 64)
        self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(64)

    def forward(self, ids):
        x = self.blocks(self.characters(ids) + self.places(torch.arange(ids.shape[1])))
        return functional.linear(self.norm(x), self.characters.weight)


def program(draw: Draw) -> tuple[object, Batches]:
    model = GPT()
    filled_in_torch(draw, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def step(ids: object, following: object) -> float:
        ids, following = torch.tensor(ids.T), torch.tensor(following.T)
        loss = functional.cross_entropy(model(ids).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step, [(draw.ids(68, 64, 16), draw.ids(68, 64, 16)) for _ in range(5)]
