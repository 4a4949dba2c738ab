from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn

VOCABULARY, BLOCK = 27, 6


class CausalBoW(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, _ = x.shape
        attention = torch.zeros(samples, length, length)
        attention = attention.masked_fill(torch.ones(length, length).tril() == 0, float("-inf"))
        return attention.softmax(-1) @ x


class BoW(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, 16), nn.Embedding(BLOCK, 16)
        self.cbow = CausalBoW()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
        self.lm_head = nn.Linear(16, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        x = x + self.cbow(x)
        x = x + self.mlp(x)
        return self.lm_head(x)


def program(draw: Draw) -> tuple[object, Batches]:
    model = BoW()
    for name, p in model.named_parameters():
        p.data = torch.tensor(draw(*p.shape[::-1]).T if name.startswith("w") else draw(*p.shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.99))

    def step(ids: object, targets: object) -> float:
        logits, targets = model(torch.tensor(ids).T), torch.tensor(targets).T
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    words = [draw.ids(VOCABULARY + 1, BLOCK, 8) - 1 for _ in range(6)]
    return step, [(abs(word), word) for word in words]
