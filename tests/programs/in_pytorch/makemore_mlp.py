from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from torch import nn

VOCABULARY, BLOCK = 27, 4


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY + 1, 8)
        self.mlp = nn.Sequential(nn.Linear(8 * BLOCK, 32), nn.Tanh(), nn.Linear(32, VOCABULARY))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        embeddings = []
        for _ in range(BLOCK):
            embeddings.append(self.wte(ids))
            ids = torch.roll(ids, 1, 1)
            ids[:, 0] = VOCABULARY
        return self.mlp(torch.cat(embeddings, -1))


def program(draw: Draw) -> tuple[object, Batches]:
    model = MLP()
    for name, p in model.named_parameters():
        p.data = torch.tensor(draw(*p.shape[::-1]).T if name == "wte.weight" else draw(*p.shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.99))

    def step(ids: object, targets: object) -> float:
        logits, targets = model(torch.tensor(ids).T), torch.tensor(targets).T
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    words = [draw.ids(VOCABULARY + 1, 6, 8) - 1 for _ in range(6)]
    return step, [(abs(word), word) for word in words]
