from __future__ import annotations

import numpy as np
import torch
from programs.drawn import Batches, Draw
from programs.weights import fill_torch
from torch import nn
from torch.nn.functional import cross_entropy

PAD, WIDTH = 1, 16


class Seq2Seq(nn.Module):
    def __init__(self, source: int, target: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source, WIDTH), nn.Embedding(target, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(WIDTH, target)
        angles = torch.arange(16)[:, None] / 10000.0 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        self.positions = torch.stack([angles.sin(), angles.cos()], -1).reshape(16, WIDTH)

    def forward(self, source: object, target: object) -> object:
        memory = self.source(source) * WIDTH**0.5 + self.positions[: source.shape[1]]
        x = self.target(target) * WIDTH**0.5 + self.positions[: target.shape[1]]
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        x = self.transformer(memory, x, tgt_mask=later, src_key_padding_mask=source == PAD,
                             tgt_key_padding_mask=target == PAD, memory_key_padding_mask=source == PAD)
        return self.generator(x)


def program(draw: Draw) -> tuple[object, Batches]:
    model = Seq2Seq(20, 24)
    fill_torch(model, draw)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    source, target = draw.ids(18, 6, 7, 4) + 2, draw.ids(22, 6, 6, 4) + 2
    source[np.arange(7)[:, None] >= draw.ids(4, 6, 1, 4) + 4] = PAD
    target[np.arange(6)[:, None] >= draw.ids(4, 6, 1, 4) + 3] = PAD

    def step(source: object, target: object) -> float:
        source, target = torch.tensor(source.T), torch.tensor(target.T)
        logits = model(source, target[:, :-1])
        loss = cross_entropy(logits.transpose(1, 2), target[:, 1:], ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, list(zip(source, target, strict=True))
