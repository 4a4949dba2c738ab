from __future__ import annotations

import torch
from programs.drawn import Batches, Draw
from programs.of_examples import filled_in_torch, words
from torch import nn
from torch.nn import functional


class AdditiveAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W_q, self.W_k, self.w_v = (nn.Linear(64, n, bias=False) for n in (64, 64, 1))

    def forward(self, queries, keys, seen):
        scores = self.w_v(torch.tanh(self.W_k(keys)[:, None] + self.W_q(queries)[:, :, None])).squeeze(-1)
        return torch.bmm(functional.softmax(torch.where(seen, scores, -1e6), -1), keys)


class Seq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.written, self.places = (nn.Embedding(n, 64) for n in (27, 27, 11))
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.attention = AdditiveAttention()
        self.decoder = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 27))

    def forward(self, word, lengths, so_far):
        seen = torch.arange(11) < lengths
        keys = self.encoder(self.read(word) + self.places.weight)
        whole = (keys * seen[:, :, None]).sum(1, keepdim=True) / lengths[:, :, None]
        queries = self.written(so_far) + self.places.weight + whole
        return self.decoder(torch.cat([queries, self.attention(queries, keys, seen[:, None])], -1))


def program(draw: Draw) -> tuple[object, Batches]:
    model = Seq2Seq()
    filled_in_torch(draw, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def step(*batch: object) -> float:
        word, lengths, so_far, following = (torch.tensor(x.T.copy()) for x in batch)
        loss = functional.cross_entropy(model(word, lengths, so_far).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, [words(draw) for _ in range(6)]
