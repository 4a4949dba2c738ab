from __future__ import annotations

import numpy as np
import torch
from programs.drawn import Batches, Draw
from torch import nn
from torch.nn import functional


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 11))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        q, k, v = (y.unflatten(2, (2, 8)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))


def log_probs(model: LanguageModel, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    labels, logits = labels[:, 1:].clone(), model(ids)[:, :-1]
    mask = labels != -100
    labels[~mask] = 0
    return (logits.log_softmax(-1).gather(2, labels[:, :, None])[:, :, 0] * mask).sum(1)


def program(draw: Draw) -> tuple[object, Batches]:
    policy, reference = LanguageModel(), LanguageModel()
    for name, p in policy.named_parameters():
        shape = p.shape[::-1] if name == "embedding.weight" else (*p.shape, 1)[:2]
        drawn = draw(*shape)
        p.data = torch.tensor(drawn.T if name == "embedding.weight" else drawn.reshape(p.shape))
    reference.load_state_dict(policy.state_dict())
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    beta = 0.5

    def step(ids: object, labels: object) -> float:
        ids, labels = torch.tensor(ids).T, torch.tensor(labels).T
        chosen, rejected = log_probs(policy, ids, labels).chunk(2)
        with torch.no_grad():
            of_reference = log_probs(reference, ids, labels).chunk(2)
        loss = -functional.logsigmoid(beta * ((chosen - rejected) - (of_reference[0] - of_reference[1]))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    batches = []
    for _ in range(6):
        ids = draw.ids(11, 8, 6)
        labels = np.where(np.arange(8)[:, None] < [2, 3, 2, 2, 3, 2], -100, ids)
        batches.append((ids, np.where(np.arange(8)[:, None] >= [8, 7, 8, 6, 8, 8], -100, labels)))
    return step, batches
