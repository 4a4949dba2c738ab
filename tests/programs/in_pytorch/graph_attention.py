from __future__ import annotations

import numpy as np
import torch
from programs.drawn import Batches, Draw
from programs.graph_attention import NODES
from torch import nn


class GraphAttentionLayer(nn.Module):
    def __init__(self, features: int, hidden: int, heads: int, concat: bool) -> None:
        super().__init__()
        self.hidden, self.heads, self.concat = hidden, heads, concat
        self.W = nn.Parameter(torch.zeros(heads * hidden, features))
        self.a = nn.Parameter(torch.zeros(heads, 2 * hidden))
        self.leakyrelu = nn.LeakyReLU(0.2)

    def forward(self, h: torch.Tensor, adjacency: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        h = (h @ self.W.T).view(-1, self.heads, self.hidden).permute(1, 0, 2)
        source, target = (h @ a.unsqueeze(2) for a in self.a.split(self.hidden, dim=1))
        e = self.leakyrelu(source + target.mT)
        attention = torch.where(adjacency > 0, e, -9e16).softmax(-1) * kept / 0.6
        h = attention @ h
        return h.permute(1, 0, 2).reshape(-1, self.heads * self.hidden) if self.concat else h.mean(0)


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gat1 = GraphAttentionLayer(8, 4, heads=4, concat=True)
        self.gat2 = GraphAttentionLayer(16, 3, heads=1, concat=False)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        x = nn.functional.elu(self.gat1(x, adjacency, kept[:4]))
        return self.gat2(x, adjacency, kept[4:]).log_softmax(1)


def program(draw: Draw) -> tuple[object, Batches]:
    model = GAT()
    for p in model.parameters():
        p.data = torch.tensor(draw(*p.shape, scale=0.5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, labels, links = draw(8, NODES, scale=1.0), draw.ids(3, NODES), draw.uniform(NODES, NODES) < 0.15
    adjacency = ((links | links.T | np.eye(NODES, dtype=bool)) * 1.0).astype(np.float32)

    def step(*batch: object) -> float:
        x, adjacency, labels, train, kept = (torch.tensor(part) for part in batch)
        loss = nn.functional.nll_loss(model(x.T, adjacency, kept)[train], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    train = np.arange(0, NODES, 2)
    return step, [(x, adjacency, labels[train], train, draw.uniform(5, NODES, NODES) < 0.6) for _ in range(6)]
