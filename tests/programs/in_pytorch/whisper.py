from __future__ import annotations

from math import log

import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

WORDS, WIDTH, HEADS, BANDS, TIMES = 24, 16, 2, 10, 12


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: object, y: object, causal: bool = False) -> object:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (self.query(x), self.key(y), self.value(y)))
        return self.out(scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, cross_attention: bool = False) -> None:
        super().__init__()
        self.attn, self.attn_ln = Attention(), nn.LayerNorm(WIDTH)
        self.cross_attn = Attention() if cross_attention else None
        self.cross_attn_ln = nn.LayerNorm(WIDTH) if cross_attention else None
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.mlp_ln = nn.LayerNorm(WIDTH)

    def forward(self, x: object, heard: object = None) -> object:
        y = self.attn_ln(x)
        x = x + self.attn(y, y, causal=heard is not None)
        if self.cross_attn is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), heard)
        return x + self.mlp(self.mlp_ln(x))


class Whisper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(BANDS, WIDTH, 3, padding=1), nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        scales = torch.exp(-log(10000) / (WIDTH // 2 - 1) * torch.arange(WIDTH // 2))
        angles = torch.arange(TIMES // 2)[:, None] * scales
        self.sinusoids = torch.cat([angles.sin(), angles.cos()], 1)
        self.encoder, self.ln_post = nn.ModuleList([Block()]), nn.LayerNorm(WIDTH)
        self.token_embedding, self.positional_embedding = nn.Embedding(WORDS, WIDTH), nn.Embedding(8, WIDTH)
        self.decoder, self.ln = nn.ModuleList([Block(cross_attention=True)]), nn.LayerNorm(WIDTH)

    def forward(self, spectrum: object, words: object) -> object:
        heard = gelu(self.conv2(gelu(self.conv1(spectrum)))).transpose(1, 2) + self.sinusoids
        for block in self.encoder:
            heard = block(heard)
        heard = self.ln_post(heard)
        x = self.token_embedding(words) + self.positional_embedding.weight[: words.shape[1]]
        for block in self.decoder:
            x = block(x, heard)
        return self.ln(x) @ self.token_embedding.weight.T


def program(draw: Draw) -> tuple[object, Batches]:
    model = Whisper()
    fill_torch(model, draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)
    spectrum, words = draw(BANDS, TIMES, 4, scale=1.0), draw.ids(WORDS, 8, 4)

    def step(spectrum: object, words: object, following: object) -> float:
        logits = model(torch.tensor(spectrum).permute(2, 0, 1), torch.tensor(words.T))
        loss = cross_entropy(logits.transpose(1, 2), torch.tensor(following.T))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [(spectrum, words[:-1], words[1:])] * 5
